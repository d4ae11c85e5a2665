import os
from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest

from export.bundle.manifest import FileDigest, GraphSpec, Variant
from service.edge.models.process_plan import (
    MAX_SMALL_BYTES,
    OPENING_BYTES,
    ProcessMemory,
    ProcessPlan,
    engine_settings,
    may_use_gpu,
    opening_bytes,
    plan_processes,
    weight_bytes,
)
from service.machine.execution_choice import LAZY_ROLES
from service.machine.processors import Processors
from service.memory.engine_limits import EngineLimits
from service.settings.engine_settings import EngineSettings
from tests.edge import manifest, settings

FOUND = Processors(allowed=16, cores=8, quota=6.5)  # 6 usable


def model(**sizes):
    """A model with graphs of these sizes, by precision_role."""
    variants: dict[str, dict[str, GraphSpec]] = {}
    files: dict[str, FileDigest] = {}
    for name, size in sizes.items():
        precision, _, graph = name.partition("_")
        role: Any = graph
        file = f"{precision}/{role}.onnx"
        variants.setdefault(precision, {})[role] = GraphSpec(role=role, file=file, inputs=(), outputs=())
        files[file], files[f"{file}.data"] = FileDigest(sha256="", bytes=1), FileDigest(sha256="", bytes=size - 1)
    files["tokenizer.json"] = files["int8/encode.onnx_other"] = FileDigest(sha256="", bytes=1 << 40)
    return manifest(
        variants=tuple(Variant(precision=name, graphs=graphs, states=()) for name, graphs in variants.items()),
        files=files,
    )


