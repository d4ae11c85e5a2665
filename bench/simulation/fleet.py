"""A fleet of 1,000 replicas on a virtual clock: balancers by load reports (ORCA) against least request and round robin.

A replica is a queue of the measured pace, not an engine: with n requests in its rows each takes --alone-ms and n times
--each-ms; others wait, and beyond its queue are refused. Half of the replicas run at that pace, 30 % at 0.7 of it, 20 %
at half. Lengths are exponential. Calls come at random moments through 50 balancers; none is tried again.

    round robin     each balancer's own turn
    least request   the better of two random replicas by the balancer's own open calls, as Envoy's LEAST_REQUEST
    weighted        as gRPC's proposal A58: calls over fullness and errors, by reports each second of the server's meter

Scenes: `steady`; `reload`, a fifth of the replicas at a time at half their speed for 6 s, while the new version opens;
`zone`, a third of the replicas gone at once, noticed after 3 s; `keda`, the chart's query and formula each 15 s, pods
ready after 60 s, fewer after 5 minutes, a load that doubles for 15, ten times the pace's times on a tenth of the fleet.
"""

from __future__ import annotations

import argparse
import array
import bisect
import collections
import heapq
import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.case import Flag, case
from bench.measure import report
from deploy.monitoring.scaling import replicas as wanted_replicas
from service.edge.observability.load_meter import LoadMeter, Sample

ROWS, QUEUE, BALANCERS = 64, 256, 50
SPEEDS = (1.0, 0.7, 1.0, 0.5, 1.0, 0.7, 1.0, 0.5, 1.0, 0.7)
LOOK_S, REPORT_S, SETTLE_S = 0.25, 1.0, 8.0
REFUSED, FAILED, OK = 8, 14, 0  # numbers of gRPC statuses
RELOADED_PART, RELOAD_S, UNNOTICED_S = 0.2, 6.0, 3.0
SCRAPE_S, START_S, STABLE_S = 15.0, 60.0, 300.0
TURN = (math.sqrt(5) - 1) / 2
POLICIES = ("round robin", "least request", "weighted")


class Replica:
    """A queue that serves up to ROWS requests at once. Each has `work`, of 1 on average; `done` is what each request in
    a row has got since the beginning, so that one ends when `done` reaches a number known when it starts."""

    def __init__(self, number: int, speed: float, pace_s: tuple[float, float]) -> None:
        self.number, self.speed, self.speed0, self.pace_s = number, speed, speed, pace_s
        self.done = self.at_s = 0.0
        self.rows: list[tuple[float, int, float, int]] = []  # heap: end, number of the call, when it came, balancer
        self.waiting = collections.deque[tuple[float, int, float, int]]()
        self.change = 0  # older events of it are void
        self.is_there, self.is_listed, self.weight = True, True, 0.0
        self.meter = LoadMeter()
        self.meter.measure = self.sample

    def sample(self) -> Sample:
        wanted = len(self.rows) + len(self.waiting)
        return Sample(wanted / ROWS, len(self.waiting), len(self.rows), 0.0, 0.0, 0.0)

    def advance(self, now_s: float) -> None:
        if self.rows:
            self.done += (now_s - self.at_s) / self.each_takes_s
        self.at_s = now_s

    @property
    def each_takes_s(self) -> float:
        """A request of work 1, with as many as there are."""
        return (self.pace_s[0] + self.pace_s[1] * len(self.rows)) / self.speed

    def begin(self, work: float, number: int, came_s: float, balancer: int) -> None:
        heapq.heappush(self.rows, (self.done + work, number, came_s, balancer))


