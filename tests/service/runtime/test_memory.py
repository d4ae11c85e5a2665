import numpy as np
import pytest

from export.bundle import load_bundle
from service.runtime import memory
from service.runtime.memory import ALIGNMENT, CudaError, CudaMemory, HostMemory, Region
from service.runtime.runner import OnnxModel, OnnxRunner
from service.step import DeviceLost
from tests.fakes import FakeCuda, bytes_of


@pytest.mark.parametrize("make", [HostMemory, lambda: CudaMemory(FakeCuda())], ids=["host", "cuda"])
def test_copy_moves_a_rectangle_and_nothing_else(make):
    device = make()
    source, target = device.allocate(100), device.allocate(80)
    bytes_of(source)[:] = np.arange(100)
    bytes_of(target)[:] = 255
    device.copy(Region(target, 20, offset=5), Region(source, 30, offset=7), width=10, height=3)
    expected = np.full(80, 255, np.uint8)
    for line in range(3):
        expected[5 + 20 * line :][:10] = np.arange(7 + 30 * line, 17 + 30 * line)
    assert bytes_of(target).tolist() == expected.tolist()
    device.settle()


@pytest.mark.parametrize("make", [HostMemory, lambda: CudaMemory(FakeCuda())], ids=["host", "cuda"])
def test_copying_nothing_is_fine(make):
    device = make()
    empty, block = device.allocate(0), device.allocate(10)
    for width, height in ((0, 4), (4, 0)):
        device.copy(Region(block, 4), Region(empty, 4), width=width, height=height)


@pytest.mark.parametrize("make", [HostMemory, lambda: CudaMemory(FakeCuda())], ids=["host", "cuda"])
def test_values_are_read_as_they_were_written(make):
    device = make()
    block = device.allocate(100)
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    device.write(block, values)
    assert np.array_equal(device.read(block, 0, (2, 3, 4), values.dtype), values)
    assert np.array_equal(device.read(block, 12 * 4, (4,), values.dtype), values[1, 0])


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 1 << 20])
def test_host_blocks_are_aligned(size):
    block = HostMemory().allocate(size)
    assert block.address % ALIGNMENT == 0
    assert block.size == size
    bytes_of(block)[:] = 1
    assert block.bytes.sum() == size


def test_host_copies_stay_within_their_blocks():
    device = HostMemory()
    small, large = device.allocate(10), device.allocate(100)
    with pytest.raises(AssertionError):
        device.copy(Region(small, 8), Region(large, 8), width=8, height=2)


def test_device_blocks_are_freed_with_their_last_reference():
    cuda = FakeCuda()
    block = CudaMemory(cuda).allocate(10)
    assert len(cuda.live) == 1
    del block
    assert not cuda.live


def test_errors_of_the_cuda_runtime_are_raised():
    with pytest.raises(CudaError, match="cudaMalloc of 10 bytes failed with CUDA error 2"):
        CudaMemory(FakeCuda(fail=2)).allocate(10)
    cuda = FakeCuda()
    device = CudaMemory(cuda)
    block = device.allocate(10)
    cuda.fail = 700
    with pytest.raises(CudaError, match="error 700"):
        device.copy(Region(block, 5), Region(block, 5, offset=5), width=5, height=1)


def test_without_a_loaded_cuda_runtime_there_is_no_cuda_memory(monkeypatch):
    monkeypatch.setattr(memory, "CUDA_RUNTIMES", ("libcudart-that-nobody-has.so",))
    with pytest.raises(CudaError, match="none of libcudart-that-nobody-has"):
        CudaMemory.of_process()


def test_an_error_that_every_later_call_repeats_is_told_from_one_that_is_over():
    out_of_memory = CudaMemory(FakeCuda(fail=2))
    with pytest.raises(CudaError, match="error 2"):
        out_of_memory.allocate(10)
    out_of_memory.check_device()
    with pytest.raises(DeviceLost, match="the CUDA device fails for good with CUDA error 700"):
        CudaMemory(FakeCuda(lost=700)).check_device()
    HostMemory().check_device()


def test_a_runner_on_a_lost_device_is_not_reset(tiny_generation_bundle):
    manifest = load_bundle(tiny_generation_bundle)
    model = OnnxModel.open(tiny_generation_bundle, manifest, device="cpu")
    with pytest.raises(DeviceLost, match="CUDA error 719"):
        OnnxRunner(model, CudaMemory(FakeCuda(lost=719)), max_rows=1).reset()
