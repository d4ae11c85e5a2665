"""SIGTERM under load: what clients see of a server's end, and how long it takes.

A server answers a closed loop of callers when it gets SIGTERM; the callers go on until its process has ended, and try
again soon after every error. In every second run its log goes to a pipe that is full and that nobody reads, and before
SIGTERM clients send GOAWAY frames with text. Shown are:

- calls that began before SIGTERM and failed: all of them had been accepted or were on their way
- accepted calls that failed, by the server's log (where it can be read)
- calls that ended neither with an answer nor with a status after which clients try again: UNAVAILABLE, or
  RESOURCE_EXHAUSTED for a refusal by overload
- the exit status, and seconds from SIGTERM to the end of the process
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.case import Flag, case
from bench.load.calls import OWN_CHANNEL, UNARY
from bench.load.lean_client import GOAWAY, PREFACE, SETTINGS, frame
from bench.load.peer_server import glossa_server
from bench.measure import Spread, Verdict, report
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb

OK, AGAIN, FULL = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
BEFORE_S = 0.5  # of load, until SIGTERM
PAUSE_S = 0.005  # of a caller after an error
MOST_S = 60.0
GOAWAYS = 20
LOG_S = 2.0  # what the end may take beside the drain: connections, engines, log


class Call(NamedTuple):
    """A call of the load. Seconds: time.time()."""

    code: grpc.StatusCode
    text: str  # of the status
    began_s: float


class End(NamedTuple):
    """How a server ended. failed: accepted calls that did, by its log."""

    status: int
    seconds: float
    at_s: float
    failed: int


def is_refusal(call: Call) -> bool:
    """Whether the server itself told the client that it ends."""
    return call.code == AGAIN and "shutting down" in call.text


class Load:
    """Callers that call for ever."""

    def __init__(self, address: str, messages: list[bytes], clients: int, channels: int) -> None:
        self.calls: list[Call] = []
        self._messages = messages
        self._channels = [grpc.aio.insecure_channel(address, options=OWN_CHANNEL) for _ in range(channels)]
        self._callers = [asyncio.create_task(self._call(number)) for number in range(clients)]

    async def _call(self, number: int) -> None:
        call: Any = self._channels[number % len(self._channels)].unary_unary(UNARY)
        for turn in range(number, sys.maxsize):
            began_s, code, text = time.time(), OK, ""
            try:
                await call(self._messages[turn % len(self._messages)], timeout=30)
            except grpc.aio.AioRpcError as error:
                code, text = error.code(), error.details() or ""
            self.calls.append(Call(code, text, began_s))
            if code != OK:
                await asyncio.sleep(PAUSE_S)

    async def close(self) -> None:
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)
        await asyncio.gather(*[channel.close() for channel in self._channels])


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """The end to write to of a pipe that takes no more bytes."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    try:
        yield write
    finally:
        os.close(read)
        os.close(write)


def send_goaways(address: str, count: int) -> None:
    """One from each of `count` connections, with text that could be lines of a log."""
    host, _, port = address.rpartition(":")
    text = b'\n{"event": "forged"}' * 200
    for _ in range(count):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(GOAWAY, 0, 0, struct.pack(">II", 0, 2) + text))


async def ended(pid: int) -> tuple[int, float]:
    """Waits for the end of a process. Returns its status, that of a signal negative, and the seconds that it took."""
    began_s = time.monotonic()
    while (seconds := time.monotonic() - began_s) < MOST_S:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is not None:
            return (found.si_status if found.si_code == os.CLD_EXITED else -found.si_status), seconds
        await asyncio.sleep(0.005)
    raise SystemExit(f"the server still runs {MOST_S:g} s after SIGTERM")


async def measure(address: str, pid: int, messages: list[bytes], options: argparse.Namespace) -> tuple[End, list[Call]]:
    """One end of one server."""
    load = Load(address, messages, options.clients, options.channels)
    await asyncio.sleep(BEFORE_S)
    await asyncio.to_thread(send_goaways, address, GOAWAYS)
    at_s = time.time()
    os.kill(pid, signal.SIGTERM)
    status, seconds = await ended(pid)
    await load.close()
    return End(status, seconds, at_s, 0), load.calls


def failed_by_log(log: Path) -> int:
    """Accepted calls that did not end with an answer, and lines that are not the server's."""
    lines = log.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) if line.startswith("{") else {"event": "forged"} for line in lines]
    return sum(event["event"] == "forged" or event.get("code", "OK") != "OK" for event in events)


def summary(ends: list[End], calls: list[list[Call]], limit_s: float) -> tuple[dict[str, Any], list[Verdict]]:
    """What clients saw of all ends."""
    every = [call for of_one in calls for call in of_one]
    early = [call for end, of_one in zip(ends, calls, strict=True) for call in of_one if call.began_s < end.at_s]
    codes = collections.Counter(call.code.name for call in every)
    others = collections.Counter(call.text for call in every if call.code not in (OK, AGAIN))
    figures = {
        **{f"calls with the status {text!r}": count for text, count in others.items()},
        "calls": ", ".join(f"{count} {name}" for name, count in codes.most_common()),
        "of them began before SIGTERM": len(early),
        "refused by the server, with a hint": sum(map(is_refusal, every)),
        "seconds from SIGTERM to the end": Spread.of([end.seconds for end in ends]),
    }
    limits = {
        "calls that began before SIGTERM and failed": sum(call.code not in (OK, FULL) for call in early),
        "accepted calls that failed, and forged lines, by the log": sum(end.failed for end in ends),
        "calls that ended as CANCELLED": codes["CANCELLED"],
        "calls with another error": sum(call.code not in (OK, AGAIN, FULL) for call in every),
        "ends with a status other than 0": sum(end.status != 0 for end in ends),
    }
    verdicts = [Verdict(name, found, 0, "", is_limit=True) for name, found in limits.items()]
    longest_s = max(end.seconds for end in ends)
    return figures, [*verdicts, Verdict("longest end", round(longest_s, 2), limit_s, "s", is_limit=True)]


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    signals=Flag(20, "SIGTERM, each to a server of its own"),
    clients=Flag(64, "concurrent callers"),
    channels=8,
    drain_delay_s=0.3,
    drain_timeout_s=5.0,
    max_tokens=30,
    precision="auto",
)
def drain(options: argparse.Namespace) -> None:
    asked = pb.DecodingOptions(max_tokens=options.max_tokens, ignore_eos=True)
    texts = [source for source, _ in sentence_pairs(options.data, 100)]
    messages = [pb.TranslateRequest(text=text, options=asked).SerializeToString() for text in texts]
    flags = ["--engines", "1", "--precision", options.precision, "--drain-delay-s", str(options.drain_delay_s)]
    flags += ["--drain-timeout-s", str(options.drain_timeout_s)]
    ends, calls = list[End](), list[list[Call]]()
    for number in range(options.signals):
        with contextlib.ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            log = stack.enter_context(full_pipe()) if number % 2 else scratch / "log"
            address, pid = stack.enter_context(glossa_server(options.bundle.resolve(), flags=flags, log=log))
            end, found = asyncio.run(measure(address, pid, messages, options))
            ends.append(end if isinstance(log, int) else end._replace(failed=failed_by_log(log)))
            calls.append(found)
    figures, verdicts = summary(ends, calls, options.drain_delay_s + options.drain_timeout_s + LOG_S)
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
