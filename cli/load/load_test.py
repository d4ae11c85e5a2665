"""Load tests of a running server: one load after another, and the highest sustained rate.

`cli.load.load_generator` sends the requests, `cli.load.load_report` computes the figures. One event loop sends
everything: the generator takes processor time from a server on the same machine.
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
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from cli.flag_names import with_flags_named
from cli.load.load_generator import (
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
from cli.load.load_report import (
    LATENCIES,
    Figures,
    Objectives,
    block,
    fewest_misses,
    figures,
    finite,
    highest_sustained,
    summary,
)
from cli.load.load_settings import MAX_RATE, LoadTest
from cli.terminal import UsageError
from cli.text_input import decoded
from glossa.client import AsyncClient, ClientError
from glossa.v1 import glossa_pb2 as pb
from glossa.version import VERSION

SCHEMA = 1  # of the JSON report; grows when a key changes its meaning
Show = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a load test. `loads` are in the order of measuring."""

    test: LoadTest
    model: pb.Model
    loads: Sequence[Figures]
    search: str = ""  # why a search ended

    @property
    def objectives(self) -> Objectives:
        """The objectives of the test."""
        return objectives_of(self.test)

    @property
    def highest_rate(self) -> float | None:
        """The highest rate that was sustained, requests/s."""
        return highest_sustained(self.loads)

    def as_json(self) -> dict[str, Any]:
        test, limits = self.test, dataclasses.asdict(self.objectives)
        same = ("warm_up_s", "duration_s", "wait_s", "timeout_s", "burstiness", "connections", "seed")
        return {
            "schema": SCHEMA,
            "loop": "closed" if test.concurrency else "open",
            "highest_sustained_rate": self.highest_rate,  # requests/s; null: none, or a closed loop
            "search": self.search or None,  # how --find-max ended
            "loads": [
                dataclasses.asdict(load) for load in self.loads
            ],  # the keys are those of cli.load.load_report.Figures
            "objectives": {name: limit and finite(limit) for name, limit in limits.items()},  # null: no limit
            **{name: getattr(test, name) for name in same},
            "streamed": test.stream,
            "options": dict(test.options),  # of decoding
            "texts": len(test.texts),
            "address": test.connection.address,
            "model": {
                "name": self.model.name,
                "task": task_of(self.model),
                "precision": self.model.precision,
                "provider": self.model.execution_provider.provider,
                "bundle_sha256": self.model.bundle_sha256,
            },
            "client": {  # the machine of the generator
                "glossa": VERSION,
                "grpcio": metadata.version("grpcio"),
                "python": platform.python_version(),
                "system": platform.platform(),
                "processor": processor_name(),
                "cpus": len(os.sched_getaffinity(0)),
            },
        }


def objectives_of(test: LoadTest) -> Objectives:
    """The objectives that the flags of a test describe."""
    return Objectives(
        end_to_end_ms=test.slo_e2e_ms,
        first_token_ms=test.slo_ttft_ms,
        inter_token_ms=test.slo_itl_ms,
        percentile=test.percentile,
    )


def task_of(model: pb.Model) -> Literal["translation", "generation"]:
    return "translation" if model.task == pb.TASK_TRANSLATION else "generation"


