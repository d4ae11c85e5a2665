import asyncio
import collections
import dataclasses
import functools
import re
import socket
import ssl
import urllib.error
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2

from bench.load.lean_client import (
    ACK,
    END_HEADERS,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    CallFailed,
    LeanConnection,
    frame,
    request_headers,
)
from cli.local_server import samples
from export.bundle.manifest import Variant
from glossa.client import AsyncClient, ClientError
from glossa.v1 import glossa_pb2, glossa_pb2_grpc
from glossa.version import VERSION
from service.edge.security.grpc_options import server_options
from service.errors import StartupError
from service.request import Finished, FinishReason, TextDelta
from service.server import Server
from tests.e2e.process import PATIENCE_S
from tests.edge import TIMINGS, failure, health, method, running, served, settings

TEXT = "the small red house"


def fetch(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def refused(server):
    """The StartupError a server refuses to start with."""
    try:
        with pytest.raises(StartupError) as caught:
            await server.start()
        return str(caught.value)
    finally:
        await server.stop()


async def no_model(name, path):
    raise AssertionError("a model was opened")


async def test_grpc_port_in_use_is_found_before_a_model_is_opened():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = await refused(Server(settings(port=port), open_model=no_model))
    assert message == (
        f"port: port {port} on 127.0.0.1 is in use; fix: stop its process or choose another port with --port"
    )


async def test_a_second_server_on_the_port_of_a_first_does_not_start():
    async with running() as edge:
        message = await refused(Server(settings(port=edge.server.port), open_model=no_model))
        assert "is in use" in message
        message = await refused(Server(settings(http_port=edge.server.http_port), open_model=no_model))
        assert "--http-port" in message


async def test_alive_but_not_ready_while_models_are_opened():
    opening, going_on = asyncio.Event(), asyncio.Event()

    async def slow(name, path):
        opening.set()
        await going_on.wait()
        raise StartupError("enough")

    server = Server(settings(), open_model=slow)
    starting = asyncio.create_task(refused(server))
    await opening.wait()
    assert (await asyncio.to_thread(fetch, server.http_port, "/healthz"))[0] == 200
    status, body = await asyncio.to_thread(fetch, server.http_port, "/readyz")
    assert (status, "starting" in body) == (503, True)
    assert re.search(r"model en-de: opening \S+ for \d+ s of at most 300 s", body), body
    going_on.set()
    assert await starting == "enough"


async def test_a_start_that_takes_too_long_ends_with_the_names_of_the_models():
    async def never(name, path):
        await asyncio.Event().wait()

    message = await refused(Server(settings(start_timeout_s=0.05), open_model=never))
    assert "en-de, en: not open within 0.05 s; fix: check the storage of the bundles" in message


async def test_ops_port_of_a_running_server():
    async with running(commit="c0ffee") as edge:
        async with AsyncClient(edge.address) as client:
            await client.translate(TEXT)
        port = edge.server.http_port
        assert (await asyncio.to_thread(fetch, port, "/readyz"))[0] == 200
        _, metrics = await asyncio.to_thread(fetch, port, "/metrics")
        assert 'grpc_method="Translate",grpc_service="glossa.v1.TranslationService",grpc_type="unary"} 1.0' in metrics
        _, body = await asyncio.to_thread(fetch, port, "/version")
        assert '"commit": "c0ffee"' in body
        assert VERSION in body


async def test_a_blocked_event_loop_is_reported_by_the_ops_port():
    async with running(heartbeat_timeout_s=0.001) as edge:
        # Called here, on the loop's thread: the loop cannot turn while it waits for the answer.
        status, body = fetch(edge.server.http_port, "/healthz")
        while status == 200:
            status, body = fetch(edge.server.http_port, "/healthz")
        assert status == 503
        assert "the event loop has not turned" in body


async def test_draining_updates_health_then_accepts_and_finishes_streams(monkeypatch):
    over, sleep = asyncio.Event(), asyncio.sleep  # the drain delay ends when the test sets this
    monkeypatch.setattr("service.server.asyncio.sleep", lambda time_s: over.wait() if time_s == 3600 else sleep(time_s))
    async with running(drain_delay_s=3600) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        watch = health(channel).Watch(health_pb2.HealthCheckRequest(), timeout=10)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        client = AsyncClient(edge.address, timeout_s=10)
        edge.pool.hold = True
        stream = client.stream_translate(TEXT)
        first = asyncio.ensure_future(anext(stream))
        await edge.pool.until(lambda: edge.pool.sinks)
        edge.pool.sinks[0](TextDelta("zwei", (5,)))
        await first
        stopping = asyncio.create_task(edge.server.stop())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await watch.read()) is grpc.aio.EOF  # a watcher does not delay the stop
        assert edge.server.not_ready() == ["draining"]
        edge.pool.hold = False
        assert (await client.translate(TEXT)).text == "zwei rote Häuser"  # in the lame-duck time
        assert not edge.pool.closed
        over.set()
        edge.pool.sinks[0](Finished(FinishReason.LENGTH, " mehr", (6,), timings=TIMINGS))
        assert "".join([piece.text async for piece in stream]) == " mehr"
        await stopping
        assert edge.pool.closed
        with pytest.raises(ClientError, match="UNAVAILABLE"):
            await client.translate(TEXT, timeout_s=2)
        await client.close()


