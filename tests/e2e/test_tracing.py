"""Traces of a whole server, in a process of its own, that reach a collector over the network."""

import asyncio
import contextlib
import os
import signal
import time
from typing import Any

import grpc
import pytest

from cli.local_server import free_port
from glossa.client import AsyncClient, Client, ClientError
from service.adaptors.vllm import vllm_engine_pb2 as vllm
from service.edge.observability.tracing import CLOSE_S
from service.edge.security.access import VLLM
from tests.collector import collecting, fields
from tests.e2e.process import serving
from tests.tiny import TEXTS

TRANSLATE, GENERATE = "glossa.v1.TranslationService/Translate", "glossa.v1.GenerationService/StreamGenerate"


@pytest.fixture(scope="module")
def models(tiny_translation_bundle, tiny_generation_bundle):
    return {"en-de": str(tiny_translation_bundle), "en": str(tiny_generation_bundle)}


@pytest.fixture(scope="module")
def collector():
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(models, collector):
    with serving(models=models, otlp_endpoint=collector.endpoint, engines=1, adaptors="vllm") as server:
        yield server


def seconds(span):
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def check_stages(collector, span, *stages):
    """The children of a server span, which follow each other without a gap, within it. Those that compute take time."""
    children = collector.children(span)
    assert [child.name for child in children] == list(stages)
    assert {child.trace_id for child in children} == {span.trace_id}
    times = [child.start_time_unix_nano for child in children] + [children[-1].end_time_unix_nano]
    assert times[1:] == [child.end_time_unix_nano for child in children]
    assert span.start_time_unix_nano <= times[0] <= times[-1] <= span.end_time_unix_nano
    assert all(seconds(child) > 0 for child in children if child.name in ("encode", "decode"))
    return children


def test_a_translation_has_a_server_span_with_its_stages(server, collector):
    before_ns = time.time_ns()
    with Client(server.address) as client:
        answer = client.translate(TEXTS[0], max_tokens=9)
    (span,) = collector.wait_for(1, TRANSLATE)
    assert before_ns <= span.start_time_unix_nano <= span.end_time_unix_nano <= time.time_ns()
    assert (span.kind, span.parent_span_id, span.status.code) == (2, b"", 0)
    found = fields(span.attributes)
    request_id = found.pop("glossa.request_id")
    line = next(line for line in server.events if line.get("request_id") == request_id)
    assert line["trace_id"] == span.trace_id.hex()
    assert found == {
        "rpc.system": "grpc",
        "rpc.service": "glossa.v1.TranslationService",
        "rpc.method": "Translate",
        "rpc.grpc.status_code": 0,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "glossa",
        "gen_ai.request.model": "en-de",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.usage.input_tokens": answer.prompt_tokens,
        "gen_ai.usage.output_tokens": answer.generated_tokens,
        "gen_ai.response.finish_reasons": ["stop" if answer.finish_reason == "end_of_sequence" else "length"],
    }
    queue, *_, decode = check_stages(collector, span, "queue", "encode", "prefill", "decode")
    assert fields(decode.attributes)["gen_ai.usage.output_tokens"] == answer.generated_tokens
    assert 0 < fields(decode.attributes)["glossa.ttft_s"] < line["total_s"]
    assert seconds(queue) == pytest.approx(line["queue_s"], abs=2e-6)
    assert seconds(span) == pytest.approx(line["total_s"], abs=2e-6)
    resource = collector.resources[0]
    assert (resource["service.name"], resource["telemetry.sdk.name"]) == ("glossa", "opentelemetry")


def test_a_generation_has_no_encoder(server, collector):
    with Client(server.address) as client:
        *_, last = client.stream_generate(TEXTS[0], max_tokens=9)
    assert last.answer is not None
    (span,) = collector.wait_for(1, GENERATE)
    check_stages(collector, span, "queue", "prefill", "decode")
    assert fields(span.attributes)["gen_ai.usage.output_tokens"] == last.answer.generated_tokens


def test_a_call_of_another_protocol_is_traced_as_ours(server, collector):
    with grpc.insecure_channel(server.address) as channel:
        generate: Any = channel.unary_stream(
            f"/{VLLM}/Generate",
            request_serializer=vllm.GenerateRequest.SerializeToString,
            response_deserializer=vllm.GenerateResponse.FromString,
        )
        request = vllm.GenerateRequest(text=TEXTS[0], sampling_params={"temperature": 0.0, "max_tokens": 5})
        *_, last = generate(request, timeout=30)
    (span,) = collector.wait_for(1, f"{VLLM}/Generate")
    check_stages(collector, span, "queue", "prefill", "decode")
    assert fields(span.attributes)["gen_ai.usage.output_tokens"] == len(last.complete.output_ids)


def test_every_call_has_one_server_span_also_those_that_are_left(server, collector):
    before, count = len(collector.named(GENERATE)), 40

    async def leave_early():
        async with AsyncClient(server.address) as client:

            async def first_piece(text):
                async with contextlib.aclosing(client.stream_generate(text)) as stream:
                    await anext(stream)

            await asyncio.gather(*(first_piece(TEXTS[0]) for _ in range(count)))

    asyncio.run(leave_early())
    server.settle()
    spans = collector.wait_for(before + count, GENERATE)[before:]
    assert len(spans) == count
    assert len({span.trace_id for span in spans}) == count
    codes = [fields(span.attributes)["rpc.grpc.status_code"] for span in spans]
    assert set(codes) <= {0, 1}
    stages = ("queue", "prefill", "decode")
    for span, code in zip(spans, codes, strict=True):
        reached = len(collector.children(span))
        assert reached > 0
        assert reached == 3 or code == 1
        check_stages(collector, span, *stages[:reached])


def test_a_call_that_loses_its_engine_shows_how_long_it_had_it(models, collector):
    with serving(models={"en": models["en"]}, otlp_endpoint=collector.endpoint, engines=1) as server:
        before = len(collector.named(GENERATE))
        (pid,) = server.engine_pids()
        os.kill(pid, signal.SIGSTOP)
        with Client(server.address, retries=False) as client, pytest.raises(ClientError, match="process ended"):
            list(client.stream_generate(TEXTS[0], max_tokens=9))
        span = collector.wait_for(before + 1, GENERATE)[before]
    assert fields(span.attributes)["error.type"] == "ENGINE_UNAVAILABLE"
    (engine,) = check_stages(collector, span, "engine")
    assert seconds(engine) > 0.5 * seconds(span)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["down", "stuck"])
def test_a_lost_collector_costs_spans_and_a_line_but_no_call_and_no_shutdown(models, state):
    with collecting() as collector:
        collector.free.clear()
        endpoint = collector.endpoint if state == "stuck" else f"http://127.0.0.1:{free_port()}"
        with serving(models=models, otlp_endpoint=endpoint, engines=1) as server:
            with Client(server.address) as client:
                for _ in range(20):
                    client.translate(TEXTS[0])
            if state == "stuck":
                collector.wait_for(1)
            began_s = time.monotonic()
            server.process.terminate()
            assert server.wait() == 0
            took_s = time.monotonic() - began_s
        lines = [line for line in server.events if line["event"] == "traces_lost"]
        assert sum(line["count"] for line in lines) == 20
        assert len(lines) <= 2
        assert not [line for line in server.events if "exception" in line or line.get("logger", "").startswith("open")]
        assert server.other == []
        assert took_s < 2 * CLOSE_S + 5.0  # five for the rest of a shutdown on a busy machine
