"""The whole service: a process of its own, real bundles, real engines, clients over the network."""

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from bench.load.process_tree import process_tree
from glossa.client import AsyncClient, Client, ClientError
from model.reference.greedy import greedy
from tests.e2e.process import Process, serving
from tests.edge import health
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

WORDS = sorted({word for text in TEXTS for word in text.split()})
MIXED = [" ".join(WORDS[(start + step) % len(WORDS)] for step in range(1 + start % 20)) for start in range(64)]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def models(tiny_translation_bundle, tiny_generation_bundle):
    return {"en-de": str(tiny_translation_bundle), "en": str(tiny_generation_bundle)}


@pytest.fixture(scope="module")
def server(models):
    with serving(models=models) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


@pytest.mark.parametrize("text", TEXTS)
def test_answers_are_those_of_the_reference(client, text):
    tokens = tiny_tokenizer().encode(text)
    translator, generator = (tiny_model(tiny_config(kind)) for kind in ("encoder_decoder", "decoder"))
    answer = client.translate(text, include_tokens=True, max_tokens=40)
    assert list(answer.tokens) == greedy(translator, [1], source=[*tokens, 2], max_tokens=40)
    assert answer.text == tiny_tokenizer().decode(answer.tokens)
    answer = client.generate(text, include_tokens=True, max_tokens=40)
    assert list(answer.tokens) == greedy(generator, [1, *tokens], max_tokens=40)


def test_streams_concatenate_to_the_unary_answer(client):
    for whole, stream in ((client.translate, client.stream_translate), (client.generate, client.stream_generate)):
        expected, pieces = whole(TEXTS[0]), list(stream(TEXTS[0], include_tokens=True))
        assert "".join(piece.text for piece in pieces) == pieces[-1].answer.text == expected.text
        assert sum(len(piece.tokens) for piece in pieces) == expected.generated_tokens


def test_stop_string_ends_the_answer_before_it(client):
    words = client.generate(TEXTS[0]).text.split()
    stop = next(word for word in words if word != words[0])
    answer = client.generate(TEXTS[0], stop=[stop])
    assert (answer.finish_reason, stop in answer.text) == ("stop_string", False)
    assert answer.text.split() == words[: words.index(stop)]


def test_64_clients_at_once_get_what_each_gets_alone(client):
    def key(answer):
        return answer.text, answer.tokens, answer.finish_reason

    alone = [key(client.translate(text, include_tokens=True)) for text in MIXED]
    together = [key(a) for a in client.translate_batch(MIXED, concurrency=64, include_tokens=True)]
    assert together == alone
    assert len(set(alone)) > 32


def test_cancelled_streams_free_their_rows(server):
    before = server.metric("glossa_requests_finished_total", model="en")

    async def leave_early():
        async with AsyncClient(server.address) as client:

            async def first_piece(text):
                async with contextlib.aclosing(client.stream_generate(text)) as stream:
                    await anext(stream)

            await asyncio.gather(*(first_piece(text) for text in MIXED[:40]))

    asyncio.run(leave_early())
    server.settle()
    assert server.metric("glossa_requests_finished_total", model="en", reason="cancelled") > 0
    assert server.metric("glossa_requests_finished_total", model="en") == before + 40


@pytest.mark.slow
def test_thousands_of_cancellations_leave_no_row_and_no_memory(server):
    rng = random.Random(1)

    async def ask(client):
        text, kind = rng.choice(MIXED), rng.randrange(3)
        if kind == 0:
            await client.translate(text)
        elif kind == 1:
            async with contextlib.aclosing(client.stream_generate(text)) as stream:
                await anext(stream)
        else:
            with contextlib.suppress(ClientError):
                await client.generate(text, timeout_s=rng.choice([0.002, 0.01, 0.05]))

    async def flood(count):
        gate = asyncio.Semaphore(32)
        async with AsyncClient(server.address) as client:

            async def ask_in_turn():
                async with gate:
                    await ask(client)

            await asyncio.gather(*(ask_in_turn() for _ in range(count)))

    memory = []
    for _ in range(3):
        asyncio.run(flood(1000))
        server.settle()
        memory.append(server.memory_bytes())
    assert memory[-1] - memory[0] < 4e6


