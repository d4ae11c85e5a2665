"""One engine process as the edge sees it: messages out, events to their sinks, and its end.

Event-loop thread only. Requests of one turn of the event loop leave as one message. A cancellation leaves at once, with
the requests before it: the rest of the turn may take longer than some steps of the engine. A message never waits for
another process: while the socket is full, messages wait here, and admission bounds their number.
"""

from __future__ import annotations

import asyncio
import collections
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from service.answer_pace import AnswerPace
from service.edge.admission.tenant_paces import TenantPaces
from service.edge.admission.tenant_shares import TenantShares
from service.edge.models.child_process import ChildProcess, not_started
from service.edge.observability import logs
from service.errors import StartupError
from service.measurements import Measurement
from service.request import Caller, Event, EventSink, Request
from service.wire.channel import receive, send, socket_pair
from service.wire.messages import (
    VERSION,
    Beat,
    Close,
    FromEngine,
    Log,
    Opened,
    Refused,
    Rejected,
    Start,
    ToEngine,
    Turn,
    WireError,
    Work,
    decode_from_engine,
    encode,
    error_of,
)

MODULE = "service.engine_process"
READS_AT_ONCE = 32  # messages of one process before the event loop looks at others
EXIT_S = 1.0  # from the end of the connection to the end of the process

EndReason = Literal["killed", "exited", "device_lost", "hung", "engine_failed", "bad_message", "not_started", "closed"]


