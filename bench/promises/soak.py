"""Soak test of a real server: answers equal those of single requests, rows are released, memory does not grow.

1. Each sentence singly, then all of them from many concurrent clients, as beams, samples, penalties, bans and grammars
   in turn: every answer must be identical, token for token.
2. 100,000 mixed requests, some cancelled, late or invalid (`bench.load.mixed_load`): afterwards no row is live and no
   request waits. The memory of the server and of its engine processes is read throughout, and how much it grows for
   each request over the last half is estimated by least squares, with its 95 % interval; errors that follow each other
   count as fewer. Resident memory also grows by what is free between allocations, until it has room for the worst
   moment. So what is allocated is read as well, from inside (`process_hook`), in moments without requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.load.mixed_load import ORDINARY, MixedLoad, Shares
from bench.load.process_tree import children
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from cli.local_server import fetch, samples, serving
from glossa.client import AsyncClient

MIXED: list[dict[str, Any]] = [
    {},
    *ORDINARY,
    {"regex": "[A-ZÄÖÜ][A-Za-zäöüß ,]{3,60}[.!?]"},
    {"phrases": ["und"], "beam_size": 4},
    {"stop": ["e", "."]},
]
HOOK = Path(__file__).with_name("process_hook")
SAMPLES = 200  # of memory, over all requests
RESTS = 20  # in which what is allocated is read
ANSWER_S = 5.0  # of a process that is asked
GROWTH_BAR = 5.0  # bytes per request


class Allocated(NamedTuple):
    """What `bench.promises.process_hook` writes."""

    heap_bytes: int
    python_blocks: int


class Growth(NamedTuple):
    """Bytes per request, and the half width of its 95 % interval."""

    slope: float
    margin: float

    def __str__(self) -> str:
        return f"{self.slope:.2f} ± {self.margin:.2f}"


def growth(requests: Sequence[float], resident: Sequence[float]) -> Growth:
    """The slope of memory over requests by least squares. Neighbouring errors resemble each other, so the number of
    independent ones is smaller than that of the samples: n (1 - r) / (1 + r) with their correlation r."""
    count = len(requests)
    assert count > 2, count
    mean_x, mean_y = math.fsum(requests) / count, math.fsum(resident) / count
    spread = math.fsum((x - mean_x) ** 2 for x in requests)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(requests, resident, strict=True)) / spread
    errors = [y - mean_y - slope * (x - mean_x) for x, y in zip(requests, resident, strict=True)]
    squares = math.fsum(error**2 for error in errors)
    if not squares:
        return Growth(slope, 0.0)
    related = math.fsum(one * other for one, other in itertools.pairwise(errors)) / squares
    related = min(0.99, max(0.0, related))
    independent = max(3.0, count * (1 - related) / (1 + related))
    return Growth(slope, 1.96 * math.sqrt(squares / (independent - 2) / spread))


class Watch:
    """Memory of processes over the requests of a run. folder: where they write what they have allocated."""

    def __init__(self, processes: Mapping[str, int], folder: Path) -> None:
        self._processes, self._folder = processes, folder
        self.seen: list[int] = []  # requests that had ended
        self.resident: dict[str, list[int]] = {name: [] for name in processes}
        self._rested: list[int] = []  # requests that had ended when none was open
        self._allocated: dict[str, list[Allocated]] = {name: [] for name in processes}

    def look(self, ended: int) -> None:
        """Reads resident memory."""
        self.seen.append(ended)
        for name, pid in self._processes.items():
            self.resident[name].append(resident_bytes(pid))

    async def look_inside(self, ended: int) -> None:
        """Asks each process what it has allocated. Call it while no request is open."""
        self._rested.append(ended)
        for name, pid in self._processes.items():
            written = self._folder / str(pid)
            os.kill(pid, signal.SIGUSR1)
            async with asyncio.timeout(ANSWER_S):
                while not written.exists():
                    await asyncio.sleep(0.01)
            self._allocated[name].append(Allocated(*map(int, written.read_text().split())))
            written.unlink()

    def growths(self, name: str) -> tuple[Growth, Growth, Growth]:
        """Over the last half: of resident bytes, bytes in the heap of C, and blocks of Python's."""
        half, rested = len(self.seen) // 2, len(self._rested) // 2
        allocated = self._allocated[name][rested:]
        return (
            growth(self.seen[half:], self.resident[name][half:]),
            growth(self._rested[rested:], [one.heap_bytes for one in allocated]),
            growth(self._rested[rested:], [one.python_blocks for one in allocated]),
        )


