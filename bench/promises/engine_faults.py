"""Engines that hang, die, compute NaN or run out of memory under load: who notices, and what it costs.

One server with two processes of one engine each answers unary requests, streams and beams in a closed loop, while one
of its engine processes after the other suffers a fault from inside (`bench.promises.process_hook`):

hang     a turn that never returns             spin    one that computes for ever
freeze   one that holds Python's lock          die     the engine's thread ends
fail     every turn raises                     nan     every turn's logits are not numbers
abort    the process aborts itself             exhaust no memory can be allocated any more

For each: seconds until the server ended the process, until it served again, and how its requests ended: each once, with
UNAVAILABLE or INTERNAL, and no answer is another one than without faults. A turn that computes for ever is told from a
long one by --heartbeat-timeout-s only, which is set to what a small model allows.

At the end no engine process can be started any more: readiness and liveness fail with the reason, requests are refused
at once; and with --recover it is shown that the server serves again when they can. Then a second server, whose log is
on a full disk, serves and drains.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.case import Flag, case
from bench.load.calls import calls_of
from bench.load.peer_server import glossa_server
from bench.load.process_tree import children
from bench.measure import Verdict, report
from bench.promises.process_faults import Call, Load, Log
from bench.sentences import sentence_pairs
from service.edge.models.process_pool import FAILING_DEATHS

HOOK = Path(__file__).with_name("process_hook")
PROCESSES = 2
FAULTS = ("hang", "spin", "freeze", "die", "fail", "nan", "abort", "exhaust")
DETECTED_S = 1.0  # bar, from the fault to the end of the process
SERVES_S = 2.0
ANSWERED_MS = 250.0  # from then to the last answer of its requests
CALM_S = 1.5  # of load before the first fault and after each
ENDS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)


class Suffered(NamedTuple):
    """A fault, and what the server's log says of it. Times: time.time()."""

    fault: str
    at_s: float
    ended: dict[str, Any]
    started: dict[str, Any]


async def suffer(faults: list[str], server: int, folder: Path, log: Log) -> list[Suffered]:
    """One process after the other, always the one that runs longest, so that they take turns."""
    found = []
    for fault in faults:
        await asyncio.sleep(CALM_S)
        oldest = children(server)[0]
        (folder / str(oldest)).write_text(fault)
        at_s = time.time()
        os.kill(oldest, signal.SIGUSR1)
        ended = await log.wait_for("engine_process_ended")
        found.append(Suffered(fault, at_s, ended, await log.wait_for("engine_process_started")))
    await asyncio.sleep(CALM_S)
    return found


def summary(calls: list[Call], suffered: list[Suffered]) -> tuple[dict[str, Any], list[Verdict]]:
    """What the faults cost. A request belongs to the last fault before its end."""
    codes = collections.Counter(call.code.name for call in calls)
    figures: dict[str, Any] = {"requests": ", ".join(f"{count} {name}" for name, count in codes.most_common())}
    verdicts = []
    failed = [call for call in calls if call.code in ENDS]
    others = len(calls) - codes["OK"] - len(failed)
    verdicts.append(Verdict("requests that ended with another error", others, 0, "", is_limit=True))
    early = sum(call.ended_s < suffered[0].at_s for call in failed)
    verdicts.append(Verdict("requests that failed before any fault", early, 0, "", is_limit=True))
    for one, after in zip(suffered, [*suffered[1:], None], strict=True):
        until_s = after.at_s if after else float("inf")
        mine = [call for call in failed if one.at_s <= call.ended_s < until_s]
        lost_s = [call.ended_s for call in mine if call.code == grpc.StatusCode.UNAVAILABLE]
        noticed_s = min([*lost_s, one.ended["at_s"]])  # the line in the log comes when the process has ended
        last_ms = 1e3 * (max([*lost_s, noticed_s]) - noticed_s)
        serves_s = one.started["at_s"] - noticed_s
        figures[one.fault] = (
            f"{one.ended['reason']} after {noticed_s - one.at_s:.2f} s, {len(lost_s)} UNAVAILABLE, "
            f"{len(mine) - len(lost_s)} INTERNAL, serving again {serves_s:.2f} s later"
        )
        unexpected = abs(len(lost_s) - one.ended["lost_requests"])
        verdicts += [
            Verdict(f"{one.fault}: detected", noticed_s - one.at_s, DETECTED_S, "s", is_limit=True),
            Verdict(f"{one.fault}: last answer after that", last_ms, ANSWERED_MS, "ms", is_limit=True),
            Verdict(f"{one.fault}: serving again", serves_s, SERVES_S, "s", is_limit=True),
            Verdict(f"{one.fault}: UNAVAILABLE not in the log, or the reverse", unexpected, 0, "", is_limit=True),
        ]
    return figures, verdicts


