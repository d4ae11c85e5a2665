import asyncio
import contextlib
import struct
import time
from typing import Any

import grpc
import pytest

from bench.load.lean_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MESSAGE_HEADER,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    request_headers,
)
from glossa.v1 import glossa_pb2 as pb
from service.adaptors.selection import ADAPTORS
from service.answer_pace import MARGIN
from service.edge.admission.request_memory import Reservation, message_bytes
from service.edge.calls.calls import WITHOUT_ENGINES, Calls
from service.edge.calls.rpc import is_late
from service.edge.observability.metrics import Metrics
from service.edge.rpcs.servicer import RPCS
from service.edge.security.access import POLICY
from service.errors import Cancelled, DeadlineExceeded, DeadlineTooSoon, InternalFailure, Overloaded, ShuttingDown
from service.request import Caller, Priority, TextDelta
from tests.edge import ANSWER, a_call, failure, method, running, served, settings

TEXT = "the small red house"
PARSE = pb.TranslateRequest.FromString


async def test_trailing_metadata_has_the_request_id_and_the_timings(edge, channel):
    call = method(channel, "Translate")(text=TEXT, metadata=(("x-request-id", "mine-1"),))
    await call
    assert edge.pool.requests[0].request_id == "mine-1"
    trailers = dict(await call.trailing_metadata())
    assert trailers.pop("x-request-id") == "mine-1"
    assert trailers.pop("x-glossa-version") == "cd" * 6
    assert trailers.pop("x-glossa-bundle-sha256") == "cd" * 32
    assert {k: float(v) for k, v in trailers.items()} == pytest.approx(
        {"x-glossa-queue-ms": 1.0, "x-glossa-prefill-ms": 2.0, "x-glossa-decode-ms": 7.0}
    )


async def test_a_stream_has_its_request_id_in_initial_and_trailing_metadata(channel):
    call = method(channel, "StreamTranslate")(text=TEXT, metadata=(("x-request-id", "mine-2"),))
    assert [message async for message in call]
    for metadata in (await call.initial_metadata(), await call.trailing_metadata()):
        assert dict(metadata)["x-request-id"] == "mine-2"


@pytest.mark.parametrize("given", [None, "x" * 129, "a b", "{evil}"])
async def test_a_missing_or_unsafe_request_id_is_replaced(channel, given):
    call = method(channel, "Translate")(text=TEXT, metadata=(("x-request-id", given),) if given else None)
    await call
    echoed = dict(await call.trailing_metadata())["x-request-id"]
    assert echoed != given
    assert len(echoed) == 32


