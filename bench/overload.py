"""Goodput of a server at multiples of its capacity: open-loop Poisson arrivals with deadlines, server and load on a
processor each.

Capacity R is the goodput at the rate that a closed loop of clients reaches: calls that arrive one by one cost more than
those of a closed loop, which arrive together. Each load then offers a multiple of R for some seconds, whatever the
answers, in processor time that hardly counts (`lean_client`). Reported are answers in time a second (goodput), how
the surplus ended and how soon, the delay of health checks meanwhile, and the tokens that were computed for requests
that did not end in time: as reported by the server's metrics, and as the difference of generated and received tokens.

A load is void if the generator itself was late by more than 5 ms at p99.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import select
import shlex
import struct
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from bench.case import Flag, case
from bench.lean_client import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    RST_STREAM,
    LeanConnection,
    closed_loop,
    frame,
    literal,
)
from bench.measure import Verdict, report
from bench.peer_server import glossa_server
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

PATH = "/glossa.v1.TranslationService/Translate"
BARS = {1.0: 0.97, 2.0: 0.90, 5.0: 0.80, 10.0: 0.70}  # goodput as a share of capacity, by offered multiple of it
OK, RESET, LATE = "OK", "RESET", "LATE"  # beside names of gRPC statuses: RST_STREAM without one; ended by the generator
REFUSED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
LATENESS_S = 0.005
SOON_MS = 50.0
HEALTH_EVERY_S = 0.05
COUNTERS = ("glossa_generated_tokens_total", "glossa_wasted_tokens_total")
NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
PUSHBACK = b"grpc-retry-pushback-ms"
CANCEL = struct.pack(">I", 8)


class End(NamedTuple):
    """How a call ended. pushback: the status came with a hint when to try again."""

    status: str
    pushback: bool
    tokens: int


class Outcome(NamedTuple):
    """A call of a load. Seconds since it was due."""

    end: End
    seconds: float


class DeadlineConnection(LeanConnection):
    """Calls with a deadline whose statuses count. The server may not compress headers by a table, so that the names and
    values of its statuses are literal."""

    settings = LeanConnection.settings + struct.pack(">HI", HEADER_TABLE_SIZE, 0)

    def __init__(self, address: str, deadline_s: float) -> None:
        super().__init__(address)
        self._fields = literal(b"grpc-timeout", b"%dm" % round(1000 * deadline_s))

    def open(self, key: int, message: bytes) -> int:
        """Starts a call. Returns its stream."""
        stream = self._next_stream
        self.start(PATH, [(key, message)], self._fields)
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
                status = NAMES[int(value_of(payload, b"grpc-status"))] if kind == HEADERS else RESET
                tokens = pb.TranslateResponse.FromString(body[5:]).usage.generated_tokens if status == OK else 0
                found.append((self._keys.pop(stream), End(status, PUSHBACK in payload, tokens)))
        return found


def value_of(headers: bytes, name: bytes) -> bytes:
    """The literal value of a field (RFC 7541, 6.2.2), shorter than 127 bytes and without Huffman code."""
    at = headers.index(bytes([len(name)]) + name) + 1 + len(name)
    return headers[at + 1 : at + 1 + headers[at]]


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
    tokens: int  # received in time


class OpenLoop:
    """A load whose calls begin at random moments, whatever the answers."""

    def __init__(self, address: str, messages: Sequence[bytes], deadline_s: float, connections: int) -> None:
        self._address, self._messages, self._deadline_s = address, messages, deadline_s
        self._pool = [DeadlineConnection(address, deadline_s) for _ in range(connections)]
        self._by_file = {connection.fileno(): connection for connection in self._pool}
        self._poll = select.poll()
        for connection in self._pool:
            self._poll.register(connection, select.POLLIN)
        self._open: dict[int, tuple[float, DeadlineConnection, int]] = {}  # by key: when due, connection, stream
        self._oldest: collections.deque[int] = collections.deque()  # keys; those of ended calls leave it late
        self._outcomes: list[Outcome] = []
        self._lateness: list[float] = []

    def run(self, rate: float, seconds: float, seed: int) -> Load:
        """Offers `rate` calls a second, and health checks beside them. Returns when all have ended."""
        rng = random.Random(seed)
        until_s = time.perf_counter() + seconds
        due_s, calls = time.perf_counter() + rng.expovariate(rate), 0
        with HealthChecks(self._address) as health:
            while (now_s := time.perf_counter()) < until_s or self._open:
                while due_s <= now_s and due_s < until_s:
                    self._begin(calls, due_s, now_s)
                    calls, due_s = calls + 1, due_s + rng.expovariate(rate)
                self._expire(now_s)
                if now_s < until_s:
                    health.check(now_s)
                self._collect(min(0.005, max(0.0, due_s - now_s) if due_s < until_s else 0.005))
        for connection in self._pool:
            connection.close()
        return self._load(calls, seconds, health.delays)

    def _begin(self, key: int, due_s: float, now_s: float) -> None:
        connection = self._pool[key % len(self._pool)]
        self._open[key] = due_s, connection, connection.open(key, self._messages[key % len(self._messages)])
        self._oldest.append(key)
        self._lateness.append(now_s - due_s)

    def _expire(self, now_s: float) -> None:
        """Ends calls at their deadlines, as clients do."""
        while self._oldest:
            call = self._open.get(self._oldest[0])
            if call is not None and call[0] + self._deadline_s > now_s:
                return
            key = self._oldest.popleft()
            if call is not None:
                del self._open[key]
                call[1].cancel(call[2])
                self._outcomes.append(Outcome(End(LATE, False, 0), now_s - call[0]))

    def _collect(self, wait_s: float) -> None:
        for file, _ in self._poll.poll(1000 * wait_s):
            for key, end in self._by_file[file].finished():
                call = self._open.pop(key, None)
                if call is not None:
                    self._outcomes.append(Outcome(end, time.perf_counter() - call[0]))

    def _load(self, calls: int, seconds: float, delays: list[float]) -> Load:
        in_time = [found for found in self._outcomes if found.end.status == OK and found.seconds <= self._deadline_s]
        refused = [found for found in self._outcomes if found.end.status in REFUSED]
        return Load(
            offered=calls / seconds,
            goodput=len(in_time) / seconds,
            ends=dict(collections.Counter(found.end.status for found in self._outcomes)),
            hinted=sum(found.end.pushback for found in refused) / max(1, len(refused)),
            refused_s=p99([found.seconds for found in refused]),
            answered_s=p99([found.seconds for found in in_time]),
            health_s=p99(delays),
            late_s=p99(self._lateness),
            tokens=sum(found.end.tokens for found in in_time),
        )


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


def counters(http: str) -> dict[str, float]:
    """The server's counters of generated and wasted tokens."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = dict.fromkeys(COUNTERS, 0.0)
    for line in lines:
        name = line.partition("{")[0]
        if name in found:
            found[name] += float(line.rpartition(" ")[2])
    return found


