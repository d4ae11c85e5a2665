import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.adaptors.inference import open_inference_pb2 as oip
from service.edge.observability.call_trace import CallTrace
from service.edge.observability.metrics import Method
from service.edge.observability.tracing import CLOSE_S, MAX_CALLS, OtlpExporter, Tracing, open_tracing
from service.errors import Cancelled, Overloaded
from service.progress import Progress, Timings
from service.request import Finished, FinishReason
from tests.collector import collecting, fields
from tests.edge import ANSWER, failure, method, settings

ROOT = Path(__file__).parents[4]
TEXT = "the small red house"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RPC = Method("unary", "glossa.v1.TranslationService", "Translate")
TRANSLATE = "glossa.v1.TranslationService/Translate"


@pytest.fixture
def collector():
    with collecting() as collector:
        yield collector


class FakeExporter:
    """Fails while `problem` is set, and blocks while `free` is not."""

    def __init__(self, problem=""):
        self.problem, self.batches, self.is_closed = problem, [], False
        self.free, self.entered = threading.Event(), threading.Event()
        self.free.set()

    def export(self, calls):
        self.entered.set()
        self.free.wait(60)
        self.batches.append(len(calls))
        return self.problem

    def close(self):
        self.is_closed = True
        self.free.set()


def ended(tracing, count=1):
    for _ in range(count):
        tracing.begin(RPC, "r", None, (), 0.0).end(1.0, 0, None)


def cancelled(progress):
    """What an engine reports of a request that its client left."""
    error = Cancelled("the request was cancelled")
    error.progress = progress
    return error


def lost(caplog):
    return [record.fields for record in caplog.records if record.getMessage() == "traces_lost"]


def parent(flags, **metadata):
    return (("traceparent", f"00-{TRACE}-{SPAN}-{flags}"), *metadata.items())


async def spans_of(edge, collector):
    """All spans of the calls so far; the server traces no more."""
    await edge.server.calls.close()
    return collector.spans


def test_calls_are_sent_together_and_all_of_them_at_the_end(caplog):
    exporter = FakeExporter()
    tracing = Tracing(exporter, 1.0)
    ended(tracing, 300)
    tracing.close()
    assert sum(exporter.batches) == 300
    assert len(exporter.batches) == 3
    assert exporter.is_closed
    assert lost(caplog) == []


def test_a_collector_that_is_down_costs_spans_and_one_line(caplog):
    caplog.set_level("INFO", logger="glossa")
    tracing = Tracing(FakeExporter("UNAVAILABLE"), 1.0)
    ended(tracing, 300)
    tracing.close()
    assert sum(line["count"] for line in lost(caplog)) == 300
    assert len(lost(caplog)) <= 2  # the first loss, and what the end leaves
    assert {line["problem"] for line in lost(caplog)} == {"UNAVAILABLE"}


def test_a_collector_that_hangs_neither_blocks_calls_nor_the_end(caplog):
    caplog.set_level("INFO", logger="glossa")
    exporter = FakeExporter()
    exporter.free.clear()
    tracing = Tracing(exporter, 1.0)
    ended(tracing)
    assert exporter.entered.wait(60)
    began_s = time.monotonic()
    ended(tracing, MAX_CALLS + 7)
    assert time.monotonic() - began_s < 1.0
    assert [line["count"] for line in lost(caplog)] == [1], "calls above the limit are lost while others wait"
    tracing.close()
    assert time.monotonic() - began_s < 2 * CLOSE_S + 1.0
    assert sum(line["count"] for line in lost(caplog)) == MAX_CALLS + 7  # the first one was sent
    ended(tracing)  # of a call that ends late
    tracing.close()


def test_without_a_sample_there_is_no_trace():
    tracing = Tracing(FakeExporter(), 0.0)
    assert tracing.begin(RPC, "r", None, (), 0.0) is None
    tracing.close()


async def test_a_call_continues_the_trace_of_its_client(channel_to, collector, caplog):
    caplog.set_level("INFO", logger="glossa")
    async with channel_to(otlp_endpoint=collector.endpoint) as (edge, channel):
        await method(channel, "Translate")(text=TEXT, metadata=parent("01", tracestate="vendor=opaque"))
        server, *children = await spans_of(edge, collector)
        text = edge.server.exposition("application/openmetrics-text")[0].decode()
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, SPAN)
    assert server.flags & 0x300 == 0x300  # the parent is remote
    assert {span.trace_state for span in (server, *children)} == {"vendor=opaque"}
    assert {span.trace_id.hex() for span in children} == {TRACE}
    assert {span.flags & 0x300 for span in children} == {0x100}
    assert edge.pool.requests[0].trace_id == TRACE
    assert f'trace_id="{TRACE}"' in text


