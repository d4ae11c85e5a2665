"""A CUDA device fails for good while a server on it is under load: every request ends, and the model goes on."""

import asyncio

import grpc
import pytest

from glossa.client import Client
from tests.cuda import fake
from tests.cuda.shapes import WIDE
from tests.e2e.load import LONG, load
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model

REQUESTS, CONCURRENCY, MAX_ROWS = 72, 24, 8
DEADLINE_S = 600  # emulated kernels are slow: on a loaded machine, a shorter deadline is refused at the door
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


@pytest.fixture(scope="module")
def bundle(exported):
    """Of a model that translates, with fp32 and fp16 graphs."""
    return str(exported(tiny_model(tiny_config("encoder_decoder", **WIDE)), precisions=("fp32", "fp16")))


@pytest.fixture
def broken(fake_cuda, monkeypatch, tmp_path):
    """The folder whose file n breaks device n. Servers are started on the fake."""
    for name, value in fake.environment(fake_cuda, {"BROKEN": tmp_path, "DEVICES": 2}).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def break_device(broken, number=0):
    (broken / str(number)).touch()


async def load_and(server, act):
    """Answers and errors of REQUESTS calls, in whose midst `act` is called."""
    return await load(server, act, REQUESTS, CONCURRENCY, deadline_s=DEADLINE_S)


def right_answers(server):
    with Client(server.address) as client:
        return {client.translate(text, **LONG).text for text in TEXTS[:2]}


def provider(server):
    with Client(server.address) as client:
        return client.get_model("model").execution_provider


def check_ends(server, answered, failed, right):
    """Each request had one end: an answer that is right, or an error after which it may be sent again."""
    assert answered.total() + len(failed) == REQUESTS
    assert set(answered) == right
    assert failed, "nothing was lost: the load was over before"
    for error, details in failed:
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert details["ErrorInfo"].reason == "ENGINE_UNAVAILABLE"
        assert details["RetryInfo"].retry_delay.ToTimedelta().total_seconds() > 0
    server.settle()


def check_end_of_process(server):
    ended = server.wait_for("engine_process_ended")
    assert (ended["reason"], ended["how"]) == ("device_lost", "exit status 3")
    assert any("fails for good with CUDA error 700" in line["event"] for line in server.events)
    assert server.metric("glossa_engine_process_restarts_total", reason="device_lost") == 1
    assert server.metric("glossa_engine_process_restarts_total") == 1


def test_a_process_is_started_again_on_a_device_that_works_again(broken, bundle):
    with serving(models={"model": bundle}, device="cuda", max_rows=MAX_ROWS) as server:
        right = right_answers(server)
        answered, failed = asyncio.run(load_and(server, lambda: break_device(broken)))
        server.wait_for("engine_process_ended")
        (broken / "0").unlink()
        check_ends(server, answered, failed, right)
        server.wait_for("engine_process_started")
        check_end_of_process(server)
        assert right_answers(server) == right
        assert (provider(server).provider, provider(server).fallback) == (CUDA, False)


def test_a_process_is_started_again_on_the_cpu_if_the_device_still_fails(broken, bundle):
    with serving(models={"model": bundle}, device="auto", max_rows=MAX_ROWS, engines=2) as server:
        right = right_answers(server)
        assert provider(server).provider == CUDA
        answered, failed = asyncio.run(load_and(server, lambda: break_device(broken)))
        check_ends(server, answered, failed, right)
        fallback = server.wait_for("provider_fallback")
        check_end_of_process(server)
        found = provider(server)
        assert (found.provider, found.fallback, found.requested) == (CPU, True, "auto")
        assert "the first answers on CUDA failed" in found.reason
        assert "700" in found.reason
        assert fallback["reason"] == found.reason
        assert server.metric("glossa_execution_provider_info", provider=CPU) == 1
        assert server.metric("glossa_execution_provider_info") == 1
        assert right_answers(server) == right


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_one_of_two_devices_fails_and_the_other_one_goes_on(broken, bundle, device):
    models, devices = {"model": bundle}, {"device": device, "cuda_devices": "0,1"}
    with serving(models=models, max_rows=MAX_ROWS, engines=2, **devices) as server:
        right = right_answers(server)
        before = server.engine_pids()
        assert len(before) == 2
        answered, failed = asyncio.run(load_and(server, lambda: break_device(broken, 1)))
        check_ends(server, answered, failed, right)
        ended = server.wait_for("engine_process_ended")
        assert (ended["process"], ended["reason"]) == ("model-1", "device_lost")
        assert len(failed) == ended["lost_requests"], "the other process takes all that come later"
        if device == "auto":
            assert server.wait_for("provider_fallback")["process"] == "model-1"
            assert "the first answers on CUDA failed" in provider(server).reason
        else:
            problem = server.wait_for("engine_process_not_started")["problem"]
            assert problem.startswith("device cuda is required, but the first answers on CUDA failed")
        assert provider(server).fallback == (device == "auto")
        assert len(set(before) & set(server.engine_pids())) == 1
        answered, failed = asyncio.run(load_and(server, lambda: None))
        assert (set(answered), failed) == (right, [])