async def test_the_trace_of_a_client_reaches_the_request_and_the_log(edge, channel, caplog):
    caplog.set_level("INFO", logger="glossa")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    for parent in (f"00-{trace}-00f067aa0ba902b7-01", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{trace}-00f067aa-01"):
        await method(channel, "Translate")(text=TEXT, metadata=(("traceparent", parent),))
    assert [request.trace_id for request in edge.pool.requests] == [trace, "", ""]
    assert edge.pool.requests[0].log_name == f"{edge.pool.requests[0].request_id} (trace {trace})"
    lines: list[Any] = [record for record in caplog.records if record.getMessage() == "request"]
    assert [line.fields.get("trace_id") for line in lines] == [trace, None, None]


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x12\x02\xff\xfe"])
@pytest.mark.parametrize("name", ["Translate", "StreamTranslate", "GetModel"])
async def test_bytes_that_are_not_a_message_are_an_invalid_argument(channel, name, data):
    if name == "GetModel":
        data = data.replace(b"\x12", b"\x0a")
    error, details = await failure(method(channel, name)(data))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == "request"


async def test_a_full_queue_returns_a_retry_delay(edge, channel):
    edge.pool.refuse = Overloaded("3 requests are waiting", retry_after_s=0.25, limit=3)
    error, details = await failure(method(channel, "Translate")(text=TEXT))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details["RetryInfo"].retry_delay.ToMilliseconds() == 250
    assert "at most 3" in details["QuotaFailure"].violations[0].description
    assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "250"


@pytest.mark.parametrize("name", ["Translate", "StreamTranslate"])
async def test_a_call_whose_answer_is_expected_too_late_is_refused_unread(edge, channel, name):
    for pool in edge.pools.values():
        pool.prediction = 2.0
    error, details = await failure(method(channel, name)(b"\xff\xff\xff", timeout=1.0))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details["ErrorInfo"].reason == "DEADLINE_TOO_SOON"
    waits_ms = 1000 * (MARGIN * 2.0 - 1.0)
    assert waits_ms - 100 <= details["RetryInfo"].retry_delay.ToMilliseconds() <= waits_ms + 100
    trailers = dict(error.trailing_metadata())
    assert trailers["grpc-retry-pushback-ms"] == str(details["RetryInfo"].retry_delay.ToMilliseconds())
    assert len(trailers["x-request-id"]) == 32
    assert not edge.pool.requests
    await method(channel, "Translate")(text=TEXT, timeout=30.0)  # there is time enough
    await method(channel, "ListModels")(timeout=1.0)  # no engine has to answer


@pytest.mark.parametrize(
    "path",
    [
        "glossa.v1.ModelService/GetModel",
        "glossa.v1.TokenService/CountTokens",
        "glossa.v1.LanguageService/DetectLanguage",
        "glossa.v1.EncodingService/Similarity",
        "inference.GRPCInferenceService/ServerMetadata",
        "inference.GRPCInferenceService/ModelMetadata",
        "vllm.grpc.engine.VllmEngine/Abort",
        "vllm.grpc.engine.VllmEngine/GetModelInfo",
        "vllm.grpc.engine.VllmEngine/GetServerInfo",
        "vllm.grpc.engine.VllmEngine/GetTokenizer",
    ],
)
async def test_calls_that_no_engine_answers_are_not_refused_for_the_time_of_engines(path):
    assert {tuple(path.split("/"))} <= WITHOUT_ENGINES
    async with running(adaptors=tuple(ADAPTORS)) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        for pool in edge.pools.values():
            pool.prediction = 1000.0
        if path.endswith("GetTokenizer"):
            stream: Any = channel.unary_stream(f"/{path}")
            call = stream(b"", timeout=5)
            assert await call.read()
            return
        error: Any = None
        unary: Any = channel.unary_unary(f"/{path}")
        try:
            await unary(b"", timeout=5)
        except grpc.aio.AioRpcError as failed:
            error = failed
        codes = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)  # of the empty message
        assert error is None or error.code() in codes, error


async def test_vectors_are_compared_while_engines_are_busy_and_texts_are_left_to_the_pool(edge, channel):
    edge.pool.refuse = DeadlineTooSoon("too late", retry_after_s=0.5)
    for pool in edge.pools.values():
        pool.prediction = 1000.0
    vector = pb.SimilarityItem(vector=pb.Vector(values=[1.0, 2.0]))
    assert (await method(channel, "Similarity")(items=[vector])).rows[0].values[0] == pytest.approx(1.0)
    error, details = await failure(method(channel, "Similarity")(items=[pb.SimilarityItem(text=TEXT)], model="en-de"))
    assert details["ErrorInfo"].reason == "DEADLINE_TOO_SOON", error


def test_every_method_without_engines_is_one_of_the_server():
    assert {f"/{service}/{method}" for service, method in WITHOUT_ENGINES} <= POLICY.keys()


async def test_the_refusals_of_a_second_are_one_line(edge, channel, caplog):
    caplog.set_level("INFO", logger="glossa")
    for pool in edge.pools.values():
        pool.prediction = 100.0
    for _ in range(5):
        await failure(method(channel, "Translate")(text=TEXT, timeout=1.0))
    await edge.server.calls.close()
    lines: list[Any] = [record for record in caplog.records if record.getMessage() in ("request", "refused")]
    assert [line.fields for line in lines] == [
        {"method": "glossa.v1.TranslationService/Translate", "reason": "DEADLINE_TOO_SOON", "count": 5}
    ]
    exposition = edge.server.exposition()[0].decode()
    assert 'glossa_requests_rejected_total{model="",reason="deadline_too_soon",version=""} 5.0' in exposition


