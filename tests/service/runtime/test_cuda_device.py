"""Why CUDA cannot be used, told before a session is opened."""

import pytest

from service.errors import StartupError
from service.runtime.cuda_device import check_device, load_runtime, memory_info
from tests.fakes import FakeCuda


def test_a_device_with_room_is_taken():
    check_device(FakeCuda(free=5000), cuda_major=13, weight_bytes=5000)
    assert memory_info(FakeCuda(free=5000)) == (5000, 8 << 30)


@pytest.mark.parametrize(
    ("cuda", "problem"),
    [
        (FakeCuda(driver=0), "no NVIDIA driver is installed; fix: install driver 580 or newer, or .* --gpus all"),
        (
            FakeCuda(driver=12080),
            r"driver too old: found CUDA 12.8, need at least 13.0 \(driver 580 or newer\); fix: update",
        ),
        (FakeCuda(count=0), "CUDA finds no device with CUDA_VISIBLE_DEVICES=7; fix: name one of those that nvidia-smi"),
        (FakeCuda(count=-100), r"CUDA finds no device with .*7 \(CUDA error 100\); fix: name one"),
        (FakeCuda(free=5_000_000), "has 5 MB free of 8,590 MB, and the weights take 6 MB; fix: end other programs"),
        (FakeCuda(lost=214), "cannot be used .cudaMemGetInfo: CUDA error 214.; fix: look for errors of the device"),
    ],
)
def test_each_obstacle_has_its_cause_and_fix(monkeypatch, cuda, problem):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(StartupError, match=problem):
        check_device(cuda, cuda_major=13, weight_bytes=6_000_000)


def test_a_device_that_the_server_must_not_see_is_not_found(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(
        StartupError, match="finds no device; CUDA_VISIBLE_DEVICES lets the server see fewer; fix: name"
    ):
        check_device(FakeCuda(count=0), cuda_major=13, weight_bytes=1)


def test_a_newer_driver_runs_older_libraries():
    check_device(FakeCuda(driver=13010), cuda_major=12, weight_bytes=1)


def test_missing_libraries_are_named():
    with pytest.raises(StartupError, match=r"missing \(libcudart\.so\.99: .*requirements/gpu\.in"):
        load_runtime(99)
