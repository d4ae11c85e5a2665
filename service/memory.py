"""Memory that holds state, behind one small seam: allocate a block, copy a rectangle of bytes between blocks.

`HostMemory` is numpy. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register of x86."""


class Block(Protocol):
    """A contiguous piece of memory, freed with its last reference."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...


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
        assert isinstance(target, HostBlock) and isinstance(source, HostBlock)
        if width and height:
            to = _lines(target, target_offset, target_pitch, width, height)
            to[:] = _lines(source, source_offset, source_pitch, width, height)


def _lines(block: HostBlock, offset: int, pitch: int, width: int, height: int) -> np.ndarray:
    end = offset + (height - 1) * pitch + width
    assert offset >= 0 and end <= block.size and width <= pitch, (offset, pitch, width, height, block.size)
    return np.ndarray((height, width), np.uint8, block.bytes.data, offset, (pitch, 1))
