"""One call with many items against a call for each, on a real server: throughput, processor time, answers, memory.

throughput  items a second of TranslateBatch, of unary calls at a concurrency of 64, and of unary calls one after the
            other (a twentieth of the items), interleaved; every answer of a batch must be that of the unary call.
            Processor time of the server and of this client is reported for each item, as other programs disturb it less
other       the latency of a unary caller of another tenant, alone and beside a batch
unread      memory of the server while a client sends items without end and reads nothing: it grows to a constant,
            and the server goes on when the client reads again
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.case import Flag, case
from bench.measure import Spread, Verdict, report
from bench.sentences import sentence_pairs
from cli.local_server import fetch, resident_bytes, samples, serving
from glossa.client import AsyncClient
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs

CONCURRENCY = 64
ONE_BY_ONE = 20  # a share of the items: they take as much longer
SETTLE_S = 0.6  # until the server's figures have caught up
UNREAD_S, LOOKS = 20.0, 10
READ_ON = 1500  # results: more than a server of two engines holds for a call
PAUSE_S = 0.05  # between two calls of the other tenant


class Cost(NamedTuple):
    """Items a second, and microseconds of processor time for each: of the edge, the engines, and this client."""

    rate: float
    edge_us: float
    engines_us: float
    client_us: float


def cpu_s(ops: str) -> tuple[float, float]:
    """Of the edge's process and of the engine processes so far."""
    shown = fetch(f"{ops}/metrics")
    return sum(samples(shown, "process_cpu_seconds_total")), sum(
        samples(shown, "glossa_engine_process_cpu_seconds_total")
    )


async def batch(client: AsyncClient, texts: list[str]) -> list[str]:
    return [answer.text async for answer in client.translate_batch(texts)]


async def unary(client: AsyncClient, texts: list[str]) -> list[str]:
    return [answer.text async for answer in client.translate_batch(texts, concurrency=CONCURRENCY)]