def http_address(log: Path) -> str:
    """Of a server that serves, by its log."""
    while True:
        events = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        for event in events:
            if event["event"] == "serving":
                return str(event["http"])
        time.sleep(0.05)


def capacity(address: str, messages: list[bytes], clients: int, seconds: float) -> float:
    """Answers a second of a closed loop."""
    connections = [LeanConnection(address) for _ in range(4)]
    began_s = time.perf_counter()
    found = closed_loop(connections, PATH, messages, clients, seconds)
    for connection in connections:
        connection.close()
    ended = [answer for answer in found if answer.ended_s < began_s + seconds]
    return len(ended) / seconds


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    tokens=Flag([16, 64], "of each answer"),
    factors=Flag([1.0, 2.0, 5.0, 10.0], "offered load as a multiple of capacity"),
    seconds=Flag(10.0, "of each load"),
    deadline_s=1.0,
    clients=Flag(128, "of the closed loop that measures capacity"),
    connections=24,
    seed=0,
    checkout=Flag(Path, "whose server is measured; this one if not given"),
    serve=Flag("", "more flags of the server"),
)
def overload(options: argparse.Namespace) -> None:
    mine, *others = sorted(os.sched_getaffinity(0))
    figures: dict[str, Any] = {"unit": "requests/s"}
    verdicts: list[Verdict] = []
    texts = [source for source, _ in sentence_pairs(options.data, 500)]
    os.sched_setaffinity(0, {mine})  # the server inherits it
    defaults = ["--max-queue", "256", "--max-requests", "1024", "--max-concurrent-streams", "256", "--engines", "1"]
    defaults += shlex.split(options.serve)
    with (
        tempfile.TemporaryDirectory() as scratch,
        glossa_server(options.bundle, checkout=options.checkout, flags=defaults, log=Path(scratch) / "log") as (
            address,
            _,
        ),
    ):
        http = http_address(Path(scratch) / "log")
        os.sched_setaffinity(0, set(others) or {mine})
        for tokens in options.tokens:
            asked = pb.DecodingOptions(max_tokens=tokens, ignore_eos=True)
            messages = [pb.TranslateRequest(text=text, options=asked).SerializeToString() for text in texts]
            capacity(address, messages, options.clients, 1.0)
            most = capacity(address, messages, options.clients, 3.0)
            loop = OpenLoop(address, messages, options.deadline_s, options.connections)
            base = best = loop.run(most, options.seconds, options.seed).goodput
            figures[f"{tokens} tokens: closed loop, capacity"] = f"{most:.0f}, {base:.0f}"
            for factor in options.factors:
                before = counters(http)
                loop = OpenLoop(address, messages, options.deadline_s, options.connections)
                load = loop.run(factor * base, options.seconds, options.seed)
                time.sleep(options.deadline_s)
                after = counters(http)
                label = f"{tokens} tokens, {factor:g} x"
                best = max(best, load.goodput) if factor <= 1 else best
                generated, counted = (after[name] - before[name] for name in COUNTERS)
                wasted = 1 - load.tokens / generated if generated else 0.0
                figures |= {
                    f"{label}: {name}": value for name, value in shown(load, wasted, counted / (generated or 1))
                }
                if load.late_s > LATENESS_S:
                    lateness = f"lateness of the generator, which voids {label}"
                    late_ms, most_ms = round(1000 * load.late_s, 1), 1000 * LATENESS_S
                    verdicts.append(Verdict(lateness, late_ms, most_ms, "ms", is_limit=True))
                elif factor in BARS:
                    verdicts += judged(label, factor, load, load.goodput / best, wasted)
    report(figures, verdicts, as_json=options.json)