class Fleet:
    """Replicas, balancers and the calls between them."""

    def __init__(self, policy: str, count: int, pace_s: tuple[float, float]) -> None:
        self.policy, self.rng, self.pace_s = policy, random.Random(1), pace_s
        self.replicas = [Replica(number, SPEEDS[number % len(SPEEDS)], pace_s) for number in range(count)]
        self.events: list[tuple[float, int, Any]] = []
        self.numbers, self.now_s = itertools.count(), 0.0
        self.answered, self.ends = array.array("f"), collections.Counter[int]()  # seconds; by code
        self.fullness: list[list[float]] = []  # of each look that counts, of the replicas of each speed
        self.turns = [self.rng.random() for _ in range(BALANCERS)]
        self.open = [collections.Counter[int]() for _ in range(BALANCERS)]
        self.list()

    def at(self, when_s: float, what: Callable[[], object]) -> None:
        heapq.heappush(self.events, (when_s, next(self.numbers), what))

    def list(self) -> None:
        """Balancers learn which replicas there are, and their weights."""
        self.listed = [one for one in self.replicas if one.is_listed]
        known = [one.weight for one in self.listed if one.weight]
        usual = statistics.fmean(known) if known and self.policy == "weighted" else 1.0
        weights = [(one.weight if self.policy == "weighted" else 0.0) or usual for one in self.listed]
        self.sums = list(itertools.accumulate(weights))

    def choose(self, balancer: int) -> Replica:
        if self.policy == "least request":
            one, other = self.rng.choice(self.listed), self.rng.choice(self.listed)
            calls = self.open[balancer]
            return one if calls[one.number] <= calls[other.number] else other
        # TURN spreads them as evenly as a schedule by deadlines does.
        turn = 1 / len(self.listed) if self.policy == "round robin" else TURN
        self.turns[balancer] = (self.turns[balancer] + turn) % 1
        return self.listed[min(bisect.bisect(self.sums, self.turns[balancer] * self.sums[-1]), len(self.listed) - 1)]

    def call(self) -> None:
        balancer = self.rng.randrange(BALANCERS)
        replica, number = self.choose(balancer), next(self.numbers)
        call = (self.rng.expovariate(1.0), number, self.now_s, balancer)
        if not replica.is_there or len(replica.waiting) == QUEUE:
            self.end(replica, self.now_s, REFUSED if replica.is_there else FAILED)
            return
        self.open[balancer][replica.number] += 1
        if len(replica.rows) == ROWS:
            replica.waiting.append(call)
            return
        replica.advance(self.now_s)
        replica.begin(*call)
        self.plan(replica)

    def end(self, replica: Replica, came_s: float, code: int) -> None:
        replica.meter.count(code)
        if came_s >= SETTLE_S:
            self.ends[code] += 1
            if code == OK:
                self.answered.append(self.now_s - came_s)

    def plan(self, replica: Replica) -> None:
        """The next end of a replica, whose rows or speed have changed."""
        replica.change += 1
        if replica.rows:
            end_s = replica.at_s + max(0.0, replica.rows[0][0] - replica.done) * replica.each_takes_s
            heapq.heappush(self.events, (end_s, next(self.numbers), (replica, replica.change)))

    def finish(self, replica: Replica) -> None:
        replica.advance(self.now_s)
        _, _, came_s, balancer = heapq.heappop(replica.rows)
        self.open[balancer][replica.number] -= 1
        self.end(replica, came_s, OK)
        if replica.waiting:
            replica.begin(*replica.waiting.popleft())
        self.plan(replica)

    def lose(self, replica: Replica) -> None:
        """It is gone with its calls."""
        replica.is_there = False
        for _, _, came_s, balancer in (*replica.rows, *replica.waiting):
            self.open[balancer][replica.number] -= 1
            self.end(replica, came_s, FAILED)
        replica.rows.clear()
        replica.waiting.clear()
        replica.change += 1

    def look(self) -> None:
        for replica in self.replicas:
            if replica.is_there:
                replica.meter.look(self.now_s)
        if self.now_s >= SETTLE_S:
            parts = [[one for one in self.listed if one.speed0 == speed and one.is_there] for speed in set(SPEEDS)]
            self.fullness.append([statistics.fmean([one.sample().fullness for one in part] or [0]) for part in parts])
        self.at(self.now_s + LOOK_S, self.look)

    def report(self) -> None:
        for replica in self.listed:
            load = replica.meter.load
            if load.calls and load.fullness:
                replica.weight = load.calls / (load.fullness + load.failures / load.calls)
        self.list()
        self.at(self.now_s + REPORT_S, self.report)

    def run(self, rate: Callable[[float], float], seconds: float) -> None:
        def arrive() -> None:
            self.call()
            self.at(self.now_s + self.rng.expovariate(rate(self.now_s)), arrive)

        self.at(0.0, arrive)
        self.at(0.0, self.look)
        self.at(REPORT_S, self.report)
        while self.events[0][0] < seconds:
            self.now_s, _, what = heapq.heappop(self.events)
            if callable(what):
                what()
            elif what[0].change == what[1]:
                self.finish(what[0])


def capacity(count: int, pace_s: tuple[float, float]) -> float:
    """Calls a second of a fleet whose rows are full."""
    return sum(SPEEDS[number % len(SPEEDS)] for number in range(count)) * ROWS / (pace_s[0] + pace_s[1] * ROWS)


def reload(fleet: Fleet) -> float:
    """All replicas load a new version, some at a time. Returns the seconds until all have."""
    each = max(1, round(RELOADED_PART * len(fleet.replicas)))

    def at_speed(replicas: Sequence[Replica], share: float) -> None:
        for replica in replicas:
            replica.advance(fleet.now_s)
            replica.speed *= share
            fleet.plan(replica)

    order, begins_s = fleet.rng.sample(fleet.replicas, len(fleet.replicas)), SETTLE_S
    for first in range(0, len(order), each):
        fleet.at(begins_s, partial(at_speed, order[first : first + each], 0.5))
        begins_s += RELOAD_S
        fleet.at(begins_s, partial(at_speed, order[first : first + each], 2.0))
    return begins_s + RELOAD_S