async def test_an_interrupt_skips_the_drain_delay_when_no_call_is_open():
    async with running(drain_delay_s=60.0) as edge:
        await asyncio.wait_for(edge.server.stop(interrupted=True), 50)
        assert edge.server.state == "stopped"


async def test_an_interrupt_keeps_the_drain_delay_while_a_call_is_open(caplog):
    caplog.set_level("INFO", "glossa")
    async with running(drain_delay_s=0.05) as edge, AsyncClient(edge.address, timeout_s=10) as client:
        edge.pool.hold = True
        asking = asyncio.create_task(client.translate(TEXT))
        await edge.pool.until(lambda: edge.pool.sinks)
        stopping = asyncio.create_task(edge.server.stop(interrupted=True))
        edge.pool.send(edge.pool.sinks[0], edge.pool.answer)
        assert (await asking).text
        await stopping
        (record,) = [record for record in caplog.records if record.getMessage() == "draining"]
        assert record.fields["drain_delay_s"] == 0.05


@pytest.mark.parametrize("name", ["Translate", "StreamTranslate"])
async def test_a_call_longer_than_the_drain_timeout_is_told_that_the_server_ends(name):
    async with running(drain_timeout_s=0.05) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        edge.pool.hold = True
        call = asyncio.create_task(failure(method(channel, name)(text=TEXT)))
        await edge.pool.until(lambda: edge.pool.sinks)
        await edge.server.stop()
        assert edge.pool.cancelled
        assert edge.pool.closed
        error, details = await call
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert details["ErrorInfo"].reason == "SHUTTING_DOWN"


async def test_a_call_that_comes_while_others_end_is_refused_with_a_hint():
    async with running(drain_timeout_s=60.0) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        edge.pool.hold = True
        accepted = method(channel, "Translate")(text=TEXT)
        await edge.pool.until(lambda: edge.pool.sinks)
        stopping = asyncio.create_task(edge.server.stop())
        await asyncio.sleep(0)
        error, details = await failure(method(channel, "Translate")(text=TEXT))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert details["ErrorInfo"].reason == "SHUTTING_DOWN"
        assert details["RetryInfo"].retry_delay.ToMilliseconds() > 0
        edge.pool.send(edge.pool.sinks[0], edge.pool.answer)
        assert (await accepted).text == "zwei rote Häuser"
        await stopping


