"""Engine processes that are killed, stopped and crash, under load, with real bundles and clients over the network."""

import argparse
import asyncio
import hashlib
import os
import shutil
import signal
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from bench.answers.process_answers import ERROR, answers, answers_of_this_process, requests_of
from export.verification.torch_reference import TorchReference
from glossa.client import Client, ClientError
from service.edge.admission.retry_times import MOST_S
from service.edge.observability.metrics import Metrics
from service.edge.versions.open_model import ModelOpener
from service.settings.engine_settings import EngineSettings
from service.wire.channel import INLINE_BYTES
from tests.e2e.load import LONG, WITHIN_S, load, until
from tests.e2e.process import Process, serving
from tests.edge import health, method, settings
from tests.sealed_manifest import read_manifest, write_manifest
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
TWO = {"engines": 2, "engines_per_process": 1}


def probe(server, path):
    """Status and body of a page of the ops port."""
    try:
        with urllib.request.urlopen(f"http://{server.wait_for('serving')['http']}{path}", timeout=WITHIN_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("number", "reason", "how"),
    [
        pytest.param(signal.SIGKILL, "killed", "killed by SIGKILL", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "hung", "killed by SIGKILL", marks=pytest.mark.slow),
        (signal.SIGSEGV, "killed", "killed by SIGSEGV: Fatal Python error: Segmentation fault"),
    ],
    ids=["killed", "stopped", "crashed"],
)
def test_an_end_under_load_costs_only_the_requests_of_its_process(tiny_translation_bundle, number, reason, how):
    count = 200
    with serving(models={"en-de": str(tiny_translation_bundle)}, **TWO) as server:
        with Client(server.address) as client:
            right = {client.translate(text, **LONG).text for text in TEXTS[:2]}
        before = server.metric("glossa_requests_finished_total")
        victim, survivor = server.engine_pids()
        answered, failed = asyncio.run(load(server, lambda: os.kill(victim, number), count))

        ended = server.wait_for("engine_process_ended")
        assert (ended["reason"], ended["how"]) == (reason, how), [
            line for line in server.events if line["level"] != "info"
        ]
        assert (answered.total() + len(failed), len(failed)) == (count, ended["lost_requests"])
        assert set(answered) == right
        assert failed, "nothing was lost: the load was over before"
        for error, details in failed:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert details["ErrorInfo"].reason == "ENGINE_UNAVAILABLE"
            assert 0 < details["RetryInfo"].retry_delay.ToTimedelta().total_seconds() <= MOST_S

        server.wait_for("engine_process_started")
        server.settle()
        finished = "glossa_requests_finished_total"
        assert server.metric(finished, reason="engine_unavailable") == len(failed)
        assert server.metric(finished) - before == count, "one end for each request"
        assert server.metric("glossa_engine_process_restarts_total", reason=reason) == 1
        assert server.metric("glossa_engine_process_restarts_total") == 1
        assert server.metric("glossa_engine_process_up") == 2
        assert survivor in server.engine_pids()
        assert victim not in server.engine_pids()
        answered, failed = asyncio.run(load(server, lambda: None, 128))
        assert (set(answered), failed) == (right, [])
        lines = [line["line"] for line in server.events if line["event"] == "engine_process_stderr"]
        assert ("Fatal Python error: Segmentation fault" in lines) == (number == signal.SIGSEGV)


def test_a_model_tells_its_engines_and_a_killed_server_leaves_no_process(tiny_translation_bundle):
    models = {"en-de": str(tiny_translation_bundle)}
    with serving(models=models, engines=4, engines_per_process=2) as server:
        with Client(server.address) as client:
            model = client.get_model("en-de")
        assert (model.engines, model.engine_processes) == (4, 2)
        assert len(server.engine_pids()) == 2
        assert server.metric("glossa_engine_process_up") == 2
        assert server.metric("glossa_engine_process_resident_memory_bytes") > 2e6
        server.process.kill()
        assert server.wait() == -signal.SIGKILL
        until(lambda: not server.engine_pids())


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_to_all_processes_drains(tiny_translation_bundle, number):
    models = {"en-de": str(tiny_translation_bundle)}
    with serving(models=models, **TWO) as server, Client(server.address) as client:
        expected = [client.translate(text, **LONG).text for text in TEXTS]
        streams = [client.stream_translate(text, **LONG) for text in TEXTS]
        begun = [next(stream).text for stream in streams]
        for pid in server.engine_pids():
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        os.kill(server.process.pid, number)
        texts = [first + "".join(piece.text for piece in stream) for first, stream in zip(begun, streams, strict=True)]
        assert texts == expected
        assert server.wait() == 0
        assert [line for line in server.events if line["event"] == "engine_process_ended"] == []
        assert server.engine_pids() == []


