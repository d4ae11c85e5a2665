"""What gRPC does between a client and `Calls`: deadlines, cancellations, flow control, the end of the server.

A client's plan (`CallPlan`) is fixed before its call begins. Handlers get a context as those of `grpc.aio`: a call ends
once, and everything after its end is a violation.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from bench.simulation.answers import Answers
from bench.simulation.ledger import Ledger
from bench.simulation.loop import SimulatedLoop
from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.calls import Calls
from service.edge.calls.record import REQUEST_ID
from service.edge.observability.metrics import Method
from service.edge.rpcs.rpc_handlers import parser_of

STATUS_DETAILS = "grpc-status-details-bin"
NO_MESSAGE = b"\xff\xff\xff"


class CallPlan(NamedTuple):
    """A client's call. Times are seconds from its beginning.

    message: None for bytes that are no message; EOF for a call that ends without one. message_s: None: it never comes.
    leaves_s: when the client goes away. reads_s: how long it takes for each message of a stream; None: it reads none.
    later: further messages of a stream, and EOF at its end, each with the seconds since the one before.
    """

    name: str
    rpc: Method
    message: Message | object | None
    message_s: float | None
    timeout_s: float | None
    leaves_s: float | None = None
    reads_s: float | None = 0.0
    metadata: tuple[tuple[str, str], ...] = ()
    later: tuple[tuple[float, Message | object], ...] = ()

    @property
    def messages(self) -> list[Message | object]:
        """All that it sends."""
        return [self.message, *(message for _, message in self.later)]


class Context:
    """See `grpc.aio.ServicerContext`, as far as `Calls` uses it."""

    def __init__(self, plan: CallPlan, loop: SimulatedLoop, ledger: Ledger, answers: Answers) -> None:
        self.plan, self._loop, self._ledger = plan, loop, ledger
        self.began_s = loop.time()
        self.end: tuple[str, str] | None = None
        self._has_metadata = False
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._check = answers.check_of(plan.name, plan.messages)
        self._unsent = collections.deque(plan.messages)
        if plan.message_s is not None:
            loop.call_later(plan.message_s, self._deliver)

    def _deliver(self) -> None:
        """Sends the next message."""
        if self.end is not None:
            return
        sent: Any = self._unsent.popleft()
        data = sent.SerializeToString() if isinstance(sent, Message) else sent
        self._messages.put_nowait(NO_MESSAGE if data is None else data)
        if self._unsent:
            self._loop.call_later(self.plan.later[-len(self._unsent)][0], self._deliver)

    def time_remaining(self) -> float | None:
        timeout_s = self.plan.timeout_s
        return None if timeout_s is None else max(0.0, self.began_s + timeout_s - self._loop.time())

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((REQUEST_ID, self.plan.name), *self.plan.metadata)

    async def read(self) -> Any:
        return grpc.aio.EOF if self.end is not None else await self._messages.get()

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._check_open("initial metadata")
        if self._has_metadata:
            self._ledger.break_promise(f"call {self.plan.name}: initial metadata were sent twice")
        self._has_metadata = True

    async def write(self, message: Message) -> None:
        self._check_open("a message")
        if self._check is not None:
            self._check.take(message)
        if self.plan.reads_s is None:
            await self._loop.create_future()  # until its handler gives up
        elif self.plan.reads_s:
            await asyncio.sleep(self.plan.reads_s)

    def set_trailing_metadata(self, trailers: Any) -> None:
        self._check_open("trailing metadata")

    async def abort(self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Any], ...]) -> None:
        reason = next((_reason(value) for key, value in trailing if key == STATUS_DETAILS), "")
        self.finish(code.name, f"{reason}: {_kind(details)}")
        raise grpc.aio.AbortError

    def finish(self, code: str, reason: str) -> None:
        """The call ends."""
        self._check_open("an end")
        if self.end is None:
            self.end = code, reason
            self._messages.put_nowait(grpc.aio.EOF)  # for a handler that still reads
            if self._check is not None:
                self._check.end(code)
            self._ledger.end(self.plan.name, code, reason)

    def _check_open(self, what: str) -> None:
        if self.end is not None:
            self._ledger.break_promise(f"call {self.plan.name} got {what} after its end {self.end}")


@functools.lru_cache(maxsize=4096)
def _reason(status: bytes) -> str:
    """The reason in the details of a status."""
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(status).details:
        if detail.Unpack(info):
            return str(info.reason)
    return ""


@functools.lru_cache(maxsize=4096)
def _kind(message: str) -> str:
    """The first words of a message, without its values."""
    return " ".join(re.sub(r"call-\d+|[\d.]+", "#", message).split()[:6])


class Transport:
    """The calls of one server, and its `grpc.aio.Server` as far as `Server.stop` uses it."""

    def __init__(
        self,
        loop: SimulatedLoop,
        calls: Calls,
        behaviours: Callable[[str], Callable[..., Any]],
        ledger: Ledger,
        answers: Answers,
    ) -> None:
        self.calls, self._loop, self._behaviours = calls, loop, behaviours
        self._ledger, self._answers = ledger, answers
        self.handlers: dict[asyncio.Task[None], None] = {}  # in their order, which that of a set would not be
        self.is_stopping = False

    def begin(self, plan: CallPlan) -> None:
        """A call arrives."""
        context = Context(plan, self._loop, self._ledger, self._answers)
        if self.is_stopping:
            context.finish("UNAVAILABLE", "connection closed")
            return
        handler = self._loop.create_task(self._handle(context))
        self.handlers[handler] = None
        timers = []
        if plan.timeout_s is not None:
            timers.append(self._loop.call_later(plan.timeout_s, self._cut, handler, context, "DEADLINE_EXCEEDED"))
        if plan.leaves_s is not None:
            timers.append(self._loop.call_later(plan.leaves_s, self._cut, handler, context, "CANCELLED"))

        def done(_: object) -> None:
            self.handlers.pop(handler, None)
            for timer in timers:
                timer.cancel()
            if context.end is None:
                self._cut_off(context)

        handler.add_done_callback(done)

    def _cut(self, handler: asyncio.Task[None], context: Context, code: str) -> None:
        """The call ends without the handler."""
        if context.end is None:
            context.finish(code, "by the client")
            handler.cancel()

    async def _handle(self, context: Context) -> None:
        rpc = context.plan.rpc
        try:
            parse = parser_of(getattr(pb, f"{rpc.name}Request"))
            response = await self.calls.run(rpc, self._behaviours(rpc.name), context, parse)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            if context.end is None:
                self._cut_off(context)
            return
        except Exception as error:
            self._ledger.break_promise(f"call {context.plan.name}: {error!r}")
            context.finish("UNKNOWN", "")
            return
        if (response is None) == (rpc.type == "unary"):
            self._ledger.break_promise(f"call {context.plan.name} ended without its response")
        elif response is not None:
            self._answers.take(f"call {context.plan.name}", context.plan.message, response)
        context.finish("OK", "")

    def _cut_off(self, context: Context) -> None:
        """gRPC would end the call as CANCELLED, which no client tries again."""
        self._ledger.break_promise(f"call {context.plan.name} was cut off by the server's end")
        context.finish("CANCELLED", "by the server's end")

    async def close_connections(self) -> None:
        """Takes no calls any more."""
        self.is_stopping = True

    async def stop(self, grace_s: float | None) -> None:
        """Ends the calls that are open."""
        assert grace_s is None, "the server has drained before"
        for handler in list(self.handlers):
            handler.cancel()
