"""What is copied out of the caches of live rows and back: blocks of prompts for the prefix cache, and parked rows.

Of states with a window, rows get what computing them would have left there (`export.bundle.windows`).
"""

from __future__ import annotations

from collections.abc import Iterable

from export.bundle.windows import first_position
from service.runtime.bindings import Arena
from service.runtime.kv_cache import CacheBuffers, StateBuffers
from service.step import Parked, PrefixBlock, Resumed


class PrefixStore(StateBuffers):
    """Blocks of prompt positions that the prefix cache keeps: `self_kv` copied out of rows, one block a slot."""

    def __init__(self, caches: CacheBuffers, arena: Arena) -> None:
        self._caches, self._rows = caches, caches.of_kind("self_kv")
        super().__init__([spec for buffer in self._rows for spec in buffer.specs], arena)

    def store(self, block: PrefixBlock, *, slots: int) -> None:
        """Copies a block of a row into its slot. Memory for all `slots` is allocated once; unwritten pages are free."""
        for kept, buffer in zip(self.buffers, self._rows, strict=True):
            if (kept.rows, kept.capacity) != (slots, block.count):
                kept.resize(slots, block.count, live=0)
            start = block.start - (self._caches.firsts[block.row] if buffer.spec.window else 0)
            buffer.copy_to(kept, block.row, block.slot, length=block.count, source_start=start)

    def load(self, blocks: Iterable[PrefixBlock]) -> None:
        """Copies stored blocks, all that a turn has, into their rows; of states with a window what the next block of a
        row finds there when the stored ones are computed."""
        ends = {block.row: block.start + block.count for block in blocks}  # those of a row follow each other
        for row, end in ends.items():
            self._caches.firsts[row] = first_position(self._caches.window, end)
        for block in blocks:
            for kept, buffer in zip(self.buffers, self._rows, strict=True):
                first = self._caches.firsts[block.row] if buffer.spec.window else 0
                start = max(block.start, first)
                kept.copy_to(
                    buffer,
                    block.slot,
                    block.row,
                    length=max(0, block.start + block.count - start),
                    source_start=start - block.start,
                    target_start=start - first,
                )


class ParkedRows:
    """Rows that were copied out of the caches, by slot, in memory of exactly their size."""

    def __init__(self, caches: CacheBuffers, arena: Arena) -> None:
        self._caches, self._arena = caches, arena
        self._specs = [spec for buffer in caches.buffers for spec in buffer.specs]
        self._slots: dict[int, tuple[StateBuffers, Parked, list[int]]] = {}  # the last: first positions, by line

    @property
    def size(self) -> int:
        """Bytes allocated. May be read from any thread."""
        return sum(states.size for states, *_ in list(self._slots.values()))

    def keep(self, slots: frozenset[int]) -> None:
        """Forgets all slots but these."""
        for slot in self._slots.keys() - slots:
            del self._slots[slot]

    def store(self, parked: Parked) -> None:
        """Copies rows into a slot. What belongs to the source is stored once for all of them."""
        states = StateBuffers(self._specs, self._arena)
        lengths = {"cross_kv": parked.source_len, "shortlist": parked.shortlist_len}
        firsts = [self._caches.firsts[row] for row in parked.rows]
        for kept, buffer in zip(states.buffers, self._caches.buffers, strict=True):
            own = parked.target_len - min(firsts) if buffer.spec.window else parked.target_len
            length = lengths.get(buffer.kind, own)
            rows = parked.rows[:1] if buffer.kind in lengths else parked.rows
            kept.resize(len(rows), length, live=0)
            for line, row in enumerate(rows):
                buffer.copy_to(kept, row, line, length=length)
        self._slots[parked.slot] = states, parked, firsts

    def load(self, resumed: Resumed) -> Parked:
        """Copies a slot into rows, frees it, and returns what it held."""
        states, parked, firsts = self._slots.pop(resumed.slot)
        for row, line in resumed.lines.items():
            self._caches.firsts[row] = firsts[line]
        for kept, buffer in zip(states.buffers, self._caches.buffers, strict=True):
            for row, line in resumed.lines.items():
                kept.copy_to(buffer, line if kept.rows > 1 else 0, row, length=kept.capacity)
        return parked

    def clear(self) -> None:
        """Forgets everything."""
        self._slots.clear()
