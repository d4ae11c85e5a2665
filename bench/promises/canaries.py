"""Canaries that are judged under load: good ones are to be promoted, bad ones sent back in time.

Callers go on in a closed loop, without retries, while one version after the other is loaded beside the default and
judged as a canary. One in three is the default's own bundle and good. The others take turns as bad ones: `slow`, `leak`
and `fail-some` are that bundle with a fault inside its engine process (`process_hook`), `worse` is another bundle,
whose texts are compared by chrF with the default's own answers. Then calls come at half of the server's capacity at
random moments, in phases with and without a shadow of a tenth of them. Shown are:

- how each canary ended, after which time, and how many calls failed, on which version
- the latency of live calls with a shadow and without, in phases that take turns
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.case import Flag, case
from bench.load.calls import OWN_CHANNEL, UNARY
from bench.load.peer_server import glossa_server
from bench.load.process_tree import children
from bench.measure import Spread, Verdict, report
from bench.sentences import sentence_pairs
from cli.load.load_report import percentile
from glossa.client.admin import AdminClient, Canary
from glossa.v1 import glossa_pb2 as pb

HOOK = Path(__file__).with_name("process_hook")
MODEL = "model"
GOOD = "good"
BAD = {"slow": "p99", "worse": "chrf", "fail-some": "failed", "leak": "memory"}  # with the bound that it breaks
BOUNDS = {"p99": 2.0, "memory": 0.2, "failed": 0.01}
EXAMPLES = 20  # of the test set
SHADOW_SHARE, SHADOW_BAR = 10, 1.02
LOAD_OF_CAPACITY = 0.5
READY_S = 0.5  # until a process has its fault


class Call(NamedTuple):
    """How a call ended. error: empty for an answer. version: that answered or failed; empty if not told."""

    seconds: float
    version: str
    error: str = ""
    answer: str = ""


class Trial(NamedTuple):
    """A canary. version: its name. seconds: from its start to its verdict. kind: GOOD or one of BAD."""

    kind: str
    version: str
    canary: Canary
    seconds: float


class Load:
    """Calls of one server."""

    def __init__(self, address: str, texts: list[str], max_tokens: int) -> None:
        self.calls: list[Call] = []
        options = pb.DecodingOptions(max_tokens=max_tokens)
        self._messages = [pb.TranslateRequest(text=text, options=options).SerializeToString() for text in texts]
        self._channel = grpc.aio.insecure_channel(address, options=OWN_CHANNEL)
        self._unary: Any = self._channel.unary_unary(UNARY)
        self._numbers = itertools.count()

    async def ask(self) -> Call:
        """One call."""
        began_s, call = (
            time.monotonic(),
            self._unary(self._messages[next(self._numbers) % len(self._messages)], timeout=60),
        )
        error = answer = ""
        try:
            answer = pb.TranslateResponse.FromString(await call).text
        except grpc.aio.AioRpcError as failure:
            error = f"{failure.code().name}: {failure.details()}"
        version = dict(await call.trailing_metadata() or ()).get("x-glossa-version", "")
        found = Call(time.monotonic() - began_s, version, error, answer)
        self.calls.append(found)
        return found

    async def for_ever(self) -> None:
        """One caller of a closed loop."""
        while True:
            await self.ask()

    async def at_random(self, rate: float, seconds: float, seed: int) -> list[float]:
        """Calls at random moments, so many a second: their seconds."""
        draws, tasks, end_s = random.Random(seed), list[asyncio.Task[Call]](), time.monotonic() + seconds
        due_s = time.monotonic()
        while (due_s := due_s + draws.expovariate(rate)) < end_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(asyncio.create_task(self.ask()))
        return [call.seconds for call in await asyncio.gather(*tasks)]

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()


class Server(NamedTuple):
    """The server that is measured. folder: of faults."""

    address: str
    pid: int
    admin: AdminClient
    folder: Path


async def tried(server: Server, kind: str, number: int, test_set: list[tuple[str, str]], options: Any) -> Trial:
    """Loads a version, harms it, and has it judged."""
    admin, version, before = server.admin, f"c{number}", {*children(server.pid)}
    bundle = options.other if kind == "worse" else options.bundle
    await asyncio.to_thread(admin.load, MODEL, bundle.resolve(), version=version, keep_default=True)
    if kind in BAD and kind != "worse":
        for process in {*children(server.pid)} - before:
            (server.folder / str(process)).write_text(kind)
            os.kill(process, signal.SIGUSR1)
        await asyncio.sleep(READY_S)
    began_s = time.monotonic()
    await asyncio.to_thread(
        admin.start_canary,
        MODEL,
        version,
        share=options.share,
        duration_s=options.seconds,
        patience_s=options.patience,
        bounds=BOUNDS,
        test_set=test_set if kind in (GOOD, "worse") else None,  # it would find those that fail before calls do
        unload_loser=True,
    )
    while (canary := (await asyncio.to_thread(admin.canaries, MODEL))[0]).state == "running":
        await asyncio.sleep(0.1)
    seconds = time.monotonic() - began_s
    while len(await asyncio.to_thread(admin.versions, MODEL)) > 1:
        await asyncio.sleep(0.05)
    print(f"{version} {kind}: {canary.state} {canary.bound} after {seconds:.1f} s; {canary.reason}", file=sys.stderr)
    return Trial(kind, version, canary, seconds)


async def judged(server: Server, load: Load, options: argparse.Namespace) -> list[Trial]:
    """Every canary, under load."""
    test_set = []
    for text, _ in sentence_pairs(options.data, EXAMPLES):
        asking = Load(server.address, [text], options.max_tokens)
        test_set.append((text, (await asking.ask()).answer or "?"))
        await asking.close()
    callers = [asyncio.create_task(load.for_ever()) for _ in range(options.clients)]
    bad = itertools.cycle(BAD)
    kinds = [GOOD if number % 3 == 0 else next(bad) for number in range(options.canaries)]
    trials = [await tried(server, kind, number, test_set, options) for number, kind in enumerate(kinds)]
    while len(load.calls) < options.calls:
        await asyncio.sleep(0.1)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return trials


async def shadowed(server: Server, load: Load, options: argparse.Namespace) -> tuple[list[float], list[float], float]:
    """Seconds of calls at half load, in phases without a shadow and with one; and calls a second."""
    callers = [asyncio.create_task(load.for_ever()) for _ in range(options.clients)]
    before = len(load.calls)
    await asyncio.sleep(options.phase_s)
    rate = LOAD_OF_CAPACITY * (len(load.calls) - before) / options.phase_s
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    found: tuple[list[float], list[float]] = [], []
    await asyncio.to_thread(server.admin.load, MODEL, options.bundle.resolve(), version="shadow", keep_default=True)
    for phase in range(2 * options.phases):
        has_shadow = phase % 2 == 1
        shadow = ("shadow", SHADOW_SHARE) if has_shadow else None
        await asyncio.to_thread(server.admin.set_traffic, MODEL, shadow=shadow)
        found[has_shadow].extend(await load.at_random(rate, options.phase_s, seed=phase // 2))
    await asyncio.to_thread(server.admin.set_traffic, MODEL)
    return (*found, rate)


def summary(trials: list[Trial], calls: list[Call], options: Any) -> tuple[dict[str, Any], list[Verdict]]:
    """What the canaries show."""
    bad = [trial for trial in trials if trial.kind in BAD]
    good = [trial for trial in trials if trial.kind == GOOD]
    harmed = {trial.version for trial in bad}
    errors = [call for call in calls if call.error]
    others = [call for call in errors if call.version not in harmed]
    late = [trial for trial in bad if trial.seconds > options.seconds]
    other_bound = [trial for trial in bad if trial.canary.bound != BAD[trial.kind]]
    figures: dict[str, Any] = {
        "calls": len(calls),
        "calls that bad versions failed": len(errors) - len(others),
        "bounds that bad ones broke, not their own": ", ".join(f"{one.kind} {one.canary.bound}" for one in other_bound),
        **{f"calls with the error {text!r}": n for text, n in collections.Counter(one.error for one in others).items()},
    }
    for kind in (GOOD, *BAD):
        if seconds := [trial.seconds for trial in trials if trial.kind == kind]:
            figures[f"seconds until the verdict on {kind}"] = Spread.of(seconds)
    return figures, [
        Verdict("calls", len(calls), options.calls, ""),
        Verdict("good canaries promoted", sum(one.canary.state == "promoted" for one in good), len(good), ""),
        Verdict("bad canaries sent back", sum(one.canary.state == "sent_back" for one in bad), len(bad), ""),
        Verdict("bad canaries sent back after the end of their time", len(late), 0, "", is_limit=True),
        Verdict("failed calls but those of bad versions", len(others), 0, "", is_limit=True),
    ]


def shadow_summary(alone: list[float], beside: list[float], outcomes: str) -> tuple[dict[str, Any], Verdict]:
    """What a shadow costs live calls."""
    ms = [[1e3 * one for one in sorted(seconds)] for seconds in (alone, beside)]
    figures = {
        "ms of a call without and with a shadow, p50": ", ".join(f"{statistics.median(one):.2f}" for one in ms),
        "ms of a call without and with a shadow, p99": ", ".join(f"{percentile(one, 99):.2f}" for one in ms),
        "calls without and with a shadow": f"{len(alone)}, {len(beside)}",
        "shadows": outcomes,
    }
    ratio = percentile(ms[1], 99) / percentile(ms[0], 99)
    return figures, Verdict("p99 with a shadow", ratio, SHADOW_BAR, "×", is_limit=True)


@case(
    bundle=Flag(Path, required=True),
    other=Flag(Path, "a bundle whose answers are worse", required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    canaries=30,
    calls=Flag(20_000, "at least so many while canaries are judged"),
    clients=Flag(8, "concurrent callers"),
    share=Flag(30, "percent of the calls that a canary gets"),
    seconds=Flag(18.0, "for how long each is judged"),
    patience=Flag(6.0, "for how long it breaks a bound until it goes back"),
    phases=Flag(10, "with a shadow and as many without; 0: none"),
    phase_s=8.0,
    texts=100,
    max_tokens=16,
    log=Flag(Path, "a file for the server's log, JSON lines"),
)
def canaries(options: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(options.data, options.texts)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "faults")
        folder.mkdir()
        socket, environment = Path(scratch, "admin"), {"BENCH_FAULTS": str(folder)}
        flags = ["--admin-socket", str(socket), "--engines", "1", "--engine-niceness", "0"]
        flags += ["--process-start-timeout-s", "600"]
        bundle = options.bundle.resolve()
        with (
            glossa_server(bundle, environment, flags=flags, log=options.log, modules=[HOOK]) as (address, pid),
            AdminClient(f"unix:{socket}") as admin,
        ):
            figures, verdicts = asyncio.run(measured(Server(address, pid, admin, folder), texts, options))
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))


async def measured(
    server: Server, texts: list[str], options: argparse.Namespace
) -> tuple[dict[str, Any], list[Verdict]]:
    """All that the run shows."""
    load = Load(server.address, texts, options.max_tokens)
    figures, verdicts = dict[str, Any](), list[Verdict]()
    if options.canaries:
        figures, verdicts = summary(await judged(server, load, options), load.calls, options)
    if options.phases:
        alone, beside, rate = await shadowed(server, load, options)
        more, verdict = shadow_summary(alone, beside, f"{SHADOW_SHARE} % of {rate:.0f} calls a second")
        figures, verdicts = figures | more, [*verdicts, verdict]
    await load.close()
    return figures, verdicts