def read_texts(path: Path) -> list[str]:
    """The lines of a file that are not blank, of TSV the first column; a name in .gz is decompressed.

    Raises UsageError, OSError.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    lines = decoded(data, str(path)).split("\n")
    return [text for line in lines if (text := line.rstrip("\r").partition("\t")[0]).strip()]


def sender(client: AsyncClient, task: str, *, is_streamed: bool = True, options: Mapping[str, Any]) -> Send:
    """Sends to a Glossa server. task: translation or generation."""
    verb = "translate" if task == "translation" else "generate"
    call: Callable[..., Any] = getattr(client, f"stream_{verb}" if is_streamed else verb)

    async def send(text: str) -> AsyncGenerator[int, None]:
        answer = call(text, **options, include_tokens=True)
        try:
            if is_streamed:
                async with contextlib.aclosing(answer):
                    async for piece in answer:
                        yield len(piece.tokens)
            else:
                yield len((await answer).tokens)
        except ClientError as error:
            raise SendFailed(error.code, error.message) from None

    return send


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


def run(test: LoadTest, show: Show) -> Report:
    """Run a load test; `show` prints each load and a summary. Raises UsageError, ClientError."""
    # epoll sleeps in whole milliseconds, rounded up; select does not, and there are few files to watch.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(measure(test, show))


async def measure(test: LoadTest, show: Show) -> Report:
    """`run` within a running event loop."""
    settings: dict[str, Any] = {**test.connection.settings, "timeout_s": test.timeout_s, "retries": False}
    async with AsyncClient(test.connection.address, connections=test.connections, **settings) as client:
        model = await client.get_model(test.model)
        for _ in range(1, test.connections):  # connections are set up before the measurement
            await client.get_model(test.model)
        options = {**test.options, "model": model.name}
        send = sender(client, task_of(model), is_streamed=test.stream, options=options)
        await _try(send, test.texts[0])
        show(heading(test, model))
        loads, ended = await (search if test.find_max else _in_turn)(test, send, show)
    report = Report(test=test, model=model, loads=loads, search=ended)
    if len(loads) > 1:
        show(summary(loads))
    if test.find_max or len(test.rate) > 1:
        highest = f"{report.highest_rate:.4g}/s" if report.highest_rate else "none"
        show(f"highest sustained rate: {highest}" + (f" ({ended})" if ended else ""))
    return report


async def _try(send: Send, text: str) -> None:
    """Send one request first, so that what the server rejects in all of them is reported before the load."""
    try:
        async with contextlib.aclosing(send(text)) as answer:
            async for _ in answer:
                pass
    except SendFailed as error:
        raise UsageError(f"a first request failed: {with_flags_named(str(error))}; its text: {text[:80]!r}") from None


async def _in_turn(test: LoadTest, send: Send, show: Show) -> tuple[list[Figures], str]:
    loads: list[Figures] = []
    for size in (*test.rate, *test.concurrency):  # a test has one of them
        loads.append(await _load(test, send, size))
        show(block(loads[-1]))
    return loads, ""


async def _load(test: LoadTest, send: Send, size: float) -> Figures:
    """Run and evaluate one load. size: requests/s, or the number of clients of a closed loop."""
    window = Window(warm_up_s=test.warm_up_s, duration_s=test.duration_s)
    texts, objectives = drawn(test.texts, seed=test.seed), objectives_of(test)
    how: dict[str, Any]
    if test.concurrency:
        how = {"concurrency": int(size)}
        load = await run_closed_loop(send, texts, concurrency=int(size), window=window, wait_s=test.wait_s)
    else:
        how = {"rate": size}
        moments = arrival_times(size, window.ends_s, burstiness=test.burstiness, seed=test.seed)
        plan = [Planned(at_s, text) for at_s, text in zip(moments, texts, strict=False)]
        patience = None
        if test.find_max:  # a rate that is not sustained is not measured to its end
            misses = fewest_misses(sum(map(window.contains, moments)), objectives)
            patience = Patience(limit_s=test.slo_e2e_ms / 1000, misses=misses)
        load = await run_load(send, plan, window=window, wait_s=test.wait_s, patience=patience)
    return figures(load, objectives, **how, is_streamed=test.stream, connections=test.connections)


async def search(test: LoadTest, send: Send, show: Show) -> tuple[list[Figures], str]:
    """Loads that bracket the highest sustained rate, and why the search ended: precision, or time."""
    loop = asyncio.get_running_loop()
    limit_s = loop.time() + test.within_s
    start = test.rate[0] if test.rate else 1.0
    loads: list[Figures] = []
    while True:
        rate = next_rate([(load.rate or 0.0, load.sustained) for load in loads], start, test.precision)
        if rate is None:
            return loads, f"known within {test.precision:.1%}"
        if loop.time() + test.longest_load_s > limit_s:
            return loads, f"not yet known within {test.precision:.1%} after --within-s {test.within_s:g}"
        load = await _load(test, send, float(f"{rate:.4g}"))
        if not load.requests:
            return loads, f"at {rate:.4g}/s no request fell into {test.duration_s:g} s: use a longer --duration-s"
        loads.append(load)
        show(block(load))


def heading(test: LoadTest, model: pb.Model) -> str:
    """What is measured, as text."""
    limits = [f"{LATENCIES[name]} {limit:g} ms" for name, limit in objectives_of(test).limits_ms.items()]
    process = "Poisson arrivals" if test.burstiness == 1 else f"gamma arrivals, burstiness {test.burstiness:g}"
    loop = f"open loop, {process}"
    if test.concurrency:
        loop = "CLOSED loop: each client waits for its answer, so latencies are not those of independent users"
    return (
        f"{model.name} ({task_of(model)}, {model.precision}) at {test.connection.address}, "
        f"{'streamed' if test.stream else 'unary'}; {len(test.texts)} texts, seed {test.seed}\n"
        f"{loop}; {test.warm_up_s:g} s warm-up, {test.duration_s:g} s measured\n"
        f"objectives: p{test.percentile:g} of {', '.join(limits)}"
    )


def processor_name() -> str:
    """The processor of this machine, as the system names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
