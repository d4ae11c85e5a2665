"""`make gpu-check` runs to its end on the fake CUDA, and marks what means nothing there."""

import json

import pytest

from bench.gpu.gpu_check import PARTS, SMOKE_MODELS

EMULATED = ("translation", "rotary, heads of 32", "rotary, heads of 64")
DROPPED = """
import ctypes, gc
from pathlib import Path
from bench.gpu.decoding import decode, open_model, questions, runner_for
model = open_model(Path({bundle!r}), "cuda")
runner = runner_for(model, 1)
decode(runner, questions(model.manifest, 1, tokens=2))
del model, runner
gc.collect()
print(ctypes.CDLL("libcudart.so.13").cudaPeekAtLastError())
"""


@pytest.fixture
def models(build_cache):
    """The folder of the bundles, which are made without CUDA, and in this process, which traces each graph once."""
    from bench.gpu.models import make  # torch: not for the processes on the fake

    def make_gpu_models(folder):
        for name in SMOKE_MODELS:
            make(folder, name)
        return folder

    return build_cache.once(make_gpu_models, SMOKE_MODELS)


@pytest.fixture
def report(models, run_fake):
    arguments = ("-m", "bench", "gpu-check", "--smoke", "--json", "--models", str(models))
    return json.loads(run_fake(*arguments, timeout_s=300.0))  # every part imports much on its own


@pytest.mark.slow
def test_every_part_runs_to_its_end(report):
    assert report["is_fake"]
    assert report["failed"] == []
    assert list(report["parts"]) == list(PARTS)
    assert {name: part["error"] for name, part in report["parts"].items()} == dict.fromkeys(PARTS, "")
    judged = [
        verdict["measure"] for part in report["parts"].values() for verdict in part["verdicts"] if verdict["judged"]
    ]
    for name in EMULATED:
        assert f"{name}: golden answers that are wrong" in judged
        assert f"{name}: largest error of a log-probability" in judged
    times = report["parts"]["goodput"]
    assert "tokens/s of 2 clients, CUDA over the CPU" in times["timed"]
    assert not any(verdict["judged"] for verdict in times["verdicts"])


def test_a_dropped_model_uses_no_stream_that_is_destroyed(models, run_fake):
    program = DROPPED.format(bundle=str(models / "translation.bundle"))
    assert run_fake("-c", program).strip() == "0"
