"""Three replicas behind Envoy that are killed, stopped and replaced under load: what callers see of it.

Calls begin at random moments (Poisson) at `--load` of what three replicas answer, one in ten as a stream, and are never
tried again by the caller. Then, in turn: kill -9 of a replica, which starts again; SIGSTOP of another one for 10 s;
SIGTERM of each, and a new one in its place. The same for each of `--settings`:

- shipped: deploy/envoy/replicas.yaml
- fast: the same with a PING every second, which finds a stopped replica sooner; the replicas take that with
  --min-ping-interval-s 1
- naive: health checks and retries as tutorials have them (`bench.load.envoy.naive`)

Shown are, for each fault, calls that ended during it and those that failed, the longest one, and the seconds until each
replica got its part of the calls again: at least 15 % of those of a second. A stream that a kill cuts after its first
message cannot be repeated: it is counted by itself. Last, the calls a second of one and two replicas in a closed loop;
on a machine that one replica fills, a second one can add nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import functools
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.case import Flag, case
from bench.load import envoy
from bench.load.calls import OWN_CHANNEL, STREAM, UNARY
from bench.load.peer_server import glossa_server
from bench.load.process_tree import children
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from cli.local_server import fetch, free_port
from glossa.v1 import glossa_pb2 as pb

REPLICAS = 3
STOPPED_S = 10.0
TIMEOUT_S = 30.0
LEAST_SHARE = 0.15
STREAMED = 0.1  # of the calls
READY_WITHIN_S = 60.0
QUIET_S = 2.0  # between faults
CALLERS = 32  # of the closed loop
CHANNELS = 4
MOST_S = 90.0  # until load is balanced
SPAWN = multiprocessing.get_context("spawn")
KINDS = ("shipped", "fast", "naive")
FLAGS = ("--drain-delay-s", "3", "--drain-timeout-s", "30", "--min-ping-interval-s", "1", "--engines", "1")


class Call(NamedTuple):
    """A call that has ended. had_begun: messages of its answer had come. Seconds: time.monotonic()."""

    is_stream: bool
    code: str
    text: str  # of an error
    had_begun: bool
    began_s: float
    ended_s: float

    @property
    def is_cut(self) -> bool:
        """A stream that failed after its first message: nothing can repeat it."""
        return self.is_stream and self.code != "OK" and self.had_begun


class Fault(NamedTuple):
    """What was done, from when to when. balanced_s: seconds until each replica got its part of the calls again."""

    name: str
    began_s: float
    ended_s: float
    balanced_s: float


class Load:
    """Calls to one address: `closed` measures how many are answered, `begin` starts them at random moments."""

    def __init__(self, address: str, texts: list[str], max_tokens: int) -> None:
        self.calls: list[Call] = []
        options = pb.DecodingOptions(max_tokens=max_tokens)
        self._messages = [pb.TranslateRequest(text=text, options=options).SerializeToString() for text in texts]
        self._channels = [grpc.aio.insecure_channel(address, options=OWN_CHANNEL) for _ in range(CHANNELS)]
        self._running = set[asyncio.Task[None]]()

    async def call(self, number: int, *, is_stream: bool = False) -> None:
        """One call, whose end is kept."""
        channel, message = self._channels[number % CHANNELS], self._messages[number % len(self._messages)]
        began_s, had_begun, code, text = time.monotonic(), False, grpc.StatusCode.OK, ""
        try:
            if is_stream:
                stream: Any = channel.unary_stream(STREAM)
                async for _ in stream(message, timeout=TIMEOUT_S):
                    had_begun = True
            else:
                unary: Any = channel.unary_unary(UNARY)
                await unary(message, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            code, text = error.code(), (error.details() or "")[:60]
        self.calls.append(Call(is_stream, code.name, text, had_begun, began_s, time.monotonic()))

    async def closed(self, seconds: float) -> float:
        """Answers a second that CALLERS callers get."""
        until_s, before = time.monotonic() + seconds, len(self.calls)

        async def go_on(number: int) -> None:
            while time.monotonic() < until_s:
                await self.call(number)
                number += CALLERS

        await asyncio.gather(*[go_on(number) for number in range(CALLERS)])
        return sum(call.code == "OK" for call in self.calls[before:]) / seconds

    async def begin(self, rate: float, least: int, is_over: Event) -> None:
        """Starts `rate` calls a second until the event, and so many unary ones. Returns when all have ended."""
        rng, due_s, number = random.Random(1), time.monotonic(), 0
        while not is_over.is_set() or number < least / (1 - STREAMED) + 1:
            due_s += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            task = asyncio.create_task(self.call(number, is_stream=number % 10 < 10 * STREAMED))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            number += 1
        await asyncio.gather(*self._running)

    async def close(self) -> None:
        await asyncio.gather(*[channel.close() for channel in self._channels])


class Replica:
    """A server that always has the same port."""

    def __init__(self, bundle: Path, precision: str) -> None:
        self._bundle, self._flags = bundle, [*FLAGS, "--precision", precision]
        self._port = free_port()
        self._stack = contextlib.ExitStack()
        self.address = f"127.0.0.1:{self._port}"
        self.pid = 0

    def start(self) -> None:
        """Returns once it is ready."""
        _, self.pid = self._stack.enter_context(glossa_server(self._bundle, flags=self._flags, port=self._port))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """SIGTERM. Returns once the process has ended."""
        self._stack.close()

    def stop(self, seconds: float) -> None:
        """Nothing of it runs for so long."""
        pids = [self.pid, *children(self.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def behind_envoy(replicas: list[Replica], binary: str, kind: str) -> Iterator[envoy.Front]:
    """Envoy before replicas that run, with settings of KINDS."""
    settings = envoy.read("replicas")
    if kind == "naive":
        envoy.naive(settings)
    if kind == "fast":
        envoy.keepalive_of(settings).update(interval="1s", timeout="1s")
    with envoy.in_front_of([replica.address for replica in replicas], binary, settings) as front:
        yield front


def totals(front: envoy.Front) -> dict[str, int]:
    """Calls that each replica has got from Envoy so far."""
    lines = [line.split("::") for line in fetch(f"{front.admin}/clusters").splitlines()]
    return {line[1]: int(line[3]) for line in lines if line[2:3] == ["rq_total"]}


def balanced(front: envoy.Front, since_s: float) -> float:
    """Seconds since then when each replica has got its part of the calls of a second."""
    before = totals(front)
    while time.monotonic() < since_s + MOST_S:
        time.sleep(1.0)
        now = totals(front)
        parts = [now[address] - before[address] for address in now]
        if len(parts) == REPLICAS and min(parts) >= LEAST_SHARE * max(1, sum(parts)):
            return time.monotonic() - since_s
        before = now
    return MOST_S


def faults(replicas: list[Replica], front: envoy.Front) -> Iterator[Fault]:
    """Does all of it, in turn."""

    def killed(replica: Replica) -> None:
        replica.kill()
        replica.start()

    def replaced(replica: Replica) -> None:
        replica.end()
        replica.start()

    plan: dict[str, Callable[[], None]] = {
        "kill -9": functools.partial(killed, replicas[0]),
        "SIGSTOP for 10 s": functools.partial(replicas[1].stop, STOPPED_S),
        **{
            f"SIGTERM of replica {number}": functools.partial(replaced, each) for number, each in enumerate(replicas, 1)
        },
    }
    for name, act in plan.items():
        time.sleep(QUIET_S)
        began_s = time.monotonic()
        act()
        balanced_s = balanced(front, began_s)
        yield Fault(name, began_s, time.monotonic(), balanced_s)


def generate(
    address: str,
    texts: list[str],
    max_tokens: int,
    rate: float,
    least: int,
    has_begun: Event,
    is_over: Event,
    results: Queue[list[Call]],
) -> None:
    """The load, in a process of its own: this one starts servers, and a process with gRPC's threads cannot fork."""

    async def run() -> list[Call]:
        load = Load(address, texts, max_tokens)
        await load.call(0)
        has_begun.set()
        await load.begin(rate, least, is_over)
        await load.close()
        return load.calls

    results.put(asyncio.run(run()))


