"""kill -9 and SIGSTOP of engine processes at random moments under load: who notices, and for how long.

One server with two processes of one engine each answers unary requests, streams and beams in a closed loop, while one
of its engine processes after the other is killed or stopped. Shown are:

- requests that failed: UNAVAILABLE as many as the server's log says that the ended processes had, each after its signal
  and soon; nothing else fails, and every other answer is what it is without faults
- seconds from the end of a process until it serves again, the pause before its restart included; from the signal where
  it was killed, from the log's line where it was stopped
- after kill -9 of the server under load, processes that are left a second later

The same process does not end twice within --gap-s seconds: after several ends a minute the server pauses before it
starts a process again, for 0.5 s after three of them, and for 30 s after five.
"""

from __future__ import annotations

import argparse
import asyncio
import calendar
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import grpc

from bench.case import Flag, case
from bench.load.calls import Calls, calls_of
from bench.load.peer_server import glossa_server
from bench.load.process_tree import children, process_state
from bench.measure import Spread, Verdict, report
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

PROCESSES = 2
KINDS: dict[str, dict[str, Any]] = {"unary": {}, "stream": {}, "beams of 4": {"beam_size": 4}}
ANSWERED_BARS_MS = {signal.SIGKILL: 100.0, signal.SIGSTOP: 2000.0}
SERVES_BAR_S = 2.0
LEFT_AFTER_S = 1.0
CALM_S = 3.0  # of load before the first fault and after the last one
WAIT_S = 30.0  # for the server to notice and repair a fault
OK, LOST = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE


class Call(NamedTuple):
    """A request and how it ended. label: its request id in the server's log. Times: time.time()."""

    label: str
    code: grpc.StatusCode
    answer: str
    began_s: float
    ended_s: float


class Fault(NamedTuple):
    """What was done to a process, and what the server's log says of it."""

    signal: signal.Signals
    at_s: float
    ended: dict[str, Any]
    started: dict[str, Any]


