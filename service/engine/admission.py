"""Admission: which requests may run (`Capacity`), which wait, and which leave early (`WaitingQueue`).

Requests are admitted first come, first served, each only when its worst case fits beside the worst cases of all live
ones, in rows and in bytes: an admitted request never runs out of memory. Pure: no threads and no clock; deadlines are
compared with a time that the caller passes. Rows are assigned in `service.engine.row_assignment`.
"""

from __future__ import annotations

import functools
import heapq
from collections import deque
from collections.abc import Collection

from service.cache_layout import CacheLayout, CacheShape
from service.errors import Cancelled, DeadlineExceeded, InvalidRequest
from service.request import Request
from service.sequence import Sequence
from service.step import padded

STALE_DEADLINES = 256  # of ended requests that may stay in the heap, beside as many as there are unfinished requests


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
        """What a request needs at most. Its very last token is never an input."""
        target_len = len(request.prompt) + request.max_tokens - 1
        if self._chunk_tokens:  # the last chunk of a prompt is padded
            last = max(0, len(request.prompt) - 2) // self._chunk_tokens * self._chunk_tokens
            target_len = max(target_len, last + padded(len(request.prompt) - 1 - last))
        return CacheShape(request.options.width, max(0, target_len), len(request.source), len(request.shortlist))

    def reserve(self, sequence: Sequence) -> bool:
        """Reserves the worst case of one more sequence, if it fits."""
        wanted = self.reserved.with_more(sequence.max_shape)
        if wanted.rows > self.max_rows or self.bytes_for(wanted) > self.max_bytes:
            return False
        self.reserved = wanted
        return True

    def reserve_for(self, live: Collection[Sequence]) -> None:
        """Reserves what these sequences may still need, and no more."""
        shapes = [sequence.max_shape for sequence in live]
        self.reserved = CacheShape(
            sum([sequence.width for sequence in live]),
            max([shape.target_len for shape in shapes], default=0),
            max([shape.source_len for shape in shapes], default=0),
            max([shape.shortlist_len for shape in shapes], default=0),
        )

    def allocation_shape(self) -> CacheShape:
        """What new buffers are allocated for: all rows if that is allowed, so that later requests find their place."""
        all_rows = self.reserved._replace(rows=self.max_rows)
        return all_rows if self.bytes_for(all_rows) <= self.max_bytes else self.reserved

    def _bytes_for(self, shape: CacheShape) -> int:
        """Bytes of the buffers that hold a shape."""
        return self._layout.bytes_for(*shape, max_rows=self.max_rows) if shape.rows else 0


class WaitingQueue(deque[Sequence]):
    """Sequences that have no rows yet, in order of arrival, and the early ends of waiting and live ones alike."""

    def __init__(self) -> None:
        super().__init__()
        self._cancelled: list[Sequence] = []
        self._deadlines: list[tuple[float, int, Sequence]] = []  # a heap; ended sequences leave it late
        self._submitted = 0

    def submit(self, sequence: Sequence) -> None:
        """Adds a sequence at the end."""
        self.append(sequence)
        if sequence.request.deadline_s is not None:
            self._submitted += 1
            heapq.heappush(self._deadlines, (sequence.request.deadline_s, self._submitted, sequence))

    def cancel(self, sequence: Sequence) -> None:
        """Lets a sequence end in the next `expire`, unless it has ended by then."""
        self._cancelled.append(sequence)

    def expire(self, now_s: float, live: int) -> list[Sequence]:
        """Ends the sequences that were cancelled or whose deadlines have passed, and returns them. live: number of
        sequences with rows."""
        ended = []
        for sequence in self._cancelled:
            if sequence.outcome is None:
                sequence.finish(Cancelled("the request was cancelled"))
                ended.append(sequence)
        self._cancelled.clear()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.outcome is None:
                count = sequence.steps
                sequence.finish(DeadlineExceeded(f"the deadline passed after {count} tokens; allow more time or fewer"))
                ended.append(sequence)
        if any(not sequence.rows for sequence in ended):
            unfinished = [sequence for sequence in self if sequence.outcome is None]
            self.clear()
            self.extend(unfinished)
        if len(self._deadlines) > 2 * (live + len(self)) + STALE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[2].outcome is None]
            heapq.heapify(self._deadlines)
        return ended