@pytest.mark.parametrize("path", ["TranslationService/Translate", "TranslationService/StreamTranslate"])
async def test_a_call_without_its_message_counts_until_it_is_ended(path):
    async with (
        running(message_timeout_s=0.5, max_requests=1) as edge,
        grpc.aio.insecure_channel(edge.address) as channel,
    ):
        open_call: Any = channel.stream_stream(f"/glossa.v1.{path}")
        error, _ = await failure(open_call(unending()))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.details() == "no message came within 0.5 s"
        await edge.server.calls.idle()


@pytest.mark.parametrize("path", ["TranslationService/Translate", "TranslationService/StreamTranslate"])
async def test_a_call_that_ends_without_a_message_is_invalid(channel, path):
    error, details = await failure(channel.stream_stream(f"/glossa.v1.{path}")(iter(())))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].description.startswith("is missing")


async def test_calls_without_their_messages_make_room_when_the_server_is_full(monkeypatch):
    monkeypatch.setattr("service.edge.admission.message_waits.UNREAD_S", 0.0)
    async with (
        running(max_requests=2, message_timeout_s=60.0) as edge,
        grpc.aio.insecure_channel(edge.address) as channel,
    ):
        open_call: Any = channel.stream_unary("/glossa.v1.TranslationService/Translate")
        waiting = [asyncio.ensure_future(open_call(unending())) for _ in range(2)]
        while "glossa_requests_in_flight 2.0" not in edge.server.exposition()[0].decode():
            await asyncio.sleep(0)
        assert (await method(channel, "Translate")(text=TEXT)).text
        done, left = await asyncio.wait(waiting, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(grpc.aio.AioRpcError, match="the message of this call had not come"):
            await done.pop()
        assert len(left) == 1
        assert "glossa_requests_in_flight 1.0" in edge.server.exposition()[0].decode()
        left.pop().cancel()


@pytest.mark.parametrize("rpc", ["TranslateBatch", "TranslateDocument"])
async def test_calls_with_nothing_in_flight_make_room_when_the_server_is_full(rpc, monkeypatch):
    monkeypatch.setattr("service.edge.admission.idle_calls.IDLE_S", 0.0)
    async with (
        running(max_requests=2, message_timeout_s=60.0) as edge,
        grpc.aio.insecure_channel(edge.address) as channel,
    ):

        async def idle():
            yield getattr(pb, f"{rpc}Request")()
            await asyncio.Event().wait()

        async def read(call):
            return [message async for message in call]

        waiting = [asyncio.ensure_future(read(method(channel, rpc)(idle()))) for _ in range(2)]
        while len(edge.server.calls.admission.idle) < 2:
            await asyncio.sleep(0)
        assert (await method(channel, "Translate")(model="en-de", text=TEXT)).text
        done, left = await asyncio.wait(waiting, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(grpc.aio.AioRpcError, match="calls wait for messages with nothing in flight"):
            await done.pop()
        left.pop().cancel()


async def test_a_connection_with_its_share_of_the_calls_without_messages_gets_no_more(monkeypatch):
    monkeypatch.setattr("service.edge.admission.message_waits.UNREAD_S", 0.0)
    monkeypatch.setattr("service.edge.admission.backlog.INTERVAL_S", 60.0)  # on a busy machine calls wait, too
    own = (("grpc.use_local_subchannel_pool", 1),)
    async with (
        running(max_requests=128, message_timeout_s=60.0) as edge,
        grpc.aio.insecure_channel(edge.address, own) as hostile,
        grpc.aio.insecure_channel(edge.address, own) as honest,
    ):
        many = 64
        open_call: Any = hostile.stream_unary("/glossa.v1.TranslationService/Translate")
        waiting = [asyncio.ensure_future(open_call(unending())) for _ in range(many - 1)]
        while len(edge.server.calls._open) < many - 1:
            await asyncio.sleep(0)
        assert (await method(hostile, "Translate")(text=TEXT)).text, "there is room for one more"
        waiting.append(asyncio.ensure_future(open_call(unending())))
        while len(edge.server.calls._open) < many:
            await asyncio.sleep(0)
        assert (await method(honest, "Translate")(text=TEXT)).text
        done, _ = await asyncio.wait(waiting, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1, "it has made room"
        waiting.append(asyncio.ensure_future(open_call(unending())))
        while len(edge.server.calls._open) < many:
            await asyncio.sleep(0)
        error, details = await failure(method(hostile, "Translate")(text=TEXT))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details["ErrorInfo"].reason == "MESSAGES_MISSING"
        assert "of which this connection has its share" in error.details()
        assert details["RetryInfo"].retry_delay.ToMilliseconds() == 500
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_client_with_as_many_answers_as_resets_keeps_its_connection(caplog):
    calls = Calls(Metrics(RPCS), settings(max_resets_per_s=1), clock=lambda: 0.0)

    async def answer(message, call):
        return message

    async def reset():
        context = SilentContext()
        call = asyncio.create_task(calls.run(RPCS[0], pytest.fail, context, PARSE))
        await context.reads.wait()
        call.cancel()
        await asyncio.wait([call])
        context.message.set_result(grpc.aio.EOF)
        return [record for record in caplog.records if record.getMessage() == "too_many_resets"]

    for _ in range(3):
        context = SilentContext()
        context.message.set_result(b"")
        assert await calls.run(RPCS[0], answer, context, PARSE) == pb.TranslateRequest()
    assert [len(await reset()) for _ in range(5)] == [0, 0, 0, 1, 1]


async def test_a_connection_whose_messages_do_not_come_is_closed():
    async with running(message_timeout_s=0.1, max_resets_per_s=20) as edge:
        host, _, port = edge.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        headers = request_headers("/glossa.v1.TranslationService/Translate", "localhost")
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        writer.write(b"".join(frame(HEADERS, END_HEADERS, stream, headers) for stream in range(1, 100, 2)))
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                await reader.read()  # until the connection ends
        writer.close()
        assert "glossa_connections_closed_total 1.0" in edge.server.exposition()[0].decode()


async def test_calls_that_wait_for_an_answer_make_no_room():
    async with running(max_requests=1) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        edge.pool.hold = True
        first = method(channel, "Translate")(text=TEXT)
        await edge.pool.until(lambda: edge.pool.sinks)
        error, _ = await failure(method(channel, "Translate")(text=TEXT))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        edge.pool.send(edge.pool.sinks[0], edge.pool.answer)
        assert (await first).text


async def test_a_call_that_was_read_after_its_deadline_is_not_started(edge, channel):
    call = a_call(RPCS[0], 0.0)  # long ago on the server's clock
    context = ReadContext(pb.TranslateRequest(text=TEXT).SerializeToString())
    with pytest.raises(DeadlineExceeded, match="before the message was read"):
        await edge.server.calls._message(context, call)
    call.limit(call.rpc._replace(deadline_s=time.monotonic() + 60))
    assert await edge.server.calls._message(context, call) is context.message


@pytest.mark.parametrize(
    ("deadline_s", "error", "wasted"),
    [(60.0, None, 0.0), (0.0, None, 5.0), (60.0, Cancelled("gone"), 5.0)],
    ids=["in time", "late", "cancelled"],
)
async def test_answers_that_nobody_gets_in_time_are_wasted(edge, deadline_s, error, wasted):
    now_s = time.monotonic()
    call = a_call(RPCS[0], now_s + deadline_s, started_s=now_s)
    call.use(model := served("en-de", edge.pool))
    call.record.finish(ANSWER[-1])
    edge.server.calls._begin(call)
    edge.server.calls._end(call, error)
    assert (
        f'glossa_wasted_tokens_total{{model="en-de",version="{model.version}"}} {wasted}'
        in edge.server.exposition()[0].decode()
    )


class ReadContext:
    """Of a call whose message has come."""

    def __init__(self, message):
        self.message = message

    async def read(self):
        return self.message


async def unending():
    """Messages of a client that never sends one."""
    await asyncio.Event().wait()
    yield b""


@pytest.mark.parametrize("name", ["Translate", "StreamTranslate"])
async def test_a_shutdown_rejects_what_no_engine_has_accepted(edge, channel, name):
    def rejected(times):
        labels = f'model="en-de",reason="shutting_down",version="{edge.models["en-de"].version}"'
        rejections = f"glossa_requests_rejected_total{{{labels}}} {times:.1f}"
        return rejections in edge.server.exposition()[0].decode()

    edge.pool.answer = (ShuttingDown(),)
    error, _ = await failure(method(channel, name)(text=TEXT))
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert rejected(0)  # the engine counts the request among the finished ones
    edge.pool.refuse = ShuttingDown()
    await failure(method(channel, name)(text=TEXT))
    assert rejected(1)


async def test_a_full_server_rejects_requests_but_answers_health_and_reflection():
    async with running(max_requests=1) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        edge.pool.hold = True
        stream = method(channel, "StreamTranslate")(text=TEXT)
        await edge.pool.until(lambda: edge.pool.sinks)
        error, _ = await failure(method(channel, "Translate")(text=TEXT))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"", timeout=5) == b"\x08\x01"
        stream.cancel()
        await edge.pool.until(lambda: edge.pool.cancelled)
        edge.pool.hold = False
        await edge.server.calls.idle()
        assert (await method(channel, "Translate")(text=TEXT)).text


@pytest.mark.parametrize("name", ["Translate", "StreamTranslate"])
async def test_cancelled_call_cancels_the_submission_once(edge, channel, name):
    edge.pool.hold = True
    call = method(channel, name)(text=TEXT, metadata=(("x-request-id", "gone"),))
    await edge.pool.until(lambda: edge.pool.sinks)
    call.cancel()
    await edge.pool.until(lambda: edge.pool.cancelled)
    await edge.server.calls.idle()
    assert edge.pool.cancelled == ["gone"]


async def test_finished_call_cancels_nothing(edge, channel):
    await method(channel, "Translate")(text=TEXT)
    assert edge.pool.cancelled == []


async def test_deadline_of_the_client_reaches_the_request_and_is_capped():
    server = running(default_deadline_s=7, max_deadline_s=20)
    async with server as edge, grpc.aio.insecure_channel(edge.address) as channel:
        for timeout, limit in ((None, 7), (5, 5), (1000, 20)):
            before_s = asyncio.get_running_loop().time()
            await method(channel, "Translate")(text=TEXT, timeout=timeout)
            left_s = edge.pool.requests[-1].deadline_s - limit  # grpc rounds a deadline
            assert before_s - 0.1 <= left_s <= asyncio.get_running_loop().time() + 0.1


async def test_a_deadline_that_passes_in_the_engine_ends_the_stream_after_its_text(edge, channel):
    edge.pool.answer = (TextDelta("zwei", (5,)), DeadlineExceeded("the deadline passed after 1 tokens"))
    stream = method(channel, "StreamTranslate")(text=TEXT)
    assert (await stream.read()).text == "zwei"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_deadline_that_passes_at_the_client_stops_the_work(edge, channel):
    edge.pool.hold, timeout_s = True, 0.05
    while not edge.pool.requests:  # on a busy machine a short deadline may pass before the server has the call
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "Translate")(text=TEXT, timeout=timeout_s)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await edge.server.calls.idle()
        timeout_s *= 2
    await edge.pool.until(lambda: edge.pool.cancelled)


async def test_text_of_an_exception_stays_in_the_server(edge, channel, caplog):
    edge.pool.refuse = ValueError("/secret/path")
    call = method(channel, "Translate")(text=TEXT, metadata=(("x-request-id", "r-1"),))
    error, details = await failure(call)
    assert error.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in str(error)
    assert "r-1" in error.details()
    assert dict(error.trailing_metadata())["x-request-id"] == "r-1"
    assert details["RequestInfo"].request_id == "r-1"
    record = next(r for r in caplog.records if r.getMessage() == "internal_error")
    assert "/secret/path" in str(record.exc_info[1])


async def test_failure_of_a_step_is_internal(edge, channel):
    edge.pool.answer = (InternalFailure("r-2"),)
    error, _ = (
        await failure(method(channel, "Generate")(text="a"))
        if False
        else await failure(method(channel, "StreamTranslate")(text=TEXT))
    )
    assert error.code() == grpc.StatusCode.INTERNAL


async def test_a_stream_whose_client_stops_reading_is_ended():
    async with running(stall_timeout_s=0.05) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        edge.pool.hold = True
        stream = method(channel, "StreamTranslate")(text=TEXT, timeout=30)
        await edge.pool.until(lambda: edge.pool.sinks)
        (sink,) = edge.pool.sinks
        while not edge.pool.cancelled:  # the transport's buffers fill, then nothing moves
            sink(TextDelta("x" * 100_000, (5,)))
            await asyncio.sleep(0)
        await asyncio.wait_for(edge.server.calls.idle(), 60)
        stream.cancel()


async def reading_nothing(edge, name):
    """A call whose client opens no window; its connection."""
    host, _, port = edge.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    message = pb.TranslateRequest(text=TEXT).SerializeToString()
    headers = request_headers(f"/glossa.v1.TranslationService/{name}", "localhost")
    no_window = struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)
    writer.write(PREFACE + frame(SETTINGS, 0, 0, no_window) + frame(HEADERS, END_HEADERS, 1, headers))
    writer.write(frame(DATA, END_STREAM, 1, MESSAGE_HEADER.pack(False, len(message)) + message))
    return writer


