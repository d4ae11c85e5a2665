"""Open-loop load on a server: calls begin at random moments (Poisson), whatever the answers, and have deadlines.

The generator writes its own HTTP/2 frames, so that it hardly takes processor time from what it measures. `glossa
bench`, which sends what a client would, takes some 0.25 ms a call, more than there is between two calls of ten times a
small model's capacity. Each call is measured from the moment when it was due, and how late the generator was itself.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import math
import random
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from bench.load.lean_client import CallFailed
from bench.load.status_connection import OK, DeadlineConnection, End

LATE, LOST = "LATE", "LOST"  # beside names of gRPC statuses: ended by the generator; with its connection
REFUSED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
HEALTH_EVERY_S = 0.05
GRACE_S = 0.1  # from a deadline until the generator ends the call, to see when the server does
POLL_S = 0.005


class Outcome(NamedTuple):
    """A call of a load. Seconds since it was due; due_s: since the load began."""

    end: End
    seconds: float
    due_s: float


@dataclass
class Source:
    """Who offers calls at random moments, over one connection after the other.

    phases: so many calls a second for so many seconds, one after the other; retries: of a refused call, as often and as
    late as the server's hint says, and within the call's deadline; reopens: a connection that the server has closed,
    which is an error otherwise; is_awaited: the load lasts until its calls have ended. outcomes: of ended calls.
    """

    connections: Sequence[DeadlineConnection]
    messages: Sequence[bytes]
    phases: Sequence[tuple[float, float]]
    retries: int = 0
    reopens: bool = False
    is_awaited: bool = True
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Calls a second in the first phase."""
        return self.phases[0][0]

    @property
    def deadline_s(self) -> float:
        """Of each call."""
        return self.connections[0].deadline_s

    @property
    def in_time(self) -> list[float]:
        """Seconds of the answers in time."""
        return [one.seconds for one in self.outcomes if one.end.status == OK and one.seconds <= self.deadline_s]

    @property
    def ends(self) -> collections.Counter[str]:
        """How many calls ended with which status."""
        return collections.Counter(outcome.end.status for outcome in self.outcomes)


class Call(NamedTuple):
    """One that is due. key: of its first attempt; attempt: from 0 on; begun_s: when the first attempt was due."""

    due_s: float
    key: int
    source: Source
    attempt: int = 0
    begun_s: float = 0.0


