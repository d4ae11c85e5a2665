"""Two replicas, one of them at half speed: how balancers that read load reports (ORCA) share calls between them.

The engine process of the slow replica is stopped for half of each 20 ms. Calls come at random moments, at a share of
what both can do together, so that halves of it are more than the slow one can take in good time. Each policy has the
same calls: gRPC's round robin, its weighted round robin by streams of reports and by reports in trailing metadata, and,
where there is Envoy, its round robin, the least-request policy of deploy/envoy, and its client-side weighted round
robin. All of them run in turn, round after round.

    p99         of calls that were due after --settle seconds, from the moment when each was due
    balanced    seconds from the first call until the slow replica has at most half as many requests again as the other
                one (and one more), by their reports, whose averages are two seconds late, and keeps it for 3 s
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from bench.case import Flag, case
from bench.load import envoy
from bench.load.calls import OWN_CHANNEL, UNARY
from bench.load.peer_server import glossa_server
from bench.load.process_tree import children
from bench.measure import Spread, Verdict, report
from bench.promises.replicas import SPAWN, throughput
from bench.sentences import sentence_pairs
from glossa.v1 import glossa_pb2 as pb
from service.adaptors.orca import load_report_pb2, load_service_pb2

FLAGS = ("--engines", "1", "--engine-niceness", "0", "--min-load-report-interval-s", "0.2", "--load-reports", "all")
STOPPED_S = 0.01  # and as long not
TIMEOUT_S = 20.0
KEPT_S = 3.0
MOST_P99, MOST_BALANCED_S = 0.6, 5.0
PERIODS = {"oob_reporting_period": "0.5s", "blackout_period": "0s", "weight_update_period": "0.5s"}
GRPC_POLICIES: Mapping[str, dict[str, Any]] = {
    "gRPC, round robin": {"round_robin": {}},
    "gRPC, weighted by streams": {"weighted_round_robin": {**PERIODS, "enable_oob_load_report": True}},
    "gRPC, weighted by trailers": {"weighted_round_robin": PERIODS},
}
ENVOY = "envoy.load_balancing_policies.client_side_weighted_round_robin"
ENVOY_POLICIES = (
    "Envoy, round robin",
    "Envoy, least request",
    "Envoy, weighted by streams",
    "Envoy, weighted by trailers",
)


class Call(NamedTuple):
    """A call that has ended. due_s: since the first; seconds: since it was due."""

    due_s: float
    seconds: float
    code: str


def offer(target: str, policy: str, messages: Sequence[bytes], rate: float, seconds: float) -> tuple[float, list[Call]]:
    """Calls at random moments, in a process of its own: when they began, on time.monotonic(), and all of them."""

    async def run() -> tuple[float, list[Call]]:
        calls, rng, running = list[Call](), random.Random(1), set[asyncio.Task[None]]()
        async with grpc.aio.insecure_channel(target, options=(*OWN_CHANNEL, *_config(policy))) as channel:
            unary: Any = channel.unary_unary(UNARY)
            await unary(messages[0], timeout=TIMEOUT_S, wait_for_ready=True)

            async def call(number: int, due_s: float) -> None:
                code = "OK"
                try:
                    await unary(messages[number % len(messages)], timeout=TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    code = error.code().name
                calls.append(Call(due_s - began_s, time.monotonic() - due_s, code))

            began_s = due_s = time.monotonic()
            number = 0
            while due_s < began_s + seconds:
                due_s += rng.expovariate(rate)
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                task = asyncio.create_task(call(number, due_s))
                running.add(task)
                task.add_done_callback(running.discard)
                number += 1
            await asyncio.gather(*running)
        return began_s, calls

    return asyncio.run(run())


def _config(policy: str) -> tuple[tuple[str, Any], ...]:
    if policy not in GRPC_POLICIES:
        return ()
    ((name, fields),) = GRPC_POLICIES[policy].items()
    camel = {
        part.split("_")[0] + "".join(each.title() for each in part.split("_")[1:]): value
        for part, value in fields.items()
    }
    return (("grpc.service_config", json.dumps({"loadBalancingConfig": [{name: camel}]})),)


def envoy_settings(policy: str) -> envoy.Settings:
    """Those of deploy/envoy/replicas.yaml with another policy."""
    settings = envoy.read("replicas")
    cluster = envoy.cluster_of(settings)
    if policy == "Envoy, round robin":
        cluster["lb_policy"] = "ROUND_ROBIN"
    if "weighted" in policy:
        del cluster["lb_policy"]
        kind = f"type.googleapis.com/{ENVOY.replace('envoy.', 'envoy.extensions.', 1)}.v3.ClientSideWeightedRoundRobin"
        fields = {"@type": kind, **PERIODS, "enable_oob_load_report": "streams" in policy}
        cluster["load_balancing_policy"] = {
            "policies": [{"typed_extension_config": {"name": ENVOY, "typed_config": fields}}]
        }
    return settings


@contextlib.contextmanager
def half_speed(pid: int) -> Iterator[None]:
    """The process stands still half of the time."""
    is_over = threading.Event()

    def brake() -> None:
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(STOPPED_S)

    thread = threading.Thread(target=brake, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Watch:
    """How many requests a server has, again and again, by its reports."""

    def __init__(self, address: str) -> None:
        self.seen: list[tuple[float, float]] = []
        self._channel = grpc.insecure_channel(address, options=OWN_CHANNEL)
        make: Any = self._channel.unary_stream(
            "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
            request_serializer=load_service_pb2.OrcaLoadReportRequest.SerializeToString,
            response_deserializer=load_report_pb2.OrcaLoadReport.FromString,
        )
        self._stream = make(load_service_pb2.OrcaLoadReportRequest())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for found in self._stream:
                metrics = found.named_metrics
                self.seen.append((time.monotonic(), metrics["num_requests_running"] + metrics["num_requests_waiting"]))

    def close(self) -> None:
        self._stream.cancel()
        self._thread.join()
        self._channel.close()


def balanced_after(began_s: float, ended_s: float, fast: Watch, slow: Watch) -> float:
    """Seconds; infinite: never."""
    moments = [at for at, _ in slow.seen if began_s <= at <= ended_s]
    last_bad_s = began_s
    for at in moments:
        there, here = (
            next((count for when, count in reversed(watch.seen) if when <= at), 0.0) for watch in (slow, fast)
        )
        if there > 1.5 * here + 1:
            if at - last_bad_s >= KEPT_S:
                break
            last_bad_s = at
    return last_bad_s - began_s if ended_s - last_bad_s >= KEPT_S else math.inf


def percentile(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def measure(
    policy: str, rate: float, messages: list[bytes], options: argparse.Namespace, addresses: Sequence[str]
) -> Any:
    """p50 and p99 in ms, seconds until balance, failed calls."""
    watches = [Watch(address) for address in addresses]
    with contextlib.ExitStack() as stack:
        for watch in watches:
            stack.callback(watch.close)
        target = f"ipv4:{','.join(addresses)}"
        if policy in ENVOY_POLICIES:
            binary = envoy.find()
            assert binary is not None
            front = stack.enter_context(envoy.in_front_of(addresses, binary, envoy_settings(policy)))
            target = front.address
        caller = stack.enter_context(ProcessPoolExecutor(1, mp_context=SPAWN))
        began_s, calls = caller.submit(offer, target, policy, messages, rate, options.seconds).result()
    settled = [call.seconds for call in calls if call.due_s >= options.settle]
    return (
        1000 * statistics.median(settled),
        1000 * percentile(settled, 0.99),
        balanced_after(began_s, began_s + options.seconds, *watches),
        sum(call.code != "OK" for call in calls),
    )


@case(
    bundle=Flag(Path, required=True),
    data=Flag(Path, "TSV of sentence pairs; the embedded corpus if not given"),
    load=Flag(0.6, "of what both replicas can do"),
    seconds=Flag(20.0, "of each policy in each round"),
    settle=Flag(5.0, "seconds that do not count for p99"),
    rounds=3,
    max_tokens=16,
    precision="auto",
)
def balance(options: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(options.data, 200)]
    decoding = pb.DecodingOptions(max_tokens=options.max_tokens)
    messages = [pb.TranslateRequest(text=text, options=decoding).SerializeToString() for text in texts]
    policies = [*GRPC_POLICIES, *(ENVOY_POLICIES if envoy.find() else ())]
    found: dict[str, list[Any]] = {policy: [] for policy in policies}
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        flags = [*FLAGS, "--precision", options.precision]
        servers = [stack.enter_context(glossa_server(options.bundle.resolve(), flags=flags)) for _ in range(2)]
        addresses = [address for address, _ in servers]
        (engine,) = children(servers[1][1])
        stack.enter_context(half_speed(engine))
        caller = stack.enter_context(ProcessPoolExecutor(1, mp_context=SPAWN))
        speeds = [caller.submit(throughput, address, texts, options.max_tokens, 5.0).result() for address in addresses]
        figures["calls a second of each replica alone"] = ", ".join(f"{speed:.1f}" for speed in speeds)
        rate = options.load * sum(speeds)
        figures["calls a second, offered"] = round(rate, 1)
        for _ in range(options.rounds):
            for policy in policies:
                found[policy].append(measure(policy, rate, messages, options, addresses))
    for policy, rounds in found.items():
        p50, p99, balanced, failed = zip(*rounds, strict=True)
        figures[policy] = (
            f"p50 {Spread.of(list(p50))} ms, p99 {Spread.of(list(p99))} ms, balanced after "
            f"{Spread.of(list(balanced))} s, {sum(failed)} failed"
        )
    verdicts = []
    for policy, rounds in found.items():
        if "weighted" in policy:
            base = found[f"{policy.partition(',')[0]}, round robin"]
            ratio = statistics.median(one[1] for one in rounds) / statistics.median(one[1] for one in base)
            verdicts.append(Verdict(f"{policy}: p99 over round robin's", ratio, MOST_P99, is_limit=True))
            after_s = statistics.median(one[2] for one in rounds)
            verdicts.append(Verdict(f"{policy}: balanced after", after_s, MOST_BALANCED_S, "s", is_limit=True))
    report(figures, verdicts, as_json=options.json)
    sys.exit(not all(verdict.met for verdict in verdicts))
