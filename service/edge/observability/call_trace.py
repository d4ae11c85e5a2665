"""What is traced of one RPC (`CallTrace`): the ids of its trace, and its spans once it has ended (`CallTrace.spans`).

The names of attributes are OpenTelemetry's, for RPCs and for generative models, where it has one. Texts, metadata and
messages of errors are never part of a span. Nothing here knows the library, which `tracing` alone uses.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from service.edge.observability.metrics import Method
from service.errors import RequestError
from service.progress import Stage, Timings
from service.request import Finished, FinishReason, Request

TRACE_PARENT, TRACE_STATE = "traceparent", "tracestate"  # https://www.w3.org/TR/trace-context/
PARENT = re.compile(
    r"(?!ff)(?!00-.{53})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
MAX_STATE = 512  # characters of `tracestate`; a longer one is left out
SERVER_FAULTS = frozenset({2, 4, 12, 13, 14, 15})  # codes that make the status of a server's span an error
FINISH_REASONS = {
    FinishReason.END_OF_SEQUENCE: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
}
_IDS = random.Random()  # names, not secrets

Value = str | int | float | list[str]


class Span(NamedTuple):
    """One span of a call. parent_id: 0: none. is_error: the server failed, not the client."""

    name: str
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    is_server: bool = False
    is_error: bool = False


class Work(NamedTuple):
    """What a span needs of one request to an engine. stage: in which it ended, if without an answer. timings: None if
    its engine did not report any. left_s, ended_s: when it left for an engine, and when its end arrived."""

    model: str
    has_encoder: bool
    has_decoder: bool
    max_tokens: int
    left_s: float
    ended_s: float
    prompt_tokens: int = 0
    generated_tokens: int = 0
    timings: Timings | None = None
    reason: FinishReason | None = None
    stage: Stage | None = None


class End(NamedTuple):
    """How a call ended. code: the number of a gRPC status. reason: of its error, or empty."""

    now_s: float
    code: int
    reason: str
    model: str


class CallTrace:
    """A sampled call. Its clocks meet when it begins: spans have the time of day, everything else a monotonic clock."""

    def __init__(
        self,
        method: Method,
        request_id: str,
        parent: re.Match[str] | None,
        state: str,
        began_s: float,
        ended: Callable[[CallTrace], None],
    ) -> None:
        """parent: of PARENT, if the client sent one. state: its `tracestate`. ended: called once, when the call and all
        of its requests to engines have ended."""
        self.method, self.request_id, self.state = method, request_id, state
        self.trace_id = parent[1] if parent else f"{_new_id(128):032x}"
        self.parent_id = int(parent[2], 16) if parent else 0
        self.began_s, self.began_ns = began_s, time.time_ns()
        self._ended = ended
        self._works: list[Work] = []
        self._expected = 0  # requests whose engines have not reported their ends
        self.items: Mapping[str, Value] = {}  # attributes of a call with many items, which have no spans
        self._end: End | None = None

    def expect(self, model: str, request: Request, left_s: float) -> Callable[[Finished | RequestError], None]:
        """A request of the call has left for an engine. Returns what takes its end, which may come after that of the
        call: a client that goes away, or whose deadline passes, does not wait for it. left_s: on the clock of
        `time.monotonic`."""
        self._expected += 1
        asked = model, bool(request.source), bool(request.prompt), request.max_tokens, left_s
        return partial(self._add, asked)

    def _add(self, asked: tuple[str, bool, bool, int, float], end: Finished | RequestError) -> None:
        work = Work(*asked, time.monotonic())
        if isinstance(end, Finished):  # to which arrays may belong: only numbers stay
            work = Work(*work[:6], end.prompt_tokens, end.generated_tokens, end.timings, end.reason)
        elif (progress := end.progress) is not None:
            tokens = progress.prompt_tokens, progress.generated_tokens
            work = Work(*work[:6], *tokens, progress.timings, stage=progress.stage)
        self._works.append(work)
        self._expected -= 1
        if self._end is not None and not self._expected:
            self._ended(self)

    def end(self, now_s: float, code: int, error: RequestError | None, model: str = "") -> None:
        """The call has ended. now_s: on the clock of `began_s`. code: the number of its status. model: if it named
        one."""
        assert self._end is None, "a call ends once"
        self._end = End(now_s, code, error.reason if error else "", model)
        if not self._expected:
            self._ended(self)

    def spans(self) -> list[Span]:
        """The server span, and for each request to an engine its children."""
        assert self._end is not None, "the call has not ended"
        end, server_id = self._end, _new_id(64)
        attributes: dict[str, Value] = {
            "rpc.system": "grpc",
            "rpc.service": self.method.service,
            "rpc.method": self.method.name,
            "rpc.grpc.status_code": end.code,
            "glossa.request_id": self.request_id,
            **({"error.type": end.reason} if end.reason else {}),
            **_usage(self._works, end.model),
            **self.items,
        }
        server = Span(
            self.method.path,
            server_id,
            self.parent_id,
            self._ns(self.began_s),
            self._ns(end.now_s),
            attributes,
            is_server=True,
            is_error=end.code in SERVER_FAULTS,
        )
        return [server, *[span for work in self._works for span in self._children(work, server_id)]]

    def _children(self, work: Work, server_id: int) -> Iterator[Span]:
        """The stages of a request in its engine, each from the end of the one before; of one whose engine was lost, the
        time that it took altogether."""
        timings = work.timings
        if timings is None:
            yield Span("engine", _new_id(64), server_id, self._ns(work.left_s), self._ns(work.ended_s), {})
            return
        tokens: dict[str, Value] = {"gen_ai.usage.output_tokens": work.generated_tokens}
        if work.has_decoder and work.stage in (None, "decode"):
            tokens["glossa.ttft_s"] = round(timings.first_token_s, 6)
        stages: list[tuple[str, bool, float, dict[str, Value]]] = [
            ("queue", True, timings.queue_s, {}),
            ("encode", work.has_encoder, timings.encoded_s, {}),
            ("prefill", work.has_decoder, timings.prefilled_s, {"gen_ai.usage.input_tokens": work.prompt_tokens}),
            ("decode", work.has_decoder, timings.total_s, tokens),
        ]
        start_ns = self._ns(timings.arrived_s)
        for name, is_there, until_s, attributes in stages:
            if is_there:
                end_ns = max(start_ns, self._ns(timings.arrived_s + until_s))
                yield Span(name, _new_id(64), server_id, start_ns, end_ns, attributes)
                start_ns = end_ns
            if name == work.stage:
                return

    def _ns(self, seconds: float) -> int:
        """The time of day of a time within the call. An engine process may send any number, and one that is none."""
        assert self._end is not None
        seconds = max(self.began_s, min(self._end.now_s, seconds))
        return self.began_ns + round((seconds - self.began_s) * 1e9)


class Sampler:
    """Which calls are traced: those whose client traces them, and a share of those without a parent."""

    def __init__(self, ratio: float) -> None:
        """ratio: the share, 0 to 1."""
        self._bound = ratio

    def samples(self, parent: re.Match[str] | None) -> bool:
        """Whether a call is traced. The client decides for its own traces, so that they are whole."""
        return bool(int(parent[3], 16) & 1) if parent else _IDS.random() < self._bound


def state_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The `tracestate` of a call, several joined, or empty."""
    state = ",".join([value for key, value in metadata if key == TRACE_STATE and isinstance(value, str)])
    return state if len(state) <= MAX_STATE else ""


def _usage(works: list[Work], model: str) -> dict[str, Value]:
    """Attributes of all requests of a call together. model: that of a call without any."""
    if not works:
        return {"gen_ai.request.model": model} if model else {}
    attributes: dict[str, Value] = {
        "gen_ai.request.model": works[-1].model,
        "gen_ai.operation.name": "text_completion" if works[0].has_decoder else "embeddings",
        "gen_ai.provider.name": "glossa",
    }
    if works[0].has_decoder:
        attributes["gen_ai.request.max_tokens"] = max(work.max_tokens for work in works)
    if any(work.timings is not None for work in works):
        attributes["gen_ai.usage.input_tokens"] = sum(work.prompt_tokens for work in works)
        attributes["gen_ai.usage.output_tokens"] = sum(work.generated_tokens for work in works)
    if reasons := [FINISH_REASONS[work.reason] for work in works if work.reason in FINISH_REASONS]:
        attributes["gen_ai.response.finish_reasons"] = reasons
    return attributes


def _new_id(bits: int) -> int:
    return _IDS.getrandbits(bits) or 1
