"""An event loop on a virtual clock, and connections between its tasks: no system call, no thread, no waiting.

Time passes only when every task waits for it. What acts like a pair of sockets (`connection`) holds few packets and
delivers each after a while, so that full sockets and last words are as frequent as a seed wants.
"""

from __future__ import annotations

import asyncio
import collections
import selectors
from collections.abc import Callable
from typing import Any

Callback = Callable[[], object]


class Stuck(AssertionError):
    """Every task waits for something that will never happen."""


class _Selector(selectors.SelectSelector):
    """Instead of waiting it moves the clock on."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("every task waits for something that will never happen")
        self.now_s += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs tasks in an order that depends on nothing but what they do."""

    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now_s

    def _write_to_self(self) -> None:
        """No other thread has to wake it."""

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        fd.watch_reading(callback)

    def remove_reader(self, fd: Any) -> bool:
        fd.watch_reading(None)
        return True

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        fd.watch_writing(callback)

    def remove_writer(self, fd: Any) -> bool:
        fd.watch_writing(None)
        return True


class _Way:
    """One direction of a connection."""

    def __init__(self, loop: SimulatedLoop, capacity: int, latency_s: Callable[[], float], on_full: Callback) -> None:
        self.loop, self.capacity, self.latency_s, self.on_full = loop, capacity, latency_s, on_full
        self.packets: collections.deque[bytes] = collections.deque()  # that have arrived
        self.travelling: collections.deque[bytes | None] = collections.deque()
        self.last_s = 0.0
        self.has_ended = self.is_unread = False  # no more packets come; nobody reads them any more
        self.reader: End | None = None
        self.writer: End | None = None

    @property
    def is_full(self) -> bool:
        return len(self.packets) + len(self.travelling) >= self.capacity

    def post(self, packet: bytes | None) -> None:
        """Sends a packet on its way; None: the end."""
        self.last_s = max(self.last_s, self.loop.time() + self.latency_s())
        self.travelling.append(packet)
        self.loop.call_at(self.last_s, self._arrive)  # which of two calls at the same time comes first is not known

    def _arrive(self) -> None:
        packet = self.travelling.popleft()
        if packet is None:
            self.has_ended = True
        elif self.is_unread:
            return
        else:
            self.packets.append(packet)
        if self.reader is not None:
            self.reader.wake_reader()


class End:
    """One end of a connection, as far as `EngineLink` and an engine process use a socket."""

    def __init__(self, number: int, inward: _Way, outward: _Way) -> None:
        self.number, self._in, self._out = number, inward, outward
        self.users = 1  # programs that have it open
        self._on_readable: Callback | None = None
        self._on_writable: Callback | None = None
        self._is_reader_due = self._is_writer_due = self._is_reset = False
        inward.reader = outward.writer = self

    def fileno(self) -> int:
        return self.number

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def send(self, data: bytes) -> int:
        if self._out.is_unread:
            raise BrokenPipeError
        if self._out.is_full:
            self._out.on_full()
            raise BlockingIOError
        self._out.post(bytes(data))
        return len(data)

    def recvmsg_into(self, buffers: list[memoryview], _: int) -> tuple[int, list[Any], int, None]:
        if self._is_reset:
            self._is_reset = False
            raise ConnectionResetError
        if self._in.packets:
            packet = self._in.packets.popleft()
            buffers[0][: len(packet)] = packet
            if self._in.writer is not None:
                self._in.writer.wake_writer()
            return len(packet), [], 0, None
        if self._in.has_ended:
            return 0, [], 0, None
        raise BlockingIOError

    def close(self) -> None:
        self.users -= 1
        if self.users:
            return
        self.watch_reading(None)
        self.watch_writing(None)
        self._in.is_unread = True
        if (self._in.packets or self._in.travelling) and self._out.reader is not None:
            self._out.reader._is_reset = True
        self._in.packets.clear()
        if self._in.writer is not None:
            self._in.writer.wake_writer()
        self._out.post(None)

    @property
    def is_readable(self) -> bool:
        return bool(self._in.packets) or self._in.has_ended or self._is_reset

    @property
    def is_writable(self) -> bool:
        return self._out.is_unread or not self._out.is_full

    def watch_reading(self, callback: Callback | None) -> None:
        self._on_readable = callback
        self.wake_reader()

    def watch_writing(self, callback: Callback | None) -> None:
        self._on_writable = callback
        self.wake_writer()

    def wake_reader(self) -> None:
        """Calls who watches this end, soon, and again as long as there is something to read."""
        if self._on_readable is not None and not self._is_reader_due and self.is_readable:
            self._is_reader_due = True
            self._in.loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_reader_due = False
        if self._on_readable is not None and self.is_readable:
            self._on_readable()
            self.wake_reader()

    def wake_writer(self) -> None:
        """The same for writing."""
        if self._on_writable is not None and not self._is_writer_due and self.is_writable:
            self._is_writer_due = True
            self._in.loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_writer_due = False
        if self._on_writable is not None and self.is_writable:
            self._on_writable()
            self.wake_writer()


def connection(
    loop: SimulatedLoop, first_number: int, capacity: int, latency_s: Callable[[], float], on_full: Callback
) -> tuple[End, End]:
    """Both ends of a new connection that holds `capacity` packets in each direction; each takes `latency_s()`.
    on_full: called when a packet finds no room."""
    there, back = _Way(loop, capacity, latency_s, on_full), _Way(loop, capacity, latency_s, on_full)
    return End(first_number, back, there), End(first_number + 1, there, back)