SMALL = model(int8_encode=MAX_SMALL_BYTES // 2, int8_decode=MAX_SMALL_BYTES // 2)
LARGE = model(int8_encode=MAX_SMALL_BYTES // 2, int8_decode=MAX_SMALL_BYTES // 2 + 1)


@pytest.fixture
def wheels(monkeypatch):
    """The distributions that are installed, by name."""
    wheels: set[str] = set()

    def distribution(name):
        if name not in wheels:
            raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    return wheels


@pytest.mark.parametrize(
    ("of", "changes", "plan"),
    [
        (SMALL, {}, (6, 1)),
        (LARGE, {}, (1, 6)),
        (SMALL, {"engines": 3}, (3, 1)),
        (LARGE, {"engines": 3}, (1, 3)),
        (SMALL, {"engines": 1}, (1, 1)),
        (LARGE, {"engines": 1}, (1, 1)),
        (SMALL, {"engines": 4, "engines_per_process": 2}, (2, 2)),
        (LARGE, {"engines": 4, "engines_per_process": 1}, (4, 1)),
        (LARGE, {"engines_per_process": 3}, (2, 3)),
        (SMALL, {"engines_per_process": 4}, (2, 4)),  # rather more engines than fewer
        (SMALL, {"engines_per_process": 100}, (1, 6)),
        (SMALL, {"engines": 200}, (200, 1)),
    ],
)
def test_small_models_get_a_process_for_each_engine_and_large_ones_one(wheels, of, changes, plan):
    assert plan_processes(settings(**changes), of, FOUND) == plan


def test_a_plan_has_at_most_twice_the_engines_that_were_asked_for(wheels):
    for each in range(1, 25):
        asked = settings(engines_per_process=each)
        for usable in range(1, 20):
            plan = plan_processes(asked, SMALL, Processors(allowed=usable, cores=usable, quota=None))
            assert usable <= plan.engines < 2 * usable + (usable == 1)
            assert plan.engines == plan.processes * plan.engines_per_process


@pytest.mark.parametrize(
    ("changes", "installed", "may"),
    [
        ({}, {"onnxruntime"}, False),
        ({}, {"onnxruntime-gpu"}, True),
        ({"device": "cuda"}, {"onnxruntime"}, True),  # a runtime that was built by hand
        ({"device": "cuda"}, {"onnxruntime-gpu"}, True),
        ({"device": "cpu"}, {"onnxruntime-gpu"}, False),
        ({"precision": "int8"}, {"onnxruntime-gpu"}, False),  # one of the CPU's implies the CPU
        ({"precision": "w4a16"}, {"onnxruntime-gpu"}, True),
    ],
)
def test_a_model_that_may_be_on_a_gpu_has_one_process(wheels, changes, installed, may):
    wheels |= installed
    assert may_use_gpu(settings(**changes)) == may
    plan = plan_processes(settings(engines=4, engines_per_process=2, **changes), SMALL, FOUND)
    assert plan == ((1, 4) if may else (2, 2))


def test_weights_are_those_of_the_precision_that_serves():
    both = model(fp32_encode=400, fp32_decode=500, int8_encode=100, int8_decode=120, fp16_decode=7)
    assert weight_bytes(both, "auto") == weight_bytes(both, "int8") == 220
    assert weight_bytes(both, "fp32") == 900
    assert weight_bytes(both, "int4") == 0
    assert weight_bytes(both, "fp16") == 220, "where CUDA does not work"
    assert weight_bytes(model(fp16_decode=7), "auto") == 0
    assert weight_bytes(model(int4_decode=60, fp32_decode=500), "auto") == 60


def test_weights_of_a_graph_that_is_opened_on_demand_do_not_count():
    assert weight_bytes(model(int8_encode=100, int8_decode=120, int8_align=30, int8_attend=220), "auto") == 250
    assert LAZY_ROLES == ("attend",)


def test_a_process_gets_the_settings_of_the_server():
    changes: dict[str, Any] = {"device": "cpu", "precision": "int8", "single_engine_threads": 3}
    changes["cuda_memory_bytes"] = 1 << 31
    limits: dict[str, Any] = {
        **{"max_rows": 5, "kv_cache_bytes": 1 << 20, "max_prefill_tokens": 77, "prefix_cache_bytes": 1 << 19},
        **{"parking_bytes": 1 << 18, "draft_tokens": 4, "stream_messages_per_s": 70},
    }
    asked = settings(**changes, **limits)
    own: Any = {"engines": 2, "model_engines": 6, "niceness": 10, "processors": (), "memory_bytes": 1 << 30}
    expected = EngineSettings(**own, **changes, limits=EngineLimits(**limits))
    assert engine_settings(asked, ProcessPlan(3, 2), 1, ProcessMemory(serving=1 << 30)) == expected


@pytest.mark.parametrize(
    ("allowed", "plan", "pinned"),
    [
        ({4, 5, 7, 9}, ProcessPlan(4, 1), [(4,), (5,), (7,), (9,)]),
        ({4, 5, 7, 9}, ProcessPlan(2, 2), [(4, 5), (7, 9)]),
        ({4, 5, 7, 9}, ProcessPlan(1, 3), [(4, 5, 7)]),
        ({4, 5, 7}, ProcessPlan(2, 2), [(4, 5), (4, 7)]),  # more engines than processors: they share
        ({3}, ProcessPlan(3, 2), [(3,), (3,), (3,)]),
        ({0, 1}, ProcessPlan(1, 5), [(0, 1)]),
    ],
)
def test_pinned_processes_take_the_allowed_processors_in_turn(monkeypatch, allowed, plan, pinned):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed)
    asked, unasked = settings(pin_processes=True), settings()
    assert [engine_settings(asked, plan, place).processors for place in range(plan.processes)] == pinned
    assert {engine_settings(unasked, plan, place).processors for place in range(plan.processes)} == {()}


def test_the_memory_for_opening_follows_the_files_and_yields_to_a_setting(wheels):
    few = model(int8_decode=1000)
    few = replace(few, files={"int8/decode.onnx": FileDigest(sha256="", bytes=1000)})
    assert opening_bytes(settings(), few) == OPENING_BYTES + 8000
    assert opening_bytes(settings(process_memory_bytes=1 << 30), few) == 0
    wheels.add("onnxruntime-gpu")
    assert opening_bytes(settings(), few) == 0
    assert opening_bytes(settings(device="cpu"), few) == OPENING_BYTES + 8000
    assert engine_settings(settings(), ProcessPlan(1, 1), 0, ProcessMemory(opening=7)).opening_bytes == 7


@pytest.mark.parametrize(
    ("devices", "engines", "plan"),
    [
        ("0", 6, ProcessPlan(1, 6)),
        ("0,1", 6, ProcessPlan(2, 3)),
        ("1,3", 3, ProcessPlan(2, 2)),
        ("0,1", 1, ProcessPlan(2, 1)),
    ],
)
def test_each_device_has_a_process(wheels, devices, engines, plan):
    wheels.add("onnxruntime-gpu")
    assert plan_processes(settings(cuda_devices=devices, engines=engines), LARGE, FOUND) == plan
    assert plan_processes(settings(cuda_devices=devices, device="cpu"), LARGE, FOUND).processes == 1


@pytest.mark.parametrize(
    ("visible", "named"),
    [(None, ["1", "3"]), ("", ["-1", "-1"]), ("7,5,6,GPU-ab", ["5", "GPU-ab"]), ("7,5", ["5", "-1"])],
)
def test_a_process_sees_its_device_alone(wheels, monkeypatch, visible, named):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    chosen, plan = settings(cuda_devices="1,3"), ProcessPlan(2, 1)
    assert [engine_settings(chosen, plan, place).cuda_device for place in range(2)] == ["", ""]
    wheels.add("onnxruntime-gpu")
    assert [engine_settings(chosen, plan, place).cuda_device for place in range(2)] == named
