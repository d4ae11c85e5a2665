"""Memory of a device, with a small interface: allocate a block, copy rectangles of bytes, read and write values.

`HostMemory` is numpy; `CudaMemory` calls the CUDA runtime through ctypes, so that no further package is needed. This
module does not know what the bytes mean.

Shapes: P parts of a block, R rows of a part, H lines of a row or part, W bytes or U units of a line.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from service.step import DeviceLost

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register of x86."""

BYTE: np.dtype[Any] = np.dtype(np.uint8)
CUDA_RUNTIMES = ("libcudart.so.13", "libcudart.so.12")
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3  # cudaMemcpyKind


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


class HostMemory:
    """Main memory. Its methods are those of every device."""

    device = "cpu"

    def allocate(self, size: int) -> HostBlock:
        """At least `size` bytes, aligned to ALIGNMENT; contents undefined."""
        return HostBlock(size)

    def copy(self, target: Region, source: Region, *, width: int, height: int) -> None:
        """Copies `width` bytes of the first `height` lines in each part. Both have as many parts, and must not
        overlap."""
        shape = target.parts, height, width
        if width and height:
            to_PHW = _view(target, shape, (target.stride, target.pitch, 1))
            to_PHW[:] = _view(source, shape, (source.stride, source.pitch, 1))

    def copy_rows(self, rows: Region, copies: Sequence[RowCopy], *, height: int, unit: int) -> None:
        """Copies rows within each part. A row is `height` lines, whose pitch is a multiple of `unit` bytes. No row may
        be both a source and a target."""
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

    def read(self, block: Block, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """An array in main memory of the values at byte `offset` of a block: a view where that is possible."""
        assert isinstance(block, HostBlock)
        return np.ndarray(shape, dtype, block.bytes.data, offset)

    def write(self, block: Block, values: np.ndarray) -> None:
        """Copies an array in main memory to the start of a block."""
        self.read(block, 0, values.shape, values.dtype)[...] = values

    def settle(self) -> None:
        """Waits until all copies are visible to every stream of the device: in main memory they are."""

    def check_device(self) -> None:
        """Raises DeviceLost when the device has failed for good: main memory does not."""


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed."""


class CudaBlock:
    """Contiguous bytes in the memory of the current CUDA device, freed with the last reference. size: bytes."""

    def __init__(self, runtime: Any, size: int) -> None:
        self._runtime = runtime
        self.size = size
        self.address = 0
        pointer = ctypes.c_void_p()
        if size:
            _check(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)), f"cudaMalloc of {size} bytes")
            self.address = pointer.value or 0

    def __del__(self) -> None:
        if self.address:
            self._runtime.cudaFree(ctypes.c_void_p(self.address))


class CudaMemory:
    """Device memory, through the CUDA runtime library that the process has already loaded. See HostMemory."""

    device = "cuda"

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    @classmethod
    def of_process(cls) -> CudaMemory:
        """Memory through the CUDA library that ONNX Runtime has loaded: a second copy would have another context."""
        for name in CUDA_RUNTIMES:
            try:
                return cls(ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD))
            except OSError:
                continue
        raise CudaError(f"none of {', '.join(CUDA_RUNTIMES)} is loaded in this process")

    def allocate(self, size: int) -> CudaBlock:
        return CudaBlock(self._runtime, size)

    def copy(self, target: Region, source: Region, *, width: int, height: int) -> None:
        for part in range(target.parts if width and height else 0):
            status = self._runtime.cudaMemcpy2D(
                ctypes.c_void_p(target.block.address + target.offset + part * target.stride),
                ctypes.c_size_t(target.pitch),
                ctypes.c_void_p(source.block.address + source.offset + part * source.stride),
                ctypes.c_size_t(source.pitch),
                ctypes.c_size_t(width),
                ctypes.c_size_t(height),
                ctypes.c_int(DEVICE_TO_DEVICE),
            )
            _check(status, f"cudaMemcpy2D of {height} x {width} bytes")

    def copy_rows(self, rows: Region, copies: Sequence[RowCopy], *, height: int, unit: int) -> None:
        for source, target, start, stop in copies:
            offsets = [row * height * rows.pitch + start * unit for row in (target, source)]
            self.copy(*map(rows.at, offsets), width=(stop - start) * unit, height=height)

    def read(self, block: Block, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        values = np.empty(shape, dtype)
        self._transfer(values.ctypes.data, block.address + offset, values.nbytes, DEVICE_TO_HOST)
        return values

    def write(self, block: Block, values: np.ndarray) -> None:
        assert values.flags.c_contiguous
        assert values.nbytes <= block.size, (values.nbytes, block.size)
        self._transfer(block.address, values.ctypes.data, values.nbytes, HOST_TO_DEVICE)

    def _transfer(self, target: int, source: int, size: int, kind: int) -> None:
        status = self._runtime.cudaMemcpy(
            ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size), ctypes.c_int(kind)
        )
        _check(status, f"cudaMemcpy of {size} bytes")

    def settle(self) -> None:
        # Copies within a device return before they complete; ONNX Runtime's stream does not wait for the default one.
        _check(self._runtime.cudaDeviceSynchronize(), "cudaDeviceSynchronize")

    def check_device(self) -> None:
        # An illegal address, a failed launch or an uncorrectable memory error makes every later call of the process
        # fail. Other errors, such as out of memory, are reported once.
        self._runtime.cudaGetLastError()
        if status := self._runtime.cudaDeviceSynchronize() or self._runtime.cudaGetLastError():
            raise DeviceLost(f"the CUDA device fails for good with CUDA error {status}")


Block = HostBlock | CudaBlock
Memory = HostMemory | CudaMemory


def _check(status: int, what: str) -> None:
    if status:
        raise CudaError(f"{what} failed with CUDA error {status}")


def _view(region: Region, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any] = BYTE) -> np.ndarray:
    """An array in the block of a region, from its offset on."""
    block, offset = region.block, region.offset
    assert isinstance(block, HostBlock)
    last = sum([(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]) + dtype.itemsize
    assert 0 <= offset < offset + last <= block.size, (offset, shape, strides, block.size)
    return np.ndarray(shape, dtype, block.bytes.data, offset, strides)