@pytest.mark.parametrize(("stall_timeout_s", "ends_as"), [(30, "Canceled"), (0.05, "DeadlineExceeded")])
async def test_a_slow_reader_that_leaves_is_no_error_of_the_server(caplog, stall_timeout_s, ends_as):
    """Before the server has ended its stream, and while its status waits to be written."""
    async with running(stall_timeout_s=stall_timeout_s) as edge:
        edge.pool.hold = True
        calls = edge.server.calls
        writer = await reading_nothing(edge, "StreamTranslate")
        await edge.pool.until(lambda: edge.pool.sinks)
        edge.pool.sinks[0](TextDelta("x" * 1000, (5,)))
        (call,) = calls._open
        async with asyncio.timeout(30):
            while not call.record.messages:
                await asyncio.sleep(0)
            if ends_as == "DeadlineExceeded":
                await calls.idle()
            writer.close()
            while calls._tasks:
                await asyncio.sleep(0.001)
        text = edge.server.exposition()[0].decode()
    assert any(ends_as in line and "StreamTranslate" in line for line in text.splitlines() if line.endswith(" 1.0"))
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_a_client_that_reads_again_learns_why_its_stream_has_ended():
    async with running(stall_timeout_s=0.05) as edge:
        edge.pool.hold = True
        host, _, port = edge.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        message = pb.TranslateRequest(text=TEXT).SerializeToString()
        headers = request_headers("/glossa.v1.TranslationService/StreamTranslate", "localhost")
        no_window = struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, no_window) + frame(HEADERS, END_HEADERS, 1, headers))
        writer.write(frame(DATA, END_STREAM, 1, MESSAGE_HEADER.pack(False, len(message)) + message))
        await edge.pool.until(lambda: edge.pool.sinks)
        while not edge.pool.cancelled:
            edge.pool.sinks[0](TextDelta("x" * 1000, (5,)))
            await asyncio.sleep(0)
        await edge.server.calls.idle()
        writer.write(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 20)))
        async with asyncio.timeout(30):
            await reader.readuntil(b"grpc-status\x014")  # DEADLINE_EXCEEDED, a literal of one byte
            await reader.readuntil(b"the client read nothing for 0.05 s")
        writer.close()


