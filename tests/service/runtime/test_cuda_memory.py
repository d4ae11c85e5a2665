"""Memory and stream of a CUDA device, on a double of the CUDA runtime. `tests/cuda` runs them on one that is late."""

import gc
from typing import Any

import numpy as np
import pytest

from export.bundle.directory import load_bundle
from service.runtime.cuda_memory import STAGING_BYTES, CudaError
from service.runtime.memory import Region, StoredArray
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import OnnxRunner
from service.step import DeviceLost
from tests.fakes import FakeCuda, array_at, bytes_of, cuda_memory


def stored(block, values):
    return StoredArray(block, 0, values.shape, values.dtype)


def test_blocks_are_freed_with_their_last_reference_once_nothing_uses_them():
    cuda = FakeCuda()
    memory = cuda_memory(cuda)
    block, waits, held = memory.allocate(10), cuda.waits, len(cuda.live)
    del block
    assert (len(cuda.live), cuda.waits) == (held - 1, waits + 1)
    del memory
    gc.collect()
    assert not cuda.live


def test_only_reading_waits_and_once_for_all_arrays():
    cuda = FakeCuda()
    memory = cuda_memory(cuda)
    blocks = [memory.allocate(400) for _ in range(3)]
    values = [np.arange(count, dtype=np.int64) for count in (3, 50, 7)]
    for block, array in zip(blocks, values, strict=True):
        memory.write(block, array)
    memory.copy(Region(blocks[0], 8), Region(blocks[1], 8), width=8, height=1)
    address = memory.upload(values[2])
    assert cuda.waits == 0
    found = memory.read(*(stored(block, array) for block, array in zip(blocks, values, strict=True)))
    assert cuda.waits == 1
    assert [array.tolist() for array in found] == [array.tolist() for array in values]
    assert array_at(("cuda", np.dtype(np.int64), (7,), address)).tolist() == values[2].tolist()


def test_what_was_handed_over_may_change_before_the_device_copies_it():
    class Late(FakeCuda):
        def cudaMemcpyAsync(self, *arguments):
            late.append(arguments)
            return 0

    late: list[tuple[Any, ...]] = []
    cuda = Late()
    memory = cuda_memory(cuda)
    blocks, values = [memory.allocate(8 * 1000) for _ in range(2)], np.arange(1000)
    for number, block in enumerate(blocks):
        values[:] = number
        memory.write(block, values)
    for arguments in late:
        FakeCuda.cudaMemcpyAsync(cuda, *arguments)
    assert [set(bytes_of(block).view(np.int64).tolist()) for block in blocks] == [{0}, {1}]


def test_inputs_of_one_run_that_exceed_the_staging_memory_all_stay_until_the_turn_ends():
    cuda = FakeCuda()
    memory = cuda_memory(cuda)
    values = [np.full(STAGING_BYTES // 8 * 3 // 4, number) for number in range(4)]
    addresses = [memory.upload(array) for array in values]
    for array, address in zip(values, addresses, strict=True):
        assert np.array_equal(array_at(("cuda", array.dtype, array.shape, address)), array)
    assert cuda.waits == 0
    held = len(cuda.live)
    memory.read(stored(memory.allocate(8), np.zeros(1)))
    assert len(cuda.live) < held


def test_an_array_larger_than_the_staging_memory_is_written_and_read():
    memory = cuda_memory(FakeCuda())
    values = np.random.default_rng(0).integers(0, 99, STAGING_BYTES // 8 * 3 // 2)
    block = memory.allocate(values.nbytes)
    for _ in range(3):
        memory.write(block, values)
    assert np.array_equal(memory.read(stored(block, values))[0], values)


def test_rows_of_all_states_are_copied_by_one_call():
    cuda = FakeCuda()
    memory = cuda_memory(cuda)
    block = memory.allocate(12 * 16 * 64)
    copies = [(row, row + 8, 0, 5) for row in range(8)]
    memory.copy_rows(Region(block, 16, 12, 16 * 64), copies, height=4, unit=1)
    memory.copy_rows(Region(block, 16, 12, 16 * 64), [(0, 1, 3, 3)], height=4, unit=1)
    assert len(cuda.batches) == 1


def test_errors_of_the_cuda_runtime_are_raised():
    with pytest.raises(CudaError, match="cudaStreamCreateWithFlags failed with CUDA error 2"):
        cuda_memory(FakeCuda(fail=2))
    cuda = FakeCuda()
    memory = cuda_memory(cuda)
    block = memory.allocate(10)
    cuda.fail = 700
    with pytest.raises(CudaError, match="cudaMalloc of 12 bytes failed with CUDA error 700"):
        memory.allocate(12)
    with pytest.raises(CudaError, match="error 700") as error:
        memory.copy(Region(block, 5), Region(block, 5, offset=5), width=5, height=1)
    assert error.value.status == 700


def test_an_error_that_every_later_call_repeats_is_told_from_one_that_is_over():
    cuda = FakeCuda()
    memory = cuda_memory(cuda)
    cuda.fail = 2
    with pytest.raises(CudaError, match="error 2"):
        memory.allocate(10)
    memory.check_device()
    cuda.lost = 700
    with pytest.raises(DeviceLost, match="the CUDA device fails for good with CUDA error 700"):
        memory.check_device()


def test_a_runner_on_a_lost_device_is_not_reset(tiny_generation_bundle):
    manifest, cuda = load_bundle(tiny_generation_bundle), FakeCuda()
    model = OnnxModel.open(tiny_generation_bundle, manifest, device="cpu")
    runner = OnnxRunner(model, cuda_memory(cuda), max_rows=1)
    cuda.lost = 719
    with pytest.raises(DeviceLost, match="CUDA error 719"):
        runner.reset()
