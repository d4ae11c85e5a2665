"""Calls that stay open: idle batches beside other clients, processes that are killed, versions that are replaced.

- Idle batches: 1,100 `TranslateBatch` calls over 8 connections send an empty message every 4 s, and are opened again
  4 s after the server has ended them. Others call `Translate` beside them, once each, without retries: how many are
  answered. The batches are of one tenant, of a tenant each, of a token, or of a tenant each under a token that may name
  any.
- Kills: batches of 2,000 texts and documents of 500 sentences follow each other, on a server with one engine process,
  which is killed again and again: items that failed, that have no result or two, that are out of order or differ from
  what is answered without faults.
- Reloads: two bundles take turns as the model's version, and each version keeps one idle batch: engine processes and
  memory before, at most, and `--deadline-s` after the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc

from bench.case import Flag, case
from bench.load.calls import OWN_CHANNEL, UNARY
from bench.load.peer_server import glossa_server
from bench.load.process_tree import children, memory_mb
from bench.measure import Verdict, report
from bench.promises.abuser import LIMITS
from bench.sentences import sentence_pairs
from glossa.client import AsyncClient, ClientError
from glossa.client.admin import AdminClient
from glossa.v1 import glossa_pb2 as pb

BATCH = "/glossa.v1.TranslationService/TranslateBatch"
IDLE, CONNECTIONS, EMPTY_EVERY_S = 1100, 8, 4.0
OTHERS, OTHERS_FOR_S = 50, 25.0  # calls of others, spread over so many seconds
TIMEOUT_S = 10.0
ITEMS, SENTENCES = 2000, 500
SERVED = 0.99
RELOADS = 8
GROWTH_BAR_MB = 40.0
Metadata = tuple[tuple[str, str], ...]


async def idle_batch(channel: grpc.aio.Channel, metadata: Metadata, options: pb.DecodingOptions) -> None:
    """An idle batch for ever: when its call ends, the next one begins."""
    while True:
        call: Any = channel.stream_stream(BATCH)(metadata=metadata)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            first = pb.TranslateBatchRequest(defaults=pb.TranslateRequest(options=options))
            await call.write(first.SerializeToString())
            while not call.done():
                await asyncio.sleep(EMPTY_EVERY_S)
                await call.write(b"")
        await asyncio.sleep(EMPTY_EVERY_S)


async def answered_beside(
    address: str, idle: Sequence[Metadata], other: Metadata, texts: list[str], options: pb.DecodingOptions
) -> list[str]:
    """Statuses of others' calls beside idle batches, one of each metadata."""
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=OWN_CHANNEL))
            for _ in range(CONNECTIONS + 1)
        ]
        batches = [
            asyncio.create_task(idle_batch(channels[number % CONNECTIONS], metadata, options))
            for number, metadata in enumerate(idle)
        ]
        await asyncio.sleep(2 * EMPTY_EVERY_S)
        ask: Any = channels[-1].unary_unary(UNARY)

        async def status(number: int) -> str:
            await asyncio.sleep(number * OTHERS_FOR_S / OTHERS)
            message = pb.TranslateRequest(text=texts[number % len(texts)], options=options).SerializeToString()
            try:
                await ask(message, metadata=other, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
            return "OK"

        found = await asyncio.gather(*map(status, range(OTHERS)))
        for batch in batches:
            batch.cancel()
        await asyncio.gather(*batches, return_exceptions=True)
    return found


def idle_batches(texts: list[str], options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    abuser, neighbour, proxy = (secrets.token_urlsafe() for _ in range(3))
    of_token: dict[str, Metadata] = {
        name: (("authorization", f"Bearer {token}"),)
        for name, token in (("abuser", abuser), ("neighbour", neighbour), ("proxy", proxy))
    }
    tenants: list[Metadata] = [(("x-glossa-tenant", f"t{number}"),) for number in range(IDLE)]
    decoding = pb.DecodingOptions(max_tokens=options.max_tokens)
    figures, verdicts = dict[str, Any](), list[Verdict]()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "tokens")
        rights = (("abuser", abuser, ""), ("neighbour", neighbour, ""), ("proxy", proxy, " any-tenant"))
        file.write_text("".join(f"{sha256(one.encode()).hexdigest()} {name}{right}\n" for name, one, right in rights))
        file.chmod(0o600)
        plans: dict[str, tuple[Sequence[str], Sequence[Metadata], Metadata]] = {
            "one tenant": ((), [()] * IDLE, (("x-glossa-tenant", "other"),)),
            "a tenant each": ((), tenants, (("x-glossa-tenant", "other"),)),
            "a token": (("--tokens", str(file)), [of_token["abuser"]] * IDLE, of_token["neighbour"]),
            "a proxy's token, a tenant each": (
                ("--tokens", str(file)),
                [of_token["proxy"] + one for one in tenants],
                of_token["neighbour"],
            ),
        }
        for name, (flags, idle, other) in plans.items():
            flags = ["--precision", options.precision, *LIMITS, *flags]
            with glossa_server(options.bundle.resolve(), flags=flags) as (address, _):
                found = asyncio.run(answered_beside(address, idle, other, texts, decoding))
            figures |= {f"beside idle batches of {name}: {one}": found.count(one) for one in {*found} - {"OK"}}
            share = found.count("OK") / len(found)
            verdicts.append(Verdict(f"answered beside {IDLE} idle batches of {name}", share, SERVED, "of all"))
    return figures, verdicts


async def kill_engines(server: int, kills: int, gap_s: float, draw: random.Random) -> None:
    for _ in range(kills):
        await asyncio.sleep(gap_s * draw.uniform(0.8, 1.2))
        for engine in children(server)[:1]:
            os.kill(engine, signal.SIGKILL)


async def batch_problems(channel: grpc.aio.Channel, texts: list[str], alone: dict[str, str], tokens: int) -> list[str]:
    """What is wrong with the results of one batch, in the order of its items."""
    items = [
        pb.TranslateBatchItem(request=pb.TranslateRequest(text=texts[number % len(texts)])) for number in range(ITEMS)
    ]
    defaults = pb.TranslateRequest(options=pb.DecodingOptions(max_tokens=tokens))

    async def messages() -> AsyncIterator[bytes]:
        yield pb.TranslateBatchRequest(defaults=defaults, in_order=True).SerializeToString()
        for start in range(0, ITEMS, 100):
            yield pb.TranslateBatchRequest(items=items[start : start + 100]).SerializeToString()

    found, problems = list[str](), list[str]()
    try:
        ask: Any = channel.stream_stream(BATCH)
        async for message in ask(messages()):
            for result in pb.TranslateBatchResponse.FromString(message).results:
                found.append(result.id)
                expected = alone[texts[int(result.id) % len(texts)]]
                if result.HasField("error"):
                    problems.append(f"item failed: {result.error.message}")
                elif result.response.text != expected:
                    problems.append("item differs from its answer alone")
    except grpc.aio.AioRpcError as error:
        problems.append(f"batch failed: {error.code().name}: {error.details()}")
    if found != list(map(str, range(ITEMS))):
        problems.append(f"{len(found)} results, {len({*found})} different, of {ITEMS} items in their order")
    return problems


async def document_problems(client: AsyncClient, texts: list[str], alone: dict[str, str], tokens: int) -> list[str]:
    lines = [texts[number % len(texts)] for number in range(SENTENCES)]
    try:
        document = await client.translate_document("\n".join(lines), splitter_language="und", max_tokens=tokens)
    except ClientError as error:
        return [f"document failed: {error}"]
    failed = [f"sentence failed: {one.error.message}" for one in document.errors if one.error]
    differ = document.text != "\n".join(alone[line] for line in lines)
    return failed + ["document differs from its sentences alone"] * differ


async def measure_kills(
    address: str, server: int, texts: list[str], options: argparse.Namespace
) -> tuple[dict[str, Any], list[Verdict]]:
    async with grpc.aio.insecure_channel(address, options=OWN_CHANNEL) as channel, AsyncClient(address) as client:
        tokens = options.max_tokens
        alone = {text: (await client.translate(text, max_tokens=tokens)).text for text in texts}
        killing = asyncio.create_task(kill_engines(server, options.kills, options.gap_s, random.Random(options.seed)))
        problems, calls, began_s = list[str](), 0, time.monotonic()
        while not killing.done() or calls < 2:
            problems += await batch_problems(channel, texts, alone, tokens)
            problems += await document_problems(client, texts, alone, tokens)
            calls += 2
        await killing
    figures = {
        f"batches of {ITEMS} and documents of {SENTENCES} sentences": calls,
        "kill -9 of the engine process": options.kills,
        "seconds": round(time.monotonic() - began_s, 1),
        **{problem: problems.count(problem) for problem in sorted({*problems})},
    }
    return figures, [
        Verdict("items failed, lost, doubled, out of order or different", len(problems), 0, "", is_limit=True)
    ]


def kills(texts: list[str], options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    flags = ["--precision", options.precision, "--engines", "1"]
    with glossa_server(options.bundle.resolve(), flags=flags) as (address, server):
        return asyncio.run(measure_kills(address, server, texts, options))


async def measure_reloads(
    address: str, server: int, admin: AdminClient, options: argparse.Namespace
) -> tuple[dict[str, Any], list[Verdict]]:
    decoding, bundles = (
        pb.DecodingOptions(max_tokens=options.max_tokens),
        (options.other.resolve(), options.bundle.resolve()),
    )
    seen = [(len(children(server)), memory_mb(server))]
    async with grpc.aio.insecure_channel(address, options=OWN_CHANNEL) as channel:
        batches = []
        for turn in range(RELOADS):
            batches.append(asyncio.create_task(idle_batch(channel, (), decoding)))
            await asyncio.sleep(1.0)
            await asyncio.to_thread(admin.load, "model", bundles[turn % 2])
            seen.append((len(children(server)), memory_mb(server)))
        last_s = time.monotonic()
        while len(children(server)) > seen[0][0] and time.monotonic() < last_s + 2 * options.deadline_s:
            await asyncio.sleep(0.1)
        back_s = time.monotonic() - last_s
        await asyncio.sleep(1.0)
        seen.append((len(children(server)), memory_mb(server)))
        for batch in batches:
            batch.cancel()
        await asyncio.gather(*batches, return_exceptions=True)
    (processes, before_mb), (left, after_mb) = seen[0], seen[-1]
    figures = {
        "engine processes before, at most, after": f"{processes}, {max(one for one, _ in seen)}, {left}",
        "MB before, at most, after": f"{before_mb:.0f}, {max(mb for _, mb in seen):.0f}, {after_mb:.0f}",
    }
    return figures, [
        Verdict("engine processes of replaced versions", left - processes, 0, "", is_limit=True),
        Verdict("until they have ended", back_s, options.deadline_s, "s", is_limit=True),
        Verdict("growth of memory", after_mb - before_mb, GROWTH_BAR_MB, "MB", is_limit=True),
    ]


def reloads(texts: list[str], options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    with tempfile.TemporaryDirectory() as scratch:
        socket = Path(scratch, "admin")
        flags = ["--precision", options.precision, "--admin-socket", str(socket)]
        flags += ["--max-deadline-s", str(options.deadline_s), "--default-deadline-s", str(options.deadline_s)]
        with (
            glossa_server(options.bundle.resolve(), flags=flags) as (address, server),
            AdminClient(f"unix:{socket}") as admin,
        ):
            return asyncio.run(measure_reloads(address, server, admin, options))


PARTS = {"idle": idle_batches, "kills": kills, "reloads": reloads}


@case(
    bundle=Flag(Path, required=True),
    other=Flag(Path, "a bundle of the same task, for reloads"),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    parts=Flag(list(PARTS), choices=list(PARTS)),
    kills=Flag(20, "kill -9 of the engine process"),
    gap_s=Flag(13.0, "seconds between two of them: more than four a minute make the server pause for 30 s"),
    deadline_s=Flag(10.0, "--max-deadline-s of the server that is reloaded"),
    count=Flag(200, "sentences"),
    precision="auto",
    max_tokens=40,
    seed=1,
)
def long_calls(options: argparse.Namespace) -> None:
    if "reloads" in options.parts and options.other is None:
        raise SystemExit("--parts reloads: needs a second bundle; give --other BUNDLE, or other parts")
    texts = [source for source, _ in sentence_pairs(options.data, options.count)]
    found = [PARTS[name](texts, options) for name in options.parts]
    figures = {name: figure for one, _ in found for name, figure in one.items()}
    verdicts = [verdict for _, some in found for verdict in some]
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
