"""Load tests of a running server: one load after another, and the highest sustained rate.

`cli.load_generator` sends the requests, `cli.load_report` computes the figures. One event loop sends everything: the
generator takes processor time from a server on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import math
import os
import platform
import selectors
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from cli.connection import Connection
from cli.load_generator import (
    Load,
    Patience,
    Planned,
    Send,
    SendFailed,
    Window,
    arrival_times,
    drawn,
    run_closed_loop,
    run_load,
)
from cli.load_report import Figures, Objectives, block, fewest_misses, figures, highest_sustained, summary
from glossa.client import AsyncClient, ClientError
from glossa.v1 import glossa_pb2 as pb
from glossa.version import VERSION

SCHEMA = 1  # of the JSON report; grows when a key changes its meaning
MAX_RATE = 100_000.0
Show = Callable[[str], None]


class BenchError(Exception):
    """The requested load test cannot be run."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A load test: exactly one of rates, concurrencies and a search."""

    connection: Connection
    texts: Sequence[str]
    model: str = ""
    rates: Sequence[float] = ()  # requests/s, one load each; of a search: its start
    concurrencies: Sequence[int] = ()  # clients of closed loops, one load each
    is_search: bool = False  # for the highest sustained rate
    precision: float = 0.05  # relative width of the interval at which a search ends
    within_s: float = 600.0  # most seconds of a search
    window: Window = field(default_factory=lambda: Window(warm_up_s=5.0, duration_s=30.0))
    wait_s: float = 30.0  # for answers after the window
    timeout_s: float = 60.0  # deadline of each request
    is_streamed: bool = True
    objectives: Objectives = field(default_factory=Objectives)
    burstiness: float = 1.0
    connections: int = 4
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of decoding

    def __post_init__(self) -> None:
        """Raises BenchError."""
        modes = bool(self.concurrencies) + (self.is_search or bool(self.rates))
        if modes != 1:
            raise BenchError("give either --rate R,…, --find-max or --concurrency K,…")
        if self.is_search and len(self.rates) > 1:
            raise BenchError(f"--find-max begins at one --rate, got {len(self.rates)}")
        if not self.texts:
            raise BenchError("--input: has no text; give a file with a text on each line")
        limits = self.objectives
        for name, value, low, high in (
            *(("--rate", rate, 0.01, MAX_RATE) for rate in self.rates),
            *(("--concurrency", count, 1, 100_000) for count in self.concurrencies),
            ("--duration-s", self.window.duration_s, 0.01, 86400),
            ("--warm-up-s", self.window.warm_up_s, 0, 86400),
            ("--wait-s", self.wait_s, 0, 86400),
            ("--timeout-s", self.timeout_s, 0.001, 86400),
            ("--burstiness", self.burstiness, 0.01, 1000),
            ("--connections", self.connections, 1, 1000),
            ("--precision", self.precision, 0.001, 1),
            ("--percentile", limits.percentile, 1, 100),
            ("--within-s", self.within_s, 0.001, math.inf),
            ("--slo-e2e-ms", limits.end_to_end_s, 1e-9, math.inf),
            ("--slo-ttft-ms", limits.first_token_s, 1e-9, math.inf),
            ("--slo-itl-ms", limits.inter_token_s, 1e-9, math.inf),
        ):
            if value is not None and not low <= value <= high:  # NaN is in no range
                raise BenchError(f"{name}: must be {low:g}..{high:g}, got {value:g}")
        if not self.is_streamed and (limits.first_token_s is not None or limits.inter_token_s is not None):
            raise BenchError("--slo-ttft-ms and --slo-itl-ms: unary calls have no token latencies; use --stream")
        if self.is_search and self.longest_load_s > self.within_s:
            raise BenchError(
                f"--within-s: must be at least {self.longest_load_s:g}, the length of one load, got {self.within_s:g}"
            )

    @property
    def longest_load_s(self) -> float:
        return self.window.ends_s + self.wait_s


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a load test. `loads` are in the order of measuring."""

    bench: Bench
    model: pb.Model
    loads: Sequence[Figures]
    search: str = ""  # why a search ended

    @property
    def highest_rate(self) -> float | None:
        """The highest rate that was sustained, requests/s."""
        return highest_sustained(self.loads)

    def as_json(self) -> dict[str, Any]:
        bench, limits = self.bench, self.bench.objectives
        return {
            "schema": SCHEMA,
            "loop": "closed" if bench.concurrencies else "open",
            "highest_sustained_rate": self.highest_rate,  # requests/s; null: none, or a closed loop
            "search": self.search or None,  # how --find-max ended
            "loads": [dataclasses.asdict(load) for load in self.loads],  # the keys are those of cli.load_report.Figures
            "objectives": {
                "percentile": limits.percentile,
                "end_to_end_ms": _limit_ms(limits.end_to_end_s),  # null: no limit, as those below
                "first_token_ms": _limit_ms(limits.first_token_s),
                "inter_token_ms": _limit_ms(limits.inter_token_s),
            },
            "warm_up_s": bench.window.warm_up_s,
            "duration_s": bench.window.duration_s,
            "wait_s": bench.wait_s,
            "timeout_s": bench.timeout_s,
            "burstiness": bench.burstiness,
            "connections": bench.connections,
            "seed": bench.seed,
            "streamed": bench.is_streamed,
            "options": dict(bench.options),  # of decoding
            "texts": len(bench.texts),
            "address": bench.connection.address,
            "model": {
                "name": self.model.name,
                "task": task_of(self.model),
                "precision": self.model.precision,
                "provider": self.model.execution_provider.provider,
                "bundle_sha256": self.model.bundle_sha256,
            },
            "client": {  # the machine of the generator
                "glossa": VERSION,
                "grpcio": _version("grpcio"),
                "python": platform.python_version(),
                "system": platform.platform(),
                "processor": _processor(),
                "cpus": len(os.sched_getaffinity(0)),
            },
        }


def task_of(model: pb.Model) -> Literal["translation", "generation"]:
    return "translation" if model.task == pb.TASK_TRANSLATION else "generation"


def read_texts(path: Path) -> list[str]:
    """The lines of a file that are not blank, of TSV the first column; a name in .gz is decompressed."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return [text for line in lines if (text := line.rstrip("\r\n").partition("\t")[0]).strip()]