def measure(
    replicas: list[Replica], front: envoy.Front, rate: float, texts: list[str], options: argparse.Namespace
) -> tuple[list[Call], list[Fault]]:
    """The calls and the faults of one kind of settings."""
    has_begun, is_over, results = SPAWN.Event(), SPAWN.Event(), SPAWN.Queue()
    arguments = (front.address, texts, options.max_tokens, rate, options.calls, has_begun, is_over, results)
    load = SPAWN.Process(target=generate, args=arguments, daemon=True)
    load.start()
    if not has_begun.wait(READY_WITHIN_S):
        raise SystemExit(f"the load did not begin within {READY_WITHIN_S:g} s")
    found = list(faults(replicas, front))
    is_over.set()
    calls = results.get(timeout=600)
    load.join()
    return calls, found


def throughput(address: str, texts: list[str], max_tokens: int, seconds: float) -> float:
    """Calls a second of a closed loop, once it is warm."""

    async def run() -> float:
        load = Load(address, texts, max_tokens)
        await load.closed(seconds / 4)
        found = await load.closed(seconds)
        await load.close()
        return found

    return asyncio.run(run())


def figures_of(kind: str, calls: list[Call], found: list[Fault]) -> dict[str, Any]:
    """One row for each fault, and one for the calls between faults."""
    rows = dict[str, Any]()
    left = list(calls)
    for fault in found:
        during = [call for call in left if call.ended_s >= fault.began_s and call.began_s <= fault.ended_s]
        left = [call for call in left if call.ended_s < fault.began_s or call.began_s > fault.ended_s]
        rows[f"{kind}, {fault.name}"] = f"{row(during)}, balanced after {fault.balanced_s:.1f} s"
    rows[f"{kind}, between faults"] = row(left)
    ends = collections.Counter(f"{call.code}: {call.text}" for call in calls if call.code != "OK")
    rows |= {f"{kind}, failed with {end!r}": count for end, count in ends.most_common(6)}
    return rows


