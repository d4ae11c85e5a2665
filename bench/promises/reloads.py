"""Reloads under load: two bundles take turns as the version of one model while callers go on.

The bundles must answer differently. What each answers is asked first, while it serves alone and nothing else is called.
Then callers send unary and streamed calls in a closed loop, without retries, and the admin service loads one bundle
after the other. Shown are:

- calls that failed, and answers that are not those of the version whose digest they carry
- seconds of a reload, from the call to the answer; the latency of calls during all of it
- memory of the server and its engine processes when one version was alone, after the first turns and at the end, and
  how many engine processes there were
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.case import Flag, case
from bench.load.calls import OWN_CHANNEL, STREAM, UNARY
from bench.load.peer_server import glossa_server
from bench.load.process_tree import children, memory_mb
from bench.measure import Spread, Verdict, report
from bench.sentences import sentence_pairs
from cli.load.load_report import percentile
from glossa.client.admin import AdminClient
from glossa.v1 import glossa_pb2 as pb

WARM = 4  # reloads before memory is measured first
GROWTH_BAR_MB = 16.0
QUIET_S = 3.0  # without calls, until memory is measured
MODEL = "model"


class Answer(NamedTuple):
    """How a call ended. bundle: that its trailers name. error: empty for an answer."""

    text: str
    answer: str
    bundle: str
    seconds: float
    error: str = ""


class Memory(NamedTuple):
    """Of a server with one version: MB of all its processes, MB of its edge, engine processes."""

    total_mb: float
    edge_mb: float
    processes: int


class Load:
    """Callers of one server, until `stop`."""

    def __init__(self, address: str, texts: list[str], options: argparse.Namespace) -> None:
        self.answers: list[Answer] = []
        self._texts, self._decoding = texts, pb.DecodingOptions(max_tokens=options.max_tokens)
        self._channel = grpc.aio.insecure_channel(address, options=OWN_CHANNEL)
        self._unary: Any = self._channel.unary_unary(UNARY)
        self._stream: Any = self._channel.unary_stream(STREAM)
        self._is_over = False
        self._callers = [asyncio.create_task(self._go_on(number)) for number in range(options.clients)]

    async def _go_on(self, number: int) -> None:
        while not self._is_over:
            self.answers.append(await self.ask(self._texts[number % len(self._texts)], is_streamed=number % 2 == 1))
            number += 7

    async def ask(self, text: str, *, is_streamed: bool = False) -> Answer:
        """One call."""
        began_s = time.monotonic()
        message = pb.TranslateRequest(text=text, options=self._decoding).SerializeToString()
        call = (self._stream if is_streamed else self._unary)(message, timeout=60)
        try:
            if is_streamed:
                answer = "".join([pb.StreamTranslateResponse.FromString(piece).text async for piece in call])
            else:
                answer = pb.TranslateResponse.FromString(await call).text
        except grpc.aio.AioRpcError as error:
            return Answer(text, "", "", time.monotonic() - began_s, f"{error.code().name}: {error.details()}")
        bundle = dict(await call.trailing_metadata())["x-glossa-bundle-sha256"]
        return Answer(text, answer, bundle, time.monotonic() - began_s)

    async def stop(self) -> None:
        """Returns when every call has ended."""
        self._is_over = True
        await asyncio.gather(*self._callers)

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()


async def alone(admin: AdminClient) -> None:
    """Returns when one version is left."""
    while len(await asyncio.to_thread(admin.versions)) > 1:
        await asyncio.sleep(0.02)


async def expected(address: str, texts: list[str], options: argparse.Namespace) -> set[tuple[str, str, str]]:
    """Every text with its answer and the bundle, of the only version of a quiet server."""
    asking = Load(address, texts, argparse.Namespace(**{**vars(options), "clients": 0}))
    answers = [await asking.ask(text) for text in texts]
    await asking.close()
    return {(answer.text, answer.answer, answer.bundle) for answer in answers}


async def memory_of(pid: int) -> Memory:
    """Once what calls took is given back."""
    await asyncio.sleep(QUIET_S)
    engines = children(pid)
    total = memory_mb(pid)
    return Memory(total, total - sum(map(memory_mb, engines)), len(engines))


async def measure(
    address: str, pid: int, admin: AdminClient, texts: list[str], options: argparse.Namespace
) -> tuple[list[Answer], list[float], list[Memory], set[tuple[str, str, str]]]:
    """All answers, the seconds of each reload, memory early and late, and the answers that versions give alone."""
    bundles = [options.bundle.resolve(), options.other.resolve()]

    async def load(turn: int) -> float:
        began_s = time.monotonic()
        await asyncio.to_thread(admin.load, MODEL, bundles[turn % 2])
        return time.monotonic() - began_s

    known = set[tuple[str, str, str]]()
    for turn in range(WARM):
        await load(turn + 1)
        await alone(admin)
        known |= await expected(address, texts, options)
    memory = [await memory_of(pid)]
    load_of_calls, seconds = Load(address, texts, options), list[float]()
    for turn in range(options.reloads):
        answered = len(load_of_calls.answers)
        seconds.append(await load(turn + 1))
        while len(load_of_calls.answers) < answered + options.calls // options.reloads:
            await asyncio.sleep(0.01)
    await load_of_calls.stop()
    await load_of_calls.close()
    await alone(admin)
    memory.append(await memory_of(pid))
    return load_of_calls.answers, seconds, memory, known


def summary(
    answers: list[Answer], seconds: list[float], memory: list[Memory], known: set[tuple[str, str, str]], calls: int
) -> tuple[dict[str, Any], list[Verdict]]:
    """What the run shows."""
    errors = collections.Counter(answer.error for answer in answers if answer.error)
    wrong = sum((answer.text, answer.answer, answer.bundle) not in known for answer in answers if not answer.error)
    times_ms = sorted(answer.seconds * 1000 for answer in answers if not answer.error)
    early, late = memory
    figures = {
        **{f"calls with the error {text!r}": count for text, count in errors.items()},
        "reloads": len(seconds),
        "seconds of a reload": Spread.of(seconds),
        "ms of a call, p50": round(percentile(times_ms, 50), 1),
        "ms of a call, p99": round(percentile(times_ms, 99), 1),
        "calls of each bundle": ", ".join(map(str, collections.Counter(each.bundle for each in answers).values())),
        "MB of all processes, early and late": f"{early.total_mb:.1f}, {late.total_mb:.1f}",
        "MB of the edge, early and late": f"{early.edge_mb:.1f}, {late.edge_mb:.1f}",
    }
    grown = round(late.total_mb - early.total_mb, 1)
    return figures, [
        Verdict("calls", len(answers), calls, ""),
        Verdict("calls that failed", errors.total(), 0, "", is_limit=True),
        Verdict("answers that are not those of their bundle", wrong, 0, "", is_limit=True),
        Verdict("bundles that answered", len({each.bundle for each in answers if not each.error}), 2, ""),
        Verdict("more engine processes", late.processes - early.processes, 0, "", is_limit=True),
        Verdict("growth of memory", grown, GROWTH_BAR_MB, "MB", is_limit=True),
    ]


@case(
    bundle=Flag(Path, required=True),
    other=Flag(Path, "a bundle that answers differently", required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    reloads=50,
    calls=Flag(10_000, "at least so many while it is reloaded"),
    clients=Flag(32, "concurrent callers"),
    texts=100,
    max_tokens=30,
    precision="auto",
    log=Flag(Path, "a file for the server's log, JSON lines"),
)
def reloads(options: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(options.data, options.texts)]
    with tempfile.TemporaryDirectory() as scratch:
        socket = Path(scratch) / "admin"
        flags = ["--precision", options.precision, "--admin-socket", str(socket)]
        with (
            glossa_server(options.bundle.resolve(), flags=flags, log=options.log) as (address, pid),
            AdminClient(f"unix:{socket}") as admin,
        ):
            found = asyncio.run(measure(address, pid, admin, texts, options))
    figures, verdicts = summary(*found, options.calls)
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
