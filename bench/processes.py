"""One server with its engines in processes of their own against several servers, or another checkout, under load.

Closed loop: each caller sends its next request when its answer is complete. The arrangements share the processors, and
so does the client, which writes HTTP/2 frames itself:

    one     one server as it is by default
    two     two servers with one engine each, the callers divided evenly among them; an engine has one thread, as a
            server that does not know of the other one would otherwise use the other one's processors
    before  one server of --before, another checkout, as it is by default

All servers stay up, one arrangement is loaded at a time, in random order in each round, and the processor time of those
that are idle is reported. Ratios are of the measurements of the same round.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.compare_checkouts import Calls, calls_of
from bench.lean_client import Answered, LeanConnection, closed_loop
from bench.measure import Spread, Verdict, report
from bench.peer_server import glossa_server
from bench.process_tree import cpu_seconds
from bench.sentences import sentence_pairs
from cli.load.load_report import percentile
from glossa.v1 import glossa_pb2 as pb

MODES = ("unary", "stream")
ONE_ENGINE = ("--engines", "1", "--single-engine-threads", "1")
CONNECTIONS = 2  # of each arrangement, however many servers it has
IDLE_BAR = 0.02  # processors that all idle servers together may use
REST_S = 0.05  # threads of the server that answered last look for work for a while


class Arrangement(NamedTuple):
    """Servers that share a load: their process ids, and the connections to them."""

    pids: list[int]
    connections: list[LeanConnection]


class Work(NamedTuple):
    """What callers ask for: the method, its requests, and the type of its messages."""

    path: str
    messages: list[bytes]
    response: Any


class Load(NamedTuple):
    """What one measurement gave. client: processors that it used; idle: those that idle servers used."""

    rate: float
    p50_ms: float
    p99_ms: float
    client: float
    idle: float


def arrangements(stack: ExitStack, options: argparse.Namespace) -> dict[str, Arrangement]:
    """All of them, started and connected to; the stack ends them."""
    here = Path(__file__).resolve().parents[1]
    made: dict[str, list[tuple[Path, tuple[str, ...]]]] = {"one": [(here, ())], "two": [(here, ONE_ENGINE)] * 2}
    if options.before:
        made["before"] = [(options.before.resolve(), ())]
    found = {}
    for name, servers in made.items():
        pids, connections = [], []
        for checkout, flags in servers:
            flags = ("--precision", options.precision, *flags)
            server = glossa_server(options.bundle.resolve(), checkout=checkout, flags=flags)
            address, pid = stack.enter_context(server)
            pids.append(pid)
            connections += [stack.enter_context(LeanConnection(address)) for _ in range(CONNECTIONS // len(servers))]
        found[name] = Arrangement(pids, connections)
    return found


def work_of(calls: Calls, mode: str, texts: list[str], max_tokens: int) -> Work:
    """The requests of a mode."""
    is_unary, decoding = mode == "unary", pb.DecodingOptions(max_tokens=max_tokens)
    request = calls.request if is_unary else calls.stream_request
    return Work(
        calls.path if is_unary else calls.stream_path,
        [request(text=text, options=decoding).SerializeToString() for text in texts],
        calls.response if is_unary else calls.stream_response,
    )


def check(answers: list[Answered], work: Work) -> None:
    """Refuses a measurement with an answer that is not complete: its last message says why it ended."""
    for found in answers:
        message = work.response.FromString(found.answer)
        if not (message.final if hasattr(message, "final") else message).finish_reason:
            raise SystemExit(f"request {found.place} has no complete answer: {message}")


def load(one: Arrangement, others: list[int], work: Work, callers: int, seconds: float) -> Load:
    """Asks one arrangement for so many seconds. Answers that complete later do not count in its rate. others: process
    ids of the idle servers."""
    time.sleep(REST_S)
    used_s, client_s, began_s = sum(map(cpu_seconds, others)), time.process_time(), time.perf_counter()
    answers = closed_loop(one.connections, work.path, work.messages, callers, seconds)
    took_s = time.perf_counter() - began_s
    client, used = (time.process_time() - client_s) / took_s, (sum(map(cpu_seconds, others)) - used_s) / took_s
    check(answers, work)
    within = sum(found.ended_s <= began_s + seconds for found in answers)
    times = [1e3 * (found.ended_s - found.began_s) for found in answers]
    return Load(within / seconds, percentile(times, 50), percentile(times, 99), client, used)


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    before=Flag(Path, "another checkout, with its stubs generated"),
    clients=Flag([8, 64], "concurrent callers"),
    modes=Flag(list(MODES), choices=MODES),
    count=Flag(500, "sentences"),
    rounds=8,
    seconds=Flag(5.0, "of each measurement"),
    warm_up_s=Flag(3.0, "of each arrangement, before the first round"),
    precision="auto",
    max_tokens=60,
    bar=Flag(0.97, "what one server must reach, as a multiple of two servers' requests/s"),
    bar_before=Flag(1.0, "what it must reach, as a multiple of the other checkout's"),
)
def processes(options: argparse.Namespace) -> None:
    calls, draw = calls_of(options.bundle), random.Random(1)
    texts = [source for source, _ in sentence_pairs(options.data, options.count)]
    work = {mode: work_of(calls, mode, texts, options.max_tokens) for mode in options.modes}
    loads = list(itertools.product(options.modes, options.clients))
    found: dict[tuple[str, int], dict[str, list[Load]]] = {}
    with ExitStack() as stack:
        servers = arrangements(stack, options)

        def measure(name: str, mode: str, callers: int, seconds: float) -> Load:
            others = [pid for other, each in servers.items() if other != name for pid in each.pids]
            return load(servers[name], others, work[mode], callers, seconds)

        for name in servers:
            measure(name, options.modes[0], max(options.clients), options.warm_up_s)
        for _, (mode, callers) in itertools.product(range(options.rounds), loads):
            for name in draw.sample(list(servers), len(servers)):
                measured = measure(name, mode, callers, options.seconds)
                found.setdefault((mode, callers), {}).setdefault(name, []).append(measured)
    figures, verdicts = summary(found, loads, options)
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))


def summary(
    found: dict[tuple[str, int], dict[str, list[Load]]], loads: list[tuple[str, int]], options: argparse.Namespace
) -> tuple[dict[str, Any], list[Verdict]]:
    """The figures of all loads, and their verdicts."""
    figures: dict[str, Any] = {"rounds": options.rounds, "seconds": options.seconds}
    verdicts = []
    bars = {"two": options.bar, "before": options.bar_before}
    for mode, callers in loads:
        by_name, where = found[mode, callers], f"{mode}, {callers} clients"
        for name, measured in by_name.items():
            for unit, values in zip(("requests/s", "p50 ms", "p99 ms"), zip(*measured, strict=True), strict=False):
                figures[f"{where}: {name}, {unit}"] = Spread.of(list(values))
        for name, bar in bars.items():
            pairs = list(zip(by_name["one"], by_name.get(name, []), strict=False))
            if pairs:
                ratio = Spread.of([one.rate / other.rate for one, other in pairs])
                tail = Spread.of([one.p99_ms / other.p99_ms for one, other in pairs])
                figures[f"{where}: requests/s, one over {name}"] = ratio
                figures[f"{where}: p99, one over {name}"] = tail
                verdicts.append(Verdict(f"{where}: requests/s, one over {name}", round(ratio.median, 4), bar))
    everything = [measured for by_name in found.values() for each in by_name.values() for measured in each]
    figures["processors used by the client"] = Spread.of([measured.client for measured in everything])
    idle = Spread.of([measured.idle for measured in everything])
    figures["processors used by idle servers"] = idle
    verdicts.append(Verdict("processors used by idle servers", idle.median, IDLE_BAR, "", is_limit=True))
    return figures, verdicts
