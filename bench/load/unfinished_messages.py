"""Calls whose messages lack their last byte: what a server has received of them stays in its memory.

As many bytes are sent as the server's flow control allows, on connections that are read by a thread each.
"""

from __future__ import annotations

import contextlib
import select
import struct
import threading
from typing import Self

from bench.load.lean_client import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MESSAGE_HEADER,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    CallFailed,
    LeanConnection,
    frame,
    literal,
    request_headers,
)

FRAME_BYTES = 16_384  # the most that a frame has, unless the peer allows more
FIRST_WINDOW = 65_535


class UnfinishedMessages:
    """`count` calls of one connection, each with the same message. ended: how many have; broken: the connection has."""

    def __init__(self, address: str, path: str, message: bytes, count: int, tenant: str) -> None:
        self._body = MESSAGE_HEADER.pack(False, len(message)) + message
        self._head = request_headers(path, address) + literal(b"x-glossa-tenant", tenant.encode())
        self._connection = _Frames(address)
        self._left = dict.fromkeys(range(1, 2 * count, 2), 0)  # bytes sent, by stream
        self._windows = dict.fromkeys(self._left, FIRST_WINDOW)
        self._window, self._first_window = FIRST_WINDOW, FIRST_WINDOW
        self._finishing, self._over, self.filled = threading.Event(), threading.Event(), threading.Event()
        self.count, self.ended = count, 0
        self.broken = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._connection.close()

    def finish(self) -> None:
        """Sends the last bytes."""
        self._finishing.set()

    def _run(self) -> None:
        try:
            opened = (frame(HEADERS, END_HEADERS, stream, self._head) for stream in self._left)
            self._connection.send(b"".join(opened))
            while not self._over.is_set():
                if select.select([self._connection], [], [], 0 if self._send() else 0.02)[0]:
                    self._read()
        except (OSError, CallFailed):
            self.broken = True

    def _send(self) -> bool:
        """A frame of each stream that has a window. Returns whether there was any."""
        stop = len(self._body) - (not self._finishing.is_set())
        data = b""
        for stream, sent in list(self._left.items()):
            size = min(FRAME_BYTES, stop - sent, self._windows[stream], self._window)
            if size > 0:
                self._window -= size
                self._windows[stream] -= size
                is_last = sent + size == len(self._body)
                data += frame(DATA, END_STREAM * is_last, stream, self._body[sent : sent + size])
                self._left[stream] = sent + size
        if all(sent >= len(self._body) - 1 for sent in self._left.values()):
            self.filled.set()
        if data:
            self._connection.send(data)
        return bool(data)

    def _read(self) -> None:
        for kind, flags, stream, payload in self._connection.frames():
            if kind == WINDOW_UPDATE:
                (size,) = struct.unpack(">I", payload)
                if stream:
                    self._windows[stream] = self._windows.get(stream, 0) + size
                else:
                    self._window += size
            elif kind == SETTINGS and not flags & ACK:
                self._learn(payload)
            elif kind == GOAWAY:
                raise CallFailed("the server closes the connection")
            elif (kind == RST_STREAM or flags & END_STREAM) and self._left.pop(stream, None) is not None:
                self.ended += 1

    def _learn(self, payload: bytes) -> None:
        first = dict(struct.iter_unpack(">HI", payload)).get(INITIAL_WINDOW_SIZE, self._first_window)
        for stream in self._windows:
            self._windows[stream] += first - self._first_window
        self._first_window = first


class _Frames(LeanConnection):
    """Returns every frame of its peer; settings and pings are answered as well."""

    kinds = frozenset((DATA, HEADERS, RST_STREAM, GOAWAY, SETTINGS, WINDOW_UPDATE, PING))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
