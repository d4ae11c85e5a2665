"""A gRPC client with minimal processor time: it writes HTTP/2 frames itself (RFC 9113) and decodes only the last
message of a call. It measures a server on a machine that server and client share; it does not measure the time of a
real client.

Plain text. Calls of a batch beyond the server's limit of concurrent streams wait.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 1
END_HEADERS = 4
HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 3, 4
MOST = (1 << 31) - 1
FRAME_HEADER = 9
MESSAGE_HEADER = struct.Struct(">?I")  # compressed, length


class CallFailed(RuntimeError):
    """A call ended without a message, as refused ones do, or the connection is lost."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing or Huffman code (RFC 7541, 6.2.2). Both are shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def request_headers(path: str, authority: str) -> bytes:
    """The header block of a call. Both are shorter than 127 bytes."""
    headers = b"\x83\x86" + b"\x04" + bytes([len(path)]) + path.encode()  # POST, http, :path
    headers += b"\x01" + bytes([len(authority)]) + authority.encode()
    return headers + literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")


class LeanConnection:
    """Unary and server-streaming calls, any number of them concurrently. Of an answer, the last message is kept."""

    settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, MOST)
    kinds = frozenset((DATA, HEADERS, RST_STREAM, GOAWAY))  # of frames that are returned

    def __init__(self, address: str) -> None:
        """address: HOST:PORT."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._authority = address
        self._next_stream, self._most_streams = 1, 100
        self._received = bytearray()
        self._keys: dict[int, int] = {}  # of open calls, by stream
        self._bodies: dict[int, list[bytes]] = {}
        window = struct.pack(">I", MOST - 65_535)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, self.settings) + frame(WINDOW_UPDATE, 0, 0, window))
        self._window = MOST  # bytes that the server may still send, at least

    def fileno(self) -> int:
        """For poll: readable when `ended` would not block."""
        return self._socket.fileno()

    def answer_pings(self) -> None:
        """Reads what has come, without blocking: a server ends a connection that leaves its pings unanswered."""
        while select.select([self], [], [], 0.0)[0]:
            self.frames()

    def shut_down(self) -> None:
        """Ends the connection; whoever waits for it in another thread learns of it."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def send(self, frames: bytes) -> None:
        """Sends frames as they are."""
        self._socket.sendall(frames)

    def call(self, path: str, messages: Iterable[bytes]) -> list[bytes]:
        """Sends each message to the method at `path`, as many concurrently as the server allows. Returns the last
        message of each answer. Raises CallFailed."""
        waiting = deque(enumerate(messages))
        answers: list[bytes] = [b""] * len(waiting)
        while waiting or self._keys:
            room = min(self._most_streams - len(self._keys), len(waiting))
            self.start(path, [waiting.popleft() for _ in range(room)])
            for place, answer in self.ended():
                answers[place] = answer
        return answers

    def start(self, path: str, messages: Iterable[tuple[int, bytes]], fields: bytes = b"") -> None:
        """Opens a call for each (key, message), whatever the server's limit. fields: more of its headers."""
        headers = request_headers(path, self._authority) + fields
        calls = b""
        for key, message in messages:
            stream, self._next_stream = self._next_stream, self._next_stream + 2
            self._keys[stream], self._bodies[stream] = key, []
            body = MESSAGE_HEADER.pack(False, len(message)) + message
            calls += frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, body)
        if calls:
            self._socket.sendall(calls)

    def ended(self) -> list[tuple[int, bytes]]:
        """Reads what has come, and blocks until anything has. Returns (key, last message) of the calls that have ended
        with it, if any. Raises CallFailed."""
        found = []
        for kind, flags, stream, payload in self.frames():
            if kind in (RST_STREAM, GOAWAY):
                raise CallFailed(f"the server ended stream {stream}: {payload!r}")
            if kind == DATA:
                self._bodies[stream].append(payload)
            if flags & END_STREAM:
                found.append((self._keys.pop(stream), _last_message(b"".join(self._bodies.pop(stream)))))
        return found

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Frames that have come by now of `kinds`, if any; settings and pings of the connection are answered."""
        chunk = self._socket.recv(1 << 18)
        if not chunk:
            raise CallFailed("the server closed the connection")
        received = self._received
        received += chunk
        found, at, replies = [], 0, b""
        while len(received) - at >= FRAME_HEADER:
            high, low, kind, flags, stream = struct.unpack_from(">BHBBI", received, at)
            end = at + FRAME_HEADER + (high << 16) + low
            if end > len(received):
                break
            payload, at = bytes(received[at + FRAME_HEADER : end]), end
            if kind in self.kinds:
                found.append((kind, flags, stream, payload))
            if kind in (SETTINGS, PING) and not flags & ACK:
                replies += frame(kind, ACK, 0, payload if kind == PING else b"")
                if kind == SETTINGS:
                    self._learn(payload)
        del received[:at]
        self._window -= len(chunk)
        if self._window < MOST // 2:
            replies += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", MOST // 4))
            self._window += MOST // 4
        if replies:
            self._socket.sendall(replies)
        return found

    def _learn(self, settings: bytes) -> None:
        values = dict(struct.iter_unpack(">HI", settings))
        self._most_streams = values.get(MAX_CONCURRENT_STREAMS, self._most_streams)


def _last_message(body: bytes) -> bytes:
    """Of the length-prefixed messages of a call."""
    at, last = 0, None
    while at < len(body):
        is_compressed, length = MESSAGE_HEADER.unpack_from(body, at)
        at += MESSAGE_HEADER.size
        if is_compressed or at + length > len(body):
            raise CallFailed("a message is cut off or compressed")
        last, at = body[at : at + length], at + length
    if last is None:
        raise CallFailed("a call ended without a message")
    return last


class Answered(NamedTuple):
    """An answer in a closed loop, in the order of their ends. place: of the message; times: time.perf_counter()."""

    place: int
    answer: bytes
    began_s: float
    ended_s: float


def closed_loop(
    connections: Sequence[LeanConnection], path: str, messages: Sequence[bytes], callers: int, seconds: float
) -> list[Answered]:
    """`callers` callers, divided evenly among the connections, each of which sends the next message as soon as its
    answer is complete. Stops sending after `seconds`, and returns when all is answered. Raises CallFailed."""
    places = itertools.cycle(range(len(messages)))
    asked: list[tuple[int, float]] = []  # place and start by key
    found: list[Answered] = []
    poll, by_file = select.poll(), {connection.fileno(): connection for connection in connections}

    def start(connection: LeanConnection, count: int) -> None:
        calls, now_s = [], time.perf_counter()
        for place in itertools.islice(places, count):
            calls.append((len(asked), messages[place]))
            asked.append((place, now_s))
        connection.start(path, calls)

    until_s = time.perf_counter() + seconds
    for number, connection in enumerate(connections):
        poll.register(connection, select.POLLIN)
        start(connection, len(range(number, callers, len(connections))))
    while len(found) < len(asked):
        for file, _ in poll.poll():
            ended = by_file[file].ended()
            now_s = time.perf_counter()
            found += [Answered(asked[key][0], answer, asked[key][1], now_s) for key, answer in ended]
            if now_s < until_s:
                start(by_file[file], len(ended))
    return found