def shown(load: Load, wasted: float, counted: float) -> Iterator[tuple[str, str]]:
    """Figures of a load as text. wasted: share of wasted tokens; counted: the same by the metric."""
    total = sum(load.ends.values())
    yield "offered, goodput", f"{load.offered:.0f}, {load.goodput:.0f}"
    yield "ends", ", ".join(f"{name} {100 * count / total:.1f} %" for name, count in sorted(load.ends.items()))
    yield "refusals with a hint; p99 ms", f"{100 * load.hinted:.1f} %; {1000 * load.refused_s:.0f}"
    yield "answers p99, health p99, ms", f"{1000 * load.answered_s:.0f}, {1000 * load.health_s:.0f}"
    yield "wasted tokens: truth, metric", f"{100 * wasted:.1f} %, {100 * counted:.1f} %"


def judged(label: str, factor: float, load: Load, share: float, wasted: float) -> Iterator[Verdict]:
    """share: of the best goodput without overload."""
    yield Verdict(f"goodput, {label}", round(share, 3), BARS[factor])
    yield Verdict(f"p99 of health checks, {label}", round(1000 * load.health_s, 1), SOON_MS, "ms", is_limit=True)
    if factor > 1:
        surplus = sum(count for status, count in load.ends.items() if status != OK)
        refused = load.hinted * sum(load.ends.get(status, 0) for status in REFUSED) / max(1, surplus)
        yield Verdict(f"surplus refused with a hint, {label}", round(100 * refused, 2), 99.0, "%")
        yield Verdict(f"p99 of refusals, {label}", round(1000 * load.refused_s, 1), SOON_MS, "ms", is_limit=True)
        bar = 1.0 if factor <= 2 else 3.0
        yield Verdict(f"wasted tokens, {label}", round(100 * wasted, 2), bar, "%", is_limit=True)
