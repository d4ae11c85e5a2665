"""Memory that holds state, behind one small seam: allocate a block, copy rectangles of bytes.

`HostMemory` is numpy; `CudaMemory` calls the CUDA runtime through ctypes, so that no further package is needed. Nothing
here knows what the bytes mean.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register of x86."""

CUDA_RUNTIMES = ("libcudart.so.13", "libcudart.so.12")
DEVICE_TO_HOST, DEVICE_TO_DEVICE = 2, 3  # cudaMemcpyKind


class Block(Protocol):
    """A contiguous piece of memory, freed with its last reference."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...


RowCopy = tuple[int, int, int, int]
"""Source row, target row, and which bytes of each line: start and stop."""


class Memory(Protocol):
    """One device's memory."""

    device: str

    def allocate(self, size: int) -> Block:
        """At least `size` bytes, aligned to ALIGNMENT; contents undefined."""
        ...

    def copy(
        self,
        target: Block,
        source: Block,
        *,
        target_offset: int,
        source_offset: int,
        target_pitch: int,
        source_pitch: int,
        width: int,
        height: int,
    ) -> None:
        """Copies `height` lines of `width` bytes; lines start `pitch` bytes apart. Source and target do not overlap."""
        ...

    def copy_rows(self, block: Block, copies: Sequence[RowCopy], *, lines: int, pitch: int) -> None:
        """Copies within a block of rows of so many lines of `pitch` bytes. No row is both a source and a target."""
        ...

    def floats(self, block: Block, offset: int, count: int) -> np.ndarray:
        """`count` float32 values from byte `offset` of a block, in main memory: a view where that is possible."""
        ...

    def settle(self) -> None:
        """Returns when all copies are done, as far as any other stream of the device can see."""
        ...


class HostBlock:
    """Bytes in main memory. The pages of a large block cost nothing until they are written."""

    def __init__(self, size: int) -> None:
        raw = np.empty(size + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.bytes = raw[start : start + size]
        self.address: int = raw.ctypes.data + start
        self.size = size


class HostMemory:
    """Main memory."""

    device = "cpu"

    def allocate(self, size: int) -> HostBlock:
        return HostBlock(size)

    def copy(
        self,
        target: Block,
        source: Block,
        *,
        target_offset: int,
        source_offset: int,
        target_pitch: int,
        source_pitch: int,
        width: int,
        height: int,
    ) -> None:
        assert isinstance(target, HostBlock)
        assert isinstance(source, HostBlock)
        if width and height:
            to = _lines(target, target_offset, target_pitch, width, height)
            to[:] = _lines(source, source_offset, source_pitch, width, height)

    def copy_rows(self, block: Block, copies: Sequence[RowCopy], *, lines: int, pitch: int) -> None:
        assert isinstance(block, HostBlock)
        if not lines * pitch:
            return
        rows_RLP = block.bytes[: block.size // (lines * pitch) * (lines * pitch)].reshape(-1, lines, pitch)
        for source, target, start, stop in copies:
            assert 0 <= start <= stop <= pitch, (start, stop, pitch)
            rows_RLP[target, :, start:stop] = rows_RLP[source, :, start:stop]

    def floats(self, block: Block, offset: int, count: int) -> np.ndarray:
        assert isinstance(block, HostBlock)
        return np.ndarray((count,), np.float32, block.bytes.data, offset)

    def settle(self) -> None:
        """Copies in main memory are done when they return."""


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed."""


class CudaBlock:
    """Bytes in the memory of the current CUDA device."""

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
    """Device memory, through the CUDA runtime library that the process has loaded already."""

    device = "cuda"

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    @classmethod
    def of_process(cls) -> CudaMemory:
        """On the library that ONNX Runtime's provider loaded: a second copy would have a context of its own."""
        for name in CUDA_RUNTIMES:
            try:
                return cls(ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD))
            except OSError:
                continue
        raise CudaError(f"none of {', '.join(CUDA_RUNTIMES)} is loaded in this process")

    def allocate(self, size: int) -> CudaBlock:
        return CudaBlock(self._runtime, size)

    def copy(
        self,
        target: Block,
        source: Block,
        *,
        target_offset: int,
        source_offset: int,
        target_pitch: int,
        source_pitch: int,
        width: int,
        height: int,
    ) -> None:
        if width and height:
            status = self._runtime.cudaMemcpy2D(
                ctypes.c_void_p(target.address + target_offset),
                ctypes.c_size_t(target_pitch),
                ctypes.c_void_p(source.address + source_offset),
                ctypes.c_size_t(source_pitch),
                ctypes.c_size_t(width),
                ctypes.c_size_t(height),
                ctypes.c_int(DEVICE_TO_DEVICE),
            )
            _check(status, f"cudaMemcpy2D of {height} x {width} bytes")

    def copy_rows(self, block: Block, copies: Sequence[RowCopy], *, lines: int, pitch: int) -> None:
        for source, target, start, stop in copies:
            self.copy(
                block,
                block,
                target_offset=target * lines * pitch + start,
                source_offset=source * lines * pitch + start,
                target_pitch=pitch,
                source_pitch=pitch,
                width=stop - start,
                height=lines,
            )

    def floats(self, block: Block, offset: int, count: int) -> np.ndarray:
        values = np.empty(count, np.float32)
        size = ctypes.c_size_t(values.nbytes)
        source, target = ctypes.c_void_p(block.address + offset), ctypes.c_void_p(values.ctypes.data)
        status = self._runtime.cudaMemcpy(target, source, size, ctypes.c_int(DEVICE_TO_HOST))
        _check(status, f"cudaMemcpy of {values.nbytes} bytes")
        return values

    def settle(self) -> None:
        # Copies within a device return before they are done; ONNX Runtime's stream does not wait for the default one.
        _check(self._runtime.cudaDeviceSynchronize(), "cudaDeviceSynchronize")


def _check(status: int, what: str) -> None:
    if status:
        raise CudaError(f"{what} failed with CUDA error {status}")


def _lines(block: HostBlock, offset: int, pitch: int, width: int, height: int) -> np.ndarray:
    end = offset + (height - 1) * pitch + width
    assert 0 <= offset <= end <= block.size, (offset, pitch, width, height, block.size)
    return np.ndarray((height, width), np.uint8, block.bytes.data, offset, (pitch, 1))
