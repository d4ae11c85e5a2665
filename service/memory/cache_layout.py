"""What the caches of a row cost, and in which steps buffers grow: plain numbers, without buffers or sessions.

What a row needs follows from the kinds of states the manifest names: `self_kv` grows with every token, at most to what
its window needs if it has one, `cross_kv` with
the source, `shortlist` with the row's shortlist; what has no growing axis has a fixed size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from export.bundle.manifest import WORD_MULTIPLE, Limits, StateSpec, capacity_for, largest_capacity
from export.bundle.windows import places_of

SMALLEST_TIER, TIER_RATIO, MAX_TIERS = 64, 4, 3


def shortlist_capacity_for(length: int) -> int:
    """The capacity that holds a shortlist of `length` tokens: 0, 64, 128, 192, 256, 384, 512, …"""
    return capacity_for(-(-length // WORD_MULTIPLE) * WORD_MULTIPLE) if length else 0


def row_capacity_for(rows: int, most: int) -> int:
    """How many rows a buffer has room for: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, …, never above `most`."""
    return min(most, 1 << (rows - 1).bit_length() if rows <= 4 else capacity_for(rows))


class CacheShape(NamedTuple):
    """Rows, and the most target positions, source positions and shortlist entries of any of them."""

    rows: int = 0
    target_len: int = 0
    source_len: int = 0
    shortlist_len: int = 0

    def with_more(self, other: CacheShape) -> CacheShape:
        """The shape that holds the rows of both."""
        return CacheShape(
            self.rows + other.rows,
            max(self.target_len, other.target_len),
            max(self.source_len, other.source_len),
            max(self.shortlist_len, other.shortlist_len),
        )


class Tier(NamedTuple):
    """A pair of capacities: target and source positions of each row."""

    target_len: int
    source_len: int


def tiers_for(limits: Limits) -> tuple[Tier, ...]:
    """The capacities of caches on a device that captures decode steps, smallest first; the last holds every request.

    Each tier of each number of rows is a captured step, so tiers are few. That costs memory, not time: attention reads
    each row as far as it is filled.
    """
    tier = Tier(
        largest_capacity(limits.max_target_len) if limits.max_target_len else 0,
        capacity_for(limits.max_source_len) if limits.max_source_len else 0,
    )
    tiers = [tier]
    while len(tiers) < MAX_TIERS and max(tier) > SMALLEST_TIER:
        tier = Tier(*(min(size, max(SMALLEST_TIER, capacity_for(-(-size // TIER_RATIO)))) for size in tier))
        tiers.insert(0, tier)
    return tuple(tiers)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Bytes of a row's caches: for each target position, source position and shortlist entry, and once.

    stride_bytes: of states with one place for several target positions, as (positions, bytes of a place).
    window_bytes: of states that keep no more than `window_places` target positions.
    tiers: the only capacities, smallest first; empty: those of `capacity_for`.
    """

    target_bytes: int
    source_bytes: int = 0
    row_bytes: int = 0
    stride_bytes: tuple[tuple[int, int], ...] = ()
    shortlist_bytes: int = 0
    tiers: tuple[Tier, ...] = ()
    window_bytes: int = 0
    window_places: int = 0

    @classmethod
    def of(cls, states: Iterable[StateSpec], tiers: tuple[Tier, ...] = ()) -> CacheLayout:
        """The layout of a variant's states."""
        totals, strides, longest = Counter[str](), Counter[int](), 0
        for spec in states:
            axes = CacheAxes.of(spec)
            kind, size = spec.kind if axes.grows else "fixed", axes.outer * axes.inner * axes.itemsize
            longest = max(longest, spec.window)
            if spec.stride > 1:
                strides[spec.stride] += size
            elif spec.window:
                totals["window"] += size
            else:
                totals[kind] += size
        own, theirs, words = totals.pop("self_kv", 0), totals.pop("cross_kv", 0), totals.pop("shortlist", 0)
        within, places = totals.pop("window", 0), places_of(longest) if longest else 0
        return cls(own, theirs, sum(totals.values()), tuple(sorted(strides.items())), words, tiers, within, places)

    def tier_for(self, target_len: int, source_len: int) -> Tier:
        """The capacities that hold so many positions; the largest tier if none does."""
        if not self.tiers:
            return Tier(capacity_for(target_len), capacity_for(source_len))
        fitting = (tier for tier in self.tiers if target_len <= tier.target_len and source_len <= tier.source_len)
        return next(fitting, self.tiers[-1])

    def bytes_per(self, positions: int) -> int:
        """Bytes of so many target positions of one row."""
        strided = sum(size * -(-positions // stride) for stride, size in self.stride_bytes)
        return self.target_bytes * positions + strided + self.window_bytes * min(positions, self.window_places)

    def bytes_for(self, rows: int, target_len: int, source_len: int, shortlist_len: int = 0, *, max_rows: int) -> int:
        """Bytes of the buffers for `rows` rows with the longest of these lengths: rectangles of rounded capacities."""
        tier = self.tier_for(target_len, source_len)
        target, source = self.bytes_per(tier.target_len), self.source_bytes * tier.source_len
        own = self.shortlist_bytes * shortlist_capacity_for(shortlist_len)
        return row_capacity_for(rows, max_rows) * (target + source + own + self.row_bytes)

    def filled_bytes(self, rows: int, target_len: int, source_len: int, shortlist_len: int = 0) -> int:
        """Bytes that `rows` rows of these lengths fill in their buffers."""
        own = self.shortlist_bytes * shortlist_len + self.row_bytes
        return rows * (self.bytes_per(target_len) + self.source_bytes * source_len + own)

    def rows_within(self, tier: Tier, *, max_rows: int, max_bytes: int | None) -> int:
        """The most rows of a tier within so many bytes, as buffers are sized; at least one. None: no limit."""
        if max_bytes is None:
            return max_rows
        rooms = sorted({row_capacity_for(rows, max_rows) for rows in range(1, max_rows + 1)})
        fitting = [rows for rows in rooms if self.bytes_for(rows, *tier, max_rows=max_rows) <= max_bytes]
        return max(fitting, default=1)

    def fixed_bytes(self, *, max_rows: int, max_bytes: int) -> int:
        """Bytes of buffers that hold as many rows of each tier as `max_bytes` allow, in turn: more than those if one
        tier has the largest buffers of one kind and another those of another kind."""
        sizes = [
            [self.rows_within(tier, max_rows=max_rows, max_bytes=max_bytes) * size for size in self._sizes(tier)]
            for tier in self.tiers
        ]
        return sum(map(max, zip(*sizes, strict=True)))

    def _sizes(self, tier: Tier) -> list[int]:
        """Bytes of a row of a tier, by what its buffers grow with."""
        strided = [size * -(-tier.target_len // stride) for stride, size in self.stride_bytes]
        within = self.window_bytes * min(tier.target_len, self.window_places)
        own = self.target_bytes * tier.target_len
        return [own, *strided, within, self.source_bytes * tier.source_len, self.row_bytes]

    def steps_within(self, *, max_rows: int, max_bytes: int) -> list[int]:
        """The limits at which one more row of a tier fits, ascending: one row of the largest tier, and those beyond it
        up to `max_bytes`."""
        rooms = {row_capacity_for(rows, max_rows) for rows in range(1, max_rows + 1)}
        sizes = {self.bytes_for(rows, *tier, max_rows=max_rows) for rows in rooms for tier in self.tiers}
        least = self.bytes_for(1, *self.tiers[-1], max_rows=max_rows)
        return sorted({least, *(size for size in sizes if least <= size <= max_bytes)})


@dataclass(frozen=True, slots=True)
class CacheAxes:
    """A state's axes before (`outer`) and after (`inner`) the one that grows, if one does, and the bytes of an item."""

    outer: int
    inner: int
    itemsize: int
    grows: bool

    @classmethod
    def of(cls, spec: StateSpec) -> CacheAxes:
        """The axes of one state, the batch left out."""
        rest = spec.shape[1:]  # the first axis is the batch
        growing = [axis for axis, size in enumerate(rest) if isinstance(size, str)]
        assert len(growing) <= 1, f"state {spec.name}: more than one growing axis in {spec.shape}"
        before, after = (rest[: growing[0]], rest[growing[0] + 1 :]) if growing else ((), rest)
        outer, inner = math.prod(map(int, before)), math.prod(map(int, after))
        return cls(outer, inner, np.dtype(spec.dtype).itemsize, grows=bool(growing))