def probe(url: str) -> tuple[int, dict[str, Any]]:
    """The status and the body of a page of the ops port."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


async def hopeless(
    load: Load, server: int, ops: str, folder: Path, log: Log, *, recovers: bool
) -> tuple[dict[str, Any], list[Verdict]]:
    """No process can be started any more."""
    always = folder / "always"
    always.touch()
    for process in children(server):
        os.kill(process, signal.SIGKILL)
    await log.wait_for("engine_process_failing")
    await log.wait_for("engine_process_failing")  # of the other process
    await asyncio.sleep(1.0)
    (ready, why), (alive, problems) = probe(f"{ops}/readyz"), probe(f"{ops}/healthz")
    before = len(load.calls)
    await asyncio.sleep(1.0)
    refused = load.calls[before:]
    slowest_ms = 1e3 * max([call.ended_s - call.began_s for call in refused], default=float("inf"))
    wrong = sum(call.code != grpc.StatusCode.UNAVAILABLE for call in refused)
    named = sum(f"ended {FAILING_DEATHS} times" in reason for reason in why["reasons"])
    figures: dict[str, Any] = {"readiness without engines": why, "liveness without engines": problems}
    verdicts = [
        Verdict("no engine can start: status of /readyz", ready, 503, ""),
        Verdict("no engine can start: status of /healthz", alive, 503, ""),
        Verdict("no engine can start: processes named in /readyz", named, PROCESSES, ""),
        Verdict("no engine can start: requests that are not refused", wrong, 0, "", is_limit=True),
        Verdict("no engine can start: slowest refusal", slowest_ms, 250, "ms", is_limit=True),
    ]
    always.unlink()
    if recovers:
        began_s = time.monotonic()
        await log.wait_for("engine_process_started")
        verdicts.append(Verdict("serving again when they can", time.monotonic() - began_s, 32, "s", is_limit=True))
    return figures, verdicts


async def measure(
    address: str, server: int, folder: Path, log: Log, options: argparse.Namespace
) -> tuple[dict[str, Any], list[Verdict]]:
    ops = f"http://{(await log.wait_for('serving'))['http']}"
    texts = [source for source, _ in sentence_pairs(options.data, options.count)]
    load = Load(address, calls_of(options.bundle), texts, options.max_tokens)
    callers = [asyncio.create_task(load.call_for_ever()) for _ in range(options.clients)]
    try:
        suffered = await suffer(options.faults, server, folder, log)
        figures, verdicts = summary(list(load.calls), suffered)
        verdicts.append(Verdict("answers that differ", load.differing(), 0, "", is_limit=True))
        more, others = await hopeless(load, server, ops, folder, log, recovers=options.recover)
    finally:
        for caller in callers:
            caller.cancel()
        ended = await asyncio.gather(*callers, return_exceptions=True)
        await load.close()
    stuck = sum(not isinstance(end, asyncio.CancelledError) for end in ended)
    verdicts.append(Verdict("callers that failed themselves", stuck, 0, "", is_limit=True))
    return figures | more, verdicts + others


async def answered(address: str, bundle: Path, texts: list[str]) -> int:
    """How many requests, one after the other, are answered."""
    calls = calls_of(bundle)
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(calls.path, None, calls.response.FromString)
        ended = [await call(calls.request(text=text).SerializeToString(), timeout=20).code() for text in texts]
        return ended.count(grpc.StatusCode.OK)


def full_disk(bundle: Path, texts: list[str]) -> list[Verdict]:
    """A server whose log cannot be written."""
    with glossa_server(bundle, log=Path("/dev/full")) as (address, server):
        found = asyncio.run(answered(address, bundle, texts))
        began_s = time.monotonic()
        os.kill(server, signal.SIGTERM)
        _, status = os.waitpid(server, 0)
        drained_s = time.monotonic() - began_s
    return [
        Verdict(f"full disk for the log: answers of {len(texts)}", found, len(texts), ""),
        Verdict("full disk for the log: status after SIGTERM", os.waitstatus_to_exitcode(status), 0, "", is_limit=True),
        Verdict("full disk for the log: until the end after SIGTERM", drained_s, 5, "s", is_limit=True),
    ]


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    faults=Flag(list(FAULTS), "one after the other", choices=list(FAULTS)),
    heartbeat_s=Flag(0.75, "the server's --heartbeat-timeout-s; more on a busy machine"),
    clients=Flag(12, "concurrent callers"),
    count=Flag(100, "sentences"),
    recover=Flag(False, "wait until the server serves again, half a minute"),
    precision="auto",
    max_tokens=60,
)
def engine_faults(options: argparse.Namespace) -> None:
    flags = ["--engines", str(PROCESSES), "--engines-per-process", "1", "--precision", options.precision]
    flags += ["--heartbeat-timeout-s", str(options.heartbeat_s)]
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        file, folder = Path(scratch, "log"), Path(scratch, "faults")
        folder.mkdir()
        server = glossa_server(
            options.bundle.resolve(), {"BENCH_FAULTS": str(folder)}, flags=flags, log=file, modules=[HOOK]
        )
        address, pid = stack.enter_context(server)
        lines = stack.enter_context(file.open(encoding="utf-8"))
        figures, verdicts = asyncio.run(measure(address, pid, folder, Log(lines), options))
    texts = [source for source, _ in sentence_pairs(options.data, options.count)]
    verdicts += full_disk(options.bundle.resolve(), texts)
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
