"""A gRPC client with minimal processor time: it writes HTTP/2 frames itself (RFC 9113) and decodes only the last
message of a call. It measures a server on a machine that server and client share; it does not measure the time of a
real client.

One connection, plain text. Calls beyond the server's limit of concurrent streams wait.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM = ACK = 1
END_HEADERS = 4
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4
MOST = (1 << 31) - 1
FRAME_HEADER = 9
MESSAGE_HEADER = struct.Struct(">?I")  # compressed, length


class CallFailed(RuntimeError):
    """A call ended without a message, as refused ones do, or the connection is lost."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing or Huffman code (RFC 7541, 6.2.2). Both are shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class LeanConnection:
    """Unary and server-streaming calls, all of a batch concurrently."""

    def __init__(self, address: str) -> None:
        """address: HOST:PORT."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._authority = address.encode()
        self._next_stream, self._most_streams = 1, 100
        self._received = bytearray()
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, MOST)
        window = struct.pack(">I", MOST - 65_535)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, window))
        self._window = MOST  # bytes that the server may still send, at least

    def call(self, path: str, messages: Iterable[bytes]) -> list[bytes]:
        """Sends each message to the method at `path`, as many concurrently as the server allows. Returns the last
        message of each answer. Raises CallFailed."""
        headers = b"\x83\x86" + b"\x04" + bytes([len(path)]) + path.encode()  # POST, http, :path
        headers += b"\x01" + bytes([len(self._authority)]) + self._authority
        headers += _literal(b"content-type", b"application/grpc") + _literal(b"te", b"trailers")
        waiting = deque(enumerate(messages))
        answers: list[bytes] = [b""] * len(waiting)
        places: dict[int, int] = {}
        bodies: dict[int, list[bytes]] = {}
        while waiting or places:
            calls = b""
            while waiting and len(places) < self._most_streams:
                place, message = waiting.popleft()
                stream, self._next_stream = self._next_stream, self._next_stream + 2
                places[stream], bodies[stream] = place, []
                body = MESSAGE_HEADER.pack(False, len(message)) + message
                calls += frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, body)
            if calls:
                self._socket.sendall(calls)
            for kind, flags, stream, payload in self._frames():
                if kind == DATA:
                    bodies[stream].append(payload)
                if flags & END_STREAM and kind in (DATA, HEADERS):
                    answers[places.pop(stream)] = _last_message(b"".join(bodies.pop(stream)))
        return answers

    def _frames(self) -> list[tuple[int, int, int, bytes]]:
        """Frames of calls that have come by now, at least one of any kind; those of the connection are answered."""
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
            if kind in (DATA, HEADERS):
                found.append((kind, flags, stream, payload))
            elif kind in (SETTINGS, PING) and not flags & ACK:
                replies += frame(kind, ACK, 0, payload if kind == PING else b"")
                if kind == SETTINGS:
                    self._learn(payload)
            elif kind in (RST_STREAM, GOAWAY):
                raise CallFailed(f"the server ended stream {stream}: {payload!r}")
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
