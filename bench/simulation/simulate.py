"""Deterministic simulation of the edge, the engine processes and their clients: thousands of seeds, no promise broken.

Each seed draws a server, its load and its troubles, and runs the product's own server, pool, links, engines and
scheduler on a virtual clock, without processor time for models (`bench.simulation`). Requests come at random, of
several tenants and classes, with deadlines, some as batches or documents; clients leave in any state, read slowly or
send nothing; processes crash, hang, freeze, refuse to start or talk nonsense; turns fail or are not finite; sockets are
full; the server drains at any time.

Checked after every turn and at the end: the invariants of the scheduler; one end for each accepted request, and no
event after it; no turn for a passed deadline, and at most one for a client that has gone; first come, first served
within a tenant and class, and nobody waits for ever; the right tokens; one result for each item of a batch, the
segments of a document in order, each answered as alone; the drain within its limit; nothing left of anything.

A seed that fails prints the command that replays it with a trace: python -m bench simulate --first 7 --seeds 1 --trace
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import gc
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.case import Flag, case
from bench.measure import Verdict, report
from bench.simulation.world import Outcome, simulate_seed

CHUNK = 25  # seeds that a process gets at once
SHOWN = 5  # failing seeds
ENDS = (
    *(("OK", ""), ("NOT_FOUND", "MODEL_NOT_FOUND"), ("FAILED_PRECONDITION", "UNSUPPORTED_BY_MODEL")),
    *(("FAILED_PRECONDITION", "CONSTRAINTS_UNSATISFIABLE"), ("INVALID_ARGUMENT", "max_tokens")),
    *(("INVALID_ARGUMENT", "options"), ("INVALID_ARGUMENT", "is missing"), ("INVALID_ARGUMENT", "is not a message")),
    *(("RESOURCE_EXHAUSTED", "DEADLINE_TOO_SOON"), ("RESOURCE_EXHAUSTED", "requests are waiting")),
    *(
        ("RESOURCE_EXHAUSTED", "the server already handles"),
        ("RESOURCE_EXHAUSTED", "TENANT_LIMIT"),
        ("UNAVAILABLE", "no engine of model"),
    ),
    *(("UNAVAILABLE", "the engine's process ended"), ("UNAVAILABLE", "SHUTTING_DOWN")),
    *(("UNAVAILABLE", "connection closed"), ("INTERNAL", "INTERNAL")),
    *(("DEADLINE_EXCEEDED", "no message came"), ("DEADLINE_EXCEEDED", "the client read nothing")),
    *(("DEADLINE_EXCEEDED", "the deadline passed"), ("DEADLINE_EXCEEDED", "by the client")),
    ("CANCELLED", "by the client"),
)
"""Every end that a call can have: its code, and words of its reason."""
SEEN = (
    *("OK", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "INTERNAL", "INVALID_ARGUMENT"),
    *("RESOURCE_EXHAUSTED", "UNAVAILABLE"),
)
"""Every end that an item of a batch or of a document can have, if its call goes on."""
FULL_SEEDS = 2000  # below, not every end can be expected
MIN_REQUESTS, MAX_S = 250_000, 90.0


def run_seeds(seeds: range, requests: int) -> list[Outcome]:
    """The outcomes of these seeds, in a process that does nothing else."""
    logging.disable(logging.CRITICAL)  # failures are meant
    gc.set_threshold(100_000, 20, 20)  # every call leaves cycles, which a collection after each 700 objects would visit
    return [simulate_seed(seed, requests) for seed in seeds]


def all_outcomes(first: int, seeds: int, requests: int, processes: int) -> Iterator[Outcome]:
    """Those of all seeds, in no order."""
    chunks = [range(at, min(at + CHUNK, first + seeds)) for at in range(first, first + seeds, CHUNK)]
    spawn = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run_seeds, chunk, requests) for chunk in chunks]):
            yield from done.result()


def missing_ends(ends: collections.Counter[tuple[str, str]]) -> list[str]:
    """Ends that no call had."""
    return [
        f"{code}: {words}"
        for code, words in ENDS
        if not any(code == found and words in reason for found, reason in ends)
    ]


def summary(outcomes: list[Outcome], seconds: float) -> tuple[dict[str, Any], list[Verdict]]:
    """What happened in all seeds."""
    ends, events = collections.Counter[tuple[str, str]](), collections.Counter[str]()
    for outcome in outcomes:
        ends += outcome.ends
        events += outcome.events
    calls = sum(outcome.calls for outcome in outcomes)
    items = {name: events[f"items: {name}"] for name in SEEN}
    requests = calls + sum(items.values())
    figures: dict[str, Any] = {
        "seeds": len(outcomes),
        "calls": calls,
        "items of batches and documents": sum(items.values()),
        "accepted requests": sum(outcome.accepted for outcome in outcomes),
        "turns": sum(outcome.turns for outcome in outcomes),
        "virtual seconds": round(sum(outcome.virtual_s for outcome in outcomes)),
        "seconds": round(seconds, 1),
    }
    figures |= {f"{code}, {reason or 'answered'}": count for (code, reason), count in sorted(ends.items())}
    figures |= dict(sorted(events.items()))
    verdicts = [
        Verdict(
            f"broken promises in {len(outcomes)} seeds, {requests} requests",
            sum(len(outcome.violations) for outcome in outcomes),
            0,
            "",
            is_limit=True,
        )
    ]
    if len(outcomes) >= FULL_SEEDS:
        missing = [*missing_ends(ends), *(f"items: {name}" for name, count in items.items() if not count)]
        verdicts += [
            Verdict("simulated requests", requests, MIN_REQUESTS, ""),
            Verdict("seconds that it took", seconds, MAX_S, "s", is_limit=True),
            Verdict("kinds of ends that never happened", len(missing), 0, "", is_limit=True, note=", ".join(missing)),
        ]
    return figures, verdicts


def tell(outcomes: list[Outcome], requests: int) -> None:
    """Names the seeds that failed, and how to replay them."""
    failed = sorted((outcome for outcome in outcomes if outcome.violations), key=lambda outcome: outcome.calls)
    for outcome in failed[:SHOWN]:
        print(f"seed {outcome.seed}: {outcome.violations[0]} ({len(outcome.violations)} in all)", file=sys.stderr)
        command = f"python -m bench simulate --first {outcome.seed} --seeds 1 --requests {requests} --trace"
        print(f"  replay: {command}", file=sys.stderr)
    if len(failed) > SHOWN:
        print(f"and {len(failed) - SHOWN} more seeds", file=sys.stderr)


@case(
    seeds=2050,
    first=Flag(0, "the first seed"),
    requests=Flag(110, "calls of each seed, fewer where the server drains before"),
    processes=2,
    trace=Flag(False, "print every event of the seeds, one after the other"),
)
def simulate(options: argparse.Namespace) -> None:
    began_s = time.monotonic()
    if options.trace:
        logging.disable(logging.CRITICAL)
        seeds = range(options.first, options.first + options.seeds)
        outcomes = [simulate_seed(seed, options.requests, print) for seed in seeds]
    else:
        outcomes = list(all_outcomes(options.first, options.seeds, options.requests, options.processes))
    tell(outcomes, options.requests)
    figures, verdicts = summary(outcomes, time.monotonic() - began_s)
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
