"""The engines of one process, and their conversation with the edge.

The main thread reads what the edge sends, and beats. Requests whose preparation may take seconds are submitted by a
thread beside it. Engines send the events of a turn from their own threads: no thread hands them over. The lock around
the socket is held for one packet.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from service.decoding.request_processors import SLOW_OPTIONS
from service.engine.engine import Engine
from service.engine.engine_group import EngineGroup
from service.engine_process.limits import resident_bytes
from service.engine_process.measurements import Measurements
from service.engine_process.open_engines import OpenedEngines
from service.errors import InternalFailure, RequestError
from service.request import Event, Request
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
    split_events,
)

BEAT_S = 0.25
SLOW_THREADS = 2

log = logging.getLogger(__name__)


class Connection:
    """The engines' end of the socket. Any thread may send."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Sends one message; blocks while the edge does not read. Does nothing once the edge is gone."""
        data = encode(message)
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self.end, data)


class EngineProcess:
    """Serves the requests of the edge until it asks for the end, or has ended itself. measurements: of each engine."""

    def __init__(self, connection: Connection, opened: OpenedEngines, measurements: list[Measurements]) -> None:
        self._connection, self._opened, self._measurements = connection, opened, measurements
        self._group = EngineGroup(opened.engines)
        self._slow = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="prepare")
        self._preparing: dict[int, Future[None]] = {}
        self._next_beat_s = 0.0

    def run(self) -> None:
        """Returns when the edge wants the end. Raises WireError."""
        self._group.start(self._deliver)
        poll = select.poll()
        poll.register(self._connection.end, select.POLLIN)
        while True:
            wait_s = self._next_beat_s - time.monotonic()
            if wait_s <= 0:
                self._beat()
            elif poll.poll(wait_s * 1000) and not self._read():
                break
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._group.close()

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
        if request.attention_kinds or any(getattr(request.options, name) for name in SLOW_OPTIONS):
            preparing = self._preparing[ticket] = self._slow.submit(self._submit, ticket, request)
            preparing.add_done_callback(lambda _: self._preparing.pop(ticket))
        else:
            self._submit(ticket, request)

    def _submit(self, ticket: int, request: Request) -> None:
        try:
            if request.attention_kinds:
                self._opened.open_attention()
            self._group.submit(ticket, request)
        except RequestError as error:
            self._connection.send(Rejected(ticket, failure_of(error)))
        except Exception:
            log.exception("request %s: it could not be prepared", request.log_name)
            self._connection.send(Rejected(ticket, failure_of(InternalFailure(request.request_id))))

    def _cancel(self, ticket: int) -> None:
        if preparing := self._preparing.get(ticket):
            preparing.add_done_callback(lambda _: self._group.cancel(ticket))
        else:
            self._group.cancel(ticket)

    def _deliver(self, index: int, events: list[tuple[int, Event]]) -> None:
        """On the engine's thread."""
        state = _state(self._opened.engines[index])
        self._connection.send(Turn(index, state, *split_events(events), self._measurements[index].take()))

    def _beat(self) -> None:
        self._next_beat_s = time.monotonic() + BEAT_S
        self._connection.send(
            Beat(
                states=[_state(engine) for engine in self._opened.engines],
                measurements=[call for measurements in self._measurements for call in measurements.take()],
                memory=self._opened.memory_bytes(),
                cpu_s=time.process_time(),
                resident_bytes=resident_bytes(),
            )
        )


def _state(engine: Engine) -> State:
    return State(*engine.snapshot, engine.heartbeat_s, engine.is_healthy)