class Load:
    """Callers in a closed loop. calls: those that have ended, by the order of their ends."""

    def __init__(self, address: str, calls: Calls, texts: list[str], max_tokens: int) -> None:
        channel = grpc.aio.insecure_channel(address, options=[("grpc.enable_retries", 0)])
        self.calls: list[Call] = []
        self._channel, self._texts, self._max_tokens, self._types = channel, texts, max_tokens, calls
        self._unary: Any = channel.unary_unary(calls.path, None, calls.response.FromString)
        self._stream: Any = channel.unary_stream(calls.stream_path, None, calls.stream_response.FromString)
        self._numbers = itertools.count()

    async def call_for_ever(self) -> None:
        """One caller, until it is cancelled."""
        while True:
            number = next(self._numbers)
            self.calls.append(await self._call(list(KINDS)[number % len(KINDS)], number))

    async def _call(self, kind: str, number: int) -> Call:
        text = self._texts[number // len(KINDS) % len(self._texts)]
        options = pb.DecodingOptions(max_tokens=self._max_tokens, **KINDS[kind])
        metadata = (("x-request-id", f"{kind.replace(' ', '-')}-{number}"),)
        code, answer, began_s = OK, "", time.time()
        try:
            if kind == "stream":
                message = self._types.stream_request(text=text, options=options).SerializeToString()
                async for part in self._stream(message, metadata=metadata):
                    answer += part.text
            else:
                message = self._types.request(text=text, options=options).SerializeToString()
                answer = (await self._unary(message, metadata=metadata)).text
        except grpc.aio.AioRpcError as error:
            code, answer = error.code(), f"{error.details()}"
        return Call(metadata[0][1], code, answer, began_s, time.time())

    def differing(self) -> int:
        """Complete answers that are not the most frequent one of their text and kind."""
        answers: dict[tuple[str, int], collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for call in self.calls:
            kind, _, number = call.label.rpartition("-")
            if call.code == OK:
                answers[kind, int(number) // len(KINDS) % len(self._texts)][call.answer] += 1
        return sum(found.total() - max(found.values()) for found in answers.values())

    async def close(self) -> None:
        await self._channel.close()


class Log:
    """Events of a server's log file, as they come."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._partial = file, ""

    async def wait_for(self, event: str) -> dict[str, Any]:
        """The next one of this name; the time of it as `at_s`. Events before it are forgotten."""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            for line in self._lines():
                fields: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
                if fields.get("event") == event:
                    moment, _, milliseconds = fields["time"].removesuffix("Z").partition(".")
                    whole_s = calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))
                    return {**fields, "at_s": whole_s + int(milliseconds) / 1e3}
            await asyncio.sleep(0.02)
        raise SystemExit(f"the server did not log {event} within {WAIT_S:g} s")

    def _lines(self) -> Iterator[str]:
        while line := self._file.readline():
            self._partial += line
            if line.endswith("\n"):
                whole, self._partial = self._partial, ""
                yield whole


async def faults_under_load(server: int, log: Log, options: argparse.Namespace) -> list[Fault]:
    """Ends one process after the other, always the one that runs longest, so that they take turns."""
    draw, found = random.Random(options.seed), list[Fault]()
    kinds = [signal.SIGKILL] * options.kills + [signal.SIGSTOP] * options.stops
    await asyncio.sleep(CALM_S)
    for number in draw.sample(kinds, len(kinds)):
        oldest, at_s = children(server)[0], time.time()
        os.kill(oldest, number)
        ended = await log.wait_for("engine_process_ended")
        found.append(Fault(number, at_s, ended, await log.wait_for("engine_process_started")))
        pause_s = options.gap_s / PROCESSES * draw.uniform(1.0, 1.3)
        await asyncio.sleep(max(0.0, at_s + pause_s - time.time()))
    await asyncio.sleep(CALM_S)
    return found


async def left_after_kill(server: int) -> int:
    """Engine processes that run a second after kill -9 of the server."""
    engines = children(server)
    os.kill(server, signal.SIGKILL)
    await asyncio.sleep(LEFT_AFTER_S)
    return sum(process_state(pid) is not None for pid in engines)


async def measure(
    address: str, server: int, log: Log, options: argparse.Namespace
) -> tuple[dict[str, Any], list[Verdict]]:
    texts = [source for source, _ in sentence_pairs(options.data, options.count)]
    load = Load(address, calls_of(options.bundle), texts, options.max_tokens)
    callers = [asyncio.create_task(load.call_for_ever()) for _ in range(options.clients)]
    faults = await faults_under_load(server, log, options)
    calls, differing = list(load.calls), load.differing()
    left = await left_after_kill(server)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await load.close()
    figures, verdicts = summary(calls, faults)
    figures["answers that differ from what they are without faults"] = differing
    limits = {"answers that differ": differing, f"processes left {LEFT_AFTER_S:g} s after kill -9 of the server": left}
    return figures, verdicts + [Verdict(name, found, 0, "", is_limit=True) for name, found in limits.items()]


def summary(calls: list[Call], faults: list[Fault]) -> tuple[dict[str, Any], list[Verdict]]:
    """What the faults cost. A request belongs to the last fault before its end."""
    lost: dict[int, list[float]] = {place: [] for place in range(-1, len(faults))}
    for call in calls:
        if call.code == LOST:
            place = sum(fault.at_s <= call.ended_s for fault in faults) - 1
            lost[place].append(1e3 * (call.ended_s - faults[place].at_s) if place >= 0 else 0.0)
    codes = collections.Counter(call.code.name for call in calls)
    expected = [fault.ended["lost_requests"] for fault in faults]
    unexpected = sum(abs(len(lost[place]) - count) for place, count in enumerate(expected)) + len(lost[-1])
    ends = collections.Counter(fault.ended["process"] for fault in faults)
    figures: dict[str, Any] = {
        "requests": ", ".join(f"{count} {name}" for name, count in codes.most_common()),
        "ends of processes": ", ".join(f"{count} {name}" for name, count in ends.most_common()),
        "lost requests in the log": f"{sum(expected)}, at most {max(expected)} at one end",
    }
    verdicts = [
        Verdict("UNAVAILABLE without a lost request in the log, or the reverse", unexpected, 0, "", is_limit=True),
        Verdict("requests with another error", len(calls) - codes[OK.name] - codes[LOST.name], 0, "", is_limit=True),
    ]
    for number, bar_ms in ANSWERED_BARS_MS.items():
        mine = [place for place, fault in enumerate(faults) if fault.signal == number]
        if not mine:
            continue
        answered = [took_ms for place in mine for took_ms in lost[place]] or [0.0]
        serves, pauses = [], []
        for fault in (faults[place] for place in mine):
            from_s = fault.at_s if number == signal.SIGKILL else fault.ended["at_s"]
            serves.append(fault.started["at_s"] - from_s)
            pauses.append(fault.ended["restart_in_s"])
        figures[f"{number.name}: ms until its requests were answered"] = Spread.of(answered)
        figures[f"{number.name}: seconds until serving again"] = Spread.of(serves)
        figures[f"{number.name}: seconds of pause before the restart"] = Spread.of(pauses)
        verdicts += [
            Verdict(f"{number.name}: longest until a request was answered", max(answered), bar_ms, "ms", is_limit=True),
            Verdict(f"{number.name}: longest until serving again", max(serves), SERVES_BAR_S, "s", is_limit=True),
        ]
    return figures, verdicts


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    clients=Flag(12, "concurrent callers"),
    kills=Flag(20, "kill -9 of an engine process"),
    stops=Flag(5, "SIGSTOP of one"),
    gap_s=Flag(21.0, "least seconds between two ends of the same process"),
    count=Flag(100, "sentences"),
    precision="auto",
    max_tokens=60,
    seed=1,
)
def process_faults(options: argparse.Namespace) -> None:
    flags = ("--engines", str(PROCESSES), "--engines-per-process", "1", "--precision", options.precision)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        file = Path(scratch, "log")
        address, server = stack.enter_context(glossa_server(options.bundle.resolve(), flags=flags, log=file))
        log = Log(stack.enter_context(file.open(encoding="utf-8")))
        figures, verdicts = asyncio.run(measure(address, server, log, options))
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
