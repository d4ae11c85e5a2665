import numpy as np
import pytest

from service.runtime.cuda_memory import PIECE_BYTES
from service.runtime.memory import ALIGNMENT, HostMemory, Region, StoredArray
from tests.fakes import FakeCuda, bytes_of, cuda_memory


@pytest.mark.parametrize("make", [HostMemory, cuda_memory], ids=["host", "cuda"])
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


@pytest.mark.parametrize("make", [HostMemory, cuda_memory], ids=["host", "cuda"])
def test_copying_nothing_is_fine(make):
    device = make()
    empty, block = device.allocate(0), device.allocate(10)
    for width, height in ((0, 4), (4, 0)):
        device.copy(Region(block, 4), Region(empty, 4), width=width, height=height)


@pytest.mark.parametrize("make", [HostMemory, cuda_memory], ids=["host", "cuda"])
def test_values_are_read_as_they_were_written(make):
    device = make()
    block = device.allocate(100)
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    device.write(block, values)
    whole, part = device.read(
        StoredArray(block, 0, (2, 3, 4), values.dtype), StoredArray(block, 12 * 4, (4,), values.dtype)
    )
    assert np.array_equal(whole, values)
    assert np.array_equal(part, values[1, 0])


@pytest.mark.parametrize("make", [HostMemory, cuda_memory], ids=["host", "cuda"])
def test_a_block_is_zeroed(make):
    device = make()
    blocks = [device.allocate(size) for size in (100, 0)]
    device.write(blocks[0], np.arange(100, dtype=np.uint8))
    for block in blocks:
        device.clear(block)
    assert not bytes_of(blocks[0]).any()


@pytest.mark.parametrize("make", [HostMemory, cuda_memory], ids=["host", "cuda"])
def test_a_part_of_a_block_is_zeroed(make):
    device = make()
    block = device.allocate(100)
    device.write(block, np.full(100, 7, np.uint8))
    device.clear(block, start=20, size=30)
    device.clear(block, start=60, size=0)
    assert np.flatnonzero(bytes_of(block) == 0).tolist() == list(range(20, 50))
    device.clear(block, start=90)
    assert np.flatnonzero(bytes_of(block)[50:] == 0).tolist() == list(range(40, 50))


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


@pytest.mark.parametrize("piece_bytes", [0, 1, 4])
@pytest.mark.parametrize("make", [HostMemory, cuda_memory], ids=["host", "cuda"])
def test_rows_are_copied_from_one_place_to_another(monkeypatch, make, piece_bytes):
    monkeypatch.setattr("service.runtime.cuda_memory.PIECE_BYTES", piece_bytes)
    device = make()
    block = device.allocate(2 * 5 * 12)  # parts, rows, three lines of four
    before_PRHU = np.arange(120, dtype=np.uint8).reshape(2, 5, 3, 4)
    before_PRHU[:, 3, :, :2] = before_PRHU[:, 0, :, :2]  # where a copy begins later, the rows begin alike
    device.write(block, before_PRHU.ravel())
    copies = [(0, 3, 2, 3), (1, 2, 0, 4), (4, 4, 2, 2)]
    device.copy_rows(Region(block, 4, 2, 60), copies, height=3, unit=1)
    expected_PRHU = before_PRHU.copy()
    expected_PRHU[:, 3, :, 2] = expected_PRHU[:, 0, :, 2]
    expected_PRHU[:, 2] = expected_PRHU[:, 1]
    found_PRHU = np.array(bytes_of(block)).reshape(expected_PRHU.shape)
    assert found_PRHU[:, [0, 1, 2, 4]].tolist() == expected_PRHU[:, [0, 1, 2, 4]].tolist()
    assert found_PRHU[:, 3, :, :3].tolist() == expected_PRHU[:, 3, :, :3].tolist()  # no position lies beyond the third


def test_a_row_on_a_device_is_copied_in_one_piece_unless_much_lies_between_its_lines():
    cuda = FakeCuda()
    memory = cuda_memory(cuda)
    pitch, height, parts = 2 * PIECE_BYTES, 3, 2
    rows = Region(memory.allocate(parts * 4 * height * pitch), pitch, parts, 4 * height * pitch)
    memory.copy_rows(rows, [(0, 1, 0, pitch), (2, 3, 0, PIECE_BYTES)], height=height, unit=1)
    memory.copy_rows(rows, [(0, 1, 0, PIECE_BYTES - 1)], height=height, unit=1)
    assert cuda.batches == [parts * 2, parts * height]
