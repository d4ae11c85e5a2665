"""The age of calls that wait inside gRPC: what stands, what is refused, and what counts as collapse."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2

from bench.load.lean_client import LeanConnection
from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.backlog import (
    COLLAPSED_AFTER_S,
    INTERVAL_S,
    PASSED,
    RECOVERED_AFTER_S,
    TARGET_S,
    Backlog,
    Collapse,
)
from tests.edge import failure, health, method, running
from tests.fakes import FakeClock

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
TEXT = "the small red house"


class Probed:
    """A backlog whose probes a test sends."""

    def __init__(self):
        self.clock = FakeClock()
        self.backlog = Backlog(self.clock)

    def probe(self, *delays_s, pause_s=0.05):
        for delay_s in delays_s:
            self.backlog.sent()
            self.clock.advance(delay_s)
            self.backlog.arrived()
            self.clock.advance(pause_s)


@pytest.fixture
def probed():
    return Probed()


def test_without_calls_there_is_no_backlog(probed):
    assert (probed.backlog.age_s, probed.backlog.refusal("a", 1.0)) == (0.0, None)


def test_the_age_is_that_of_the_last_probe_or_of_one_that_waits_longer(probed):
    probed.probe(0.03)
    assert probed.backlog.age_s == pytest.approx(0.03)
    probed.backlog.sent()
    probed.clock.advance(0.01)
    assert probed.backlog.age_s == pytest.approx(0.03)
    probed.clock.advance(0.09)
    assert probed.backlog.age_s == pytest.approx(0.1)


def test_a_burst_is_not_refused(probed):
    for _ in range(5):
        probed.probe(0.1, 0.001)
        assert probed.backlog.refusal("a", 1.0) is None


def test_a_backlog_that_stands_for_an_interval_is_refused_until_it_is_gone(probed):
    probed.probe(2 * TARGET_S)
    assert probed.backlog.refusal("a", 1.0) is None
    probed.probe(2 * TARGET_S, 2 * TARGET_S)
    error = probed.backlog.refusal("a", 1.0)
    assert error is not None
    assert str(error) == "calls wait 0.1 s before the server sees them; try again in 0.5 s"
    probed.probe(TARGET_S / 2)
    assert probed.backlog.refusal("a", 1.0) is None


def test_what_an_event_loop_left_that_stood_still_is_not_refused(probed):
    probed.backlog.sent()
    probed.clock.advance(4 * INTERVAL_S)
    for _ in range(10):
        assert probed.backlog.refusal("a", 1.0) is None
        probed.clock.advance(0.001)
    probed.backlog.arrived()
    probed.probe(0.001)
    probed.clock.advance(INTERVAL_S)
    assert probed.backlog.refusal("a", 1.0) is None


def test_a_backlog_is_forgotten_when_no_calls_come(probed):
    probed.probe(*[2 * TARGET_S] * 3)
    probed.clock.advance(INTERVAL_S)
    assert probed.backlog.refusal("a", 1.0) is None
    assert probed.backlog.age_s == 0.0


def test_a_collapse_begins_and_ends_with_hysteresis():
    collapse, now_s = Collapse(1.0), 0.0

    def after(seconds, age_s):
        nonlocal now_s
        now_s += seconds
        collapse.update(age_s, now_s)
        return collapse.is_there

    assert not after(0.0, 1.5)
    assert not after(COLLAPSED_AFTER_S / 2, 0.9), "an age below the limit begins anew"
    assert not after(COLLAPSED_AFTER_S / 2, 1.5)
    assert after(COLLAPSED_AFTER_S, 1.5)
    assert after(10.0, 0.6), "neither too old nor recovered"
    assert after(0.1, 0.4)
    assert after(RECOVERED_AFTER_S / 2, 0.6), "an age above half of the limit begins anew"
    assert after(0.1, 0.4)
    assert not after(RECOVERED_AFTER_S, 0.4)


def test_some_calls_pass_a_backlog(probed):
    probed.probe(*[2 * TARGET_S] * 3)
    refused = [probed.backlog.refusal("a", 1.0) is not None for _ in range(4 * PASSED)]
    assert refused == [number % PASSED != 0 for number in range(1, 4 * PASSED + 1)]


def test_a_burst_of_some_connections_is_not_refused_to_others(probed):
    probed.probe(*[2 * TARGET_S] * 3)
    burst = [probed.backlog.refusal(f"{number % 8}", 1.0) is not None for number in range(20 * PASSED)]
    assert sum(burst) > 0.8 * len(burst)
    assert probed.backlog.refusal("quiet", 1.0) is None
    others = [probed.backlog.refusal(f"other {number}", 1.0) is None for number in range(20 * PASSED)]
    assert sum(others) < 0.5 * len(others), "calls of many connections are too many as well"


def test_a_call_with_more_time_waits_longer(probed):
    probed.probe(*[2 * TARGET_S] * 3)
    assert probed.backlog.refusal("a", 1.9) is not None
    assert probed.backlog.refusal("a", 2.1) is None


async def test_a_server_measures_itself_while_it_has_calls(edge, channel):
    arrived = asyncio.Event()
    backlog = edge.server.calls.admission.backlog
    was_arrived = backlog.arrived

    def note_arrival():
        was_arrived()
        arrived.set()

    backlog.arrived = note_arrival
    await method(channel, "Translate")(text=TEXT)
    await asyncio.wait_for(arrived.wait(), 60)
    assert 0 < backlog.age_s < 60
    assert "glossa_backlog_age_seconds 0.0\n" not in edge.server.exposition()[0].decode()


async def test_strangers_do_not_probe(channel):
    probe = channel.unary_unary("/glossa.backlog/Probe")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await probe(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_calls_are_refused_while_a_backlog_stands(edge, channel):
    probed = Probed()
    probed.probe(*[0.2] * 3, pause_s=0.0)
    edge.server.calls.admission.backlog = probed.backlog
    error, details = await failure(method(channel, "Translate")(b"\xff\xff\xff", timeout=3.0))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details["ErrorInfo"].reason == "BACKLOG"
    assert details["RetryInfo"].retry_delay.ToMilliseconds() == 500


async def test_health_tells_of_a_collapse_and_of_its_end():
    limit_s = 0.1
    async with running(max_backlog_age_s=limit_s) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        watch = health(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert (await watch.read()).status == SERVING
        probed = Probed()
        probed.backlog.sent()
        probed.clock.advance(7.0)
        edge.server.calls.admission.backlog = probed.backlog
        assert (await watch.read()).status == NOT_SERVING
        assert edge.server.not_ready() == ["calls wait 7 s before the server sees them, more than 0.1 s"]
        assert edge.server.problems() == [], "a restart would not help"
        probed.backlog.arrived()
        probed.clock.advance(10.0)
        assert (await watch.read()).status == SERVING
        assert edge.server.not_ready() == []


async def test_ordinary_refusals_leave_the_server_serving(edge, channel):
    for pool in edge.pools.values():
        pool.prediction = 100.0
    for _ in range(5):
        await failure(method(channel, "Translate")(text=TEXT, timeout=1.0))
    edge.server._note_collapse()
    edge.server._show_health()
    assert edge.server.health.status("") == SERVING


async def test_a_flood_of_calls_ages(edge):
    """Real calls in gRPC's own queue, all sent before the first of them is seen."""
    for pool in edge.pools.values():
        pool.prediction = 100.0
    message = pb.TranslateRequest(text=TEXT).SerializeToString()
    ages: list[float] = []
    backlog = edge.server.calls.admission.backlog
    was_arrived = backlog.arrived

    def note_age():
        was_arrived()
        ages.append(backlog.age_s)

    backlog.arrived = note_age
    with LeanConnection(edge.address) as connection:
        connection.start("/glossa.v1.TranslationService/Translate", [(key, message) for key in range(200)])
        while len(ages) < 2:
            await asyncio.sleep(0)
    assert max(ages) > 0
