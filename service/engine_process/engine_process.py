"""The engines of one process, and their conversation with the edge.

The main thread beats. It also reads what the edge sends, unless there is a single engine: that reads itself, before
each turn. Requests whose preparation takes long are submitted by threads beside it, tenants in turn; one that has been
cancelled, or whose deadline has passed, is not prepared. Engines send the events of a turn from their own threads: no
thread hands them over. The lock around the socket is held for one packet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from service.decoding.request_processors import SLOW_OPTIONS
from service.engine.engine import Engine
from service.engine.engine_group import EngineGroup
from service.engine_process.measurements import Measurements
from service.engine_process.open_engines import OpenedEngines
from service.errors import Cancelled, DeadlineExceeded, InternalFailure, RequestError
from service.fair_executor import FairExecutor
from service.machine.process_memory import resident_bytes
from service.measurements import RequestEnded
from service.request import Event, Request, TextDelta
from service.step import DeviceLost
from service.wire.channel import receive, send
from service.wire.messages import (
    Beat,
    Close,
    FromEngine,
    Rejected,
    State,
    Turn,
    WireError,
    Work,
    decode_to_engine,
    encode,
    failure_of,
    turn_messages,
)

BEAT_S = 0.25
SLOW_THREADS = 2
READS_AT_ONCE = 64  # messages between two turns or beats

log = logging.getLogger(__name__)


class Connection:
    """The engines' end of the socket. Any thread may send."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Sends one message; blocks while the edge does not read. Does nothing once the edge is gone."""
        self.send_bytes(encode(message))

    def send_bytes(self, data: bytes) -> None:
        """`send` of an encoded message."""
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self.end, data)


class EngineProcess:
    """Serves the requests of the edge until it asks for the end, or has ended itself. measurements: of each engine."""

    def __init__(
        self,
        connection: Connection,
        opened: OpenedEngines,
        measurements: list[Measurements],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: seconds, the clock of deadlines."""
        self._clock = clock
        self._connection, self._opened, self._measurements = connection, opened, measurements
        self._group = EngineGroup(opened.engines)
        self._slow = FairExecutor(SLOW_THREADS, "prepare")
        self._preparing: dict[int, Future[None]] = {}
        self._names: dict[int, str] = {}  # ids of the requests that engines have, by ticket
        self._next_beat_s = 0.0
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # ends the wait of a single engine
        self._is_closing = threading.Event()
        self._problem: WireError | None = None

    def run(self) -> None:
        """Returns when the edge wants the end. Raises WireError, or DeviceLost once an engine ended with its device."""
        is_single = len(self._group.engines) == 1
        self._poll.register(self._connection.end, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._beat()
        self._group.start(self._deliver, intake=self._intake if is_single else None)
        wait: Callable[[float], object] = self._is_closing.wait if is_single else self._intake
        while not self._is_closing.is_set():
            wait(max(0.0, self._next_beat_s - self._clock()))
            if any(engine.has_lost_device for engine in self._group.engines):
                raise DeviceLost
            if self._clock() >= self._next_beat_s:
                self._beat()
        self._slow.close()
        self._group.close()
        if self._problem is not None:
            raise self._problem

    def _intake(self, wait_s: float) -> None:
        """Takes in what the edge has sent, after waiting for it. The thread of a single engine does this itself: a
        request that another thread hands over comes 0.1 ms later."""
        try:
            for _ in range(READS_AT_ONCE):
                ready = self._poll.poll(wait_s * 1000)
                if not ready:
                    return
                wait_s = 0.0
                for descriptor, _ in ready:
                    if descriptor == self._wake:
                        os.eventfd_read(self._wake)
                    elif not self._read():
                        self._close()
                        return
        except WireError as error:
            self._problem = error
            self._close()

    def _close(self) -> None:
        for engine in self._group.engines:
            engine.inbox.close()
        self._is_closing.set()

    def _read(self) -> bool:
        """Takes one message. False: it was the last one."""
        data = receive(self._connection.end)
        if not data:
            return False
        match decode_to_engine(data):
            case Work() as work:
                for ticket, request in work.requests:
                    self._take(ticket, request)
                for ticket in work.cancels:
                    self._cancel(ticket)
            case Close():
                return False
            case other:
                raise WireError(f"{type(other).__name__} to a process that is open")
        return True

    def _take(self, ticket: int, request: Request) -> None:
        self._slow.see(request.tenant)
        if request.attention_kinds or any(getattr(request.options, name) for name in SLOW_OPTIONS):
            preparing = self._preparing[ticket] = self._slow.submit(
                request.tenant, partial(self._prepare, ticket, request)
            )
            preparing.add_done_callback(lambda _: self._prepared(ticket))
        else:
            self._submit(ticket, request)

    def _prepared(self, ticket: int) -> None:
        del self._preparing[ticket]
        os.eventfd_write(self._wake, 1)

    def _prepare(self, ticket: int, request: Request) -> None:
        if request.deadline_s is not None and self._clock() >= request.deadline_s:
            self._end(ticket, DeadlineExceeded("the deadline passed before the request was prepared; allow more time"))
        else:
            self._submit(ticket, request)

    def _end(self, ticket: int, error: RequestError) -> None:
        """Ends a request that no engine has."""
        self._measurements[0].append(RequestEnded(error.reason.lower(), 0))
        self._connection.send(Rejected(ticket, failure_of(error)))

    def _submit(self, ticket: int, request: Request) -> None:
        self._names[ticket] = request.request_id
        try:
            if request.attention_kinds:
                self._opened.open_attention()
            self._group.submit(ticket, request)
        except RequestError as error:
            self._reject(ticket, error)
        except Exception:
            log.exception("request %s: it could not be prepared", request.log_name)
            self._reject(ticket, InternalFailure(request.request_id))

    def _reject(self, ticket: int, error: RequestError) -> None:
        del self._names[ticket]
        self._connection.send(Rejected(ticket, failure_of(error)))

    def _cancel(self, ticket: int) -> None:
        preparing = self._preparing.get(ticket)
        if preparing is None:
            self._group.cancel(ticket)
        elif preparing.cancel():
            self._end(ticket, Cancelled("the request was cancelled"))
        else:
            preparing.add_done_callback(lambda _: self._group.cancel(ticket))

    def _deliver(self, index: int, events: list[tuple[int, Event]]) -> None:
        """On the engine's thread."""
        turn = Turn(index, _state(self._opened.engines[index]), [], [], [], self._measurements[index].take())
        names = {ticket: self._names.pop(ticket) for ticket, event in events if type(event) is not TextDelta}
        for data in turn_messages(turn, events, names):
            self._connection.send_bytes(data)

    def _beat(self) -> None:
        self._next_beat_s = self._clock() + BEAT_S
        self._connection.send(
            Beat(
                states=[_state(engine) for engine in self._opened.engines],
                measurements=[one for measurements in self._measurements for one in measurements.take()],
                memory=self._opened.memory_bytes(),
                cpu_s=time.process_time(),
                resident_bytes=resident_bytes(),
            )
        )


def _state(engine: Engine) -> State:
    return State(
        heartbeat_s=engine.heartbeat_s,
        is_healthy=engine.is_healthy,
        has_lost_device=engine.has_lost_device,
        **engine.snapshot._asdict(),
    )
