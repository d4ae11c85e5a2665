"""A connection whose calls have deadlines and whose statuses count, read from the frames of HTTP/2.

A server that Envoy stands in front of compresses the names of headers, so names are sought plain and in Huffman code.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import grpc

from bench.load.calls import UNARY
from bench.load.lean_client import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    RST_STREAM,
    LeanConnection,
    frame,
    literal,
)
from glossa.v1 import glossa_pb2 as pb

OK, RESET = "OK", "RESET"  # RESET, beside names of gRPC statuses: RST_STREAM without one
NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
CANCEL = struct.pack(">I", 8)
CODES = {  # of RFC 7541, appendix B: those of digits and of the names sought here
    **{str(digit): f"{digit:05b}" if digit < 3 else f"{22 + digit:06b}" for digit in range(10)},
    **{"a": "00011", "c": "00100", "e": "00101", "s": "01000", "t": "01001", "-": "010110", "b": "100011"},
    **{"g": "100110", "h": "100111", "m": "101001", "p": "101011", "r": "101100", "u": "101101"},
    **{"k": "1110101", "y": "1111010"},
}
DIGITS = {CODES[digit]: digit for digit in "0123456789"}


def huffman(name: str) -> bytes:
    """The Huffman code of a header's name, its length in front."""
    bits = "".join(CODES[letter] for letter in name)
    bits += "1" * (-len(bits) % 8)
    return bytes([0x80 | len(bits) // 8]) + int(bits, 2).to_bytes(len(bits) // 8, "big")


def forms(name: str) -> tuple[bytes, bytes]:
    """A header's name as HPACK writes it, plain and in Huffman code, its length in front."""
    return bytes([len(name)]) + name.encode(), huffman(name)


STATUS, PUSHBACK = forms("grpc-status"), forms("grpc-retry-pushback-ms")


class End(NamedTuple):
    """How a call ended. pushback_s: when to try again, with the status; None without such a hint."""

    status: str
    pushback_s: float | None
    tokens: int


class DeadlineConnection(LeanConnection):
    """Calls with a deadline whose statuses count. The server may not compress headers by a table, so that the names and
    values of its statuses are literal."""

    settings = LeanConnection.settings + struct.pack(">HI", HEADER_TABLE_SIZE, 0)

    def __init__(self, address: str, deadline_s: float, tenant: str = "") -> None:
        """tenant: who calls; empty: nobody is named."""
        super().__init__(address)
        self._given, self.deadline_s = (address, deadline_s, tenant), deadline_s
        self._tenant = literal(b"x-glossa-tenant", tenant.encode()) if tenant else b""
        self._fields = timeout_field(deadline_s) + self._tenant

    def open(self, key: int, message: bytes, left_s: float | None = None) -> int:
        """Starts a call; left_s: until its deadline, if it began earlier. Returns its stream."""
        stream = self._next_stream
        fields = self._fields if left_s is None else timeout_field(left_s) + self._tenant
        self.start(UNARY, [(key, message)], fields)
        return stream

    def cancel(self, stream: int) -> None:
        """Ends a call whose deadline has passed, as clients do. No effect on one that has ended."""
        if self._keys.pop(stream, None) is not None:
            del self._bodies[stream]
            self._socket.sendall(frame(RST_STREAM, 0, stream, CANCEL))

    def reopen(self) -> None:
        """Replaces a connection that the server has closed. Its calls are lost."""
        self.close()
        self.__init__(*self._given)  # type: ignore[misc]

    def finished(self) -> list[tuple[int, End]]:
        """(key, end) of the calls that have ended with what came."""
        found = []
        for kind, flags, stream, payload in self.frames():
            if kind == GOAWAY or stream not in self._keys:
                continue
            if kind == DATA:
                self._bodies[stream].append(payload)
            if (flags & END_STREAM and kind == HEADERS) or kind == RST_STREAM:
                body = b"".join(self._bodies.pop(stream))
                is_status = kind == HEADERS
                status = number_of(payload, STATUS) if is_status else None
                name = RESET if status is None else NAMES[status]
                tokens = pb.TranslateResponse.FromString(body[5:]).usage.generated_tokens if name == OK else 0
                pushback_ms = number_of(payload, PUSHBACK) if is_status else None
                pushback_s = None if pushback_ms is None else pushback_ms / 1000
                found.append((self._keys.pop(stream), End(name, pushback_s, tokens)))
        return found


def number_of(headers: bytes, name: tuple[bytes, bytes]) -> int | None:
    """The value of a literal field (RFC 7541, 6.2.2), a number; None if it is missing."""
    for form in name:
        if (at := headers.find(form)) >= 0:
            at += len(form)
            length = headers[at] & 0x7F
            value = headers[at + 1 : at + 1 + length]
            return int(_digits(value) if headers[at] & 0x80 else value)
    return None


def _digits(value: bytes) -> str:
    """Digits in Huffman code."""
    found, code = "", ""
    for bit in f"{int.from_bytes(value, 'big'):0{8 * len(value)}b}":
        code += bit
        if code in DIGITS:
            found, code = found + DIGITS[code], ""
    return found


def timeout_field(seconds: float) -> bytes:
    """The header field of a call's deadline."""
    return literal(b"grpc-timeout", b"%dm" % max(1, round(1000 * seconds)))
