"""Replicas that are stopped, killed and replaced under calls: deploy/envoy/replicas.yaml loses none of them.

The same faults cost calls with the settings of tutorials, `envoy.naive`.
"""

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from bench.load import envoy
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs
from tests.e2e.process import engine_pids, serving

TEXT = "the small red house"
CALLS = 24
TIMEOUT_S = 40.0  # far above the 10 s until a PING without an answer closes a connection

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def front_of(*servers, is_naive):
    """The Envoy before these servers, with calls in turn, so that each gets its part."""
    binary = envoy.find()
    assert binary, envoy.HOW_TO_GET_IT
    settings = envoy.read("replicas")
    if is_naive:
        envoy.naive(settings)
    envoy.cluster_of(settings)["lb_policy"] = "ROUND_ROBIN"
    with envoy.in_front_of([server.address for server in servers], binary, settings) as front:
        yield front


@contextlib.contextmanager
def stopped(server):
    """A server and its engine processes that do nothing, as on a machine that hangs."""
    pids = [server.process.pid, *engine_pids(server.process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def calls(front, timeout_s=TIMEOUT_S):
    """Calls on their way: a function from nothing to the status of each, once it has ended."""
    options = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
    with grpc.insecure_channel(front.address, options) as channel, ThreadPoolExecutor(CALLS) as threads:
        translate = stubs.TranslationServiceStub(channel).Translate

        def status():
            try:
                translate(pb.TranslateRequest(text=TEXT), timeout=timeout_s)
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        running = [threads.submit(status) for _ in range(CALLS)]
        yield lambda: [call.result() for call in running]


def logged(front, count):
    """The lines of the access log, once there are so many. Fails after a minute."""
    until_s = time.monotonic() + 60
    while len(lines := front.calls()) < count:
        assert time.monotonic() < until_s, lines
    return lines


@pytest.mark.parametrize("is_naive", [False, True])
def test_calls_of_a_killed_replica_are_answered_by_another(tiny_translation_bundle, is_naive):
    with (
        serving(models={"model": str(tiny_translation_bundle)}) as victim,
        serving(models={"model": str(tiny_translation_bundle)}) as other,
        front_of(victim, other, is_naive=is_naive) as front,
        stopped(victim),
        calls(front) as statuses,
    ):
        logged(front, CALLS // 2)  # the others are those of the victim
        victim.process.kill()
        failed = sum(status != grpc.StatusCode.OK for status in statuses())
        assert failed == (CALLS // 2 if is_naive else 0)


@pytest.mark.parametrize("is_naive", [False, True])
def test_calls_of_a_replica_that_hangs_are_answered_by_another(tiny_translation_bundle, is_naive):
    with (
        serving(models={"model": str(tiny_translation_bundle)}) as victim,
        serving(models={"model": str(tiny_translation_bundle)}) as other,
        front_of(victim, other, is_naive=is_naive) as front,
        stopped(victim),
        calls(front, timeout_s=15.0 if is_naive else TIMEOUT_S) as statuses,
    ):
        found = statuses()
        assert found.count(grpc.StatusCode.DEADLINE_EXCEEDED) == (CALLS // 2 if is_naive else 0)
        assert found.count(grpc.StatusCode.OK) == (CALLS // 2 if is_naive else CALLS)
        assert max(line["attempts"] for line in logged(front, CALLS)) == (1 if is_naive else 2)
