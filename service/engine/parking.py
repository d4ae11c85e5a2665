"""Parking: sequences that give up their rows for a while, whose rows' contents are stored beside the caches.

A parked sequence waits like a new one, and continues where it stopped: what was cached is copied, not computed again,
so its answer is the same, bit for bit. Pure: no buffers; the runner copies (`service.step.Parked`, `Resumed`).
"""

from __future__ import annotations

import itertools

from service.memory.cache_layout import CacheLayout
from service.sequence import Sequence
from service.step import Parked


class Parking:
    """The slots of one engine. max_bytes: of all stored rows; 0: none are. count: sequences parked so far."""

    def __init__(self, layout: CacheLayout, max_bytes: int) -> None:
        self._layout, self._max_bytes = layout, max_bytes
        self._bytes: dict[int, int] = {}  # by slot
        self._numbers = itertools.count()
        self.count = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all stored rows."""
        return sum(self._bytes.values())

    @property
    def slots(self) -> frozenset[int]:
        """The slots in use."""
        return frozenset(self._bytes)

    def can_take(self, sequence: Sequence, others: int = 0) -> bool:
        """Whether there is room for the rows of a live sequence beside `others` more bytes. One that has not generated
        yet, or that has ended, is never parked."""
        if not (self._max_bytes and sequence.rows and sequence.steps and sequence.outcome is None):
            return False
        return self.used_bytes + others + self.bytes_of(sequence) <= self._max_bytes

    def bytes_of(self, sequence: Sequence) -> int:
        """Bytes that the rows of a live sequence would take."""
        layout, request = self._layout, sequence.request
        rows = len({hypothesis.row for hypothesis in sequence.hypotheses})
        shared = layout.source_bytes * len(request.source) + layout.shortlist_bytes * len(request.shortlist)
        return rows * (layout.bytes_per(sequence.num_computed) + layout.row_bytes) + shared

    def park(self, sequence: Sequence) -> Parked:
        """Takes the rows of a live sequence, which has room. Its hypotheses then name lines of its slot."""
        slot, request = next(self._numbers), sequence.request
        self._bytes[slot] = self.bytes_of(sequence)
        rows = tuple(sorted({hypothesis.row for hypothesis in sequence.hypotheses}))
        for hypothesis in sequence.hypotheses:
            hypothesis.row = rows.index(hypothesis.row)
        sequence.rows, sequence.slot = (), slot
        self.count += 1
        return Parked(slot, rows, sequence.num_computed, len(request.source), len(request.shortlist))

    def free(self, sequence: Sequence) -> None:
        """Frees the slot of a sequence that got rows again or has ended, if it has one."""
        if sequence.slot is not None:
            del self._bytes[sequence.slot]
            sequence.slot = None