def sender(client: AsyncClient, task: str, *, is_streamed: bool = True, options: Mapping[str, Any]) -> Send:
    """Sends to a Glossa server. task: translation or generation."""
    arguments: Any = {**options, "include_tokens": True}

    async def stream(text: str) -> AsyncGenerator[int, None]:
        pieces = (client.stream_translate if task == "translation" else client.stream_generate)(text, **arguments)
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    yield len(piece.tokens)
        except ClientError as error:
            raise SendFailed(error.code, error.message) from None

    async def whole(text: str) -> AsyncGenerator[int, None]:
        try:
            answer = await (client.translate if task == "translation" else client.generate)(text, **arguments)
        except ClientError as error:
            raise SendFailed(error.code, error.message) from None
        yield len(answer.tokens)

    return stream if is_streamed else whole


def next_rate(tried: Sequence[tuple[float, bool]], start: float, precision: float) -> float | None:
    """The next rate of a search: doubling (or halving) until the maximum is bracketed, then the geometric mean.

    tried: rates and whether they were sustained. None: the highest sustained rate is known to within `precision`.
    """
    if not tried:
        return start
    too_high = min((rate for rate, sustained in tried if not sustained), default=math.inf)
    sustained = max((rate for rate, sustained in tried if sustained and rate < too_high), default=0.0)
    if too_high == math.inf:
        return 2 * sustained if 2 * sustained <= MAX_RATE else None
    if not sustained:
        return too_high / 2 if too_high > 0.01 else None
    return math.sqrt(sustained * too_high) if too_high > sustained * (1 + precision) else None


def run(bench: Bench, show: Show) -> Report:
    """Run a load test; `show` prints each load and a summary. Raises BenchError, ClientError."""
    # epoll sleeps in whole milliseconds, rounded up; select does not, and there are few files to watch.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(measure(bench, show))


async def measure(bench: Bench, show: Show) -> Report:
    """`run` within a running event loop."""
    async with bench.connection.async_client(
        timeout_s=bench.timeout_s, connections=bench.connections, retries=False
    ) as client:
        model = await client.get_model(bench.model)
        for _ in range(1, bench.connections):  # connections are set up before the measurement
            await client.get_model(bench.model)
        options = {**bench.options, "model": model.name}
        send = sender(client, task_of(model), is_streamed=bench.is_streamed, options=options)
        await _try(send, bench.texts[0])
        show(heading(bench, model))
        if bench.is_search:
            loads, ended = await search(bench, send, show)
        else:
            loads, ended = await _in_turn(bench, send, show), ""
    report = Report(bench=bench, model=model, loads=loads, search=ended)
    if len(loads) > 1:
        show(summary(loads))
    if bench.is_search or len(bench.rates) > 1:
        highest = f"{report.highest_rate:.4g}/s" if report.highest_rate else "none"
        show(f"highest sustained rate: {highest}" + (f" ({ended})" if ended else ""))
    return report


