"""What cancelled and late requests leave behind in a real server, and what is still computed for them.

1. 10,000 requests, half of them cancelled at a random moment, half with a deadline that most do not meet: afterwards no
   row is live and no request waits, and the server and its engine processes have as many threads and open files as
   before.
2. Requests are cancelled among others that fill the rows, eight at a time, by the event loop of an edge in this
   process: how many steps the engine began for it after the edge had handled the cancellation, by the clock that both
   processes share. A step that was being computed at that moment is not among them. The counter of wasted tokens shows
   that no other was computed: those that the edge had not seen yet when it cancelled are a figure, too.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.load.mixed_load import MixedLoad, Shares
from bench.load.process_tree import children, process_tree
from bench.measure import Spread, Verdict, report
from bench.promises.soak import rows_after_rest
from bench.sentences import sentence_pairs
from cli.load.load_report import percentile
from cli.local_server import serving
from service.edge.models.process_pool import ProcessPool
from service.edge.models.served_model import ServedModel
from service.edge.observability.metrics import Metrics
from service.edge.requests.request_builder import RequestBuilder
from service.edge.requests.request_limits import TextLimits
from service.edge.versions.open_model import ModelOpener
from service.options import DecodingOptions
from service.request import Event, Finished, TextDelta
from service.settings.loading import load_settings

WARM_UP = 500  # requests: threads and files that the first ones need stay
REST_S = 10.0  # for threads and files to go
NEIGHBOURS = 32  # rows that are busy while one is cancelled
CANCELLED_AT = 8  # tokens
TOGETHER = 8  # requests that arrive, and are cancelled, at a time


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
    """A sink that cancels its request at a token, counts those that came before, and the steps that began later.

    began_s: when the step began whose event is given to the sink.
    """

    def __init__(self, at: int, done: asyncio.Future[None], began_s: Callable[[], float]) -> None:
        self.tokens, self.later_steps, self._at, self._done, self._began_s = 0, 0, at, done, began_s
        self.cancel: Callable[[], None] = lambda: None
        self.seen_at_cancel: int | None = None
        self._cancelled_s = math.inf

    def __call__(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.tokens += len(event.tokens)
            self.later_steps += self._began_s() > self._cancelled_s
            if self.tokens >= self._at and self.seen_at_cancel is None:
                self.seen_at_cancel, self._cancelled_s = self.tokens, time.monotonic()
                self.cancel()
            return
        if isinstance(event, Finished):  # it was answered before the engine heard of it
            self.seen_at_cancel = None
        if not self._done.done():
            self._done.set_result(None)


class AfterCancel(NamedTuple):
    """What was computed for requests after the edge had cancelled them. steps: begun since then, of each. unseen:
    tokens of each beyond those that the edge had seen by then. uncounted: wasted tokens that no event showed."""

    steps: list[int]
    unseen: list[int]
    uncounted: int


async def after_cancel(model: ServedModel, metrics: Metrics, text: str, cancels: int) -> AfterCancel:
    """Cancels so many requests among others."""
    loop, pool = asyncio.get_running_loop(), model.pool
    assert isinstance(pool, ProcessPool)
    most = model.max_tokens - 1

    def ask(name: str, at: int) -> tuple[Counted, asyncio.Future[None]]:
        done = loop.create_future()
        sink = Counted(at, done, lambda: pool.states[0].heartbeat_s)
        builder = RequestBuilder(model, TextLimits(), name, time.monotonic() + 600)
        asked = builder.decoding(text, DecodingOptions(max_tokens=most, ignore_eos=True))
        sink.cancel = pool.submit(asked, loop, sink)
        return sink, done

    def wasted() -> float:
        found = metrics.registry.get_sample_value(
            "glossa_wasted_tokens_total", {"model": model.name, "version": model.version}
        )
        assert found is not None
        return found

    async def keep_busy() -> None:
        while True:
            await ask("neighbour", 10**9)[1]

    neighbours = [asyncio.create_task(keep_busy()) for _ in range(NEIGHBOURS)]
    sinks = list[Counted]()
    try:
        while len(sinks) < cancels:
            asked = [ask(f"cancelled {len(sinks) + place}", CANCELLED_AT) for place in range(TOGETHER)]
            await asyncio.gather(*[done for _, done in asked])
            sinks += [sink for sink, _ in asked if sink.seen_at_cancel is not None]
            await asyncio.sleep(0.005)  # measurements come after the answers
        uncounted = round(wasted()) - sum(sink.tokens for sink in sinks)
    finally:
        for neighbour in neighbours:
            neighbour.cancel()
        await asyncio.gather(*neighbours, return_exceptions=True)
    unseen = [sink.tokens - (sink.seen_at_cancel or 0) for sink in sinks]
    return AfterCancel([sink.later_steps for sink in sinks], unseen, uncounted)


async def wasted_steps(options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    asked = {"models": {"model": options.bundle}, "engines": 1, "device": "cpu", "stream_messages_per_s": 0}
    metrics = Metrics()
    model = await ModelOpener(load_settings(asked), metrics).open("model", options.bundle)
    text = sentence_pairs(options.data, 1)[0][0]
    try:
        found = await after_cancel(model, metrics, text, options.cancels)
    finally:
        await model.pool.aclose()
    steps = sorted(map(float, found.steps))
    figures = {
        "cancellations among busy rows": len(steps),
        "steps begun after a cancellation": Spread.of(steps),
        "tokens that the edge had not seen when it cancelled": Spread.of(list(map(float, found.unseen))),
    }
    return figures, [
        Verdict("steps begun after a cancellation, p99", percentile(steps, 99), 1, "", is_limit=True),
        Verdict("tokens computed for cancelled requests that no event shows", found.uncounted, 0, "", is_limit=True),
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
