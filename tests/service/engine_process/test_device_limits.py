"""Limits of an engine that follow what a device has free."""

from dataclasses import replace

import pytest

from export.bundle.directory import load_bundle
from service.engine_process.device_limits import limits_on_device
from service.errors import StartupError
from service.machine.execution_choice import ExecutionChoice
from service.memory.cache_layout import tiers_for
from service.memory.device_memory import LIBRARIES_BYTES
from service.runtime.cuda_memory import CudaRuntime, CudaStream
from service.runtime.model_sessions import ModelSessions
from tests.engines import engine_limits
from tests.fakes import FakeCuda
from tests.tiny import tiny_config, tiny_model

CONFIG = engine_limits(max_rows=64, kv_cache_bytes=1 << 24, prefix_cache_bytes=1 << 23, parking_bytes=1 << 23)
CHOICE = ExecutionChoice("CUDAExecutionProvider", "auto", False, "", "fp16")


@pytest.fixture(scope="module")
def manifest(exported):
    """Of a decoder with float16 graphs."""
    return load_bundle(exported(tiny_model(tiny_config("decoder", num_decoder_layers=1)), precisions=("fp32", "fp16")))


@pytest.fixture
def limits(manifest):
    """What an engine gets on a device with so many free bytes."""

    def on(free, most=0, config=CONFIG):
        stream = CudaStream(CudaRuntime(FakeCuda(free=free)))
        model = ModelSessions(manifest, CHOICE, {"decode": None, "logprobs": None}, stream=stream)
        return limits_on_device(model, stream, config, most)

    return on


def test_a_large_device_gives_what_is_asked_for(limits, caplog):
    assert limits(8 << 30) is CONFIG
    assert not caplog.records


def test_a_small_device_gives_less_and_says_how_much(limits, caplog, manifest):
    config = replace(CONFIG, kv_cache_bytes=1 << 30, prefix_cache_bytes=1 << 27, parking_bytes=1 << 27)
    free = int((LIBRARIES_BYTES + (1 << 26)) / 0.9)
    found = limits(free, config=config)
    assert 0 < found.prefix_cache_bytes < config.prefix_cache_bytes
    assert 0 < found.parking_bytes < config.parking_bytes
    assert found.kv_cache_bytes <= config.kv_cache_bytes
    assert replace(found, **{name: getattr(config, name) for name in CACHES}) == config, "nothing else"
    (record,) = caplog.records
    text = record.getMessage()
    assert f"KV cache {found.kv_cache_bytes / 1e6:,.0f} MB of 1,074 MB" in text
    assert f"prefix cache {found.prefix_cache_bytes / 1e6:,.0f} MB of 134 MB" in text
    assert text.endswith(f"; the device has {free / 1e6:,.0f} MB free of 8,590 MB beside the weights, 0 MB")


CACHES = ("kv_cache_bytes", "prefix_cache_bytes", "parking_bytes")


def test_the_limit_of_a_model_holds_however_much_is_free(limits):
    most = LIBRARIES_BYTES + (1 << 26)
    limited, free = limits(8 << 30, most, replace(CONFIG, parking_bytes=1 << 30)), limits(8 << 30, 0, CONFIG)
    assert 0 < limited.parking_bytes < most
    assert free == CONFIG


def test_admission_lets_in_the_largest_request_or_the_device_is_refused(limits, manifest):
    largest = tiers_for(manifest.limits)[-1]
    for free in range(1 << 27, 1 << 29, 1 << 22):
        try:
            found = limits(free)
        except StartupError:
            least = free
        else:
            model = ModelSessions(manifest, CHOICE, {}, stream=CudaStream(CudaRuntime(FakeCuda())))
            assert found.kv_cache_bytes >= model.layout.bytes_for(1, *largest, max_rows=64)
    assert 1 << 28 < least < 1 << 29


def test_a_device_that_does_not_answer_is_refused(manifest):
    stream = CudaStream(CudaRuntime(FakeCuda(lost=214)))
    model = ModelSessions(manifest, CHOICE, {}, stream=stream)
    with pytest.raises(StartupError, match=r"cudaMemGetInfo: CUDA error 214"):
        limits_on_device(model, stream, CONFIG, 0)