def damage(bundle, path, change):
    """A copy of a bundle whose manifest agrees with what `change` did to the copy and to its manifest."""
    shutil.copytree(bundle, path)
    manifest = read_manifest(path)
    change(path, manifest)
    write_manifest(path, manifest)
    return str(path)


def empty_graph(path, manifest):
    graph = path / "fp32" / "decode.onnx"
    graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])
    manifest["files"]["fp32/decode.onnx"] = {
        "sha256": hashlib.sha256(graph.read_bytes()).hexdigest(),
        "bytes": graph.stat().st_size,
    }


def other_golden_output(path, manifest):
    manifest["golden"]["output"][0] = manifest["golden"]["output"][0] % 7 + 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (empty_graph, "model en: "),
        (other_golden_output, "model en: self-check failed: "),
    ],
)
def test_a_bundle_that_cannot_be_served_ends_the_start_with_one_line(tiny_generation_bundle, tmp_path, change, problem):
    server = Process(models={"en": damage(tiny_generation_bundle, tmp_path / "bundle", change)}, **TWO)
    assert server.wait() == 1
    assert server.other == []  # no line but those of the log
    failed = server.wait_for("start_failed")
    assert failed["cause"].startswith(problem)
    assert failed["fix"]
    assert server.engine_pids() == []


def test_probes_and_requests_while_the_only_process_of_a_model_is_started_again(
    tiny_translation_bundle, tiny_generation_bundle
):
    models = {"en-de": str(tiny_translation_bundle), "en": str(tiny_generation_bundle)}
    with serving(models=models, engines=1) as server, grpc.insecure_channel(server.address) as channel:

        def status(service):
            return health(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=WITHIN_S).status

        killed, kept = before = server.engine_pids()
        os.kill(killed, signal.SIGKILL)
        (new,) = until(lambda: set(server.engine_pids()) - set(before))
        os.kill(new, signal.SIGSTOP)  # it cannot become ready
        name = server.wait_for("engine_process_ended")["process"].removesuffix("-0")
        mine, others = "glossa.v1.TranslationService", "glossa.v1.GenerationService"
        if name == "en":
            mine, others = others, mine
        until(lambda: status(mine) == NOT_SERVING)
        assert (status(others), status("")) == (SERVING, NOT_SERVING)
        assert probe(server, "/healthz")[0] == 200
        code, body = probe(server, "/readyz")
        assert (code, f"model {name}: no engine runs" in body) == (503, True)
        with Client(server.address, retries=False) as client:
            ask, other = (client.translate, client.generate) if name == "en-de" else (client.generate, client.translate)
            assert other(TEXTS[0]).text
            with pytest.raises(ClientError, match="no engine of model") as caught:
                ask(TEXTS[0])
            assert caught.value.code == "UNAVAILABLE"
            assert server.metric("glossa_requests_rejected_total", reason="engine_unavailable") == 1
            os.kill(new, signal.SIGCONT)
            server.wait_for("engine_process_started")
            assert ask(TEXTS[0]).text
        assert probe(server, "/readyz")[0] == 200
        until(lambda: status(mine) == status("") == SERVING)
        assert server.engine_pids() == sorted([new, kept])