async def test_no_call_ends_as_cancelled_when_the_server_stops():
    async with running() as edge:
        channels = [
            grpc.aio.insecure_channel(edge.address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(8)
        ]
        codes, over = collections.Counter[grpc.StatusCode](), asyncio.Event()

        async def ask(channel):
            while not over.is_set():
                try:
                    await method(channel, "Translate")(text=TEXT, timeout=PATIENCE_S)
                except grpc.aio.AioRpcError as error:
                    codes[error.code()] += 1
                    await asyncio.sleep(0.001)

        asking = [asyncio.create_task(ask(channel)) for channel in channels for _ in range(16)]
        await edge.pool.until(lambda: len(edge.pool.requests) > 100)
        await edge.server.stop()
        over.set()
        await asyncio.gather(*asking)
        await asyncio.gather(*[channel.close() for channel in channels])
    assert codes.pop(grpc.StatusCode.UNAVAILABLE)
    assert codes.keys() <= {grpc.StatusCode.RESOURCE_EXHAUSTED}, "on a busy machine, for the age of the backlog"


@pytest.mark.parametrize("limit", [None, 1 << 40, 1 << 28])
async def test_the_predicted_memory_is_told_and_a_limit_below_it_is_a_warning(caplog, monkeypatch, limit):
    monkeypatch.setattr("service.edge.versions.memory_plan.memory_limit", lambda: limit)
    caplog.set_level("INFO", "glossa")
    async with running(max_requests=100) as edge:
        (told,) = [record.fields for record in caplog.records if record.getMessage() == "memory_predicted"]
        assert told["limit_bytes"] == limit
        assert set(told["engine_process_bytes"]) == {"en-de", "en"}
        exposition = edge.server.exposition()[0].decode()
        assert samples(exposition, "glossa_memory_predicted_peak_bytes") == [told["peak_bytes"]]
    warnings = [record for record in caplog.records if record.getMessage() == "memory_limit_below_prediction"]
    if limit != 1 << 28:
        assert not warnings
        return
    (warning,) = warnings
    assert warning.levelname == "WARNING"
    assert warning.fields["limit_bytes"] == limit < warning.fields["peak_bytes"]
    assert "--request-memory-bytes (requests, 268 MB)" in warning.fields["fix"]


async def test_fallback_is_logged_with_its_reason(caplog):
    async with running():
        record = next(record for record in caplog.records if record.getMessage() == "provider_fallback")
    assert record.levelname == "WARNING"
    assert record.fields["reason"] == "no GPU; add one"


async def test_the_line_that_tells_of_serving_has_what_a_client_needs_and_what_a_model_runs_on(caplog):
    caplog.set_level("INFO", "glossa")
    async with running(adaptors=("open-inference",), max_rows=8):
        (told,) = [record.fields for record in caplog.records if record.getMessage() == "serving"]
    assert (told["tls"], told["tokens"], told["adaptors"]) == ("off", False, ("open-inference",))
    assert [text.partition(", ")[2] for text in told["models"].values()] == ["1 engine of 8 rows"] * 2


async def test_a_model_that_is_not_batch_invariant_is_logged(caplog, monkeypatch):
    monkeypatch.setattr("tests.edge.served", functools.partial(served, is_batch_invariant=False))
    async with running():
        records = [record for record in caplog.records if record.getMessage() == "not_batch_invariant"]
    assert [(record.levelname, record.fields) for record in records] == [
        ("WARNING", {"model": "en"}),
        ("WARNING", {"model": "en-de"}),
    ]


async def test_oversized_messages_and_metadata_are_rejected():
    async with running() as edge, AsyncClient(edge.address, timeout_s=10) as client:
        with pytest.raises(ClientError, match="RESOURCE_EXHAUSTED"):
            await client.translate("x" * (2 << 20))
        assert (await client.translate(TEXT)).text


@pytest.mark.slow
async def test_a_burst_above_grpcs_default_limit_is_answered_by_the_server():
    burst = running(max_requests=16, max_concurrent_streams=4096)
    async with burst as edge, grpc.aio.insecure_channel(edge.address) as channel:
        stub = glossa_pb2_grpc.TranslationServiceStub(channel)

        async def code():
            try:
                await stub.Translate(glossa_pb2.TranslateRequest(text=TEXT), timeout=PATIENCE_S)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        codes = set(await asyncio.gather(*[code() for _ in range(3500)]))
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_calls_above_the_limit_of_a_connection_wait():
    async with running(max_concurrent_streams=16) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        stub = glossa_pb2_grpc.TranslationServiceStub(channel)
        calls = [stub.Translate(glossa_pb2.TranslateRequest(text=TEXT), timeout=PATIENCE_S) for _ in range(300)]
        assert all(answer.text for answer in await asyncio.gather(*calls))


async def test_a_tls_client_is_rejected():
    async with running() as edge:

        def greet():
            context = ssl.create_default_context()
            plain = socket.create_connection(("127.0.0.1", edge.server.port), timeout=5)
            with plain, pytest.raises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(plain, server_hostname="localhost")

        await asyncio.to_thread(greet)
        async with AsyncClient(edge.address) as client:
            assert (await client.translate(TEXT)).text


async def test_a_peer_that_reads_no_ping_is_closed_though_its_kernel_acknowledges():
    async with running(keepalive_time_s=1.0, keepalive_timeout_s=0.5) as edge:
        host, _, port = edge.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        async with asyncio.timeout(30):
            assert await reader.read(-1), "returns at the end of the connection"
        writer.close()


RESETS = 5000
TRANSLATE = "/glossa.v1.TranslationService/Translate"


def reset_at_once(connection, count):
    """Opens calls and resets them."""
    headers = request_headers(TRANSLATE, "localhost")
    streams = range(1, 2 * count, 2)
    connection.send(
        b"".join(
            frame(HEADERS, END_HEADERS, stream, headers) + frame(RST_STREAM, 0, stream, bytes([0, 0, 0, 8]))
            for stream in streams
        )
    )


async def test_of_calls_that_are_reset_at_once_few_reach_the_server():
    async with running(max_resets_per_s=0) as edge, AsyncClient(edge.address) as client:

        def attack():
            refused = 0
            with LeanConnection(edge.address) as connection:
                reset_at_once(connection, RESETS)
                while refused < RESETS // 2:
                    refused += sum(kind == RST_STREAM for kind, *_ in connection.frames())

        await asyncio.to_thread(attack)
        assert (await client.translate(TEXT)).text


async def test_the_connection_of_a_client_that_resets_too_many_calls_is_closed(caplog):
    async with running(max_resets_per_s=20) as edge, AsyncClient(edge.address) as client:

        def attack():
            with LeanConnection(edge.address) as connection:
                reset_at_once(connection, 100)
                with pytest.raises((CallFailed, OSError)):
                    list(iter(connection.frames, None))  # until it ends

        await asyncio.to_thread(attack)
        assert (await client.translate(TEXT)).text, "others are served"
        exposition = edge.server.exposition()[0].decode()
    told = [record.fields["max_resets_per_s"] for record in caplog.records if record.getMessage() == "too_many_resets"]
    assert set(told) == {20}, "again in each second, on a machine that needs several for the calls"
    assert f"glossa_connections_closed_total {len(told)}.0" in exposition


async def test_a_client_below_the_limit_of_resets_keeps_its_connection():
    async with running(max_resets_per_s=20) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        stub = glossa_pb2_grpc.TranslationServiceStub(channel)
        edge.pool.hold = True
        calls = [stub.Translate(glossa_pb2.TranslateRequest(text=TEXT), timeout=PATIENCE_S) for _ in range(11)]
        await edge.pool.until(lambda: len(edge.pool.sinks) == 11)
        for call in calls[1:]:
            call.cancel()
        await edge.pool.until(lambda: len(edge.pool.cancelled) == 10)
        for sink in edge.pool.sinks:
            edge.pool.send(sink, edge.pool.answer)
        assert (await calls[0]).text


def test_server_options_bound_untrusted_clients():
    options = dict(server_options(settings(keepalive_time_s=12.5)))
    assert options["grpc.so_reuseport"] == 0
    assert options["grpc.max_concurrent_streams"] == 256
    assert options["grpc.max_receive_message_length"] == 1 << 18
    assert options["grpc.keepalive_time_ms"] == 12_500
    assert options["grpc.http2.min_ping_interval_without_data_ms"] < 20_000  # what the client sends


async def test_memory_is_predicted_again_when_a_model_has_left_its_device(caplog):
    caplog.set_level("INFO", "glossa")

    def predictions():
        return [record.fields for record in caplog.records if record.getMessage() == "memory_predicted"]

    async with running() as edge:
        model = edge.server._catalog.defaults[0]
        half = Variant(precision="fp16", graphs={}, states=())
        model.manifest = dataclasses.replace(model.manifest, variants=(*model.manifest.variants, half))
        on_cpu, before = model.choice, predictions()
        for choice in (dataclasses.replace(on_cpu, provider="CUDAExecutionProvider", precision="fp16"), on_cpu):
            model.choice, told = choice, len(predictions())
            async with asyncio.timeout(60):
                while len(predictions()) == told:
                    await asyncio.sleep(0)
        on_device, after = predictions()[len(before) :]
        assert after["peak_bytes"] == before[-1]["peak_bytes"]
        assert on_device["engine_process_bytes"][model.name] != after["engine_process_bytes"][model.name]


async def test_readiness_draining_and_answers_are_metrics():
    async with running(tenant_weights="acme=2") as edge:
        assert samples(edge.server.exposition()[0].decode(), "glossa_ready") == [1.0]
        async with grpc.aio.insecure_channel(edge.address) as channel:
            trace = (("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01"), ("x-glossa-tenant", "acme"))
            await method(channel, "Translate")(text="a black cat", metadata=trace)
        body, kind = edge.server.exposition("application/openmetrics-text")
        text = body.decode()
        assert kind.startswith("application/openmetrics-text")
        assert f'# {{trace_id="{"ab" * 16}"}}' in text
        assert 'glossa_tenant_tokens_total{kind="generated",tenant="acme"} 5.0' in text
        labels = f'model="en-de",version="{edge.models["en-de"].version}"'
        assert f"glossa_request_seconds_count{{{labels}}} 1.0" in text
        edge.pool.problem = "hangs"
        assert samples(edge.server.exposition()[0].decode(), "glossa_ready") == [0.0]
        edge.server.state = "draining"
        assert samples(edge.server.exposition()[0].decode(), "glossa_draining") == [1.0]
