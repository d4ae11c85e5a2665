"""vLLM's engine protocol for a generation model, as gateways speak it: `vllm.grpc.engine.VllmEngine`.

A prompt comes as token ids and its answer leaves as token ids; the gateway has the tokenizer, from here or from its own
files. Requests of this protocol name no model, so a server with this adaptor serves exactly one that generates.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from export.bundle.manifest import Task
from glossa.version import VERSION
from service.adaptors.sampling_params import sampling_options
from service.adaptors.tokenizer_archive import tokenizer_archive
from service.adaptors.vllm import vllm_engine_pb2 as vllm
from service.edge.calls.call import Call
from service.edge.models.served_model import ServedModel
from service.edge.rpcs.model_calls import ModelCalls, submitted
from service.edge.rpcs.servicer import Servicer
from service.errors import Cancelled, InvalidRequest, StartupError
from service.request import Finished, FinishReason, HypothesisResult, Request
from service.settings.config import ServerSettings

TASK: Task = "generation"
SERVER_TYPE = "vllm-grpc"
CHUNK_BYTES = 1 << 16  # of an archive
UNSUPPORTED = ("kv_transfer_params", "kv_transfer_params_json", "mm_inputs", "media_refs")


class VllmEngine(ModelCalls):
    """The RPCs of the service. Event-loop thread only."""

    FILE = vllm.DESCRIPTOR
    PROBES = ("HealthCheck", "GetLoads")  # answered at once, as health checks are

    def __init__(self, glossa: Servicer, settings: ServerSettings, not_ready: Callable[[], Sequence[str]]) -> None:
        """not_ready: why the server or one of its models is not ready, or nothing. Raises StartupError unless one model
        generates."""
        super().__init__(glossa.catalog, glossa.preparation, log_text=settings.log_text)
        self._settings, self._not_ready = settings, not_ready
        self._started_s = time.monotonic()
        self._running: dict[tuple[str, str], Call] = {}  # by tenant and the request's own id
        found = [model.name for model in self.catalog if model.manifest.task == TASK]
        if len(found) != 1:
            raise StartupError(
                "adaptors: vllm needs exactly one generation model, as its requests name none; "
                f"served are {', '.join(found) or 'none'}"
            )

    async def HealthCheck(self, _request: vllm.HealthCheckRequest, _context: Any) -> vllm.HealthCheckResponse:
        problems = self._not_ready()
        return vllm.HealthCheckResponse(healthy=not problems, message="; ".join(problems))

    async def GetLoads(self, _request: vllm.GetLoadsRequest, _context: Any) -> vllm.GetLoadsResponse:
        model = self.catalog.find("", TASK)
        states, most = model.states(), self._max_running(model)
        running, waiting = sum(state.rows for state in states), sum(state.queued for state in states)
        load = vllm.SchedulerLoad(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            num_total_reqs=running + waiting,
            token_usage=max((state.kv_ratio for state in states), default=0.0),
            utilization=min(1.0, running / most),
            max_running_requests=most,
        )
        timestamp = datetime.now(UTC).isoformat()
        return vllm.GetLoadsResponse(timestamp=timestamp, version=VERSION, dp_rank_count=1, loads=[load])

    async def GetModelInfo(self, _request: vllm.GetModelInfoRequest, call: Call) -> vllm.GetModelInfoResponse:
        model = self.find("", call, TASK)
        tokens, limits = model.manifest.tokens, model.manifest.limits
        return vllm.GetModelInfoResponse(
            # Not its name: smg looks for tokenizers under this at a hub first, and then asks this server.
            model_path=f"bundle:{model.bundle_sha256}",
            served_model_name=model.name,
            is_generation=True,
            max_context_length=limits.max_target_len,
            max_req_input_len=model.max_prompt_tokens,
            vocab_size=limits.vocab_size,
            model_type="glossa",
            architectures=[model.manifest.architecture],
            eos_token_ids=tokens.ends,
            pad_token_id=tokens.pad,
            bos_token_id=tokens.bos,
        )

    async def GetServerInfo(self, _request: vllm.GetServerInfoRequest, call: Call) -> vllm.GetServerInfoResponse:
        return vllm.GetServerInfoResponse(
            active_requests=len(self._running),
            uptime_seconds=time.monotonic() - self._started_s,
            server_type=SERVER_TYPE,
            data_parallel_size=1,
            max_num_seqs=self._max_running(self.find("", call, TASK)),
        )

    async def GetTokenizer(
        self, request: vllm.GetTokenizerRequest, call: Call
    ) -> AsyncGenerator[vllm.GetTokenizerChunk, None]:
        model = self.find("", call, TASK)
        data = await self.built(lambda: tokenizer_archive(model), request, call, is_slow=True)
        digest = hashlib.sha256(data).hexdigest()
        for start in range(0, len(data), CHUNK_BYTES):
            is_last = start + CHUNK_BYTES >= len(data)
            yield vllm.GetTokenizerChunk(data=data[start : start + CHUNK_BYTES], sha256=digest if is_last else "")

    async def Abort(self, request: vllm.AbortRequest, call: Call) -> vllm.AbortResponse:
        for request_id in request.request_ids:
            running = self._running.get((call.rpc.caller.tenant, request_id))
            if running is not None:
                running.ending.end(Cancelled("the request was aborted"))
        return vllm.AbortResponse()

    async def Generate(self, message: vllm.GenerateRequest, call: Call) -> AsyncGenerator[vllm.GenerateResponse, None]:
        model = self.find("", call, TASK)
        request = await self.built(lambda: self._request(model, message, call), message, call)
        with self._known(message.request_id, call):
            async with submitted(model, request, call) as events:
                tokens, finished = list[int](), None
                while finished is None:
                    _, new, finished = await events.piece()
                    call.record.finish(finished)
                    tokens += new
                    if new and request.is_streamed:
                        yield _chunk(request, new, len(tokens))
                results = finished.hypotheses
            if not results:
                yield _complete(model, request, finished, tokens)
            for index, result in enumerate(results):
                if message.stream and not request.is_streamed:
                    yield _chunk(request, result.tokens, len(result.tokens), index, result)
                yield _complete(model, request, finished, result.tokens, index, result)

    def _max_running(self, model: ServedModel) -> int:
        return self._settings.max_rows * model.engines

    @contextlib.contextmanager
    def _known(self, request_id: str, call: Call) -> Iterator[None]:
        """Within it, Abort finds the request."""
        key = (call.rpc.caller.tenant, request_id or call.rpc.request_id)
        if key in self._running:
            raise InvalidRequest("request_id", f"must be of no other request that runs, got {request_id!r:.80}")
        self._running[key] = call
        try:
            yield
        finally:
            del self._running[key]

    def _request(self, model: ServedModel, message: vllm.GenerateRequest, call: Call) -> Request:
        for name in UNSUPPORTED:
            if message.HasField(name):
                raise InvalidRequest(name, "must be left out: the model reads text alone, in one place")
        if message.extra_mm_inputs:
            raise InvalidRequest("extra_mm_inputs", "must be left out: the model reads text alone")
        start = tuple(token for token in model.manifest.template.target_prefix if isinstance(token, int))
        text = message.text or message.tokenized.original_text
        if message.WhichOneof("input") == "text":
            prompt = (*start, *model.tokenizer.encode(message.text))
        else:
            prompt = tuple(message.tokenized.input_ids)
            prompt = prompt if prompt[: len(start)] == start else (*start, *prompt)
        if self.log_text:
            call.record.note(text=text)
        room = model.max_new_tokens(len(prompt))
        options = sampling_options(message.sampling_params, ends=model.manifest.tokens.ends, room=room)
        # The log-probabilities of an answer, and several answers, are known at its end.
        is_streamed = message.stream and not options.returns_hypotheses
        return self.builder(model, call).continuation(prompt, options, is_streamed=is_streamed)


def _chunk(
    request: Request, new: Sequence[int], generated: int, index: int = 0, result: HypothesisResult | None = None
) -> vllm.GenerateResponse:
    chunk = vllm.GenerateStreamChunk(
        token_ids=new, prompt_tokens=len(request.prompt), completion_tokens=generated, index=index
    )
    if result is not None and request.options.token_logprobs:
        chunk.output_logprobs.CopyFrom(_logprobs(result))
    return vllm.GenerateResponse(chunk=chunk)


def _complete(
    model: ServedModel,
    request: Request,
    finished: Finished,
    tokens: Sequence[int],
    index: int = 0,
    result: HypothesisResult | None = None,
) -> vllm.GenerateResponse:
    reason = result.reason if result is not None else finished.reason
    complete = vllm.GenerateComplete(
        output_ids=tokens,
        finish_reason="length" if reason is FinishReason.LENGTH else "stop",
        prompt_tokens=len(request.prompt),
        completion_tokens=len(tokens),
        index=index,
    )
    if reason is FinishReason.END_OF_SEQUENCE:
        complete.matched_token_id = tokens[-1]
    elif reason is FinishReason.STOP_STRING:
        text = model.tokenizer.decode(tokens)
        complete.matched_stop_str = next((stop for stop in request.stop if stop in text), request.stop[0])
    if result is not None and request.options.token_logprobs:
        complete.output_logprobs.CopyFrom(_logprobs(result))
    return vllm.GenerateResponse(complete=complete)


def _logprobs(result: HypothesisResult) -> vllm.OutputLogProbs:
    return vllm.OutputLogProbs(
        token_ids=result.tokens,
        token_logprobs=result.token_logprobs,
        top_logprobs=[
            vllm.TopLogProbs(token_ids=[token for token, _ in top], values=[logprob for _, logprob in top])
            for top in result.alternatives
        ],
    )