async def test_an_answer_that_its_client_does_not_read_keeps_its_memory_until_the_call_is_ended():
    async with running(stall_timeout_s=0.05) as edge:
        writer = await reading_nothing(edge, "Translate")
        reserved = message_bytes(len(pb.TranslateRequest(text=TEXT).SerializeToString()))
        await edge.pool.until(lambda: edge.pool.sinks)
        calls = edge.server.calls
        await calls.idle()
        assert calls.memory.reserved_bytes >= reserved
        async with asyncio.timeout(30):
            while calls.memory.reserved_bytes:  # the server looks twice a second
                await asyncio.sleep(0.01)
        writer.close()


@pytest.mark.parametrize("name", ["Translate", "StreamTranslate"])
async def test_a_message_for_which_there_is_no_memory_is_refused_unparsed(edge, channel, name):
    calls = edge.server.calls
    others = Reservation(calls.memory, Caller())
    others.grow(calls.memory.limit_bytes)
    error, details = await failure(method(channel, name)(b"\xff\xff\xff"))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details["ErrorInfo"].reason == "MEMORY_LIMIT"
    assert details["RetryInfo"].retry_delay.ToMilliseconds() == 500
    others.release()
    answer = method(channel, name)(text=TEXT)
    assert await answer if name == "Translate" else [part async for part in answer]
    await calls.idle()