@pytest.mark.slow
def test_a_bundle_that_changed_is_not_served_by_a_restart(tiny_generation_bundle, tmp_path):
    path = tmp_path / "bundle"
    shutil.copytree(tiny_generation_bundle, path)
    served = (path / "manifest.json").read_bytes()
    with serving(models={"en": str(path)}, engines=1) as server, Client(server.address) as client:
        right = client.generate(TEXTS[0]).text
        write_manifest(path, served + b"\n")
        (pid,) = server.engine_pids()
        os.kill(pid, signal.SIGKILL)
        problem = server.wait_for("engine_process_not_started")["problem"]
        assert problem == f"{path} has another manifest than when the server started; fix: restart the server"
        write_manifest(path, served)
        server.wait_for("engine_process_started")
        assert client.generate(TEXTS[0]).text == right


@pytest.fixture(scope="module")
def server(tiny_attention_bundle, tiny_generation_bundle):
    with serving(models={"en-de": str(tiny_attention_bundle), "en": str(tiny_generation_bundle)}, **TWO) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def test_streams_that_nobody_reads_delay_no_other_request(server, client):
    expected = [client.generate(text, **LONG).text for text in TEXTS]
    translations = [client.translate(text, **LONG).text for text in TEXTS]
    with grpc.insecure_channel(server.address) as channel:
        stream = method(channel, "StreamGenerate")
        streams = [stream(text=text, options=LONG, timeout=WITHIN_S) for text in TEXTS * 8]
        assert [answer.text for answer in client.translate_batch(TEXTS * 16, **LONG)] == translations * 16
        assert ["".join(piece.text for piece in pieces) for pieces in streams] == expected * 8


def test_attention_weights_above_the_size_of_a_packet_are_those_of_pytorch(client):
    text = " ".join(TEXTS * 2)
    reported = client.attend(text, model="en-de", text_only=True)
    source = (*tiny_tokenizer().encode(text), 2)
    expected = TorchReference(tiny_model(tiny_config())).every_attention(source, (1,))["encoder_attention"]
    found = np.array([matrix.rows for matrix in reported.matrices]).reshape(expected.shape)
    assert expected.astype(np.float32).nbytes > INLINE_BYTES
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_grammar_that_is_none_is_rejected_by_the_engine_process(server, client):
    rejected, finished = (f"glossa_requests_{name}_total" for name in ("rejected", "finished"))
    before = server.metric(rejected, reason="invalid_field"), server.metric(finished)
    for schema in ('{"type": "strin"}', '{"$ref": "#/nowhere"}', "{"):
        with pytest.raises(ClientError, match="json_schema") as caught:
            client.generate(TEXTS[0], json_schema=schema)
        assert caught.value.code == "INVALID_ARGUMENT"
        assert list(caught.value.field_violations) == ["options.json_schema"]
    server.settle()
    assert (server.metric(rejected, reason="invalid_field"), server.metric(finished)) == (before[0] + 3, before[1])
    assert client.generate(TEXTS[0]).text


@pytest.mark.slow
@pytest.mark.parametrize("engines_per_process", [1, 2])
async def test_300_mixed_requests_get_the_answers_of_engines_in_one_process(
    tiny_attention_bundle, tmp_path, engines_per_process
):
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{text}\t{TEXTS[-1 - place]}\n" for place, text in enumerate(TEXTS)))
    asked = settings(
        models={"m": tiny_attention_bundle},
        engines=2,
        engines_per_process=engines_per_process,
        device="cpu",
        max_queue=1000,
    )
    served = await ModelOpener(asked, Metrics()).open("m", tiny_attention_bundle)
    try:
        assert served.processes == 2 // engines_per_process
        requests = requests_of(served, argparse.Namespace(requests=300, data=data, max_tokens=30))
        found = await answers(served.pool, requests)
    finally:
        await served.pool.aclose()
    same = EngineSettings(engines=1, device="cpu")
    expected = await answers_of_this_process(tiny_attention_bundle, same, requests)
    kinds = [request.request_id.rpartition(" ")[0] for request in requests]
    assert [kind for kind, mine, theirs in zip(kinds, expected, found, strict=True) if mine != theirs] == []
    answered = {kind for kind, answer in zip(kinds, found, strict=True) if answer[0] != ERROR}
    assert answered >= {"greedy", "beam 4", "sampling", "penalties", "phrases", "prefix", "score", "attention"}