async def one_by_one(client: AsyncClient, texts: list[str]) -> list[str]:
    return [(await client.translate(text)).text for text in texts[: max(1, len(texts) // ONE_BY_ONE)]]


async def cost(job: Callable[[], Awaitable[list[str]]], ops: str) -> tuple[Cost, list[str]]:
    (edge_s, engines_s), own_s, began_s = cpu_s(ops), time.process_time(), time.perf_counter()
    answers = await job()
    count, took_s, used_s = len(answers), time.perf_counter() - began_s, time.process_time() - own_s
    await asyncio.sleep(SETTLE_S)
    edge_end_s, engines_end_s = cpu_s(ops)
    used = (edge_end_s - edge_s, engines_end_s - engines_s, used_s)
    return Cost(count / took_s, *(1e6 * one / count for one in used)), answers


async def throughput(client: AsyncClient, ops: str, texts: list[str], rounds: int, bar: float) -> tuple[Any, Any]:
    """The figures and verdicts of the part of that name."""
    jobs = {"one call": batch, f"unary, {CONCURRENCY} at a time": unary, "unary, one by one": one_by_one}
    costs: dict[str, list[Cost]] = {name: [] for name in jobs}
    different = 0
    await batch(client, texts[: len(texts) // 4])
    for _ in range(rounds):
        found = {}
        for name, job in jobs.items():
            measured, found[name] = await cost(lambda job=job: job(client, texts), ops)  # type: ignore[misc]
            costs[name].append(measured)
        whole, *others = found.values()
        different += sum(a != b for other in others for a, b in zip(whole, other, strict=False))
    figures = {
        f"{name}: {field}": Spread.of([getattr(one, field) for one in each])
        for name, each in costs.items()
        for field in Cost._fields
    }
    together, apart, single = (figures[f"{name}: rate"].median for name in jobs)
    cpu = [sum(figures[f"{name}: {field}"].median for field in Cost._fields[1:]) for name in jobs]
    verdicts = [
        Verdict(f"items a second over unary calls, {CONCURRENCY} at a time", round(together / apart, 2), bar),
        Verdict("items a second over unary calls, one by one", round(together / single, 2), bar),
        Verdict("processor time of unary calls over that of a batch", round(cpu[1] / cpu[0], 2), 1.0),
        Verdict("answers that differ from the unary call's", different, 0, "", is_limit=True),
    ]
    return figures, verdicts


async def latencies(client: AsyncClient, texts: Iterator[str], until: asyncio.Event) -> list[float]:
    found = []
    while not until.is_set():
        began_s = time.perf_counter()
        await client.translate(next(texts))
        found.append(1e3 * (time.perf_counter() - began_s))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), PAUSE_S)
    return sorted(found)


async def beside(address: str, client: AsyncClient, texts: list[str], rounds: int) -> Any:
    """Milliseconds of a unary caller of another tenant: alone, beside a batch, beside unary calls; interleaved."""
    found: dict[str, list[float]] = {"alone": [], "beside a batch": [], "beside unary calls": []}
    async with AsyncClient(address, metadata={"x-glossa-tenant": "other"}) as other:
        for _ in range(rounds):
            for name, job in zip(found, (None, batch, unary), strict=True):
                until = asyncio.Event()
                measuring = asyncio.create_task(latencies(other, itertools.cycle(texts), until))
                await (job(client, texts) if job else asyncio.sleep(5.0))
                until.set()
                found[name] += await measuring
    return {
        f"another tenant {name}, ms: {label}": round(sorted(each)[int(share * (len(each) - 1))], 2)
        for name, each in found.items()
        for label, share in (("p50", 0.5), ("p99", 0.99))
    }


async def unread(address: str, ops: str, texts: list[str], bar_mb: float) -> tuple[Any, Any]:
    """Megabytes of all processes of the server while a client sends without end and reads nothing."""
    sent = 0

    async def messages() -> Any:
        nonlocal sent
        for text in itertools.cycle(texts):
            yield pb.TranslateBatchRequest(items=[pb.TranslateBatchItem(request=pb.TranslateRequest(text=text))] * 64)
            sent += 64

    before, seen = resident_bytes(fetch(f"{ops}/metrics")), list[float]()
    async with grpc.aio.insecure_channel(address) as channel:
        call = stubs.TranslationServiceStub(channel).TranslateBatch(messages())
        for _ in range(LOOKS):
            await asyncio.sleep(UNREAD_S / LOOKS)
            seen.append((resident_bytes(fetch(f"{ops}/metrics")) - before) / 1e6)
        stopped, results = sent, 0
        async for message in call:
            results += len(message.results)
            if results >= READ_ON:
                break
        call.cancel()
    figures = {"unread: MB more after each 2 s": [round(one, 1) for one in seen], "unread: items sent": stopped}
    growth = seen[-1] - seen[len(seen) // 2]
    return figures, [
        Verdict("unread: MB more in the end", round(seen[-1], 1), bar_mb, "MB", is_limit=True),
        Verdict("unread: growth in the second half", round(growth, 1), bar_mb / 8, "MB", is_limit=True),
        Verdict("unread: results when the client reads again", results, READ_ON, ""),
    ]


async def _measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    found = itertools.cycle(source for source, _ in sentence_pairs(options.data, options.items))
    texts = list(itertools.islice(found, options.items))
    with serving(options.bundle) as (address, ops):
        async with AsyncClient(address, timeout_s=300.0) as client:
            figures, verdicts = await throughput(client, ops, texts, options.rounds, options.bar)
            figures |= await beside(address, client, texts, options.rounds)
        more, bounds = await unread(address, ops, texts[:1000], options.unread_mb)
    return {"unit": "items/s, µs, ms", "items": options.items, **figures, **more}, verdicts + bounds


@case(
    bundle=Flag(Path, "a translation model", required=True),
    data=Flag(Path, "TSV file with sentences; none: the embedded corpus"),
    items=10_000,
    rounds=3,
    bar=Flag(2.0, "items a second of one call over those of unary calls"),
    unread_mb=Flag(64.0, "what a client that reads nothing may cost"),
)
def batches(options: argparse.Namespace) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures, verdicts = asyncio.run(_measure(options))
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
