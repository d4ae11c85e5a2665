"""Open-loop load on a server: calls begin at random moments (Poisson), whatever the answers, and have deadlines.

The generator writes its own HTTP/2 frames, so that it hardly takes processor time from what it measures. It measures
each call from the moment when it was due, and how late it was itself. A server that Envoy stands in front of compresses
the names of headers, so names are sought in both forms.
"""

from __future__ import annotations

import collections
import heapq
import random
import select
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from bench.lean_client import (
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

PATH = "/glossa.v1.TranslationService/Translate"
OK, RESET, LATE = "OK", "RESET", "LATE"  # beside names of gRPC statuses: RST_STREAM without one; ended by the generator
REFUSED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
HEALTH_EVERY_S = 0.05
GRACE_S = 0.1  # from a deadline until the generator ends the call, to see when the server does
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


class Outcome(NamedTuple):
    """A call of a load. Seconds since it was due; due_s: since the load began."""

    end: End
    seconds: float
    due_s: float


class DeadlineConnection(LeanConnection):
    """Calls with a deadline whose statuses count. The server may not compress headers by a table, so that the names and
    values of its statuses are literal."""

    settings = LeanConnection.settings + struct.pack(">HI", HEADER_TABLE_SIZE, 0)

    def __init__(self, address: str, deadline_s: float) -> None:
        super().__init__(address)
        self._fields = timeout_field(deadline_s)

    def open(self, key: int, message: bytes, left_s: float | None = None) -> int:
        """Starts a call; left_s: until its deadline, if it began earlier. Returns its stream."""
        stream = self._next_stream
        self.start(PATH, [(key, message)], self._fields if left_s is None else timeout_field(left_s))
        return stream

    def cancel(self, stream: int) -> None:
        """Ends a call whose deadline has passed, as clients do. No effect on one that has ended."""
        if self._keys.pop(stream, None) is not None:
            del self._bodies[stream]
            self._socket.sendall(frame(RST_STREAM, 0, stream, CANCEL))

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


class Load(NamedTuple):
    """The result of one load. Seconds are at p99."""

    offered: float
    goodput: float
    ends: dict[str, int]
    hinted: float  # share of refusals with a hint
    refused_s: float
    answered_s: float
    health_s: float
    late_s: float  # of the generator
    overshoot_s: float  # from deadlines that passed to the ends of their calls
    tokens: int  # received in time


class Call(NamedTuple):
    """One that is due. key: of its first attempt; attempt: from 0 on."""

    due_s: float
    key: int
    attempt: int = 0
    begun_s: float = 0.0  # when the first attempt was due


class OpenLoop:
    """A load whose calls begin at random moments, whatever the answers. retries: of a refused call, as often and as
    late as the server's hint says, and within the call's deadline."""

    def __init__(
        self, address: str, messages: Sequence[bytes], deadline_s: float, connections: int, *, retries: int = 0
    ) -> None:
        self._address, self._messages, self._deadline_s = address, messages, deadline_s
        self._retries = retries
        self._pool = [DeadlineConnection(address, deadline_s) for _ in range(connections)]
        self._by_file = {connection.fileno(): connection for connection in self._pool}
        self._poll = select.poll()
        for connection in self._pool:
            self._poll.register(connection, select.POLLIN)
        self._open: dict[int, tuple[Call, DeadlineConnection, int]] = {}  # by key: call, connection, stream
        self._due: list[Call] = []  # a heap of retries
        self._ends: list[tuple[float, int]] = []  # a heap: deadline, key; those of ended calls leave it late
        self._keys = 0
        self._arrivals: Iterator[float] = iter(())
        self._next_s: float | None = None  # when the next call is due
        self._lateness: list[float] = []
        self._delays: list[float] = []
        self.outcomes: list[Outcome] = []

    def run(self, rate: float, seconds: float, seed: int) -> Load:
        """Offers `rate` calls a second, and health checks beside them. Returns when all have ended."""
        self.run_phases([(rate, seconds)], seed)
        return self._load(seconds)

    def run_phases(self, phases: Iterable[tuple[float, float]], seed: int) -> None:
        """Offers so many calls a second for so many seconds, one phase after the other. `outcomes` has the results."""
        self._began_s = time.perf_counter()
        self._arrivals = _arrivals(phases, random.Random(seed), self._began_s)
        self._next_s = next(self._arrivals, None)
        with HealthChecks(self._address) as health:
            while self._next_s is not None or self._open or self._due:
                now_s = self._begin_due()
                self._expire(now_s)
                if self._next_s is not None:
                    health.check(now_s)
                self._collect(0.005 if self._next_s is None else min(0.005, max(0.0, self._next_s - now_s)))
        self._delays = health.delays
        for connection in self._pool:
            connection.close()

    def _begin_due(self) -> float:
        """Begins the calls that are due. Returns the time."""
        now_s = time.perf_counter()
        while self._next_s is not None and self._next_s <= now_s:
            self._begin(Call(self._next_s, self._keys, begun_s=self._next_s), now_s)
            self._next_s = next(self._arrivals, None)
        while self._due and self._due[0].due_s <= now_s:
            self._begin(heapq.heappop(self._due), now_s)
        return now_s

    def _begin(self, call: Call, now_s: float) -> None:
        key, self._keys = self._keys, self._keys + 1
        connection = self._pool[key % len(self._pool)]
        left_s = call.begun_s + self._deadline_s - now_s if call.attempt else None
        self._open[key] = call, connection, connection.open(key, self._messages[key % len(self._messages)], left_s)
        heapq.heappush(self._ends, (call.begun_s + self._deadline_s + GRACE_S, key))
        self._lateness.append(now_s - call.due_s)

    def _expire(self, now_s: float) -> None:
        """Ends calls after their deadlines, as clients do."""
        while self._ends and self._ends[0][0] <= now_s:
            found = self._open.pop(heapq.heappop(self._ends)[1], None)
            if found is not None:
                found[1].cancel(found[2])
                self._ended(found[0], End(LATE, None, 0), now_s)

    def _collect(self, wait_s: float) -> None:
        """Takes in what has ended. A server that was busy ends many calls at once: others begin in between."""
        for file, _ in self._poll.poll(1000 * wait_s):
            for key, end in self._by_file[file].finished():
                found = self._open.pop(key, None)
                if found is not None:
                    self._ended(found[0], end, time.perf_counter())
            self._begin_due()

    def _ended(self, call: Call, end: End, now_s: float) -> None:
        if end.status in REFUSED and end.pushback_s is not None and call.attempt < self._retries:
            again_s = now_s + end.pushback_s
            if again_s < call.begun_s + self._deadline_s:
                heapq.heappush(self._due, Call(again_s, call.key, call.attempt + 1, call.begun_s))
                return
        self.outcomes.append(Outcome(end, now_s - call.begun_s, call.begun_s - self._began_s))

    def _load(self, seconds: float) -> Load:
        in_time = [found for found in self.outcomes if found.end.status == OK and found.seconds <= self._deadline_s]
        refused = [found for found in self.outcomes if found.end.status in REFUSED]
        late = [found.seconds - self._deadline_s for found in self.outcomes if found.seconds > self._deadline_s]
        return Load(
            offered=len(self.outcomes) / seconds,
            goodput=len(in_time) / seconds,
            ends=dict(collections.Counter(found.end.status for found in self.outcomes)),
            hinted=sum(found.end.pushback_s is not None for found in refused) / max(1, len(refused)),
            refused_s=p99([found.seconds for found in refused]),
            answered_s=p99([found.seconds for found in in_time]),
            health_s=p99(self._delays),
            late_s=p99(self._lateness),
            overshoot_s=p99(late),
            tokens=sum(found.end.tokens for found in in_time),
        )


def _arrivals(phases: Iterable[tuple[float, float]], rng: random.Random, began_s: float) -> Iterator[float]:
    """The moments at which calls are due."""
    for rate, seconds in phases:
        due_s, until_s = began_s + rng.expovariate(rate), began_s + seconds
        while due_s < until_s:
            yield due_s
            due_s += rng.expovariate(rate)
        began_s = until_s


class HealthChecks:
    """Health checks at a fixed pace on a connection of their own. delays: of their answers, seconds."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._check: Any = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        self._futures: list[Any] = []
        self._next_s = 0.0
        self.delays: list[float] = []

    def check(self, now_s: float) -> None:
        """Sends one if it is time."""
        if now_s >= self._next_s:
            self._next_s = now_s + HEALTH_EVERY_S
            future = self._check.future(b"", timeout=5)
            future.add_done_callback(lambda _: self.delays.append(time.perf_counter() - now_s))
            self._futures.append(future)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for future in self._futures:
            future.exception()
        self._channel.close()


def p99(values: list[float]) -> float:
    """The 99th percentile, of no values 0."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] if values else 0.0
