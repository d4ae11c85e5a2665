"""What has become of a call (`Record`), and its report when it ends: a log line, metrics, a span (`report`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import grpc

from service.edge.calls.rpc import Rpc
from service.edge.models.served_model import ServedModel
from service.edge.observability import logs
from service.edge.observability.call_trace import CallTrace, Value
from service.edge.observability.metrics import Metrics
from service.edge.observability.status import status_code
from service.errors import ENDS, REJECTIONS, MessagesMissing, RequestError
from service.progress import Timings
from service.request import Finished

REQUEST_ID = "x-request-id"
BUNDLE, VERSION = "x-glossa-bundle-sha256", "x-glossa-version"
AGE = "x-glossa-cache-age-s"


class ItemFigures(Protocol):
    """The items of one call."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """For the log line of the call."""

    @property
    def attributes(self) -> Mapping[str, Value]:
        """For the span of the call."""


class Record:
    """Of one call, or of one item of a call. A stream of requests has one request after the other (`begin_request`).

    trace: None for a call that is not sampled. messages: that were sent. items: of a call that has some.
    """

    def __init__(self, trace: CallTrace | None = None) -> None:
        self.trace, self.messages = trace, 0
        self.items: ItemFigures | None = None
        self.begin_request()

    def begin_request(self) -> None:
        """Forgets the request before."""
        self.model = self.version = self.bundle_sha256 = ""
        self.is_accepted = False  # by the pool: errors of ENDS are counted with its engines
        self.finished: Finished | None = None
        self._unknown_tokens: int | None = None  # of its source and prompt
        self.confidences = list[float]()  # of its answers
        self.error: RequestError | None = None  # that was answered by a message of the stream
        self.kept_s: float | None = None  # the age of its answer, or of the oldest part, that the answer cache had
        self.texts: dict[str, str] = {}  # for the log; empty unless the operator enables log_text

    def use(self, model: ServedModel) -> None:
        """The request is for this version of a model."""
        self.model, self.version, self.bundle_sha256 = model.name, model.version, model.bundle_sha256

    def accept(self) -> None:
        """The pool of the model has accepted the request."""
        self.is_accepted = True

    def note_unknown(self, tokens: int) -> None:
        """So many tokens of its source and prompt are unknown. What is asked of models after that, to replace its
        answer or to translate it on, changes neither them nor its prompt's tokens."""
        if self._unknown_tokens is None:
            self._unknown_tokens = tokens

    @property
    def unknown_tokens(self) -> int:
        """Of its source and prompt, and of its parts."""
        return self._unknown_tokens or 0

    def note_confidence(self, confidence: float) -> None:
        """An answer has this calibrated confidence."""
        self.confidences.append(confidence)

    def reuse(self, age_s: float) -> None:
        """The answer cache had the answer, or a part of it."""
        self.kept_s = max(age_s, self.kept_s or 0.0)

    @property
    def is_kept(self) -> bool:
        """Whether the answer cache had all of the answer."""
        return self.kept_s is not None and not self.is_accepted

    def finish(self, finished: Finished | None) -> None:
        """What the engine computed for the request; None if that is not known."""
        self.finished = finished

    def join(self, part: Record) -> None:
        """A part of the request has ended."""
        self.is_accepted |= part.is_accepted
        if part.kept_s is not None:
            self.reuse(part.kept_s)
        self._unknown_tokens = self.unknown_tokens + part.unknown_tokens
        self.confidences += part.confidences
        if part.finished is not None:
            self.finished = together([part.finished] if self.finished is None else [self.finished, part.finished])

    def fail(self, error: RequestError) -> None:
        """The request was answered by a message that holds an error."""
        self.error = error

    def note(self, **texts: str) -> None:
        """Texts for the log."""
        self.texts |= texts

    def note_answer(self, text: str) -> None:
        """The next piece of the answer, for the log."""
        self.texts["answer"] = self.texts.get("answer", "") + text

    def count_items(self, items: ItemFigures) -> None:
        """The call has items."""
        self.items = items

    def sent(self) -> None:
        """A message was sent."""
        self.messages += 1

    def trailers(self, request_id: str) -> tuple[tuple[str, str], ...]:
        """Trailing metadata: the request id, the version and bundle that answered, the server's timings, and the age of
        an answer that the answer cache had as a whole."""
        parts: dict[str, float] = {}
        if self.finished is not None:
            timings = self.finished.timings
            decode_s = max(0.0, timings.total_s - timings.queue_s - timings.prefill_s)
            parts = {"queue": timings.queue_s, "prefill": timings.prefill_s, "decode": decode_s}
        times = [(f"x-glossa-{name}-ms", f"{seconds * 1000:.3f}") for name, seconds in parts.items()]
        bundle = ((VERSION, self.version), (BUNDLE, self.bundle_sha256)) if self.bundle_sha256 else ()
        age = ((AGE, f"{self.kept_s:.3f}"),) if self.is_kept else ()
        return ((REQUEST_ID, request_id), *bundle, *times, *age)


