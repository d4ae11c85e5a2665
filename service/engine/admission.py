"""Admission: which requests may run beside those that do.

A request is admitted only when its worst case fits beside the worst cases of all live ones, in rows and in bytes: an
admitted request never runs out of memory. Their order is that of `service.engine.waiting_queue`; rows are assigned in
`service.engine.row_assignment`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

from service.errors import InvalidRequest
from service.memory.cache_layout import CacheLayout, CacheShape
from service.request import Request
from service.sequence import Sequence
from service.step import padded


class Capacity:
    """Rows and bytes of state that the live sequences may come to need. max_bytes: of KV caches and other states."""

    def __init__(self, layout: CacheLayout, *, max_rows: int, max_bytes: int, chunk_tokens: int) -> None:
        """chunk_tokens: see `service.engine.prefill.PrefillPlanner`."""
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.reserved = CacheShape()  # the worst case of the live sequences
        self._layout, self._chunk_tokens = layout, chunk_tokens
        self.bytes_for = functools.lru_cache(maxsize=1024)(self._bytes_for)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the reserved shape."""
        return self.bytes_for(self.reserved)

    def check(self, request: Request) -> None:
        """Raises InvalidRequest for a request that could never be admitted. Safe to call from any thread."""
        width = request.options.width
        if width > self.max_rows:
            raise InvalidRequest(
                "options", f"the request needs {width} rows, the server has {self.max_rows}; ask for fewer"
            )
        worst = self.bytes_for(self.shape_of(request))
        if worst > self.max_bytes:
            raise InvalidRequest(
                "max_tokens", f"the request needs up to {worst} bytes of state, the server allows {self.max_bytes}"
            )

    def shape_of(self, request: Request) -> CacheShape:
        """The largest shape that a request may need. Its very last token is never an input."""
        target_len = len(request.prompt) + request.max_tokens - 1
        if self._chunk_tokens:  # the last chunk of a prompt is padded
            last = max(0, len(request.prompt) - 2) // self._chunk_tokens * self._chunk_tokens
            target_len = max(target_len, last + padded(len(request.prompt) - 1 - last))
        return CacheShape(request.options.width, max(0, target_len), len(request.source), len(request.shortlist))

    def reserve(self, sequence: Sequence) -> bool:
        """Reserves what one more sequence may still need, if it fits."""
        if not self.fits(self.reserved, sequence):
            return False
        self.reserved = self.reserved.with_more(_shape(sequence))
        return True

    def fits(self, reserved: CacheShape, sequence: Sequence) -> bool:
        """Whether a sequence fits beside what is reserved."""
        wanted = reserved.with_more(_shape(sequence))
        return wanted.rows <= self.max_rows and self.bytes_for(wanted) <= self.max_bytes

    def reserve_for(self, live: Collection[Sequence]) -> None:
        """Reserves what these sequences may still need, and no more."""
        self.reserved = self.shape_for(live)

    def shape_for(self, live: Collection[Sequence]) -> CacheShape:
        """The shape that these sequences may still need."""
        shapes = [sequence.max_shape for sequence in live]
        return CacheShape(
            sum([sequence.width for sequence in live]),
            max([shape.target_len for shape in shapes], default=0),
            max([shape.source_len for shape in shapes], default=0),
            max([shape.shortlist_len for shape in shapes], default=0),
        )

    def used_bytes(self, live: Iterable[Sequence]) -> int:
        """Bytes that the rows of these sequences fill now; `reserved_bytes` counts those that they may come to need."""
        filled, total = self._layout.filled_bytes, 0
        for sequence in live:
            request = sequence.request
            total += filled(len(sequence.rows), sequence.num_computed, len(request.source), len(request.shortlist))
        return total

    def allocation_shape(self) -> CacheShape:
        """The shape for which new buffers are allocated: all rows if allowed, so that later requests fit."""
        all_rows = self.reserved._replace(rows=self.max_rows)
        return all_rows if self.bytes_for(all_rows) <= self.max_bytes else self.reserved

    def _bytes_for(self, shape: CacheShape) -> int:
        """Bytes of the buffers that hold a shape."""
        return self._layout.bytes_for(*shape, max_rows=self.max_rows) if shape.rows else 0


def _shape(sequence: Sequence) -> CacheShape:
    return sequence.max_shape._replace(rows=sequence.width)