def row(calls: list[Call]) -> str:
    failed = sum(call.code != "OK" and not call.is_cut for call in calls)
    worst_s = max((call.ended_s - call.began_s for call in calls), default=0.0)
    cut = sum(call.is_cut for call in calls)
    return f"{len(calls):,} calls, {failed} failed, {cut} streams cut, longest {worst_s:.1f} s"


def verdicts_of(kind: str, calls: list[Call], found: list[Fault], least: int) -> list[Verdict]:
    """What must hold for shipped settings."""
    drains = [fault for fault in found if fault.name.startswith("SIGTERM")]
    unary = [call for call in calls if not call.is_stream]
    cut = sum(call.is_cut and any(fault.began_s <= call.ended_s <= fault.ended_s for fault in drains) for call in calls)
    lost = sum(call.is_stream and call.code != "OK" and not call.had_begun for call in calls)
    return [
        Verdict(f"{kind}: unary calls", len(unary), least, ""),
        Verdict(f"{kind}: unary calls that failed", sum(call.code != "OK" for call in unary), 0, "", is_limit=True),
        Verdict(f"{kind}: streams that failed before their first message", lost, 0, "", is_limit=True),
        Verdict(f"{kind}: streams that a drain cut", cut, 0, "", is_limit=True),
        Verdict(
            f"{kind}: longest until load is balanced",
            max(fault.balanced_s for fault in found),
            MOST_S / 2,
            "s",
            is_limit=True,
        ),
    ]


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    settings=Flag(list(KINDS), "of Envoy", choices=KINDS),
    calls=Flag(5000, "unary calls of each, at least"),
    load=Flag(0.6, "of what three replicas answer"),
    seconds=Flag(8.0, "of a closed loop"),
    max_tokens=16,
    precision="auto",
)
def replicas(options: argparse.Namespace) -> None:
    binary = envoy.find()
    if binary is None:
        raise SystemExit(envoy.HOW_TO_GET_IT)
    texts = [source for source, _ in sentence_pairs(options.data, 100)]
    figures, verdicts = dict[str, Any](), list[Verdict]()
    running = [Replica(options.bundle.resolve(), options.precision) for _ in range(REPLICAS)]
    with contextlib.ExitStack() as stack:
        for replica in running:
            stack.callback(replica.end)
            replica.start()
        caller = stack.enter_context(ProcessPoolExecutor(1, mp_context=SPAWN))
        rates = {}
        for count in (1, 2, REPLICAS):
            with behind_envoy(running[:count], binary, "shipped") as front:
                asked = caller.submit(throughput, front.address, texts, options.max_tokens, options.seconds)
                rates[count] = asked.result()
                figures[f"calls a second of {count} replicas, closed loop"] = round(rates[count], 1)
        rate = options.load * rates[REPLICAS]
        figures["calls a second, offered"] = round(rate, 1)
        for kind in options.settings:
            with behind_envoy(running, binary, kind) as front:
                calls, found = measure(running, front, rate, texts, options)
            figures |= figures_of(kind, calls, found)
            verdicts += verdicts_of(kind, calls, found, options.calls) if kind != "naive" else []
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