class OpenLoop:
    """The calls of several sources at a time. lateness: seconds from the moment when each was due until it began."""

    def __init__(self, sources: Sequence[Source], seed: int) -> None:
        self._sources, self._seed = sources, seed
        self._owners: dict[int, tuple[DeadlineConnection, Source]] = {}  # by file
        self._poll = select.poll()
        for source in sources:
            for connection in source.connections:
                self._add(connection, source)
        self._open: dict[int, tuple[Call, DeadlineConnection, int]] = {}  # by key: call, connection, stream
        self._due: list[Call] = []  # a heap of retries
        self._deadlines: list[tuple[float, int]] = []  # a heap: deadline, key; those of ended calls leave it late
        self._turns = [itertools.count() for _ in sources]  # of each source's connections and messages
        self._keys = itertools.count()
        self._losses = 0  # of connections
        self._awaited = 0  # calls that have not ended, of sources that are waited for
        self.lateness: list[float] = []

    def run(self, beside: Callable[[float], None] = lambda now_s: None) -> None:
        """Offers all calls. Returns when those that are waited for have ended; others are cancelled then. It closes the
        connections.

        beside: called with the time, again and again while calls are offered.
        """
        try:
            self._run(beside)
        finally:
            for source in self._sources:
                for connection in source.connections:
                    connection.close()

    def _run(self, beside: Callable[[float], None]) -> None:
        self._began_s = time.perf_counter()
        self._arrivals = [
            _arrivals(source.phases, random.Random(self._seed + place), self._began_s)
            for place, source in enumerate(self._sources)
        ]
        self._next_s = [next(arrivals, math.inf) for arrivals in self._arrivals]
        while (next_s := min(self._next_s)) < math.inf or self._awaited:
            now_s = self._begin_due()
            self._expire(now_s)
            if next_s < math.inf:
                beside(now_s)
            self._collect(min(POLL_S, max(0.0, min(self._next_s) - now_s)))
        for _, connection, stream in self._open.values():
            connection.cancel(stream)

    def _add(self, connection: DeadlineConnection, source: Source) -> None:
        self._owners[connection.fileno()] = connection, source
        self._poll.register(connection, select.POLLIN)

    def _begin_due(self) -> float:
        """Begins the calls that are due. Returns the time."""
        now_s = time.perf_counter()
        for place, source in enumerate(self._sources):
            while (due_s := self._next_s[place]) <= now_s:
                turn = next(self._turns[place])
                self._awaited += source.is_awaited
                self._begin(Call(due_s, turn, source, begun_s=due_s), now_s)
                self._next_s[place] = next(self._arrivals[place], math.inf)
        while self._due and self._due[0].due_s <= now_s:
            self._begin(heapq.heappop(self._due), now_s)
        return now_s

    def _begin(self, call: Call, now_s: float) -> None:
        source, key = call.source, next(self._keys)
        connection = source.connections[(call.key + call.attempt) % len(source.connections)]
        message = source.messages[call.key % len(source.messages)]
        left_s = call.begun_s + connection.deadline_s - now_s if call.attempt else None
        self.lateness.append(now_s - call.due_s)
        try:
            stream = connection.open(key, message, left_s)
        except OSError as error:
            self._lose(connection, source, error)
            self._ended(call, End(LOST, None, 0), now_s)
            return
        self._open[key] = call, connection, stream
        heapq.heappush(self._deadlines, (call.begun_s + connection.deadline_s + GRACE_S, key))

    def _lose(self, connection: DeadlineConnection, source: Source, error: Exception) -> None:
        """Opens a connection again that the server has closed, if its source wants that; else raises the error."""
        if not source.reopens:
            raise error
        self._losses += 1
        now_s, file = time.perf_counter(), connection.fileno()
        self._poll.unregister(file)
        del self._owners[file]
        for key in [key for key, found in self._open.items() if found[1] is connection]:
            self._ended(self._open.pop(key)[0], End(LOST, None, 0), now_s)
        connection.reopen()
        self._add(connection, source)

    def _expire(self, now_s: float) -> None:
        """Ends calls after their deadlines, as clients do."""
        while self._deadlines and self._deadlines[0][0] <= now_s:
            found = self._open.pop(heapq.heappop(self._deadlines)[1], None)
            if found is not None:
                found[1].cancel(found[2])
                self._ended(found[0], End(LATE, None, 0), now_s)

    def _collect(self, wait_s: float) -> None:
        """Takes in what has ended. A server that was busy ends many calls at once: others begin in between."""
        losses = self._losses
        for file, _ in self._poll.poll(1000 * wait_s):
            if losses != self._losses:  # this file may be that of a new connection, from which nothing has come
                return
            connection, source = self._owners[file]
            try:
                ended = connection.finished()
            except (OSError, CallFailed) as error:
                self._lose(connection, source, error)
                return
            for key, end in ended:
                found = self._open.pop(key, None)
                if found is not None:
                    self._ended(found[0], end, time.perf_counter())
            self._begin_due()

    def _ended(self, call: Call, end: End, now_s: float) -> None:
        source = call.source
        if end.status in REFUSED and end.pushback_s is not None and call.attempt < source.retries:
            again_s = now_s + end.pushback_s
            if again_s < call.begun_s + source.deadline_s:
                heapq.heappush(self._due, call._replace(due_s=again_s, attempt=call.attempt + 1))
                return
        self._awaited -= source.is_awaited
        source.outcomes.append(Outcome(end, now_s - call.begun_s, call.begun_s - self._began_s))


def _arrivals(phases: Sequence[tuple[float, float]], rng: random.Random, began_s: float) -> Iterator[float]:
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


def offer(address: str, source: Source, seed: int) -> Load:
    """Offers the calls of one source, and health checks at `address` beside them."""
    loop = OpenLoop([source], seed)
    with HealthChecks(address) as health:
        loop.run(health.check)
    outcomes, seconds = source.outcomes, sum(length_s for _, length_s in source.phases)
    refused = [found for found in outcomes if found.end.status in REFUSED]
    late = [found.seconds - source.deadline_s for found in outcomes if found.seconds > source.deadline_s]
    in_time = [found for found in outcomes if found.end.status == OK and found.seconds <= source.deadline_s]
    return Load(
        offered=len(outcomes) / seconds,
        goodput=len(in_time) / seconds,
        ends=dict(source.ends),
        hinted=sum(found.end.pushback_s is not None for found in refused) / max(1, len(refused)),
        refused_s=p99([found.seconds for found in refused]),
        answered_s=p99([found.seconds for found in in_time]),
        health_s=p99(health.delays),
        late_s=p99(loop.lateness),
        overshoot_s=p99(late),
        tokens=sum(found.end.tokens for found in in_time),
    )


def shares(ends: Mapping[str, int]) -> str:
    """How calls ended, in percent, by name."""
    total = sum(ends.values())
    return ", ".join(f"{name} {100 * count / total:.1f} %" for name, count in sorted(ends.items()))


def p99(values: list[float]) -> float:
    """The 99th percentile, of no values 0."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] if values else 0.0
