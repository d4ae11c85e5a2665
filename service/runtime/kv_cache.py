"""The buffers that hold the caches of live rows: their layout, growth, copies and bindings.

What a row needs follows from the kinds of its states (`service.memory.cache_layout`). This module knows no
architecture, session or scheduler. Buffers of states with a window hold the last positions of a row alone, and
`CacheBuffers` knows the first one of each row (`export.bundle.windows`).

A buffer changes its shape within its block of memory, line by line, and a block is allocated for all that the live
requests can come to need: pages that were never written cost nothing, while fresh ones cost several times what the copy
does (at 64 rows and 150 tokens a turn, growing into new blocks was 3.5 ms of the mean turn).

Shapes: R rows of a buffer, C capacity in positions, or in places where a position does not have one of its own. A state
is (R, outer, C, inner), outer and inner being the sizes before and after the growing axis; a line is the memory of one
(row, outer).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from export.bundle.manifest import StateKind, StateSpec, capacity_for
from export.bundle.windows import first_position
from service.memory.cache_layout import CacheAxes, CacheShape, row_capacity_for, shortlist_capacity_for
from service.runtime.bindings import Arena, Place
from service.runtime.memory import Block, Region
from service.step import Copy

FEW_ROWS, FEW_ROWS_CAPACITY = 4, 64
"""Spare capacity costs so few rows nothing, but growing it does, as bindings are remade: 3 ms in a sentence of 30
tokens at 1.4 ms a step."""


class CacheBuffer:
    """S states of one kind, type and shape, (S, R, outer, C, inner), in one block of memory: an operation on a row
    applies to all of them."""

    def __init__(self, specs: Sequence[StateSpec], arena: Arena) -> None:
        self.specs, self.arena, self.memory = specs, arena, arena.memory
        self.spec = specs[0]
        self.kind: StateKind = self.spec.kind
        self.axes = CacheAxes.of(self.spec)
        self.dtype: np.dtype[np.generic] = np.dtype(self.spec.dtype)
        self._unit = self.axes.inner * self.axes.itemsize  # bytes of a place, or of a line that does not grow
        self.clear()

    def clear(self) -> None:
        """Drops all rows and their memory."""
        self._use(self.arena.allocate(0), 0, 0)

    def forget(self) -> None:
        """Drops all rows and keeps their memory."""
        self._use(self.block, 0, 0)

    def _use(self, block: Block, rows: int, capacity: int) -> None:
        self.block, self.rows, self.capacity = block, rows, capacity
        self._region = Region(block, self.pitch_for(capacity), len(self.specs), block.size // len(self.specs))
        self._row_bytes = self.axes.outer * self._region.pitch

    def shape(self, rows: int) -> tuple[int, ...]:
        """The shape of `rows` rows of one state as the graph sees them."""
        places = self.spec.kept_places(self.capacity)
        return (rows, *(places if isinstance(size, str) else size for size in self.spec.shape[1:]))

    def pitch_for(self, length: int) -> int:
        """Bytes of one line with `length` positions."""
        return self.spec.kept_places(length) * self._unit if self.axes.grows else self._unit

    def offsets(self, row: int) -> Iterator[tuple[str, int]]:
        """Each state's name, and the byte of the block at which a row begins."""
        first, stride = row * self._row_bytes, self._region.stride
        return ((spec.name, first + index * stride) for index, spec in enumerate(self.specs))

    def places(self, row: int, rows: int) -> Iterator[tuple[str, Place]]:
        """Each state's name and where rows [row, row + rows) lie, for a binding: valid for one capacity."""
        shape = self.shape(rows)
        for name, offset in self.offsets(row):
            yield name, self.arena.place(self.block, offset, self.dtype, shape)

    def size_for(self, rows: int, capacity: int) -> int:
        """Bytes of `rows` rows of `capacity` positions, of all states."""
        return len(self.specs) * rows * self.axes.outer * self.pitch_for(capacity)

    def reshape(self, rows: int, capacity: int, *, live: int) -> None:
        """Changes the shape within the same memory, which must be large enough, and keeps the first `live` rows."""
        assert self.size_for(rows, capacity) <= self.block.size, (rows, capacity)
        old, width = self._region, self.pitch_for(min(capacity, self.capacity))
        self._use(self.block, rows, capacity)
        if live and width and self._region.pitch != old.pitch:
            self._move_lines(live * self.axes.outer, old, self._region, width)

    def _move_lines(self, lines: int, old: Region, new: Region, width: int) -> None:
        """Moves lines 0 .. `lines` of `width` bytes within a block, from one pitch to another. A copy moves as many
        lines as do not overlap their targets; the first few always overlap and go through another block."""
        few = min(lines, -(-max(old.pitch, new.pitch) // abs(new.pitch - old.pitch)))
        if new.pitch > old.pitch:  # from the last line on, because each moves to the place of later ones
            stop = lines
            while stop > few:
                start = max(few, -(-stop * old.pitch // new.pitch))
                self._move(new, old, start, stop, width)
                stop = start
        size = few * width
        other = Region(self.memory.allocate(old.parts * size), width, old.parts, size)
        self._move(other, old, 0, few, width)
        self._move(new, other, 0, few, width)
        if new.pitch < old.pitch:
            start = few
            while start < lines:
                stop = min(lines, start * old.pitch // new.pitch)
                self._move(new, old, start, stop, width)
                start = stop

    def _move(self, target: Region, source: Region, start: int, stop: int, width: int) -> None:
        """Copies lines [start, stop)."""
        target, source = [region.at(start * region.pitch) for region in (target, source)]
        self.memory.copy(target, source, width=width, height=stop - start)

    def resize(self, rows: int, capacity: int, *, live: int, size: int = 0) -> None:
        """Allocates memory for (rows, capacity), of at least `size` bytes, and keeps the first `live` rows as far as
        they fit."""
        old, width = self._region, self.pitch_for(min(capacity, self.capacity))
        self._use(self.arena.allocate(max(size, self.size_for(rows, capacity))), rows, capacity)
        if live:
            self._move(self._region, old, 0, live * self.axes.outer, width)

    def erase(self, row: int) -> None:
        """Fills a row with zeros."""
        for _, offset in self.offsets(row):
            self.memory.clear(self.block, start=offset, size=self._row_bytes)

    def advance(self, row: int, by: int, count: int) -> None:
        """Moves `count` places of a row from place `by` on to its front, as many at a time as do not overlap their
        targets."""
        row_start = row * self._row_bytes
        for place in range(0, count, by):
            target = self._region.at(row_start + place * self._unit)
            source = self._region.at(row_start + (place + by) * self._unit)
            self.memory.copy(target, source, width=min(by, count - place) * self._unit, height=self.axes.outer)

    def copy(self, copies: Iterable[tuple[int, int, int, int]]) -> None:
        """For each (source, target, start, stop): copies these positions of row `source` over those of row `target`,
        strided ones by whole places, fixed-size states as a whole, with a window these places. No row may be both
        source and target."""
        stride = self.spec.stride
        if not self.axes.grows:
            found = [(source, target, 0, 1) for source, target, _, _ in copies]
        elif stride == 1:
            found = list(copies)
        else:
            places = self.spec.places
            found = [(source, target, start // stride, places(stop)) for source, target, start, stop in copies]
        self.memory.copy_rows(self._region, found, height=self.axes.outer, unit=self._unit)

    def copy_to(
        self,
        other: CacheBuffer,
        source: int,
        target: int,
        *,
        length: int,
        rows: int = 1,
        source_start: int = 0,
        target_start: int = 0,
    ) -> None:
        """Copies `length` positions of `rows` rows from `source` on, the first one `source_start`, over those of rows
        from `target` on of another buffer of the same states, the first one `target_start`. With a window these are
        places."""
        self.memory.copy(
            other._from(target, target_start),
            self._from(source, source_start),
            width=self.pitch_for(length),
            height=rows * self.axes.outer,
        )

    def _from(self, row: int, start: int) -> Region:
        """The lines from a row on, each from position `start` on."""
        return self._region.at(row * self._row_bytes + (self.spec.places(start) * self._unit if self.axes.grows else 0))


class StateBuffers:
    """Buffers of an engine's states: one for all states of the same kind, type and shape."""

    def __init__(self, specs: Iterable[StateSpec], arena: Arena, *, shortlists: Arena | None = None) -> None:
        """shortlists: the arena of their buffers, if it is another one."""
        self.arena = arena
        alike: dict[tuple[object, ...], list[StateSpec]] = {}
        for spec in specs:
            alike.setdefault((spec.kind, spec.dtype, spec.shape, spec.stride, spec.window), []).append(spec)
        arenas: dict[str, Arena] = {} if shortlists is None else {"shortlist": shortlists}
        self.buffers = [CacheBuffer(group, arenas.get(group[0].kind, arena)) for group in alike.values()]

    @property
    def size(self) -> int:
        """Bytes allocated. May be read from any thread."""
        return sum(buffer.block.size for buffer in self.buffers)


class CacheBuffers(StateBuffers):
    """The caches of an engine's rows, resized together.

    capacities: positions that each row has room for, by kind of state. window: of states that have one, 0 if none has.
    firsts: by row, the first position that buffers of such states hold.
    """

    def __init__(
        self, specs: Iterable[StateSpec], arena: Arena, *, max_rows: int, shortlists: Arena | None = None
    ) -> None:
        super().__init__(specs, arena, shortlists=shortlists)
        self.max_rows, self.rows = max_rows, 0
        self.capacities: dict[StateKind, int] = {}
        self.window = max([buffer.spec.window for buffer in self.buffers], default=0)
        self.firsts = [0] * max_rows

    def clear(self) -> None:
        """Drops all rows and their memory."""
        self.rows, self.capacities, self.firsts = 0, {}, [0] * self.max_rows
        for buffer in self.buffers:
            buffer.clear()

    def erase(self, rows: Iterable[int]) -> None:
        """Fills rows with zeros."""
        for buffer in self.buffers:
            for row in rows:
                buffer.erase(row)

    def of_kind(self, kind: StateKind) -> list[CacheBuffer]:
        """The buffers of one kind of state."""
        return [buffer for buffer in self.buffers if buffer.kind == kind]

    def ensure(self, rows: int, *, live: int, lengths: dict[StateKind, int], most: CacheShape | None = None) -> None:
        """Makes room for `rows` rows of `lengths` positions and keeps the first `live`.

        With live rows, buffers grow when they must and shrink when half of them would do; idle ones take the shape that
        is needed. Few rows get their maximal need from the start, up to FEW_ROWS_CAPACITY. The shape changes within
        the allocated memory, unless that is too small or more than four times too large. New memory is allocated
        for `most`, the maximal need of the rows, and never more than CacheLayout.bytes_for(most): the reservation of
        admission suffices. (While a buffer is resized, its old and its new block exist side by side.)
        """
        room = row_capacity_for(rows, self.max_rows)
        most = most or CacheShape()
        wanted = {kind: _capacity(kind, length) for kind, length in lengths.items()}
        if room <= FEW_ROWS:
            roomy = capacity_for(min(most.target_len, FEW_ROWS_CAPACITY))
            wanted["self_kv"] = max(wanted.get("self_kv", 0), roomy)
        if (live and self._suits(room, wanted)) or (room, wanted) == (self.rows, self.capacities):
            return
        most_rows = row_capacity_for(max(rows, most.rows), self.max_rows)
        longest: dict[str, int] = {
            "self_kv": most.target_len,
            "cross_kv": most.source_len,
            "shortlist": most.shortlist_len,
        }
        shapes = [(buffer, wanted.get(buffer.kind, 0)) for buffer in self.buffers]
        sizes = [
            buffer.size_for(most_rows, max(capacity, _capacity(buffer.kind, longest.get(buffer.kind, 0))))
            for buffer, capacity in shapes
        ]
        fits = all(buffer.size_for(room, capacity) <= buffer.block.size for buffer, capacity in shapes)
        self.rows, self.capacities = room, wanted
        keeps_all = fits and self.size <= 4 * sum(sizes)
        # If one is resized, all are: a block that other requests needed may exceed what is reserved for it now.
        for (buffer, capacity), size in zip(shapes, sizes, strict=True):
            if keeps_all or size == buffer.block.size:
                buffer.reshape(room, capacity, live=live)
            else:
                buffer.resize(room, capacity, live=live, size=size)

    def advance(self, row: int, starts: Sequence[int]) -> list[int]:
        """Makes room in the buffers of states with a window for blocks that begin at `starts` in rows from `row` on.
        Returns the first position that these hold of each of the rows: 0 without a window."""
        if not self.window:
            return [0] * len(starts)
        firsts = [first_position(self.window, start) for start in starts]
        for at, (first, start) in enumerate(zip(firsts, starts, strict=True), row):
            if first > self.firsts[at]:  # a lower one is that of a new request
                for buffer in self._with_window:
                    buffer.advance(at, first - self.firsts[at], start - first)
            self.firsts[at] = first
        return firsts

    @property
    def _with_window(self) -> list[CacheBuffer]:
        return [buffer for buffer in self.buffers if buffer.spec.window]

    def _suits(self, room: int, wanted: dict[StateKind, int]) -> bool:
        """Whether buffers are large enough, and less than twice as large as needed; eight rows are always kept."""
        held = [(self.capacities.get(kind, 0), size) for kind, size in wanted.items()]
        rows_suit = room <= self.rows < max(9, 2 * room)
        return rows_suit and all(size <= have < 2 * size or size == have for have, size in held)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copies rows over others. No copy reads what another one writes."""
        own = [(copy.source, copy.target, copy.start, copy.stop) for copy in copies]
        sources = [(copy.source, copy.target, 0, copy.source_len) for copy in copies if copy.source_len]
        shortlists = [(copy.source, copy.target, 0, copy.shortlist_len) for copy in copies if copy.shortlist_len]
        by_kind: dict[str, list[tuple[int, int, int, int]]] = {"cross_kv": sources, "shortlist": shortlists}
        kept = [self._kept(*one) for one in own] if self.window else []
        for buffer in self.buffers:
            if wanted := kept if buffer.spec.window else by_kind.get(buffer.kind, own):
                buffer.copy(wanted)
        for source, target, _, _ in kept:
            self.firsts[target] = self.firsts[source]

    def _kept(self, source: int, target: int, start: int, stop: int) -> tuple[int, int, int, int]:
        """The places of these positions in buffers of states with a window; from the first one on if those of `target`
        lie elsewhere."""
        first = self.firsts[source]
        return source, target, max(0, start - first) if self.firsts[target] == first else 0, stop - first


def _capacity(kind: StateKind, length: int) -> int:
    return shortlist_capacity_for(length) if kind == "shortlist" else capacity_for(length)


class Scratch(StateBuffers):
    """Cross keys and values of a few rows without room to spare, as the encoder writes them and `align` reads them. The
    memory is reused, so that few runs allocate."""

    def __init__(self, caches: CacheBuffers, arena: Arena) -> None:
        self._rows = caches.of_kind("cross_kv")
        super().__init__([spec for buffer in self._rows for spec in buffer.specs], arena)

    def reserve(self, rows: int, length: int) -> None:
        """Takes the shape of `rows` rows of `length` positions; the contents become undefined."""
        for buffer in self.buffers:
            size, count = buffer.size_for(rows, length), len(buffer.specs)
            if size <= buffer.block.size:
                buffer.reshape(rows, length, live=0)
            else:
                buffer.resize(rows, length, live=0, size=count * (1 << (size // count - 1).bit_length()))

    def places(self) -> Iterator[tuple[str, Place]]:
        """Each state's name and where its rows lie, for a binding: valid for one shape."""
        for buffer in self.buffers:
            yield from buffer.places(0, buffer.rows)

    def store(self, row: int, length: int) -> None:
        """Copies `length` positions of a row of the caches into row 0."""
        for kept, buffer in zip(self.buffers, self._rows, strict=True):
            buffer.copy_to(kept, row, 0, length=length)

    def load(self, first: int, row: int, *, rows: int, length: int) -> None:
        """Copies `length` positions of `rows` rows from `first` on into the caches, from `row` on."""
        for kept, buffer in zip(self.buffers, self._rows, strict=True):
            kept.copy_to(buffer, first, row, rows=rows, length=length)
