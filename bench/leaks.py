"""What cancelled and late requests leave behind in a real server, and what is still computed for them.

1. 10,000 requests, half of them cancelled at a random moment, half with a deadline that most do not meet: afterwards no
   row is live and no request waits, and the server and its engine processes have as many threads and open files as
   before.
2. One request after the other is cancelled among others that fill the rows, by the event loop of an edge in this
   process: how many steps the engine still computed for it, as its counter of wasted tokens shows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.measure import Spread, Verdict, report
from bench.mixed_load import MixedLoad, Shares
from bench.process_tree import children, process_tree
from bench.sentences import sentence_pairs
from bench.soak import rows_after_rest
from cli.load_report import percentile
from cli.local_server import serving
from service.config import load_settings
from service.edge.metrics import Metrics
from service.edge.open_model import ModelOpener
from service.edge.request_builder import RequestBuilder
from service.edge.request_limits import TextLimits
from service.edge.served_model import ServedModel
from service.options import DecodingOptions
from service.request import Event, Finished, TextDelta

WARM_UP = 500  # requests: threads and files that the first ones need stay
REST_S = 10.0  # for threads and files to go
NEIGHBOURS = 32  # rows that are busy while one is cancelled
CANCELLED_AT = 8  # tokens


def threads_and_files(server: int) -> dict[str, int]:
    """Of a server and its engine processes together."""
    tree = [Path(f"/proc/{pid}") for pid in process_tree(server)]
    return {
        "threads": sum(len(list((process / "task").iterdir())) for process in tree),
        "open files": sum(len(list((process / "fd").iterdir())) for process in tree),
    }


async def left_behind(address: str, ops: str, options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    texts = [text for text, _ in sentence_pairs(options.data, 200)]
    server = children(os.getpid())[-1]

    async def ask(requests: int, shares: Shares) -> MixedLoad:
        load = MixedLoad(address, options.bundle, texts, shares, max_tokens=40, seed=options.seed)
        await load.run(requests, options.clients)
        await load.close()
        return load

    await ask(WARM_UP, Shares())
    await asyncio.sleep(1.0)
    before = threads_and_files(server)
    load = await ask(options.requests, Shares(cancelled=0.5, late=0.5, invalid=0.0))
    rows = await rows_after_rest(ops)
    until_s, after = time.monotonic() + REST_S, threads_and_files(server)
    while any(after[kind] > before[kind] for kind in before) and time.monotonic() < until_s:
        await asyncio.sleep(0.1)
        after = threads_and_files(server)
    figures: dict[str, Any] = {
        "cancelled and late requests": ", ".join(f"{count} {name}" for name, count in load.ends.most_common()),
        "threads and files before": before,
        "threads and files afterwards": after,
    }
    verdicts = [Verdict("requests that run or wait afterwards", rows, 0, "", is_limit=True)]
    verdicts += [Verdict(f"{kind} left", max(0, after[kind] - before[kind]), 0, "", is_limit=True) for kind in before]
    return figures, verdicts


class Counted:
    """A sink that cancels its request at a token, and counts those that came before."""

    def __init__(self, at: int, done: asyncio.Future[None]) -> None:
        self.tokens, self._at, self._done = 0, at, done
        self.cancel: Callable[[], None] = lambda: None
        self.seen_at_cancel: int | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.tokens += len(event.tokens)
            if self.tokens >= self._at and self.seen_at_cancel is None:
                self.seen_at_cancel = self.tokens
                self.cancel()
            return
        if isinstance(event, Finished):  # it was answered before the engine heard of it
            self.seen_at_cancel = None
        if not self._done.done():
            self._done.set_result(None)


async def steps_after_cancel(model: ServedModel, metrics: Metrics, text: str, cancels: int) -> list[int]:
    """Steps that were computed for each cancelled request after the edge had cancelled it."""
    loop = asyncio.get_running_loop()
    most = model.max_tokens - 1

    def ask(name: str, at: int) -> tuple[Counted, asyncio.Future[None]]:
        done = loop.create_future()
        sink = Counted(at, done)
        builder = RequestBuilder(model, TextLimits(), name, time.monotonic() + 600)
        asked = builder.decoding(text, DecodingOptions(max_tokens=most, ignore_eos=True))
        sink.cancel = model.pool.submit(asked, loop, sink)
        return sink, done

    def wasted() -> float:
        found = metrics.registry.get_sample_value("glossa_wasted_tokens_total", {"model": model.name})
        assert found is not None
        return found

    async def keep_busy() -> None:
        while True:
            await ask("neighbour", 10**9)[1]

    neighbours = [asyncio.create_task(keep_busy()) for _ in range(NEIGHBOURS)]
    found = []
    try:
        for number in range(cancels):
            before = wasted()
            sink, done = ask(f"cancelled {number}", CANCELLED_AT)
            await done
            await asyncio.sleep(0.005)  # measurements come after the answers
            if sink.seen_at_cancel is not None:
                found.append(round(wasted() - before) - sink.seen_at_cancel)
    finally:
        for neighbour in neighbours:
            neighbour.cancel()
        await asyncio.gather(*neighbours, return_exceptions=True)
    return found


async def wasted_steps(options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    asked = {"models": {"model": options.bundle}, "engines": 1, "device": "cpu", "stream_messages_per_s": 0}
    metrics = Metrics()
    model = await ModelOpener(load_settings(asked), metrics).open("model", options.bundle)
    text = sentence_pairs(options.data, 1)[0][0]
    try:
        found = await steps_after_cancel(model, metrics, text, options.cancels)
    finally:
        await model.pool.aclose()
    steps = sorted(map(float, found))
    figures = {"steps after a cancellation": Spread.of(steps), "cancellations among busy rows": len(steps)}
    return figures, [
        Verdict("steps after a cancellation, p99", percentile(steps, 99), 1, "", is_limit=True),
    ]


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    requests=Flag(10_000, "cancelled and late ones"),
    clients=Flag(64, "concurrent callers"),
    cancels=Flag(300, "cancellations whose steps are counted"),
    seed=1,
)
def leaks(options: argparse.Namespace) -> None:
    with serving(options.bundle) as (address, ops):
        figures, verdicts = asyncio.run(left_behind(address, ops, options))
    more, others = asyncio.run(wasted_steps(options))
    report(figures | more, verdicts + others, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts + others))
