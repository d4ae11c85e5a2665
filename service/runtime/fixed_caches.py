"""Caches that never move: those of a device on which decode steps are captured.

A captured step has the addresses of its rows. So the memory is allocated once, for as many rows of each tier
(`service.memory.cache_layout.Tier`) as the configured bytes hold, and all tiers share it: live rows change from one to
another within it. What captured steps do not read, shortlists, grows elsewhere.

Attention with a position bias multiplies what lies beyond the end of a row by zero, and does not skip it: there must be
numbers. So the memory is zeroed at first, and whenever a turn has failed: one whose output is not finite does. A row
that was left before any output showed what is in it is zeroed, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from export.bundle.manifest import StateKind, StateSpec
from service.memory.cache_layout import CacheLayout, CacheShape, Tier, row_capacity_for, shortlist_capacity_for
from service.runtime.bindings import Arena
from service.runtime.kv_cache import CacheBuffers


class FixedCaches(CacheBuffers):
    """Caches of an engine's rows on a device.

    most_rows: rows that each tier has room for, at least one.
    """

    def __init__(
        self,
        specs: Iterable[StateSpec],
        arena: Arena,
        *,
        layout: CacheLayout,
        max_rows: int,
        max_bytes: int | None,
        shortlists: Arena,
    ) -> None:
        """arena: of captured steps; shortlists: of their buffers. Raises what the memory does when it has too little.

        max_bytes: of all caches, but at least one row of the largest tier; None: all rows of it.
        """
        super().__init__(specs, arena, max_rows=max_rows, shortlists=shortlists)
        self._fixed = [buffer for buffer in self.buffers if buffer.kind != "shortlist"]
        self.most_rows = {
            tier: layout.rows_within(tier, max_rows=max_rows, max_bytes=max_bytes) for tier in layout.tiers
        }
        self._layout = layout
        for buffer in self._fixed:
            size = max(buffer.size_for(rows, _capacity(buffer.kind, tier)) for tier, rows in self.most_rows.items())
            buffer.resize(0, 0, live=0, size=size)
            self.arena.memory.clear(buffer.block)

    def clear(self) -> None:
        self.rows, self.capacities = 0, {}
        for buffer in self.buffers:
            if buffer.kind == "shortlist":
                buffer.clear()
            else:
                buffer.forget()
                self.arena.memory.clear(buffer.block)

    def use(self, tier: Tier, *, live: int = 0) -> None:
        """Gives rows the capacities of a tier and keeps the first `live`."""
        self.rows = self.most_rows[tier]
        self.capacities |= {"self_kv": tier.target_len, "cross_kv": tier.source_len}
        for buffer in self._fixed:
            buffer.reshape(self.rows, _capacity(buffer.kind, tier), live=live)

    def ensure(self, rows: int, *, live: int, lengths: dict[StateKind, int], most: CacheShape | None = None) -> None:
        """Makes room for `rows` rows of `lengths` positions, and of those of `most`, which they may come to need, and
        keeps the first `live`. The tier stays while it suits live rows."""
        most = most or CacheShape()
        wanted = self._layout.tier_for(
            max(lengths.get("self_kv", 0), most.target_len), max(lengths.get("cross_kv", 0), most.source_len)
        )
        assert rows <= self.most_rows[wanted], (rows, wanted, self.most_rows)
        current = Tier(self.capacities.get("self_kv", 0), self.capacities.get("cross_kv", 0))
        suits = live and current >= wanted and rows <= self.most_rows.get(current, 0)
        if current != wanted and not suits:
            self.use(wanted, live=live)
        self._ensure_shortlists(rows, live, shortlist_capacity_for(lengths.get("shortlist", 0)), most)

    def _ensure_shortlists(self, rows: int, live: int, capacity: int, most: CacheShape) -> None:
        self.capacities["shortlist"] = capacity
        room = row_capacity_for(max(rows, most.rows), self.max_rows)
        for buffer in self.of_kind("shortlist"):
            if (buffer.rows, buffer.capacity) != (room, capacity):
                buffer.resize(room, capacity, live=live)


def _capacity(kind: StateKind, tier: Tier) -> int:
    return {"self_kv": tier.target_len, "cross_kv": tier.source_len}.get(kind, 0)