@contextlib.contextmanager
def watched(folder: str) -> Iterator[None]:
    """Servers started in this context write what they have allocated."""
    sys.path.insert(0, str(HOOK))
    os.environ["BENCH_MEMORY"] = folder
    try:
        yield
    finally:
        sys.path.remove(str(HOOK))
        del os.environ["BENCH_MEMORY"]


def left_rows(ops: str) -> float:
    """Requests that run or wait, as the server reports them."""
    state = fetch(f"{ops}/metrics")
    return sum(sum(samples(state, f"glossa_requests_{name}")) for name in ("running", "queued"))


async def rows_after_rest(ops: str, within_s: float = 5.0) -> float:
    """The same, once the last cancellations have reached their step boundary."""
    until_s = asyncio.get_running_loop().time() + within_s
    while (left := left_rows(ops)) and asyncio.get_running_loop().time() < until_s:
        await asyncio.sleep(0.05)
    return left


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def differing_answers(address: str, texts: list[str], clients: int) -> int:
    """How many answers of concurrent requests differ from those of single ones."""
    asked = [(text, {**MIXED[number % len(MIXED)], "include_tokens": True}) for number, text in enumerate(texts)]
    async with AsyncClient(address) as client:
        alone = [await client.translate(text, **options) for text, options in asked]
        gate = asyncio.Semaphore(clients)

        async def ask(text: str, options: dict[str, Any]) -> tuple[int, ...]:
            async with gate:
                return (await client.translate(text, **options)).tokens

        together = await asyncio.gather(*(ask(text, options) for text, options in asked))
    return sum(answer.tokens != tokens for answer, tokens in zip(alone, together, strict=True))


async def measure(
    address: str, ops: str, folder: Path, options: argparse.Namespace
) -> tuple[dict[str, Any], list[Verdict]]:
    texts = [text for text, _ in sentence_pairs(options.data, 500)]
    random.Random(1).shuffle(texts)
    differing = await differing_answers(address, texts[: options.clients], options.clients)
    server = children(os.getpid())[-1]
    processes = {"server": server, **{f"engine process {place}": pid for place, pid in enumerate(children(server))}}
    watch = Watch(processes, folder)
    load = MixedLoad(address, options.bundle, texts, Shares(), max_tokens=options.max_tokens, seed=options.seed)
    began_s = asyncio.get_running_loop().time()
    for rest in range(1, RESTS + 1):
        part = options.requests * rest // RESTS - load.ends.total()
        await load.run(part, options.clients, max(1, options.requests // SAMPLES), watch.look)
        await rows_after_rest(ops)
        await watch.look_inside(load.ends.total())
    seconds = asyncio.get_running_loop().time() - began_s
    await load.close()
    figures: dict[str, Any] = {
        "requests": ", ".join(f"{count} {name}" for name, count in load.ends.most_common()),
        "requests per second": round(options.requests / seconds),
    }
    verdicts = [
        Verdict("answers of concurrent requests that differ", differing, 0, "", is_limit=True),
        Verdict("requests that run or wait afterwards", await rows_after_rest(ops), 0, "", is_limit=True),
    ]
    count = len(watch.seen)
    for name, bytes_ in watch.resident.items():
        resident, heap, blocks = watch.growths(name)
        figures[f"{name}: MB after 1/8, 1/2, all"] = [round(bytes_[at] / 1e6, 1) for at in (count // 8, count // 2, -1)]
        figures[f"{name}: bytes per request, last half"] = str(resident)
        figures[f"{name}: allocated bytes per request, last half"] = str(heap)
        figures[f"{name}: Python's blocks per request, last half"] = str(blocks)
        if options.requests >= 50_000:  # of fewer, allocators' last steps would decide
            for kind, found in (("memory", resident), ("allocated memory", heap)):
                measure, note = f"{name}: growth of {kind} for each request, last half", f"± {found.margin:.2g}"
                verdicts.append(Verdict(measure, found.slope, GROWTH_BAR, "B", is_limit=True, note=note))
    return figures, verdicts


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    clients=Flag(64, "concurrent callers"),
    requests=100_000,
    max_tokens=Flag(12, "most of a request"),
    seed=1,
)
def soak(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, watched(folder), serving(options.bundle) as (address, ops):
        figures, verdicts = asyncio.run(measure(address, ops, Path(folder), options))
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