@pytest.mark.parametrize("flags", ["00", "01"])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_the_flag_of_the_client_goes_before_the_ratio(channel_to, collector, flags, ratio, caplog):
    caplog.set_level("INFO", logger="glossa")
    async with channel_to(otlp_endpoint=collector.endpoint, trace_sample_ratio=ratio) as (edge, channel):
        await method(channel, "Translate")(text=TEXT, metadata=parent(flags))
        await method(channel, "Translate")(text=TEXT)
        spans = [span for span in await spans_of(edge, collector) if span.name == TRANSLATE]
        text = edge.server.exposition("application/openmetrics-text")[0].decode()
    own = [span for span in spans if not span.parent_span_id]
    assert (len(spans) - len(own), len(own)) == (int(flags), int(ratio))
    line, without = [record.fields for record in caplog.records if record.getMessage() == "request"]
    assert line["trace_id"] == TRACE  # as the client named it, traced or not
    assert without.get("trace_id") == (own[0].trace_id.hex() if own else None)
    assert (f'trace_id="{TRACE}"' in text) <= (flags == "01")  # metrics refer to traces that can be found
    assert ("trace_id=" in text) == bool(spans)


async def test_calls_that_fail_have_one_span_each(channel_to, collector):
    async with channel_to(otlp_endpoint=collector.endpoint) as (edge, channel):
        translate = method(channel, "Translate")
        await failure(translate(b"\xff\xff\xff"))
        await failure(translate(text=TEXT, model="none"))
        edge.pool.refuse = Overloaded("full", retry_after_s=0.25, limit=3)
        await failure(translate(text=TEXT))
        edge.pool.refuse = RuntimeError("a defect with secrets")
        await failure(translate(text=TEXT))
        edge.pool.refuse, edge.pool.hold = None, True
        with pytest.raises(grpc.aio.AioRpcError):
            await translate(text=TEXT, timeout=0.2)
        call = translate(text=TEXT)
        await edge.pool.until(lambda: len(edge.pool.sinks) == 2)
        call.cancel()
        await edge.pool.until(lambda: len(edge.pool.cancelled) == 2)
        await edge.server.calls.idle()
        for sink in edge.pool.sinks:
            sink(cancelled(Progress("queue", 4, 0, Timings(queue_s=0.1, total_s=0.1))))
        for pool in edge.pools.values():
            pool.prediction = 100.0
        await failure(translate(text=TEXT, timeout=1.0))
        spans = await spans_of(edge, collector)
    assert [span.name for span in spans if span.parent_span_id] == ["queue", "queue"]
    spans = [span for span in spans if not span.parent_span_id]
    found = [fields(span.attributes) for span in spans]
    assert {span.name for span in spans} == {TRANSLATE}
    faults = [span.status.code for span in spans]
    assert [(one["rpc.grpc.status_code"], one["error.type"]) for one in found] == [
        (3, "INVALID_FIELD"),
        (5, "MODEL_NOT_FOUND"),
        (8, "QUEUE_FULL"),
        (13, "INTERNAL"),
        (4, "DEADLINE_EXCEEDED"),
        (1, "CANCELLED"),
        (8, "DEADLINE_TOO_SOON"),
    ]
    assert faults == [0, 0, 0, 2, 2, 0, 0]
    assert "secrets" not in str(spans)


async def test_a_stream_has_one_server_span_with_its_stages(channel_to, collector):
    async with channel_to(otlp_endpoint=collector.endpoint) as (edge, channel):
        assert [message async for message in method(channel, "StreamTranslate")(text=TEXT)]
        server, *children = await spans_of(edge, collector)
    found = fields(server.attributes)
    assert (found["rpc.grpc.status_code"], found["gen_ai.usage.output_tokens"]) == (0, 5)
    assert [child.name for child in children] == ["queue", "encode", "prefill", "decode"]


