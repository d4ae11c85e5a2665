"""One RPC in progress (`Call`), and the report of its end: its log line and its metrics (`report`)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import grpc

from service.edge.admission.request_memory import Reservation
from service.edge.models.served_model import ServedModel
from service.edge.observability import logs
from service.edge.observability.call_trace import CallTrace, Value
from service.edge.observability.metrics import Metrics, Rpc
from service.edge.observability.status import status_code
from service.edge.requests.prompt_encoder import ContextSentence
from service.errors import ENDS, REJECTIONS, MemoryLimit, MessagesMissing, RequestError, Retryable
from service.request import Caller, Finished

REQUEST_ID = "x-request-id"
BUNDLE = "x-glossa-bundle-sha256"


Wait = Callable[[Retryable, float], Awaitable[None]]
"""Returns when to try again what was refused with an error. Raises the error at a deadline."""


class Items(Protocol):
    """The items of one call."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """For the log line of the call."""

    @property
    def attributes(self) -> Mapping[str, Value]:
        """For the span of the call."""


class Call:
    """One RPC in progress: its id, its deadline, and the fields of its log line."""

    def __init__(
        self,
        rpc: Rpc,
        request_id: str,
        trace_id: str,
        started_s: float,
        deadline_s: float,
        caller: Caller,
        peer: str,
        memory: Reservation,
    ) -> None:
        self.rpc, self.request_id, self.started_s, self.deadline_s = rpc, request_id, started_s, deadline_s
        self.client_deadline_s = math.inf  # `deadline_s` is that of the server if that comes first
        self.peer = peer  # its connection, as gRPC names it
        self.trace_id = self.exemplar = trace_id  # of the client's distributed trace, or empty
        self.trace: CallTrace | None = None
        self.caller, self.memory = caller, memory
        self.messages = 0  # sent
        self.task: asyncio.Task[Any] | None = None
        self.ended_by: RequestError | None = None  # by the server, before its answer was complete
        self.is_between_requests = False  # a stream of requests waits for the next one
        self.is_draining = False  # the server ends: a call with items that has not begun begins none
        self.on_drain: Callable[[], object] | None = None  # of a call with items: it must begin no more of them
        self.wait_for_room: Wait | None = None  # of an item: where others are refused, it waits
        self.items: Items | None = None  # of a call that has some
        self.pinned: ServedModel | None = None  # of an item: the model of its call
        self._used: ServedModel | None = None
        self.begin_request()

    def trace_with(self, trace: CallTrace | None) -> None:
        """Notes the call's own trace, None if it is not sampled: metrics then refer to none, as none will be found."""
        self.trace, self.exemplar = trace, trace.trace_id if trace else ""
        self.trace_id = self.exemplar or self.trace_id

    def drain(self) -> None:
        """The server ends."""
        self.is_draining = True
        if self.on_drain is not None:
            self.on_drain()

    def begin_request(self) -> None:
        """Forgets the request before and leaves its model: a stream of requests has one after the other."""
        self.leave()
        self.model, self._used = "", None
        self.is_accepted = False  # by the pool: errors of ENDS are counted with its engines
        self.finished: Finished | None = None
        self.error: RequestError | None = None  # that was answered by a message of the stream
        self.context: tuple[ContextSentence, ...] = ()  # of a text of a document: the sentences before it
        self.texts: dict[str, str] = {}  # for the log; empty unless the operator enables log_text

    def item(self, number: int, started_s: float, deadline_s: float, memory: Reservation, wait_for_room: Wait) -> Call:
        """The call of one of its items, of the same version of the same model. number: among its items, from 0."""
        assert self._used is not None, "the call has no model"
        request_id = f"{self.request_id}/{number}"
        item = Call(self.rpc, request_id, self.trace_id, started_s, deadline_s, self.caller, self.peer, memory)
        item.exemplar, item.pinned, item.wait_for_room = self.exemplar, self._used, wait_for_room
        return item

    async def wait(self, error: Retryable) -> None:
        """Returns when it is time to try again what was refused. Raises `error` of a call that does not wait."""
        if self.wait_for_room is None:
            raise error
        await self.wait_for_room(error, self.deadline_s)

    async def reserve(self, size: int) -> None:
        """Reserves memory. An item for which there is none waits, and gives back what it has reserved meanwhile: items
        that each have a part of what they need would wait for each other. Raises MemoryLimit."""
        while True:
            try:
                self.memory.grow(size)
                return
            except MemoryLimit as error:
                if self.wait_for_room is None:
                    raise
                size += self.memory.size
                self.memory.release()
                await self.wait_for_room(error, self.deadline_s)

    def use(self, model: ServedModel) -> None:
        """The request is for this version of a model, which stays open until `leave`."""
        assert self._used is None, self.model
        self.model, self._used = model.name, model
        model.users.enter()

    def leave(self) -> None:
        """The call needs its model no longer."""
        if self._used is not None:
            self._used.users.leave()

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata: the request id, the bundle that answered and the server's timings."""
        parts: dict[str, float] = {}
        if self.finished is not None:
            timings = self.finished.timings
            decode_s = max(0.0, timings.total_s - timings.queue_s - timings.prefill_s)
            parts = {"queue": timings.queue_s, "prefill": timings.prefill_s, "decode": decode_s}
        times = [(f"x-glossa-{name}-ms", f"{seconds * 1000:.3f}") for name, seconds in parts.items()]
        bundle = () if self._used is None else ((BUNDLE, self._used.bundle_sha256),)
        return ((REQUEST_ID, self.request_id), *bundle, *times)


