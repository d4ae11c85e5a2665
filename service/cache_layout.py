"""What the state of a row costs, and in which steps buffers grow: plain numbers, without buffers or sessions.

What a row needs follows from the kinds of states the manifest names: `self_kv` grows with every token, `cross_kv` with
the source, `shortlist` with the words that a row may choose among, and what has no growing axis has a fixed size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from export.bundle import WORD_MULTIPLE, StateSpec

CAPACITIES = (8, 16, 24, 32, 48, 64)


def capacity_for(length: int) -> int:
    """The capacity that holds `length` positions: 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, …

    A roomy cache costs up to four times in attention on every step, growing copies once: hence steps this small.
    """
    for capacity in CAPACITIES:
        if length <= capacity:
            return capacity
    power = 1 << (length - 1).bit_length()
    return power * 3 // 4 if length <= power * 3 // 4 else power


def shortlist_capacity_for(words: int) -> int:
    """The same of a row's own words: 0, 64, 128, 192, 256, 384, 512, … Without any there is no room."""
    return capacity_for(-(-words // WORD_MULTIPLE) * WORD_MULTIPLE) if words else 0


def row_capacity_for(rows: int, most: int) -> int:
    """How many rows a buffer has room for: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, …, never above `most`."""
    return min(most, 1 << (rows - 1).bit_length() if rows <= 4 else capacity_for(rows))


class CacheShape(NamedTuple):
    """So many rows, those with most of them with so many target and source positions, and words of their own."""

    rows: int = 0
    target_len: int = 0
    source_len: int = 0
    shortlist_len: int = 0

    def with_more(self, other: CacheShape) -> CacheShape:
        """What both need side by side."""
        return CacheShape(
            self.rows + other.rows,
            max(self.target_len, other.target_len),
            max(self.source_len, other.source_len),
            max(self.shortlist_len, other.shortlist_len),
        )


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Bytes of state: per row and target position, per row and source position, per row, per row and place of what has
    one place for several target positions: pairs of how many, and the bytes; and per row and word of its own."""

    target_bytes: int
    source_bytes: int = 0
    row_bytes: int = 0
    stride_bytes: tuple[tuple[int, int], ...] = ()
    shortlist_bytes: int = 0

    @classmethod
    def of(cls, states: Iterable[StateSpec]) -> CacheLayout:
        totals: dict[str, int] = {}
        strides: dict[int, int] = {}
        for spec in states:
            axes = CacheAxes.of(spec)
            kind, size = spec.kind if axes.grows else "fixed", axes.outer * axes.inner * axes.itemsize
            if spec.stride > 1:
                strides[spec.stride] = strides.get(spec.stride, 0) + size
            else:
                totals[kind] = totals.get(kind, 0) + size
        own, theirs, words = totals.pop("self_kv", 0), totals.pop("cross_kv", 0), totals.pop("shortlist", 0)
        return cls(own, theirs, sum(totals.values()), tuple(sorted(strides.items())), words)

    def bytes_per(self, positions: int) -> int:
        """Bytes of so many target positions of a row."""
        strided = sum(size * -(-positions // stride) for stride, size in self.stride_bytes)
        return self.target_bytes * positions + strided

    def bytes_for(self, rows: int, target_len: int, source_len: int, shortlist_len: int = 0, *, max_rows: int) -> int:
        """Bytes of the buffers that hold `rows` rows, the longest of these lengths: rectangles, with room to grow."""
        target = self.bytes_per(capacity_for(target_len))
        source = self.source_bytes * capacity_for(source_len)
        own = self.shortlist_bytes * shortlist_capacity_for(shortlist_len)
        return row_capacity_for(rows, max_rows) * (target + source + own + self.row_bytes)


@dataclass(frozen=True, slots=True)
class CacheAxes:
    """A state's axes before (`outer`) and behind (`inner`) the one that grows, if one does, and its bytes an item."""

    outer: int
    inner: int
    itemsize: int
    grows: bool

    @classmethod
    def of(cls, spec: StateSpec) -> CacheAxes:
        rest = spec.shape[1:]  # the first axis is the batch
        symbols = [place for place, size in enumerate(rest) if isinstance(size, str)]
        assert len(symbols) <= 1, f"state {spec.name}: more than one growing axis in {spec.shape}"
        if not symbols:
            return cls(1, math.prod(int(size) for size in rest), np.dtype(spec.dtype).itemsize, grows=False)
        (place,) = symbols
        outer = math.prod(int(size) for size in rest[:place])
        inner = math.prod(int(size) for size in rest[place + 1 :])
        return cls(outer, inner, np.dtype(spec.dtype).itemsize, grows=True)
