"""A bundle is served on a CUDA device that can hold it, and else on the CPU or not at all; one that fails is left."""

import json
import re

import pytest

from tests.cuda import fake
from tests.cuda.shapes import WIDE
from tests.tiny import tiny_config, tiny_model

SMALL = {"max_rows": 4, "kv_cache_bytes": 1 << 20, "parking_bytes": 1 << 20, "prefix_cache_bytes": 1 << 20}


@pytest.fixture(scope="module")
def opening(fake_cuda, exported):
    """What `tests.cuda.opening` prints for a bundle with fp32 and fp16 graphs, on a device as FAKE_CUDA_… say."""
    bundle = exported(tiny_model(tiny_config("encoder_decoder", **WIDE)), precisions=("fp32", "fp16"))

    def run(device, *arguments, changes=SMALL, **cuda):
        settings = json.dumps({"device": device, **changes})
        return json.loads(
            fake.run_python(fake_cuda, "-m", "tests.cuda.opening", str(bundle), settings, *arguments, **cuda)
        )

    return run


OBSTACLES = {
    "no device": ({"DEVICES": 0}, r"CUDA finds no device \(CUDA error 100\); fix: name one of those"),
    "driver": (
        {"DRIVER": 12080},
        r"driver too old: found CUDA 12\.8, need at least 13\.0 \(driver 580 or newer\); fix",
    ),
    "weights": ({"MEMORY_BYTES": 100_000}, r"the device has 0 MB free of 0 MB, and the weights take \d MB; fix: end"),
    "one request": (
        {"MEMORY_BYTES": 200_000_000},
        r"the device has 19\d MB free of 200 MB beside the weights, \d MB, but the largest request takes 3\d\d MB; fix",
    ),
    "a failure": ({"FAIL_LAUNCH": 10}, r"the first answers on CUDA failed: .*700"),
    "a failure of a captured step": ({"FAIL_LAUNCH": 1000}, r"the first answers on CUDA failed: .*700"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_an_obstacle_is_named_with_its_fix_and_the_cpu_serves_where_it_may(opening, name):
    cuda, reason = OBSTACLES[name]
    found = opening("auto", **cuda)
    assert (found["error"], found["device"], found["fallback"]) == ("", "cpu", True)
    assert re.match(reason, found["reason"])
    assert re.search("; fix: .*, or ask for device cpu$", found["reason"])
    error = opening("cuda", **cuda)["error"]
    assert re.match(f"device cuda is required, but {reason}", error)
    assert re.search("; fix: .*, or ask for device auto or cpu$", error)


def test_caches_are_lowered_to_what_the_device_has(opening):
    found = opening("cuda", changes={**SMALL, "parking_bytes": 1 << 28}, MEMORY_BYTES=380_000_000)
    assert (found["error"], found["device"]) == ("", "cuda")
    assert 0 < found["parking_bytes"] < 60_000_000
    (warning,) = [text for text in found["warnings"] if "smaller" in text]
    assert f"parked rows {found['parking_bytes'] / 1e6:,.0f} MB of 268 MB; the device has " in warning
    assert "MB free of 380 MB beside the weights" in warning


def test_an_engine_ends_with_its_device_and_its_requests_may_be_sent_again(opening):
    found = opening("cuda", "fail")
    assert (found["error"], found["device"], found["fallback"]) == ("", "cuda", False)
    assert (found["ends"], found["has lost its device"]) == (["EngineUnavailable"] * 4, True)
