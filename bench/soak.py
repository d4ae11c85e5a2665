"""Soak test of a real server with many clients: answers equal those of single requests; rows and memory are released.


1. Each sentence singly, then all of them from many concurrent clients: every answer must be identical, token for token.
   Steps taken are compared with the longest answer and the sum of all.
2. Requests with random cancellations: afterwards no row is live and no request waits, and resident memory is compared
   with what it was after the first quarter.

--mixed: requests alternate between beams, samples, penalties, bans and grammars; greedy otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
from typing import Any

from bench.case import case
from cli.local_server import fetch, resident_bytes, samples, serving
from glossa.client import AsyncClient

GREEDY: list[dict[str, Any]] = [{}]
MIXED: list[dict[str, Any]] = [
    {},
    {"beam_size": 4},
    {"beam_size": 8, "length_penalty": 0.6},
    {"temperature": 0.9, "top_p": 0.9, "seed": 5},
    {"top_k": 20, "seed": 6, "token_logprobs": True},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    {"bad_words": ["der", "x"]},
    {"regex": "[A-ZÄÖÜ][A-Za-zäöüß ,]{3,60}[.!?]"},
    {"phrases": ["und"], "beam_size": 4},
    {"stop": ["e", "."]},
]


def gauge(exposition: str, name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(samples(exposition, name))


async def alone_and_together(
    client: AsyncClient, ops: str, texts: list[str], clients: int, kinds: list[dict[str, Any]]
) -> dict[str, float]:
    asked = [(text, {**kinds[number % len(kinds)], "include_tokens": True}) for number, text in enumerate(texts)]
    alone = [await client.translate(text, **options) for text, options in asked]
    before = gauge(fetch(f"{ops}/metrics"), "glossa_decode_step_seconds_count")
    gate = asyncio.Semaphore(clients)

    async def ask(text: str, options: dict[str, Any]) -> tuple[int, ...]:
        async with gate:
            return (await client.translate(text, **options)).tokens

    together = await asyncio.gather(*(ask(text, options) for text, options in asked))
    steps = gauge(fetch(f"{ops}/metrics"), "glossa_decode_step_seconds_count") - before
    lengths = [answer.generated_tokens for answer in alone]
    differing = sum(answer.tokens != tokens for answer, tokens in zip(alone, together, strict=True))
    return {"answers": len(texts), "differing": differing, "steps": steps, "longest": max(lengths), "sum": sum(lengths)}


async def cancel_at_random(
    client: AsyncClient, texts: list[str], requests: int, clients: int, seed: int, kinds: list[dict[str, Any]]
) -> int:
    """How many requests were cancelled."""
    rng = random.Random(seed)
    gate = asyncio.Semaphore(clients)
    cancelled = 0

    async def ask(text: str, leave_after: int | None, options: dict[str, Any]) -> None:
        nonlocal cancelled
        async with gate:
            stream = client.stream_translate(text, **options)
            seen = 0
            try:
                async for _ in stream:
                    seen += 1
                    if leave_after is not None and seen > leave_after:
                        cancelled += 1
                        break
            finally:
                await stream.aclose()

    plans = [
        (rng.choice(texts), rng.randrange(6) if rng.random() < 0.5 else None, kinds[number % len(kinds)])
        for number in range(requests)
    ]
    await asyncio.gather(*(ask(*plan) for plan in plans))
    return cancelled


async def measure(address: str, ops: str, args: argparse.Namespace) -> dict[str, float]:
    texts = [line for line in args.sentences.read_text(encoding="utf-8").splitlines() if line.strip()]
    kinds = MIXED if args.mixed else GREEDY
    async with AsyncClient(address) as client:
        figures = await alone_and_together(client, ops, texts[: args.clients], args.clients, kinds)
        resident: list[float] = []
        cancelled = 0
        for round_ in range(8):
            cancelled += await cancel_at_random(client, texts, args.requests // 8, args.clients, round_, kinds)
            resident.append(resident_bytes(fetch(f"{ops}/metrics")) / 1e6)
    for _ in range(200):  # the last cancellations reach their step boundary
        state = fetch(f"{ops}/metrics")
        left = gauge(state, "glossa_requests_running") + gauge(state, "glossa_requests_queued")
        if not left:
            break
        await asyncio.sleep(0.01)
    figures |= {"requests": args.requests, "cancelled": cancelled, "rows left": left}
    figures |= {f"RSS MB after {place + 1}/8": round(mb, 1) for place, mb in enumerate(resident)}
    figures["RSS growth % over the last 6/8"] = round(100 * (resident[-1] / statistics.mean(resident[1:3]) - 1), 2)
    return figures


@case("bundle", "sentences", clients=64, requests=2000, mixed=False)
def soak(args: argparse.Namespace) -> None:
    with serving(args.bundle) as (address, ops):
        figures = asyncio.run(measure(address, ops, args))
    print(json.dumps(figures) if args.json else "\n".join(f"{name:32} {value:g}" for name, value in figures.items()))
    sys.exit(bool(figures["differing"] or figures["rows left"]))
