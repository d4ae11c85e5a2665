"""Load reports as balancers get them: streams, trailing metadata, and how weighted round robin of gRPC follows them."""

import asyncio
import contextlib
import json

import grpc
import pytest
from google.protobuf import duration_pb2

from glossa.v1 import glossa_pb2 as pb
from service.adaptors import load_reports
from service.adaptors.load_reports import SERVICE
from service.adaptors.orca import load_report_pb2, load_service_pb2
from service.edge.calls.calls import ASKS_LOAD
from service.wire.messages import Beat, State
from tests.edge import method, running, settings

STREAM = f"/{SERVICE}/StreamCoreMetrics"
SHOWN = "x-load-bin"  # what clients of C++ and Python can see: their library takes the real name out
ASKS = ((ASKS_LOAD, "BIN"),)
BALANCED = ("grpc.use_local_subchannel_pool", 1)
HALF_FULL = State(
    rows=12, queued=8, kv_ratio=0.25, heartbeat_s=0.0, is_healthy=True, has_lost_device=False, hypotheses=24
)


def load_stream(channel, interval_s=None, **options):
    call = channel.unary_stream(
        STREAM,
        request_serializer=load_service_pb2.OrcaLoadReportRequest.SerializeToString,
        response_deserializer=load_report_pb2.OrcaLoadReport.FromString,
    )
    interval = None if interval_s is None else duration_pb2.Duration(nanos=round(interval_s * 1e9))
    return call(load_service_pb2.OrcaLoadReportRequest(report_interval=interval), timeout=30, **options)


def fill(edge, *states):
    """Sets what the engines of the translation model report; it has 64 rows."""
    edge.pool.states[:] = states


def report_in(metadata):
    """The report in trailing metadata, or None."""
    found = [value for key, value in metadata or () if key == SHOWN]
    assert len(found) <= 1
    return load_report_pb2.OrcaLoadReport.FromString(found[0]) if found else None


async def trailing(channel, metadata=None, text="the small red house"):
    call = method(channel, "Translate")(text=text, metadata=metadata)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call
    return report_in(await call.trailing_metadata())


@pytest.fixture
async def edge(monkeypatch):
    monkeypatch.setattr(load_reports, "TRAILER", SHOWN)
    async with running(min_load_report_interval_s=0.1) as edge:
        yield edge


@pytest.fixture
async def channel(edge):
    async with grpc.aio.insecure_channel(edge.address) as channel:
        yield channel


async def test_a_stream_reports_at_once_and_goes_on(edge, channel):
    fill(edge, HALF_FULL)
    beat = Beat(states=edge.pool.states, measurements=[], memory={}, cpu_s=1.0, resident_bytes=1 << 62)
    edge.models["en-de"].beats = lambda: [beat]
    stream = load_stream(channel, 0.1)
    report = await stream.read()
    assert report.application_utilization == pytest.approx((24 + 8) / settings().max_rows)
    assert dict(report.named_metrics) == pytest.approx(
        {"num_requests_waiting": 8, "num_requests_running": 12, "kv_cache_usage_perc": 0.25}
    )
    assert report.mem_utilization == pytest.approx(1.0)  # whatever is counted twice
    assert (report.rps_fractional, report.eps) == (0.0, 0.0)
    fill(edge)
    for _ in range(5):
        await trailing(channel)
        await trailing(channel, text="")  # the client's fault
    edge.pool.refuse = RuntimeError("a fault of the server")
    await trailing(channel)
    while (last := await stream.read()).rps_fractional == 0 or last.eps == 0:
        pass
    assert last.application_utilization < report.application_utilization
    assert 0 < last.eps < last.rps_fractional / 2
    assert last.cpu_utilization > 0


async def test_the_fullest_model_counts_and_may_be_above_1(edge, channel):
    fill(edge, HALF_FULL)
    edge.pools["en"].states[:] = [
        State(rows=12, queued=104, kv_ratio=0.5, heartbeat_s=0, is_healthy=True, has_lost_device=False, hypotheses=24)
    ]
    report = await load_stream(channel).read()
    assert report.application_utilization == pytest.approx(128 / settings().max_rows)
    assert report.named_metrics["num_requests_waiting"] == pytest.approx(112)
    assert report.named_metrics["kv_cache_usage_perc"] == pytest.approx(0.5)