def test_deadline_ends_the_work(server, client):
    with pytest.raises(ClientError) as caught:
        list(client.translate_batch(MIXED, concurrency=64, timeout_s=0.005))
    assert caught.value.code == "DEADLINE_EXCEEDED"
    server.settle()


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x12\x02\xff\xfe"])
def test_bytes_that_are_no_message_are_refused(server, data):
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/glossa.v1.TranslationService/Translate")(data, timeout=10)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_bad_requests_name_the_field(client):
    for options, field in (
        ({"text": " "}, "text"),
        ({"text": "the unicorn"}, "text"),
        ({"text": "the " * 65}, "text"),
        ({"text": "the", "max_tokens": 65}, "options.max_tokens"),
    ):
        with pytest.raises(ClientError) as caught:
            client.translate(**options)
        assert (caught.value.code, list(caught.value.field_violations)) == ("INVALID_ARGUMENT", [field])


def test_metrics_move(server, client):
    names = ["glossa_generated_tokens_total", "glossa_prompt_tokens_total", "glossa_decode_step_seconds_count"]
    names += ["glossa_time_to_first_token_seconds_count", "glossa_queue_seconds_count", "glossa_decode_step_rows_sum"]
    names += [
        "glossa_prefill_seconds_count",
        "glossa_inter_token_latency_seconds_count",
        "grpc_server_handling_seconds_count",
    ]
    before = {name: server.metric(name) for name in names}
    tokens = server.metric("glossa_generated_tokens_total", model="en-de")
    answer = client.translate(TEXTS[0])
    server.settle()
    assert [name for name in names if server.metric(name) <= before[name]] == []
    assert server.metric("glossa_generated_tokens_total", model="en-de") - tokens == answer.generated_tokens


def test_the_model_is_described_from_its_bundle(client):
    model = client.get_model("en-de")
    assert (model.architecture, model.limits.max_prompt_tokens, model.limits.max_tokens) == ("encoder_decoder", 64, 64)
    assert model.parity.passed
    assert len(model.parity.checks) > 3
    assert re.fullmatch("[0-9a-f]{64}", model.bundle_sha256)


def test_the_processes_are_small(server, client, models):
    client.translate(TEXTS[0])
    edge, *engines = process_tree(server.process.pid)
    assert len(engines) == sum(client.get_model(name).engine_processes for name in models)
    libraries = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in (edge, *engines)}
    assert not [pid for pid, mapped in libraries.items() if "libtorch" in mapped]
    assert [pid for pid, mapped in libraries.items() if "onnxruntime" in mapped] == engines, "the edge computes nothing"
    bundles = sum(file.stat().st_size for path in models.values() for file in Path(path).rglob("*") if file.is_file())
    assert server.memory_bytes() <= (1 + len(engines)) * (100e6 + 1.5 * bundles)


def test_a_second_server_on_the_port_does_not_start(server, models):
    port = int(server.address.rpartition(":")[2])
    second = Process(models=models, port=port)
    assert second.wait() == 1
    assert f"port {port} on 127.0.0.1 is in use" in second.wait_for("start_failed")["cause"]


def test_a_damaged_bundle_does_not_start(models, tmp_path):
    path = tmp_path / "damaged"
    shutil.copytree(models["en"], path)
    with (path / "fp32" / "decode.onnx").open("r+b") as graph:
        graph.seek(-1, os.SEEK_END)
        last = graph.read(1)
        graph.seek(-1, os.SEEK_END)
        graph.write(bytes([last[0] ^ 1]))
    server = Process(models={"en": str(path)})
    assert server.wait() == 1
    assert re.search(r"model en: .*decode\.onnx.*SHA-256", server.wait_for("start_failed")["cause"])


def test_sigterm_lets_streams_finish(models):
    with serving(models=models, drain_delay_s=0.2) as server, Client(server.address) as client:
        expected = [client.generate(text).text for text in MIXED[:8]]
        with grpc.insecure_channel(server.address) as channel:
            watch = health(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
            assert next(watch).status == SERVING
            streams = [client.stream_generate(text) for text in MIXED[:8]]
            texts = [next(stream).text for stream in streams]
            server.process.send_signal(signal.SIGTERM)
            assert next(watch).status == NOT_SERVING
            watch.cancel()
            texts = [first + "".join(p.text for p in stream) for first, stream in zip(texts, streams, strict=True)]
        assert texts == expected
        assert server.wait() == 0
        assert server.wait_for("stopped")


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(models):
    with serving(models={"en": models["en"]}, drain_delay_s=60) as server:
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - began < 30


@pytest.mark.slow
def test_an_interrupt_ends_an_idle_server_at_once(models):
    with serving(models={"en": models["en"]}, drain_delay_s=60) as server:
        server.wait_for("serving")
        server.process.send_signal(signal.SIGINT)
        assert server.wait_for("draining")["drain_delay_s"] == 0.0
        assert server.wait() == 0