def report(call: Call, error: RequestError | None, metrics: Metrics, now_s: float) -> None:
    """Counts and logs a call that has ended. now_s: on the clock of `call.started_s`."""
    code, seconds = status_code(error) if error else grpc.StatusCode.OK, now_s - call.started_s
    metrics.rpc_handled(call.rpc, code=code.value[0], seconds=seconds, messages=call.messages)
    report_request(call, error, metrics, call.started_s, now_s)
    if call.trace is not None:
        if call.items is not None:
            call.trace.items = call.items.attributes
        call.trace.end(now_s, code.value[0], error, call.model)


def count_request(call: Call, error: RequestError | None, metrics: Metrics, seconds: float, now_s: float) -> None:
    """Counts a request that has ended, after so many seconds."""
    if isinstance(error, REJECTIONS) and not (call.is_accepted and isinstance(error, ENDS)):
        metrics.request_rejected(error, call.model)
    if (finished := call.finished) is None:
        return
    if error is not None or now_s >= call.deadline_s:
        metrics.tokens_wasted(call.model, finished.generated_tokens)
    if error is None:
        metrics.request_answered(
            call.model,
            call.caller.tenant,
            seconds=seconds,
            prompt_tokens=finished.prompt_tokens,
            generated_tokens=finished.generated_tokens,
            trace_id=call.exemplar,
        )


def report_request(call: Call, error: RequestError | None, metrics: Metrics, started_s: float, now_s: float) -> None:
    """Counts and logs a request of a call that has ended. One without a message is not logged."""
    code, seconds = status_code(error) if error else grpc.StatusCode.OK, now_s - started_s
    count_request(call, error, metrics, seconds, now_s)
    if isinstance(error, MessagesMissing):
        return
    fields: dict[str, Any] = {
        "request_id": call.request_id,
        "method": f"{call.rpc.service}/{call.rpc.method}",
        "code": code.name,
        "model": call.model,
        "total_s": round(seconds, 6),
    }
    if call.caller.tenant:
        fields["tenant"] = call.caller.tenant
    if call.trace_id:
        fields["trace_id"] = call.trace_id
    if error:
        fields["reason"] = error.reason
    if finished := call.finished:
        fields |= {
            "prompt_tokens": finished.prompt_tokens,
            "generated_tokens": finished.generated_tokens,
            "queue_s": round(finished.timings.queue_s, 6),
            "ttft_s": round(finished.timings.first_token_s, 6),
        }
    if call.items is not None:
        fields |= call.items.fields
    logs.event("request", fields | call.texts)
