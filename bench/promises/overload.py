"""Goodput of a server at multiples of its capacity: open-loop Poisson arrivals with deadlines, server and load on a
processor each.

Capacity R is the goodput at the rate that a closed loop of clients reaches, or at a higher one if that is answered:
calls that arrive one by one cost more than those of a closed loop, which arrive together. Each load then offers a
multiple of R for some seconds, whatever the answers. Reported are answers in time a second (goodput), how the surplus
ended and how soon, how long after their deadlines calls ended, the delay of health checks meanwhile, and the tokens
that were computed for requests that did not end in time: as reported by the server's metrics, and as the difference of
generated and received tokens.

Recovery: half of the capacity, then ten times of it for two seconds, then half of it again, by clients that retry a
refused call up to four times, as late as the server asks. It is over when the calls of the next two seconds have 1.2
times the p99 of those that ended before the spike. --envoy measures the same through Envoy with the settings of
deploy/envoy/overload.yaml, on the server's processor.

A load is void if the generator itself was late by more than 5 ms at p99, and is then offered up to two more times.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.load import envoy
from bench.load.calls import UNARY
from bench.load.lean_client import LeanConnection, closed_loop
from bench.load.open_loop import REFUSED, Load, Outcome, Source, offer, p99, shares
from bench.load.peer_server import glossa_server, http_address
from bench.load.status_connection import OK, DeadlineConnection
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

BARS = {1.0: 0.97, 2.0: 0.90, 5.0: 0.80, 10.0: 0.70}  # goodput as a share of capacity, by offered multiple of it
LATENESS_S = 0.005
SOON_MS, OVERSHOOT_MS = 50.0, 20.0
COUNTERS = ("glossa_generated_tokens_total", "glossa_wasted_tokens_total")
QUIET_S, SPIKE_S, AFTER_S, WINDOW_S = 4.0, 2.0, 6.0, 2.0  # of the measurement of recovery
RAISES = 3  # of the rate, in search of the capacity
AGAIN = 2  # times that a void load is offered again
RETRIES = 4  # of a refused call: gRPC makes at most five attempts


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


def capacity(address: str, messages: list[bytes], clients: int, seconds: float) -> float:
    """Answers a second of a closed loop."""
    connections = [LeanConnection(address) for _ in range(4)]
    began_s = time.perf_counter()
    found = closed_loop(connections, UNARY, messages, clients, seconds)
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
    envoy=Flag(False, "Envoy with deploy/envoy/overload.yaml in front of the server, on its processor"),
    without_recovery=Flag(False, "measure the loads only"),
)
def overload(options: argparse.Namespace) -> None:
    binary = envoy.find()
    if options.envoy and binary is None:
        raise SystemExit(envoy.HOW_TO_GET_IT)
    mine, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {mine})  # server and Envoy inherit it
    flags = ["--max-queue", "256", "--max-requests", "1024", "--max-concurrent-streams", "256", "--engines", "1"]
    flags += shlex.split(options.serve)
    with contextlib.ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        server = glossa_server(options.bundle, checkout=options.checkout, flags=flags, log=log)
        address, _ = stack.enter_context(server)
        front = (
            stack.enter_context(envoy.in_front_of([address], binary)).address if options.envoy and binary else address
        )
        os.sched_setaffinity(0, set(others) or {mine})
        measured = Measured(options, address, front, http_address(log))
        for tokens in options.tokens:
            measured.measure(tokens)
    report(measured.figures, measured.verdicts, as_json=options.json)


class Measured:
    """The results so far. front: the address that the loads use; that of the server, or of what stands before it."""

    def __init__(self, options: argparse.Namespace, address: str, front: str, http: str) -> None:
        self._options, self._address, self._front, self._http = options, address, front, http
        self._texts = [source for source, _ in sentence_pairs(options.data, 500)]
        self.figures: dict[str, Any] = {"unit": "requests/s"}
        self.verdicts: list[Verdict] = []

    def measure(self, tokens: int) -> None:
        """All loads with answers of so many tokens."""
        options = self._options
        asked = pb.DecodingOptions(max_tokens=tokens, ignore_eos=True)
        self._messages = [pb.TranslateRequest(text=text, options=asked).SerializeToString() for text in self._texts]
        capacity(self._address, self._messages, options.clients, 1.0)
        most = capacity(self._address, self._messages, options.clients, 3.0)
        base = best = self._base(f"{tokens} tokens", most)
        self.figures[f"{tokens} tokens: closed loop, capacity"] = f"{most:.0f}, {base:.0f}"
        for factor in options.factors:
            load, generated, counted = self._offer(factor * base)
            best = max(best, load.goodput) if factor <= 1 else best
            wasted = 1 - load.tokens / generated if generated else 0.0
            self._take(
                f"{tokens} tokens, {factor:g} x", factor, load, load.goodput / best, wasted, counted / (generated or 1)
            )
        if not options.without_recovery:
            self._recover(f"{tokens} tokens", base)

    def _offer(self, rate: float) -> tuple[Load, float, float]:
        """A load, and the tokens that the server generated and wasted meanwhile, by its metrics."""
        for _ in range(1 + AGAIN):
            before = counters(self._http)
            load = self._run(rate)
            time.sleep(self._options.deadline_s)
            after = counters(self._http)
            if load.late_s <= LATENESS_S:
                break
        generated, counted = (after[name] - before[name] for name in COUNTERS)
        return load, generated, counted

    def _base(self, label: str, rate: float) -> float:
        """The goodput at a rate that exceeds it, from `rate` on: a closed loop of few clients may find too little."""
        for _ in range(RAISES):
            load = self._run(rate)
            if load.goodput < 0.97 * rate:
                break
            rate *= 1.3
        self._is_valid(f"{label}, capacity", load)
        return load.goodput

    def _is_valid(self, label: str, load: Load) -> bool:
        """Whether the generator was on time; a verdict if not."""
        if load.late_s > LATENESS_S:
            lateness = f"lateness of the generator, which voids {label}"
            late_ms, most_ms = round(1000 * load.late_s, 1), 1000 * LATENESS_S
            self.verdicts.append(Verdict(lateness, late_ms, most_ms, "ms", is_limit=True))
        return load.late_s <= LATENESS_S

    def _run(self, rate: float) -> Load:
        return offer(self._front, self._source([(rate, self._options.seconds)]), self._options.seed)

    def _source(self, phases: list[tuple[float, float]], retries: int = 0) -> Source:
        options = self._options
        pool = [DeadlineConnection(self._front, options.deadline_s) for _ in range(options.connections)]
        return Source(pool, self._messages, phases, retries)

    def _take(self, label: str, factor: float, load: Load, share: float, wasted: float, counted: float) -> None:
        self.figures |= {f"{label}: {name}": value for name, value in shown(load, wasted, counted)}
        if self._is_valid(label, load) and factor in BARS:
            self.verdicts += judged(label, factor, load, share, wasted, counted)

    def _recover(self, label: str, base: float) -> None:
        source = self._source([(base / 2, QUIET_S), (10 * base, SPIKE_S), (base / 2, AFTER_S)], RETRIES)
        offer(self._front, source, self._options.seed)
        quiet_s = tail_s(source.outcomes, 0.0, QUIET_S - self._options.deadline_s)
        # Where 99 % of the calls before the spike had no answer there is nothing to come back to.
        seconds = AFTER_S if math.isinf(quiet_s) else recovery_s(source.outcomes, 1.2 * quiet_s)
        self.figures[f"{label}: quiet p99 ms, recovered after s"] = f"{1000 * quiet_s:.0f}, {seconds:.1f}"
        name = f"time from a spike of 10 x with retries to 1.2 times the p99 before it, {label}"
        self.verdicts.append(Verdict(name, round(seconds, 1), 1.0, "s", is_limit=True))


def tail_s(outcomes: list[Outcome], begin_s: float, end_s: float) -> float:
    """The p99 of the calls that were due from begin_s to end_s; those without an answer took for ever."""
    due = [found for found in outcomes if begin_s <= found.due_s < end_s]
    return p99([found.seconds if found.end.status == OK else math.inf for found in due])


def recovery_s(outcomes: list[Outcome], limit_s: float) -> float:
    """Seconds from the end of the spike until the p99 of the following two seconds is at most `limit_s`; if that does
    not happen, the time of the whole measurement."""
    begin_s, step_s = QUIET_S + SPIKE_S, 0.1
    for step in range(round((AFTER_S - WINDOW_S) / step_s) + 1):
        if tail_s(outcomes, begin_s + step * step_s, begin_s + step * step_s + WINDOW_S) <= limit_s:
            return step * step_s
    return AFTER_S


def shown(load: Load, wasted: float, counted: float) -> Iterator[tuple[str, str]]:
    """Figures of a load as text. wasted: share of wasted tokens; counted: the same by the metric."""
    yield "offered, goodput", f"{load.offered:.0f}, {load.goodput:.0f}"
    yield "ends", shares(load.ends)
    yield "refusals with a hint; p99 ms", f"{100 * load.hinted:.1f} %; {1000 * load.refused_s:.0f}"
    yield (
        "answers p99, overshoot p99, health p99, ms",
        (f"{1000 * load.answered_s:.0f}, {1000 * load.overshoot_s:.0f}, {1000 * load.health_s:.0f}"),
    )
    yield "wasted tokens: truth, metric", f"{100 * wasted:.1f} %, {100 * counted:.1f} %"


def judged(label: str, factor: float, load: Load, share: float, wasted: float, counted: float) -> Iterator[Verdict]:
    """share: of the best goodput without overload."""
    yield Verdict(f"goodput, {label}", round(share, 3), BARS[factor])
    yield Verdict(f"p99 of health checks, {label}", round(1000 * load.health_s, 1), SOON_MS, "ms", is_limit=True)
    overshoot_ms = round(1000 * load.overshoot_s, 1)
    yield Verdict(f"p99 from a deadline to its call's end, {label}", overshoot_ms, OVERSHOOT_MS, "ms", is_limit=True)
    if factor > 1:
        surplus = sum(count for status, count in load.ends.items() if status != OK)
        refused = load.hinted * sum(load.ends.get(status, 0) for status in REFUSED) / surplus if surplus else 1.0
        yield Verdict(f"surplus refused with a hint, {label}", round(100 * refused, 2), 99.0, "%")
        yield Verdict(f"calls that ended as CANCELLED, {label}", load.ends.get("CANCELLED", 0), 0.0, "", is_limit=True)
        yield Verdict(f"p99 of refusals, {label}", round(1000 * load.refused_s, 1), SOON_MS, "ms", is_limit=True)
        bar = 1.0 if factor <= 2 else 3.0
        yield Verdict(f"wasted tokens, {label}", round(100 * wasted, 2), bar, "%", is_limit=True)
        apart = round(100 * abs(wasted - counted), 2)
        yield Verdict(f"wasted tokens, points between metric and truth, {label}", apart, 1.0, "", is_limit=True)