def together(finished: Sequence[Finished]) -> Finished:
    """The ends of several answers, at least one, as that of one: the sum of tokens, the time from the first arrival to
    the first token and to the last end, the longest wait and prefill."""
    if len(finished) == 1:
        return finished[0]
    timings = [one.timings for one in finished]
    arrived_s = min(one.arrived_s for one in timings)
    return Finished(
        finished[0].reason,
        prompt_tokens=sum(one.prompt_tokens for one in finished),
        generated_tokens=sum(one.generated_tokens for one in finished),
        timings=Timings(
            queue_s=max(one.queue_s for one in timings),
            prefill_s=max(one.prefill_s for one in timings),
            first_token_s=min(one.arrived_s + one.first_token_s for one in timings) - arrived_s,
            total_s=max(one.arrived_s + one.total_s for one in timings) - arrived_s,
            arrived_s=arrived_s,
        ),
    )


def report(rpc: Rpc, record: Record, error: RequestError | None, metrics: Metrics, now_s: float) -> None:
    """Counts and logs a call that has ended. now_s: on the clock of `rpc.started_s`."""
    code, seconds = status_code(error) if error else grpc.StatusCode.OK, now_s - rpc.started_s
    metrics.rpc_handled(rpc.method, code=code.value[0], seconds=seconds, messages=record.messages)
    metrics.tenants.ended(rpc.caller.tenant, code.value[0])
    report_request(rpc, record, error, metrics, rpc.started_s, now_s)
    if record.trace is not None:
        if record.items is not None:
            record.trace.items = record.items.attributes
        record.trace.end(now_s, code.value[0], error, record.model)


def count_request(
    rpc: Rpc, record: Record, error: RequestError | None, metrics: Metrics, started_s: float, now_s: float
) -> None:
    """Counts a request that has ended."""
    if isinstance(error, REJECTIONS) and not (record.is_accepted and isinstance(error, ENDS)):
        metrics.request_rejected(error, record.model, record.version)
    if (finished := record.finished) is None:
        return
    if (error is not None or now_s >= rpc.deadline_s) and not record.is_kept:
        metrics.tokens_wasted(record.model, record.version, finished.generated_tokens)
    if error is None:
        metrics.request_answered(
            record.model,
            record.version,
            rpc.caller.tenant,
            seconds=now_s - started_s,
            first_token_s=finished.timings.first_token_s,
            prompt_tokens=finished.prompt_tokens,
            generated_tokens=finished.generated_tokens,
            trace_id=rpc.exemplar,
        )
        metrics.traffic_seen(record.model, record.version, record.unknown_tokens, record.confidences)


def report_request(
    rpc: Rpc, record: Record, error: RequestError | None, metrics: Metrics, started_s: float, now_s: float
) -> None:
    """Counts and logs a request of a call that has ended. One without a message is not logged."""
    code = status_code(error) if error else grpc.StatusCode.OK
    count_request(rpc, record, error, metrics, started_s, now_s)
    if isinstance(error, MessagesMissing):
        return
    fields: dict[str, Any] = {
        "request_id": rpc.request_id,
        "method": rpc.method.path,
        "code": code.name,
        "model": record.model,
        "total_s": round(now_s - started_s, 6),
    }
    if rpc.caller.tenant:
        fields["tenant"] = rpc.caller.tenant
    if rpc.trace_id:
        fields["trace_id"] = rpc.trace_id
    if error:
        fields["reason"] = error.reason
    if finished := record.finished:
        fields |= {
            "prompt_tokens": finished.prompt_tokens,
            "generated_tokens": finished.generated_tokens,
            "queue_s": round(finished.timings.queue_s, 6),
            "ttft_s": round(finished.timings.first_token_s, 6),
        }
    if record.kept_s is not None:
        fields["cache_age_s"] = round(record.kept_s, 3)
    if record.items is not None:
        fields |= record.items.fields
    logs.event("request", fields | record.texts)