@pytest.mark.parametrize("asked_s", [None, 0.0, 0.01])
async def test_shorter_intervals_become_the_shortest_one(asked_s):
    async with running(min_load_report_interval_s=3600) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        stream = load_stream(channel, asked_s)
        await stream.read()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 0.3)


async def test_a_negative_interval_is_refused_with_the_rule(channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await load_stream(channel, -0.5).read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "report_interval: must be 0 for the shortest one, or positive, got -0.5 s"


def test_a_shortest_interval_of_0_is_refused_with_the_rule():
    with pytest.raises(ValueError, match=r"min_load_report_interval_s\n.*greater than or equal to 0\.1"):
        settings(min_load_report_interval_s=0)


async def test_streams_are_bounded(edge, channel, monkeypatch):
    monkeypatch.setattr(load_reports, "MAX_STREAMS", 2)
    streams = [load_stream(channel) for _ in range(2)]
    for stream in streams:
        await stream.read()
    with pytest.raises(grpc.aio.AioRpcError, match="at most 2 concurrent streams of load reports"):
        await load_stream(channel).read()
    streams[0].cancel()
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert await load_stream(channel).read()
                return


async def test_calls_that_ask_get_a_report_and_others_do_not(edge, channel):
    fill(edge, HALF_FULL)
    assert await trailing(channel) is None
    report = await trailing(channel, ASKS)
    assert report is not None
    assert report.application_utilization == pytest.approx(0.5)
    assert await trailing(channel) is None


async def test_a_call_that_fails_or_is_refused_has_one_too(edge, channel):
    assert await trailing(channel, ASKS, text="") is not None
    edge.server.calls.admission.drain()
    assert await trailing(channel, ASKS) is not None


async def test_a_stream_of_answers_has_one_at_its_end(edge, channel):
    call = method(channel, "StreamTranslate")(text="the small red house", metadata=ASKS)
    assert [message async for message in call]
    assert report_in(await call.trailing_metadata()) is not None


async def test_all_calls_have_one_if_the_operator_wants(edge):
    async with running(load_reports="all") as edge, grpc.aio.insecure_channel(edge.address) as channel:
        assert await trailing(channel) is not None


async def test_without_reports_there_is_no_service_and_no_trailer(edge):
    async with running(load_reports="none") as edge, grpc.aio.insecure_channel(edge.address) as channel:
        assert await trailing(channel, ASKS) is None
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await load_stream(channel).read()
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED  # after which gRPC's client asks no more


async def test_nothing_is_measured_while_nobody_asks(edge, channel, monkeypatch):
    monkeypatch.setattr(load_reports, "UNASKED_S", 0.0)
    looks = []
    meter = edge.server.metrics.load
    measure = meter.measure

    def looked():
        looks.append(0)
        return measure()

    monkeypatch.setattr(meter, "measure", looked)
    await trailing(channel)
    assert looks == []
    stream = load_stream(channel)
    await stream.read()
    await stream.read()
    assert looks
    stream.cancel()
    async with asyncio.timeout(30):
        while meter.load.memory:  # forgotten
            await asyncio.sleep(0)
    looks.clear()
    await trailing(channel)
    assert looks == []


@pytest.mark.parametrize("is_stream", [True, False])
async def test_weighted_round_robin_of_grpc_prefers_the_emptier_replica(is_stream):
    changes = {"load_reports": "asked" if is_stream else "all", "min_load_report_interval_s": 0.1}
    policy = {"blackoutPeriod": "0s", "weightUpdatePeriod": "0.1s", "enableOobLoadReport": is_stream}
    config = json.dumps({"loadBalancingConfig": [{"weighted_round_robin": {**policy, "oobReportingPeriod": "0.1s"}}]})
    async with running(**changes) as full, running(**changes) as empty:
        fill(full, HALF_FULL, HALF_FULL)
        fill(empty, HALF_FULL)
        target = f"ipv4:{full.address},{empty.address}"
        options = (("grpc.service_config", config), BALANCED)
        async with grpc.aio.insecure_channel(target, options=options) as channel, asyncio.timeout(30):
            translate = method(channel, "Translate")
            counts = [0, 0]
            while not counts[1] > 1.5 * counts[0] > 0:
                before = [len(full.pool.requests), len(empty.pool.requests)]
                for _ in range(60):
                    await translate(pb.TranslateRequest(text="the small red house"))
                counts = [len(full.pool.requests) - before[0], len(empty.pool.requests) - before[1]]