async def test_a_request_for_whose_answer_there_is_no_memory_reaches_no_engine(edge, channel):
    calls = edge.server.calls
    others = Reservation(calls.memory, Caller())
    others.grow(calls.memory.limit_bytes - message_bytes(1000))
    error, details = await failure(
        method(channel, "Translate")(text=TEXT, options=pb.DecodingOptions(num_sequences=32, top_logprobs=20))
    )
    assert (error.code(), details["ErrorInfo"].reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MEMORY_LIMIT")
    assert not edge.pool.requests
    others.release()
    await method(channel, "Translate")(text=TEXT)


async def test_every_request_logs_one_line_without_its_text(edge, channel, caplog):
    caplog.set_level("INFO")
    await method(channel, "Translate")(text=TEXT, metadata=(("x-request-id", "r-3"),))
    await edge.server.calls.idle()
    (record,) = [r for r in caplog.records if r.getMessage() == "request"]
    fields = record.fields
    assert (fields["request_id"], fields["code"], fields["model"]) == ("r-3", "OK", "en-de")
    assert fields["method"] == "glossa.v1.TranslationService/Translate"
    assert (fields["prompt_tokens"], fields["generated_tokens"], fields["queue_s"], fields["ttft_s"]) == (
        4,
        5,
        0.001,
        0.004,
    )
    assert "house" not in str(fields)
    assert "Häuser" not in str(fields)


async def test_texts_are_logged_with_log_text(caplog):
    caplog.set_level("INFO")
    async with running(log_text=True) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        await method(channel, "Translate")(text=TEXT)
    (record,) = [r for r in caplog.records if r.getMessage() == "request"]
    assert (record.fields["text"], record.fields["answer"]) == (TEXT, "zwei rote Häuser")


async def test_the_tenant_of_a_call_reaches_its_request_and_the_log(channel_to, caplog):
    caplog.set_level("INFO", logger="glossa")
    async with channel_to(tenant_weights="acme=2") as (edge, channel):
        await method(channel, "Translate")(text=TEXT)
        await method(channel, "Translate")(
            text=TEXT, metadata=(("x-glossa-tenant", "acme"), ("x-glossa-priority", "high"))
        )
        await edge.server.calls.idle()
        assert [request.caller for request in edge.pool.requests] == [Caller(), Caller("acme", 2.0, Priority.HIGH)]
    lines: list[Any] = [record for record in caplog.records if record.getMessage() == "request"]
    assert [line.fields.get("tenant") for line in lines] == [None, "acme"]


@pytest.mark.parametrize(
    "metadata", [("x-glossa-tenant", "two words"), ("x-glossa-priority", "urgent"), ("x-glossa-priority", "high")]
)
async def test_a_tenant_or_priority_that_is_not_allowed_is_refused_unread(edge, channel, metadata):
    error, details = await failure(method(channel, "Translate")(b"\xff\xff\xff", metadata=(metadata,)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == metadata[0]
    assert not edge.pool.requests


async def test_one_tenant_cannot_take_all_open_requests_from_others(channel_to):
    async with channel_to(max_requests=5) as (edge, channel):
        await method(channel, "Translate")(text=TEXT, metadata=(("x-glossa-tenant", "victim"),))
        edge.pool.hold = True
        abuser = (("x-glossa-tenant", "abuser"),)
        held = [method(channel, "Translate")(text=TEXT, metadata=abuser, timeout=60) for _ in range(4)]
        await edge.pool.until(lambda: len(edge.pool.requests) == 5)
        error, details = await failure(method(channel, "Translate")(b"\xff\xff\xff", metadata=abuser))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details["ErrorInfo"].reason == "TENANT_LIMIT"
        assert details["RetryInfo"].retry_delay.ToMilliseconds() == 500
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "500"
        edge.pool.hold = False
        await method(channel, "Translate")(text=TEXT, metadata=(("x-glossa-tenant", "victim"),))
        for call in held:
            call.cancel()
        await edge.server.calls.idle()
        await method(channel, "Translate")(text=TEXT, metadata=abuser)


class SilentContext:
    """Of a call whose message does not come."""

    def __init__(self):
        self.message = asyncio.get_running_loop().create_future()
        self.reads = asyncio.Event()

    def time_remaining(self):
        return 60.0

    def invocation_metadata(self):
        return ()

    def peer(self):
        return "ipv4:127.0.0.1:1"

    def set_trailing_metadata(self, trailers):
        pass

    async def read(self):
        self.reads.set()
        return await self.message


class AnsweredContext(SilentContext):
    """Of a call that must get nothing."""

    def __init__(self):
        super().__init__()
        self.message.set_result(b"")

    def set_trailing_metadata(self, trailers):
        pytest.fail("an answer is sent")

    async def abort(self, *_):
        pytest.fail("a status is sent")


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_is_sent_after_the_deadline_and_that_is_no_reset(fails, monkeypatch):
    now_s = 100.0
    calls = Calls(Metrics(RPCS), settings(), clock=lambda: now_s)
    monkeypatch.setattr(calls, "_count_wasted", pytest.fail)

    async def answer(message, call):
        nonlocal now_s
        now_s += 60.0  # of which the context has so many
        if fails:
            raise DeadlineExceeded("the deadline passed")
        return message

    with pytest.raises(asyncio.CancelledError):
        await calls.run(RPCS[0], answer, AnsweredContext(), PARSE)
    assert calls.is_idle


@pytest.mark.parametrize(
    ("after_s", "code", "resets"), [(59.94, "CANCELLED", ["ipv4:127.0.0.1:1"]), (59.96, "DEADLINE_EXCEEDED", [])]
)
async def test_a_reset_a_moment_before_the_deadline_is_the_deadline(after_s, code, resets, monkeypatch, caplog):
    caplog.set_level("INFO", logger="glossa")
    now_s, counted = 100.0, list[str]()
    calls = Calls(Metrics(RPCS), settings(), clock=lambda: now_s)
    monkeypatch.setattr(calls, "_count_wasted", counted.append)
    context = SilentContext()
    call = asyncio.create_task(calls.run(RPCS[0], pytest.fail, context, PARSE))
    await context.reads.wait()
    now_s += after_s  # of 60
    call.cancel()
    await asyncio.wait([call])
    context.message.set_result(grpc.aio.EOF)
    assert counted == resets
    assert [line.fields["code"] for line in caplog.records if line.getMessage() == "request"] == [code]


@pytest.mark.parametrize(("now_s", "late"), [(10.14, False), (10.16, True), (10.2, True), (11.0, True)])
def test_a_short_deadline_is_close_in_its_last_quarter_alone(now_s, late):
    assert is_late(now_s, started_s=10.0, deadline_s=10.2) is late


async def test_a_read_is_left_to_end_by_itself_when_its_call_is_cancelled():
    calls = Calls(Metrics(RPCS), settings())
    context = SilentContext()
    call = asyncio.create_task(calls.run(RPCS[0], pytest.fail, context, PARSE))
    await context.reads.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert calls.is_idle
    assert not context.message.cancelled(), "grpc would never free what the read has allocated"
    context.message.set_exception(RuntimeError("the call has ended"))  # nobody waits for it
    await asyncio.sleep(0)