def lose_zone(fleet: Fleet) -> None:
    """Each third replica is gone, and later no balancer chooses it."""

    for replica in fleet.replicas[::3]:
        fleet.at(SETTLE_S + 5, partial(fleet.lose, replica))
        fleet.at(SETTLE_S + 5 + UNNOTICED_S, partial(setattr, replica, "is_listed", False))
    fleet.at(SETTLE_S + 5 + UNNOTICED_S, fleet.list)


class Autoscaler:
    """The formula of the chart. counts: the number of replicas that it asked for, each time."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.counts, self.smaller_s = fleet, [len(fleet.replicas)], math.inf
        fleet.at(SCRAPE_S, self.scrape)

    def scrape(self) -> None:
        fleet, there = self.fleet, self.fleet.listed
        load = sum(one.sample().fullness for one in there)
        wanted, present = max(2, wanted_replicas(load, self.counts[-1])), self.counts[-1]
        self.smaller_s = min(self.smaller_s, fleet.now_s) if wanted < present else math.inf
        for _ in range(wanted - present):
            fleet.at(fleet.now_s + START_S, self.add)
        if wanted > present or fleet.now_s - self.smaller_s >= STABLE_S:
            self.smaller_s = math.inf
            self.counts.append(wanted)
            for replica in there[wanted:]:
                replica.is_listed = False  # and ends what it has
            fleet.list()
        fleet.at(fleet.now_s + SCRAPE_S, self.scrape)

    def add(self) -> None:
        number = len(self.fleet.replicas)
        self.fleet.replicas.append(Replica(number, SPEEDS[number % len(SPEEDS)], self.fleet.pace_s))
        self.fleet.list()


def row(fleet: Fleet, more: str = "") -> str:
    answered = sorted(fleet.answered)
    p50, p99 = (1000 * answered[int(share * (len(answered) - 1))] for share in (0.5, 0.99))
    refused, failed = (fleet.ends[code] / fleet.ends.total() for code in (REFUSED, FAILED))
    by_speed = list(zip(*fleet.fullness, strict=True))
    means = [statistics.fmean(one) for one in by_speed]
    swing = max(statistics.pstdev(one) / mean for one, mean in zip(by_speed, means, strict=True))
    ends = f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, refused {refused:.2%}, failed {failed:.2%}"
    return f"{ends}, fullest over emptiest speed {max(means) / min(means):.1f}, swing {swing:.2f}{more}"


@case(
    replicas=1000,
    load=Flag(0.6, "of what the fleet can do"),
    seconds=Flag(25.0, "of steady and zone"),
    alone_ms=Flag(35.0, "of a request alone, less --each-ms"),
    each_ms=Flag(6.5, "that a request takes longer for each one beside it"),
    scenes=Flag(["steady", "reload", "zone", "keda"], "to run"),
    policies=Flag(list(POLICIES), "to compare", choices=POLICIES),
)
def fleet(options: argparse.Namespace) -> None:
    pace_s = options.alone_ms / 1000, options.each_ms / 1000
    most = capacity(options.replicas, pace_s)
    figures: dict[str, Any] = {"calls a second at capacity": round(most)}
    for scene, policy in itertools.product(options.scenes, options.policies):
        if scene == "keda":
            figures[f"{scene}, {policy}"] = autoscaled(policy, options.replicas // 10, pace_s, options.load)
            continue
        found, seconds = Fleet(policy, options.replicas, pace_s), options.seconds
        if scene == "zone":
            lose_zone(found)
        seconds = reload(found) if scene == "reload" else seconds
        found.run(lambda _: options.load * most, seconds)
        figures[f"{scene}, {policy}"] = row(found)
    report(figures, [], as_json=options.json)


def autoscaled(policy: str, count: int, pace_s: tuple[float, float], load: float) -> str:
    """The scene with KEDA: a load that doubles after five minutes and is back after twenty."""
    slow_s = 10 * pace_s[0], 10 * pace_s[1]
    found = Fleet(policy, count, slow_s)
    scaler = Autoscaler(found)
    rate = load * capacity(count, slow_s)
    found.run(lambda now_s: rate * (2 if 300 <= now_s < 1200 else 1), 2100.0)
    steps = [later > earlier for earlier, later in itertools.pairwise(scaler.counts) if later != earlier]
    turns = sum(one != other for one, other in itertools.pairwise(steps))
    return row(found, f"; replicas {min(scaler.counts)} to {max(scaler.counts)}, {turns} changes of direction")
