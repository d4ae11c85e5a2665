"""Traces of a whole server, in a process of its own, that reach a collector over the network."""

import json
import socket
import subprocess
import sys
import time

import pytest

from glossa.client import Client, ClientError
from tests.collector import collecting, fields
from tests.e2e.process import ROOT, serving
from tests.tiny import TEXTS

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STAGES = ["queue", "encode", "prefill", "decode"]


@pytest.fixture(scope="module")
def models(tiny_translation_bundle, tiny_generation_bundle):
    return {"en-de": str(tiny_translation_bundle), "en": str(tiny_generation_bundle)}


@pytest.fixture(scope="module")
def collector():
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(models, collector):
    with serving(models=models, otlp_endpoint=collector.endpoint, engines=1) as server:
        yield server


def parent(trace, flags):
    return {"metadata": {"traceparent": f"00-{trace}-{SPAN}-{flags}", "tracestate": "vendor=opaque"}}


def check_stages(collector, span, stages):
    """The children of a server span follow each other without a gap, within it."""
    children = collector.children(span)
    assert [child.name for child in children] == stages
    assert {child.trace_id for child in children} == {span.trace_id}
    times = [child.start_time_unix_nano for child in children] + [children[-1].end_time_unix_nano]
    assert times[1:] == [child.end_time_unix_nano for child in children]
    assert span.start_time_unix_nano <= times[0] <= times[-1] <= span.end_time_unix_nano
    return children


def test_a_translation_has_a_server_span_with_its_stages(server, collector):
    before_ns = time.time_ns()
    with Client(server.address) as client:
        answer = client.translate(TEXTS[0], max_tokens=9)
    (span,) = collector.wait_for(1, "glossa.v1.TranslationService/Translate")
    assert (span.kind, span.parent_span_id, span.status.code) == (2, b"", 0)
    found = fields(span.attributes)
    line = next(line for line in server.events if line.get("request_id") == found.pop("glossa.request_id"))
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
    assert before_ns <= span.start_time_unix_nano <= span.end_time_unix_nano <= time.time_ns()
    queue, encode, _, decode = check_stages(collector, span, STAGES)
    assert min(encode.end_time_unix_nano - encode.start_time_unix_nano for _ in (0,)) > 0
    assert decode.end_time_unix_nano > decode.start_time_unix_nano
    assert fields(decode.attributes)["gen_ai.usage.output_tokens"] == answer.generated_tokens
    assert 0 < fields(decode.attributes)["glossa.ttft_s"] < line["total_s"]
    assert abs((queue.end_time_unix_nano - queue.start_time_unix_nano) / 1e9 - line["queue_s"]) < 2e-6
    resource = collector.resources[0]
    assert (resource["service.name"], resource["telemetry.sdk.name"]) == ("glossa", "opentelemetry")