async def _try(send: Send, text: str) -> None:
    """Send one request first, so that what the server rejects in all of them is reported at once."""
    try:
        async with contextlib.aclosing(send(text)) as answer:
            async for _ in answer:
                pass
    except SendFailed as error:
        raise BenchError(f"a first request failed: {error}; its text: {text[:80]!r}") from None


async def _in_turn(bench: Bench, send: Send, show: Show) -> list[Figures]:
    loads: list[Figures] = []
    for rate in bench.rates:
        loads.append(await _open_loop(bench, send, rate))
        show(block(loads[-1]))
    for concurrency in bench.concurrencies:
        loads.append(await _closed_loop(bench, send, concurrency))
        show(block(loads[-1]))
    return loads


async def _open_loop(bench: Bench, send: Send, rate: float) -> Figures:
    moments = arrival_times(rate, bench.window.ends_s, burstiness=bench.burstiness, seed=bench.seed)
    plan = [Planned(at_s, text) for at_s, text in zip(moments, drawn(bench.texts, seed=bench.seed), strict=False)]
    patience = None
    if bench.is_search:  # a rate that is not sustained is not measured to its end
        requests = sum(bench.window.contains(at_s) for at_s in moments)
        misses = fewest_misses(requests, bench.objectives)
        patience = Patience(limit_s=bench.objectives.end_to_end_s, misses=misses)
    load = await run_load(send, plan, window=bench.window, wait_s=bench.wait_s, patience=patience)
    return _figures(bench, load, rate=rate)


async def _closed_loop(bench: Bench, send: Send, concurrency: int) -> Figures:
    texts = drawn(bench.texts, seed=bench.seed)
    load = await run_closed_loop(send, texts, concurrency=concurrency, window=bench.window, wait_s=bench.wait_s)
    return _figures(bench, load, concurrency=concurrency)


def _figures(bench: Bench, load: Load, *, rate: float | None = None, concurrency: int | None = None) -> Figures:
    return figures(
        load,
        bench.objectives,
        rate=rate,
        concurrency=concurrency,
        is_streamed=bench.is_streamed,
        connections=bench.connections,
    )


async def search(bench: Bench, send: Send, show: Show) -> tuple[list[Figures], str]:
    """Loads that bracket the highest sustained rate, and why the search ended: precision, or time."""
    loop = asyncio.get_running_loop()
    limit_s = loop.time() + bench.within_s
    start = bench.rates[0] if bench.rates else 1.0
    loads: list[Figures] = []
    while True:
        rate = next_rate([(load.rate or 0.0, load.sustained) for load in loads], start, bench.precision)
        if rate is None:
            return loads, f"known within {bench.precision:.1%}"
        if loop.time() + bench.longest_load_s > limit_s:
            return loads, f"not yet known within {bench.precision:.1%} after --within-s {bench.within_s:g}"
        load = await _open_loop(bench, send, float(f"{rate:.4g}"))
        if not load.requests:
            return (
                loads,
                f"at {rate:.4g}/s no request fell into {bench.window.duration_s:g} s: use a longer --duration-s",
            )
        loads.append(load)
        show(block(load))


def heading(bench: Bench, model: pb.Model) -> str:
    """What is measured, as text."""
    limits = bench.objectives
    objectives = [
        f"{name} {value * 1000:g} ms"
        for name, value in (
            ("end-to-end", limits.end_to_end_s),
            ("first token", limits.first_token_s),
            ("between tokens", limits.inter_token_s),
        )
        if value is not None
    ]
    process = "Poisson arrivals" if bench.burstiness == 1 else f"gamma arrivals, burstiness {bench.burstiness:g}"
    loop = (
        "CLOSED loop: each client waits for its answer, so latencies are not those of independent users"
        if bench.concurrencies
        else f"open loop, {process}"
    )
    return "\n".join(
        [
            f"{model.name} ({task_of(model)}, {model.precision}) at {bench.connection.address}, "
            f"{'streamed' if bench.is_streamed else 'unary'}; "
            f"{len(bench.texts)} texts, seed {bench.seed}",
            f"{loop}; {bench.window.warm_up_s:g} s warm-up, {bench.window.duration_s:g} s measured",
            f"objectives: p{limits.percentile:g} of {', '.join(objectives)}",
        ]
    )


def _limit_ms(seconds: float | None) -> float | None:
    return seconds * 1000 if seconds is not None and math.isfinite(seconds) else None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