class EngineLink:
    """Starts an engine process and speaks with it.

    receivers: the sinks of unfinished requests by ticket. shares: the tenants of these. pace: of all answers.
    tenant_paces: of each tenant's. beat: the last one. heard_s: when the last message came.
    end_reason: None while it lives. `ended` is set with it.
    """

    def __init__(
        self,
        name: str,
        start: Start,
        table: int,
        metrics: Any,
        environment: Mapping[str, str],
        start_child: Callable[..., ChildProcess] = ChildProcess,
        tenant_share: float = 0.5,
        connect: Callable[[], tuple[Any, Any]] = socket_pair,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """table: the descriptor of the table of busy engines. metrics: of the model. tenant_share: see `TenantShares`.
        connect: makes both ends of the connection, sockets or what acts like them. clock: seconds.
        Raises StartupError."""
        self.name = name
        self._clock = clock
        self.receivers: dict[int, EventSink] = {}
        self.beat: Beat | None = None
        self.heard_s = clock()
        self.pace = AnswerPace(self.heard_s)
        self.shares, self.tenant_paces = TenantShares(tenant_share), TenantPaces(self.pace)
        self._callers: dict[int, Caller] = {}  # of unfinished requests by ticket
        self.end_reason: EndReason | None = None
        self.ended = asyncio.Event()
        self.opened: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._requests: list[tuple[int, Request]] = []
        self._unsent: collections.deque[bytes] = collections.deque()
        self._is_full = False  # the socket, when it was last written to
        try:
            self._end, theirs = connect()
        except OSError as error:
            raise not_started(error) from error
        files = (theirs.fileno(), table)
        try:
            self.child = start_child(name, MODULE, [*map(str, files), str(os.getpid())], files, environment)
        except StartupError:
            self._end.close()
            raise
        finally:
            theirs.close()
        self._end.setblocking(False)
        self._loop.add_reader(self._end, self._on_readable)
        self._post(start)

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self.end_reason is None and self.opened.done() and not self.opened.exception()

    @property
    def engines(self) -> int:
        """Number of engines of the process while it takes requests, else 0."""
        return self.opened.result().engines if self.is_open else 0

    async def wait_opened(self, timeout_s: float) -> Opened:
        """Waits for the message `Opened`. Raises StartupError; the process has ended then."""
        try:
            return await asyncio.wait_for(asyncio.shield(self.opened), timeout_s)
        except TimeoutError:
            self.end("not_started")
            await self.child.wait(EXIT_S)
            raise StartupError(
                f"its engine process was not ready within {timeout_s:g} s; fix: raise --process-start-timeout-s, "
                "or give the machine more processors"
            ) from None

    def submit(self, ticket: int, request: Request, sink: EventSink) -> None:
        """Sends a request with this turn's message."""
        if not self.receivers:
            self.pace.resume(self._clock())
        self.receivers[ticket] = sink
        self._callers[ticket] = request.caller
        self.shares.enter(request.caller)
        if not self._requests:
            self._loop.call_soon(self._flush)
        self._requests.append((ticket, request))

    def cancel(self, ticket: int) -> None:
        """Asks for the end of a request, unless it has ended. The engine looks before each of its steps."""
        if ticket in self.receivers:
            self._post(self._work([ticket]))

    def close(self) -> None:
        """Asks the process to end unfinished requests with ShuttingDown, and then itself."""
        self._post(Close())

    def end(self, reason: EndReason) -> None:
        """Closes the connection and kills the process. Its unfinished requests get nothing more."""
        if self.end_reason is not None:
            return
        self.end_reason = reason
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        self._unsent.clear()
        if reason not in ("exited", "device_lost", "closed"):
            self.child.kill()
        if not self.opened.done():
            self._loop.create_task(self._explain_end())
        self.ended.set()

    async def _explain_end(self) -> None:
        how = await self.child.wait(EXIT_S)
        if not self.opened.done():
            self.opened.set_exception(
                StartupError(
                    f"its engine process ended while it opened the bundle, {how}; fix: check the bundle with "
                    "`glossa doctor BUNDLE`, export it again, or free memory"
                )
            )
            self.opened.exception()  # without this, asyncio logs an error that no caller awaits

    def _flush(self) -> None:
        if self._requests:  # else they have left with a cancellation
            self._post(self._work([]))

    def _work(self, cancels: list[int]) -> Work:
        requests, self._requests = self._requests, []
        return Work(requests, cancels)

    def _post(self, message: ToEngine) -> None:
        if self.end_reason is None:
            self._unsent.append(encode(message))
            if len(self._unsent) == 1:
                self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                send(self._end, self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._end, self._write)
            self._is_full = True
            return
        except (BrokenPipeError, ConnectionResetError):  # it has ended, which its end of the connection will show
            self._unsent.clear()
        except OSError as error:  # of descriptors or memory there are none left
            logs.event("message_not_sent", {"process": self.name, "problem": str(error)}, level=logs.ERROR)
            self.end("exited")
            return
        if self._is_full:
            self._loop.remove_writer(self._end)
            self._is_full = False

    def _on_readable(self) -> None:
        try:
            for _ in range(READS_AT_ONCE):
                data = receive(self._end)
                if not data:
                    self.end("exited")
                    return
                self.heard_s = self._clock()
                self._take(decode_from_engine(data))
                if self.end_reason is not None:
                    return
        except BlockingIOError:
            return
        except WireError as error:
            self._break(str(error))

    def _take(self, message: FromEngine) -> None:
        match message:
            case Turn() if message.state.has_lost_device:
                self.end("device_lost")  # the pool ends all its requests, also those that have not reached the engine
            case Turn():
                self._state(message)
                self._dispatch(message)
                self._loop.call_soon(self._measured, message.measurements)  # after the answers have gone on
            case Beat():
                self._measured(message.measurements)
                self._metrics.process_worked(self.name, max(0.0, message.cpu_s - (self.beat.cpu_s if self.beat else 0)))
                self.beat = message
            case Rejected():
                self._give(message.ticket, error_of(message.failure), is_last=True)
            case Log():
                fields = {"process": self.name}
                logs.forward(message.logger, message.level, message.text, fields, message.exception)
            case Opened(version=version) if version != VERSION:
                raise WireError(f"version {version} instead of {VERSION}")
            case Opened():
                if not self.opened.done():
                    self.opened.set_result(message)
            case Refused():
                if not self.opened.done():
                    self.opened.set_exception(StartupError(message.message))
                    self.opened.exception()

    def _state(self, turn: Turn) -> None:
        states = self.beat.states if self.beat else []
        if not 0 <= turn.engine < len(states):
            raise WireError(f"a turn of engine {turn.engine} of {len(states)}")
        states[turn.engine] = turn.state

    def _dispatch(self, turn: Turn) -> None:
        for ticket, delta in turn.deltas:
            self._give(ticket, delta, is_last=False)
        rows = turn.state.rows + len(turn.ends)
        for ticket, finished in turn.ends:
            if caller := self._callers.get(ticket):
                self.tenant_paces.learn(caller.tenant, finished, rows)
            self._give(ticket, finished, is_last=True)
        for ticket, failure in turn.failures:
            self._give(ticket, error_of(failure), is_last=True)
        if turn.ends:  # requests that ended without an answer do not show how soon others get theirs
            self.pace.count(len(turn.ends), self.heard_s)

    def _give(self, ticket: int, event: Any, *, is_last: bool) -> None:
        sink = self.receivers.pop(ticket, None) if is_last else self.receivers.get(ticket)
        if sink is None:
            raise WireError(f"an event of request {ticket}, which is not there")
        if is_last:
            self.shares.leave(self._callers.pop(ticket))
        deliver(sink, event, self.name)

    def _measured(self, measurements: list[Measurement]) -> None:
        try:
            self._metrics.measured(measurements)
        except (ValueError, KeyError) as error:
            self._break(f"a measurement that is none: {error!r}")

    def _break(self, problem: str) -> None:
        logs.event("bad_message", {"process": self.name, "problem": problem}, level=logs.ERROR)
        self.end("bad_message")


def deliver(sink: EventSink, event: Event, process: str) -> None:
    """Calls a sink. One that raises is logged: it must not cost other requests their events."""
    try:
        sink(event)
    except Exception as error:
        logs.event("sink_failed", {"process": process}, level=logs.ERROR, exception=error)
