"""Memory of a device, with a small interface: allocate a block, copy rectangles of bytes, read and write values.

`HostMemory` is numpy; `service.runtime.cuda_memory` has that of CUDA devices. This module does not know what the bytes
mean.

Operations on one memory take effect in the order of their calls, and the graphs that read it keep to that order too.

Shapes: P parts of a block, R rows of a part, H lines of a row or part, W bytes or U units of a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register of x86."""

BYTE: np.dtype[Any] = np.dtype(np.uint8)


class Block(Protocol):
    """Contiguous bytes in the memory of a device, freed with the last reference. size: bytes."""

    address: int
    size: int


class StoredArray(NamedTuple):
    """Values at byte `offset` of a block."""

    block: Block
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Region(NamedTuple):
    """Lines of bytes in several parts of a block. The lines of a part start `pitch` bytes apart, from byte `offset` of
    the part on; the parts start `stride` bytes apart."""

    block: Block
    pitch: int
    parts: int = 1
    stride: int = 0
    offset: int = 0

    def at(self, offset: int) -> Region:
        """The region from byte `offset` of each part on."""
        return self._replace(offset=offset)


RowCopy = tuple[int, int, int, int]
"""Source row, target row, and the units of each line: start and stop."""


class HostBlock:
    """Contiguous bytes in main memory, freed with the last reference. Pages of a large block cost nothing until they
    are written. size: bytes."""

    def __init__(self, size: int) -> None:
        raw = np.empty(size + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.bytes = raw[start : start + size]
        self.address: int = raw.ctypes.data + start
        self.size = size


class Memory(Protocol):
    """The memory of one device, as ONNX Runtime names it. One thread uses it."""

    device: str

    def allocate(self, size: int) -> Block:
        """At least `size` bytes, aligned to ALIGNMENT; contents undefined."""

    def copy(self, target: Region, source: Region, *, width: int, height: int) -> None:
        """Copies `width` bytes of the first `height` lines in each part. Both have as many parts, and must not
        overlap."""

    def copy_rows(self, rows: Region, copies: Sequence[RowCopy], *, height: int, unit: int) -> None:
        """Copies rows within each part. A row is `height` lines, whose pitch is a multiple of `unit` bytes. No row may
        be both a source and a target. Before `start` both hold the same; what lies beyond `stop` may be copied, too."""

    def read(self, *arrays: StoredArray) -> list[np.ndarray]:
        """Arrays in main memory of these values: views where that is possible."""

    def write(self, block: Block, values: np.ndarray) -> None:
        """Copies an array in main memory to the start of a block. The array may be changed afterwards."""

    def clear(self, block: Block, *, start: int = 0, size: int | None = None) -> None:
        """Fills `size` bytes of a block from byte `start` on with zeros; None: all that follow."""

    def upload(self, values: np.ndarray) -> int:
        """The address of these values as the next run of a graph may read them, and no later one. The array must
        stay alive and unchanged for that long."""

    def check_device(self) -> None:
        """Raises DeviceLost when the device has failed for good."""


class HostMemory:
    """Main memory."""

    device = "cpu"

    def allocate(self, size: int) -> HostBlock:
        return HostBlock(size)

    def copy(self, target: Region, source: Region, *, width: int, height: int) -> None:
        shape = target.parts, height, width
        if width and height:
            to_PHW = _view(target, shape, (target.stride, target.pitch, 1))
            to_PHW[:] = _view(source, shape, (source.stride, source.pitch, 1))

    def copy_rows(self, rows: Region, copies: Sequence[RowCopy], *, height: int, unit: int) -> None:
        _, pitch, parts, stride, _ = rows
        row = height * pitch
        if not row:
            return
        # In units, few per copy: for many, numpy releases the GIL and then waits for the thread that takes it.
        shape, strides = (stride // row, parts, height, pitch // unit), (row, stride, pitch, unit)
        rows_RPHU = _view(rows, shape, strides, np.dtype((np.void, unit)))
        for source, target, start, stop in copies:
            assert 0 <= start <= stop <= pitch // unit, (start, stop, pitch, unit)
            rows_RPHU[target, :, :, start:stop] = rows_RPHU[source, :, :, start:stop]

    def read(self, *arrays: StoredArray) -> list[np.ndarray]:
        return [_array(stored) for stored in arrays]

    def write(self, block: Block, values: np.ndarray) -> None:
        _array(StoredArray(block, 0, values.shape, values.dtype))[...] = values

    def clear(self, block: Block, *, start: int = 0, size: int | None = None) -> None:
        assert isinstance(block, HostBlock)
        block.bytes[start : None if size is None else start + size] = 0

    def upload(self, values: np.ndarray) -> int:
        return values.ctypes.data

    def check_device(self) -> None:
        """Main memory does not fail."""


def _array(stored: StoredArray) -> np.ndarray:
    block, offset, shape, dtype = stored
    assert isinstance(block, HostBlock)
    return np.ndarray(shape, dtype, block.bytes.data, offset)


def _view(region: Region, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any] = BYTE) -> np.ndarray:
    """An array in the block of a region, from its offset on."""
    block, offset = region.block, region.offset
    assert isinstance(block, HostBlock)
    last = sum([(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]) + dtype.itemsize
    assert 0 <= offset < offset + last <= block.size, (offset, shape, strides, block.size)
    return np.ndarray(shape, dtype, block.bytes.data, offset, strides)