async def test_a_stream_that_its_client_leaves_has_the_stages_that_it_reached(channel_to, collector):
    async with channel_to(otlp_endpoint=collector.endpoint) as (edge, channel):
        edge.pool.answer = ANSWER[:1]
        stream = method(channel, "StreamTranslate")(text=TEXT, options={"max_tokens": 7})
        assert await stream.read()
        stream.cancel()
        await edge.server.calls.idle()
        edge.pool.sinks[0](cancelled(Progress("prefill", 4, 0, Timings(queue_s=0.1, encoded_s=0.2, total_s=0.3))))
        server, *children = await spans_of(edge, collector)
    assert [child.name for child in children] == ["queue", "encode", "prefill"]
    found = fields(server.attributes)
    assert (found["rpc.grpc.status_code"], found["error.type"]) == (1, "CANCELLED")
    assert found["gen_ai.request.max_tokens"] == 7
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (4, 0)


async def test_a_call_without_an_engine_has_a_span_of_its_own(channel_to, collector):
    async with channel_to(otlp_endpoint=collector.endpoint) as (edge, channel):
        await method(channel, "ListModels")()
        (span,) = await spans_of(edge, collector)
    assert fields(span.attributes).keys() == {
        *("rpc.system", "rpc.service", "rpc.method", "rpc.grpc.status_code", "glossa.request_id")
    }


async def test_the_texts_of_one_inference_have_their_stages_each(channel_to, collector):
    async with channel_to(otlp_endpoint=collector.endpoint, adaptors="open-inference") as (edge, channel):
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=oip.ModelInferRequest.SerializeToString,
            response_deserializer=oip.ModelInferResponse.FromString,
        )
        tensor: Any = {"name": "text_input", "datatype": "BYTES", "shape": [2]}
        tensor["contents"] = {"bytes_contents": [TEXT.encode(), b"a black cat"]}
        edge.pool.answer = (Finished(FinishReason.LENGTH, "x", (5,), 4, 1, Timings(total_s=0.01)),)
        await infer(oip.ModelInferRequest(model_name="en-de", inputs=[tensor]), timeout=5)
        server, *children = await spans_of(edge, collector)
    assert server.name == "inference.GRPCInferenceService/ModelInfer"
    assert [child.name for child in children] == 2 * ["queue", "encode", "prefill", "decode"]
    assert fields(server.attributes)["gen_ai.usage.input_tokens"] == 8


async def test_headers_come_from_the_variables_of_the_exporter(channel_to, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    async with channel_to(otlp_endpoint=collector.endpoint) as (edge, channel):
        await method(channel, "ListModels")()
        assert await spans_of(edge, collector)
    assert collector.metadata[0]["x-key"] == "secret"
    assert collector.resources[0]["deployment.environment.name"] == "test"


def test_a_closed_port_is_named_in_the_problem(collector):
    exporter, calls = OtlpExporter("http://127.0.0.1:1"), list[CallTrace]()
    CallTrace(RPC, "r", None, "", 0.0, calls.append).end(1.0, 0, None)
    threading.Timer(0.5, exporter.close).start()
    assert "UNAVAILABLE" in exporter.export(calls)


WITHOUT = """
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"blocked: {name}")
if sys.argv[2] == "blocked":
    sys.meta_path.insert(0, Blocked())
from service.settings.loading import load_settings
from service.errors import StartupError
from service.server import Server
try:
    Server(load_settings(json.loads(sys.argv[1])))
except StartupError as error:
    print(error)
print(sorted({name for name in sys.modules if name.startswith("opentelemetry")})[:1])
"""


def built(endpoint, state):
    """What a server prints that is built with this endpoint in a fresh interpreter."""
    given = {"models": {"a": "/none"}, "otlp_endpoint": endpoint}
    command = [sys.executable, "-c", WITHOUT, json.dumps(given), state]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_an_endpoint_the_library_is_not_loaded():
    assert built("", "installed") == "[]\n"
    assert built("http://127.0.0.1:1", "installed") == "['opentelemetry']\n"


def test_a_missing_library_is_named_with_the_fix():
    shown = built("http://127.0.0.1:1", "blocked")
    assert shown.startswith("otlp_endpoint: needs OpenTelemetry, which is not installed")
    assert "pip install 'glossa[otel]'" in shown


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "ftp://host:1", "http://", "http://host:4318/v1/traces"])
def test_an_endpoint_is_a_url_without_a_path(endpoint):
    with pytest.raises(ValueError, match="must be http://HOST:PORT"):
        settings(otlp_endpoint=endpoint)


def test_a_ratio_is_a_share():
    for ratio in (-0.1, 1.1):
        with pytest.raises(ValueError, match="trace_sample_ratio"):
            settings(trace_sample_ratio=ratio)
    assert open_tracing(settings()) is None
