"""The Open Inference Protocol, version 2, for models that answer in text: `inference.GRPCInferenceService`.

A request carries texts in the tensor `text_input`, and each becomes a request to an engine as one of glossa.v1 does.
Triton's stream of requests answers them in turn; an error of one is a message, and the next one is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from glossa.v1 import glossa_pb2 as pb
from glossa.version import VERSION
from service.adaptors.inference import open_inference_pb2 as oip
from service.adaptors.inference_options import InferenceOptions, inference_options
from service.adaptors.tensors import BYTES, Tensor, add_output, input_tensors
from service.adaptors.text_batch import named
from service.edge.admission.request_memory import message_bytes
from service.edge.calls.batches import merged
from service.edge.calls.budget import Slots
from service.edge.calls.call import Call
from service.edge.calls.record import together
from service.edge.models.served_model import ServedModel
from service.edge.observability.status import abort, shown, status_code
from service.edge.requests.catalog import DECODER_TASKS
from service.edge.rpcs.model_calls import submitted
from service.edge.rpcs.sentence_calls import SentenceCalls, WholeRequest
from service.edge.rpcs.servicer import Servicer
from service.errors import InvalidRequest, RequestError
from service.options import DecodingOptions
from service.request import Finished, FinishReason, HypothesisResult, Request
from service.settings.config import ServerSettings

TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
OUTPUTS = {TEXT_OUTPUT: BYTES, "finish_reason": BYTES, "prompt_tokens": "INT32", "generated_tokens": "INT32"}
HYPOTHESES = {"hypotheses": BYTES, "scores": "FP64"}  # where a request wants several
FINAL = "triton_final_response"
MODEL_VERSION = "1"
NAMES = {"text": f"{TEXT_INPUT}[{{}}]"}
MAX_TEXTS = 64  # of one request
EXTENSIONS = ("parameters",)


class Inference(NamedTuple):
    """One request of a client. shape: of its texts. echoes: in front of each answer. outputs: the names of the tensors
    that it wants; empty: all. texts: instead of requests, if one of them is translated sentence by sentence, each with
    its sentences."""

    model: ServedModel
    options: DecodingOptions
    requests: Sequence[Request]
    texts: Sequence[WholeRequest]
    shape: tuple[int, ...]
    echoes: Sequence[str]
    outputs: frozenset[str]
    is_streamed: bool


class OpenInference(SentenceCalls):
    """The RPCs of the service. Event-loop thread only."""

    FILE = oip.DESCRIPTOR
    PROBES = ("ServerLive", "ServerReady", "ModelReady")  # answered at once, as health checks are

    def __init__(self, glossa: Servicer, settings: ServerSettings, not_ready: Callable[[], Sequence[str]]) -> None:
        """not_ready: why the server or one of its models is not ready, or nothing."""
        super().__init__(glossa.catalog, glossa.preparation, glossa.items, log_text=settings.log_text)
        self._not_ready = not_ready

    async def ServerLive(self, _request: oip.ServerLiveRequest, _context: Any) -> oip.ServerLiveResponse:
        return oip.ServerLiveResponse(live=True)

    async def ServerReady(self, _request: oip.ServerReadyRequest, _context: Any) -> oip.ServerReadyResponse:
        return oip.ServerReadyResponse(ready=not self._not_ready())

    async def ModelReady(self, request: oip.ModelReadyRequest, context: Any) -> oip.ModelReadyResponse:
        try:
            _check_version(request.version)
            model = self.catalog.find(request.name)
        except RequestError as error:
            await abort(context, error, ())
            raise
        return oip.ModelReadyResponse(ready=model.pool.is_ready)

    async def ServerMetadata(self, _request: oip.ServerMetadataRequest, _call: Call) -> oip.ServerMetadataResponse:
        return oip.ServerMetadataResponse(name="glossa", version=VERSION, extensions=EXTENSIONS)

    async def ModelMetadata(self, request: oip.ModelMetadataRequest, call: Call) -> oip.ModelMetadataResponse:
        _check_version(request.version)
        model = self.find(request.name, call, *DECODER_TASKS)
        metadata = oip.ModelMetadataResponse.TensorMetadata
        return oip.ModelMetadataResponse(
            name=model.name,
            versions=[MODEL_VERSION],
            platform="glossa",
            inputs=[metadata(name=TEXT_INPUT, datatype=BYTES, shape=[-1])],
            outputs=[metadata(name=name, datatype=datatype, shape=[-1]) for name, datatype in OUTPUTS.items()],
        )

    async def ModelInfer(self, request: oip.ModelInferRequest, call: Call) -> oip.ModelInferResponse:
        inference = await self._inference(request, call, in_stream=False)
        return _response(request, inference, await self._answers(inference, call))

    async def ModelStreamInfer(
        self, requests: AsyncIterator[oip.ModelInferRequest], call: Call
    ) -> AsyncGenerator[oip.ModelStreamInferResponse, None]:
        async for request in requests:
            try:
                async with contextlib.aclosing(self._responses(request, call)) as responses:
                    async for response in responses:
                        yield oip.ModelStreamInferResponse(infer_response=response)
            except RequestError as error:
                call.record.fail(error)
                yield _failure(request, error)

    async def _responses(
        self, message: oip.ModelInferRequest, call: Call
    ) -> AsyncGenerator[oip.ModelInferResponse, None]:
        inference = await self._inference(message, call, in_stream=True)
        if not inference.is_streamed:
            response = _response(message, inference, await self._answers(inference, call))
            response.parameters[FINAL].bool_param = True
            yield response
            return
        if inference.texts:
            async with contextlib.aclosing(self._in_sentences(message, inference, call)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        (request,), (echo,) = inference.requests, inference.echoes
        async with submitted(inference.model, request, call) as events:
            finished = None
            while finished is None:
                text, _, finished = await events.piece()
                call.record.finish(finished)
                if text or finished:
                    text, echo = echo + text, ""
                    self._log_answer(call, text)
                    yield _piece(message, inference, text, finished)

    async def _inference(self, message: oip.ModelInferRequest, call: Call, *, in_stream: bool) -> Inference:
        """The request in a message. Raises InvalidRequest, and as `Catalog.find` does."""
        _check_version(message.model_version)
        model = self.find(message.model_name, call, *DECODER_TASKS)

        def build() -> Inference:
            inputs = input_tensors(message)
            texts = next((tensor for tensor in inputs if tensor.name == TEXT_INPUT), None)
            if texts is None or texts.datatype != BYTES or not 1 <= len(texts.values) <= MAX_TEXTS:
                raise InvalidRequest(f"inputs[{TEXT_INPUT}]", f"must be 1..{MAX_TEXTS} texts of datatype {BYTES}")
            options = inference_options(message, [tensor for tensor in inputs if tensor is not texts])
            is_streamed = _is_streamed(options, len(texts.values), in_stream=in_stream)
            if self.log_text:
                call.record.note(text="\n".join(texts.values))
            if options.timeout_s is not None:
                latest_s = min(call.rpc.deadline_s, time.monotonic() + options.timeout_s)
                call.limit(call.rpc._replace(deadline_s=latest_s))
            split = self._split_texts(model, texts.values, options)
            requests = [] if split else self._requests(model, texts.values, options, call, is_streamed=is_streamed)
            return Inference(
                model,
                options.decoding,
                requests,
                split,
                texts.shape,
                texts.values if options.decoding.echo else ("",) * len(texts.values),
                _outputs(message),
                is_streamed,
            )

        inference = await self.built(build, message, call)
        call.budget.memory.grow((len(inference.echoes) - 1) * message_bytes(0))
        return inference

    def _requests(
        self, model: ServedModel, texts: Sequence[str], options: InferenceOptions, call: Call, *, is_streamed: bool
    ) -> list[Request]:
        builder, requests = self.builder(model, call), []
        # A model without an encoder translates where languages are named, and else continues the text.
        languages = options.languages if model.has_source or any(options.languages) else None
        for index, text in enumerate(texts):
            with named(NAMES, index):
                requests.append(builder.decoding(text, options.decoding, languages, is_streamed=is_streamed))
        return requests

    async def _answers(self, inference: Inference, call: Call) -> list[tuple[str, Finished]]:
        """The whole answers, in the order of their texts. If one fails, the others are cancelled."""
        if inference.texts:
            return await self._answers_in_sentences(inference, call)
        answers = []
        async with contextlib.AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(submitted(inference.model, request, call))
                for request in inference.requests
            ]
            for events, echo in zip(streams, inference.echoes, strict=True):
                text, _, finished = await events.piece()
                assert finished is not None, "the answer of a request that is not streamed is one piece"
                answers.append((echo + text, finished))
            call.record.finish(together([finished for _, finished in answers]))
        self._log_answer(call, "\n".join(text for text, _ in answers))
        return answers

    def _split_texts(self, model: ServedModel, texts: Sequence[str], options: InferenceOptions) -> list[WholeRequest]:
        """The sentences of all texts, or none if no text has several that are translated one by one."""
        if model.manifest.task != "translation":
            if options.translation.HasField("split_sentences") or options.translation.splitter_language:
                raise InvalidRequest("parameters.split_sentences", "must be left out: the model translates nothing")
            return []
        messages = [merged(pb.TranslateRequest(text=text), options.translation) for text in texts]
        limits = self.catalog.limits_of(model)
        for index, message in enumerate(messages):
            with named(NAMES, index):
                limits.check_text(message.text)
        return self.split_together(messages, model)

    async def _answers_in_sentences(self, inference: Inference, call: Call) -> list[tuple[str, Finished]]:
        """As `_answers`. All sentences share what the model gives a call."""
        call.budget.share(Slots(inference.model.pool.window))

        async def answer(index: int) -> pb.TranslateResponse:
            message, text = inference.texts[index]
            with named(NAMES, index):
                return await self.in_sentences(text, message, inference.model, call, self._sentence)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answer(index)) for index in range(len(inference.texts))]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        responses = [task.result() for task in tasks]
        self._log_answer(call, "\n".join(response.text for response in responses))
        return [(response.text, _finished(response)) for response in responses]

    async def _sentence(self, model: ServedModel, message: Any, call: Call) -> pb.TranslateResponse:
        return pb.TranslateResponse(**await self.unary(model, message, call))

    async def _in_sentences(
        self, message: oip.ModelInferRequest, inference: Inference, call: Call
    ) -> AsyncGenerator[oip.ModelInferResponse, None]:
        """The responses of a stream whose text is translated sentence by sentence."""
        ((request, text),) = inference.texts
        stream = self.stream_in_sentences(text, request, inference.model, call, self.stream_translated)
        with named(NAMES, 0):
            async with contextlib.aclosing(stream) as pieces:
                async for piece in pieces:
                    yield _piece(
                        message, inference, piece.text, _finished(piece.final) if piece.HasField("final") else None
                    )

    def _log_answer(self, call: Call, text: str) -> None:
        if self.log_text:
            call.record.note_answer(text)


def _check_version(version: str) -> None:
    if version not in ("", MODEL_VERSION):
        raise InvalidRequest("model_version", f"must be {MODEL_VERSION} or empty, got {version!r:.40}")


def _is_streamed(options: InferenceOptions, texts: int, *, in_stream: bool) -> bool:
    """Whether an answer is sent as it grows: in a stream of requests, where that is possible and not switched off."""
    decoding = options.decoding
    can_stream = in_stream and texts == 1 and decoding.num_sequences == 1
    if options.stream and not can_stream:
        need = "one text and num_sequences 1" if in_stream else "ModelStreamInfer"
        raise InvalidRequest("parameters.stream", f"must be false or left out: streaming needs {need}")
    return can_stream and options.stream is not False


def _outputs(message: oip.ModelInferRequest) -> frozenset[str]:
    known = {**OUTPUTS, **HYPOTHESES}
    for output in message.outputs:
        if output.name not in known:
            raise InvalidRequest(f"outputs[{output.name:.40}]", f"unknown; known: {', '.join(known)}")
        if output.parameters:
            given = ", ".join(output.parameters)
            raise InvalidRequest(f"outputs[{output.name}]", f"must have no parameters, got {given:.40}")
    return frozenset(output.name for output in message.outputs)


def _finished(answer: pb.TranslateResponse | pb.Completion) -> Finished:
    """The end of a text that was translated sentence by sentence."""
    return Finished(
        _reason(answer.finish_reason),
        prompt_tokens=answer.usage.prompt_tokens,
        generated_tokens=answer.usage.generated_tokens,
        hypotheses=tuple(
            HypothesisResult(one.text, (), _reason(one.finish_reason), one.score, one.cumulative_logprob, ())
            for one in answer.hypotheses
        ),
    )


def _reason(number: Any) -> FinishReason:
    return FinishReason(pb.FinishReason.Name(number).removeprefix("FINISH_REASON_").lower())


def _empty_response(message: oip.ModelInferRequest, model: str) -> oip.ModelInferResponse:
    return oip.ModelInferResponse(model_name=model, model_version=MODEL_VERSION, id=message.id)


def _response(
    message: oip.ModelInferRequest, inference: Inference, answers: Sequence[tuple[str, Finished]]
) -> oip.ModelInferResponse:
    """The tensors of whole answers."""
    response, shape = _empty_response(message, inference.model.name), inference.shape
    values: dict[str, tuple[tuple[int, ...], list[Any]]] = {
        TEXT_OUTPUT: (shape, [text for text, _ in answers]),
        "finish_reason": (shape, [finished.reason.value for _, finished in answers]),
        "prompt_tokens": (shape, [finished.prompt_tokens for _, finished in answers]),
        "generated_tokens": (shape, [finished.generated_tokens for _, finished in answers]),
    }
    if inference.options.returns_hypotheses:
        width = max(len(finished.hypotheses) for _, finished in answers)
        texts, scores = list[str](), list[float]()
        for echo, (_, finished) in zip(inference.echoes, answers, strict=True):
            missing = width - len(finished.hypotheses)
            texts += [echo + one.text for one in finished.hypotheses] + [""] * missing
            scores += [one.score for one in finished.hypotheses] + [math.nan] * missing
        values |= {"hypotheses": ((*shape, width), texts), "scores": ((*shape, width), scores)}
    for name, (dimensions, elements) in values.items():
        if not inference.outputs or name in inference.outputs:
            add_output(response, Tensor(name, {**OUTPUTS, **HYPOTHESES}[name], dimensions, elements))
    return response


def _piece(
    message: oip.ModelInferRequest, inference: Inference, text: str, finished: Finished | None
) -> oip.ModelInferResponse:
    """More of a streamed answer; its end also has the other tensors."""
    if finished is not None:
        response = _response(message, inference, [(text, finished)])
    else:
        response = _empty_response(message, inference.model.name)
        add_output(response, Tensor(TEXT_OUTPUT, BYTES, inference.shape, [text]))
    response.parameters[FINAL].bool_param = finished is not None
    return response


def _failure(message: oip.ModelInferRequest, error: RequestError) -> oip.ModelStreamInferResponse:
    """The error of one request of a stream: the name of its status code, and its text."""
    response = _empty_response(message, message.model_name)
    response.parameters[FINAL].bool_param = True
    return oip.ModelStreamInferResponse(
        error_message=f"{status_code(error).name}: {shown(str(error))}", infer_response=response
    )
