"""The buffers that hold the caches of live rows: their layout, growth, copies and bindings.

The memory that a row needs follows from the kinds of states in the manifest: `self_kv` grows with every token,
`cross_kv` with the source, `shortlist` with the row's shortlist; states without a growing axis have a fixed size. This
module knows no architecture, session or scheduler.

A buffer changes its shape within its block of memory, line by line, and a block is allocated for all that the live
requests can come to need: pages that were never written cost nothing, while fresh ones cost several times what the copy
does (at 64 rows and 150 tokens a turn, growing into new blocks was 3.5 ms of the mean turn).

Shapes: R rows of a buffer, C capacity in positions. A state is (R, outer, C, inner), outer and inner being the sizes
before and after the growing axis; a line is the memory of one (row, outer).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from export.manifest import StateKind, StateSpec, Variant
from service.cache_layout import CacheAxes, CacheShape, capacity_for, row_capacity_for, shortlist_capacity_for
from service.runtime.bindings import Arena, Place
from service.runtime.memory import Block
from service.step import Copy, PrefixBlock

FEW_ROWS, FEW_ROWS_CAPACITY = 4, 64
"""Spare capacity costs so few rows nothing, but growing it does, as bindings are remade: 3 ms in a sentence of 30
tokens at 1.4 ms a step."""


class CacheBuffer:
    """S states of one kind, type and shape, (S, R, outer, C, inner), in one block of memory: an operation on a row
    applies to all of them."""

    def __init__(self, specs: Sequence[StateSpec], arena: Arena) -> None:
        self.names = [spec.name for spec in specs]
        self.spec, self.arena, self.memory = specs[0], arena, arena.memory
        self.axes = CacheAxes.of(self.spec)
        self.dtype: np.dtype[np.generic] = np.dtype(self.spec.dtype)
        self.clear()

    def clear(self) -> None:
        """Drops all rows and their memory."""
        self.rows = self.capacity = 0
        self.block: Block = self.arena.allocate(0)

    @property
    def kind(self) -> StateKind:
        """The kind of the states, which determines what they grow with."""
        return self.spec.kind

    @property
    def count(self) -> int:
        """Number of states."""
        return len(self.names)

    def shape(self, rows: int) -> tuple[int, ...]:
        """The shape of `rows` rows of one state as the graph sees them."""
        return self.shape_for(rows, self.capacity)

    def shape_for(self, rows: int, length: int) -> tuple[int, ...]:
        """The shape of `rows` rows of one state with room for `length` positions."""
        places = self.spec.places(length)
        return (rows, *(places if isinstance(size, str) else size for size in self.spec.shape[1:]))

    def pitch_for(self, length: int) -> int:
        """Bytes of one line with `length` positions."""
        return (self.spec.places(length) if self.axes.grows else 1) * self.axes.inner * self.axes.itemsize

    def addresses(self, row: int) -> Iterator[tuple[str, int]]:
        """Each state's name and the address of a row."""
        first, stride = self.block.address + row * self._row_bytes, self._stride
        return ((name, first + place * stride) for place, name in enumerate(self.names))

    def places(self, row: int, rows: int) -> Iterator[tuple[str, Place]]:
        """Each state's name and where rows [row, row + rows) lie, for a binding: valid for one capacity."""
        first, stride, shape = row * self._row_bytes, self._stride, self.shape(rows)
        for place, name in enumerate(self.names):
            yield name, self.arena.place(self.block, first + place * stride, self.dtype, shape)

    @property
    def _stride(self) -> int:
        """Bytes from one state to the next."""
        return self.block.size // self.count

    @property
    def _pitch(self) -> int:
        return self.pitch_for(self.capacity)

    @property
    def _row_bytes(self) -> int:
        return self.axes.outer * self._pitch

    def size_for(self, rows: int, capacity: int) -> int:
        """Bytes of `rows` rows of `capacity` positions, of all states."""
        return self.count * rows * self.axes.outer * self.pitch_for(capacity)

    def reshape(self, rows: int, capacity: int, *, live: int) -> None:
        """Changes the shape within the same memory, which must be large enough, and keeps the first `live` rows."""
        assert self.size_for(rows, capacity) <= self.block.size, (rows, capacity)
        old_pitch, valid = self._pitch, min(capacity, self.capacity)
        self.rows, self.capacity = rows, capacity
        width = self.pitch_for(valid)
        if live and width and self._pitch != old_pitch:
            self._move_lines(live * self.axes.outer, old_pitch, self._pitch, width)

    def _move_lines(self, lines: int, old: int, new: int, width: int) -> None:
        """Moves lines 0 .. `lines` of `width` bytes from a pitch of `old` bytes to one of `new` bytes. A copy moves as
        many lines as do not overlap their targets; the first few always overlap and go through another block."""
        few, own = min(lines, -(-max(old, new) // abs(new - old))), (self.block, self._stride)
        if new > old:  # from the last line on, because each moves to the place of later ones
            stop = lines
            while stop > few:
                start = max(few, -(-stop * old // new))
                self._move(own, own, start, stop, old, new, width)
                stop = start
        other = self.memory.allocate(self.count * few * width), few * width
        self._move(other, own, 0, few, old, width, width)
        self._move(own, other, 0, few, width, new, width)
        if new < old:
            start = few
            while start < lines:
                stop = min(lines, start * old // new)
                self._move(own, own, start, stop, old, new, width)
                start = stop

    def _move(self, target: _Strided, source: _Strided, start: int, stop: int, old: int, new: int, width: int) -> None:
        self.memory.copy(
            target[0],
            source[0],
            target_offset=start * new,
            source_offset=start * old,
            target_pitch=new,
            source_pitch=old,
            width=width,
            height=stop - start,
            count=self.count,
            target_stride=target[1],
            source_stride=source[1],
        )

    def resize(self, rows: int, capacity: int, *, live: int, size: int = 0) -> None:
        """Allocates memory for (rows, capacity), of at least `size` bytes, and keeps the first `live` rows as far as
        they fit."""
        old, old_pitch, valid = (self.block, self._stride), self._pitch, min(capacity, self.capacity)
        self.block = self.arena.allocate(max(size, self.size_for(rows, capacity)))
        self.rows, self.capacity = rows, capacity
        if live:
            new = self.block, self._stride
            self._move(new, old, 0, live * self.axes.outer, old_pitch, self._pitch, self.pitch_for(valid))

    def copy(self, copies: Iterable[tuple[int, int, int, int]]) -> None:
        """For each (source, target, start, stop): copies these positions of row `source` over those of row `target`,
        strided ones by whole places, fixed-size states as a whole. No row may be both source and target."""
        stride, pitch, unit = self.spec.stride, self._pitch, self.pitch_for(1)  # of what does not grow, the same
        if not self.axes.grows:
            found = [(source, target, 0, 1) for source, target, _, _ in copies]
        elif stride == 1:
            found = list(copies)
        else:
            places = self.spec.places
            found = [(source, target, start // stride, places(stop)) for source, target, start, stop in copies]
        self.memory.copy_rows(
            self.block, found, lines=self.axes.outer, pitch=pitch, unit=unit, count=self.count, stride=self._stride
        )

    def copy_to(
        self, other: CacheBuffer, source: int, target: int, *, source_start: int, target_start: int, count: int
    ) -> None:
        """Copies `count` positions of row `source`, from `source_start` on, into row `target` of another buffer of the
        same states, from `target_start` on."""
        self.memory.copy(
            other.block,
            self.block,
            target_offset=target * other._row_bytes + (other.pitch_for(target_start) if self.axes.grows else 0),
            source_offset=source * self._row_bytes + (self.pitch_for(source_start) if self.axes.grows else 0),
            target_pitch=other._pitch,
            source_pitch=self._pitch,
            width=self.pitch_for(count),
            height=self.axes.outer,
            count=self.count,
            target_stride=other._stride,
            source_stride=self._stride,
        )

    def scratch_size(self, rows: int, length: int) -> int:
        """Bytes of one state of `rows` rows with room for `length` positions, as `take` and `give` lay them out: state
        after state."""
        return rows * self.axes.outer * self.pitch_for(length)

    def take(self, block: Block, row: int, *, first: int, count: int, valid: int, rows: int, length: int) -> None:
        """Copies `valid` positions of rows [first, first + count) of `block`, which holds `rows` rows with room for
        `length` positions, into rows from `row` on."""
        pitch = self.pitch_for(length)
        self.memory.copy(
            self.block,
            block,
            target_offset=row * self._row_bytes,
            source_offset=first * self.axes.outer * pitch,
            target_pitch=self._pitch,
            source_pitch=pitch,
            width=self.pitch_for(valid),
            height=count * self.axes.outer,
            count=self.count,
            target_stride=self._stride,
            source_stride=self.scratch_size(rows, length),
        )

    def give(self, block: Block, row: int, length: int) -> None:
        """Copies `length` positions of row `row` to `block`, as its only row."""
        pitch = self.pitch_for(length)
        self.memory.copy(
            block,
            self.block,
            target_offset=0,
            source_offset=row * self._row_bytes,
            target_pitch=pitch,
            source_pitch=self._pitch,
            width=pitch,
            height=self.axes.outer,
            count=self.count,
            target_stride=self.scratch_size(1, length),
            source_stride=self._stride,
        )


_Strided = tuple[Block, int]
"""A block, and the bytes from one of its states to the next."""


def _buffers(specs: Iterable[StateSpec], arena: Arena) -> list[CacheBuffer]:
    """Buffers of these states: one for all of the same kind, type and shape."""
    alike: dict[tuple[object, ...], list[StateSpec]] = {}
    for spec in specs:
        alike.setdefault((spec.kind, spec.dtype, spec.shape, spec.stride), []).append(spec)
    return [CacheBuffer(group, arena) for group in alike.values()]


class CacheBuffers:
    """The caches of an engine's rows, resized together.

    capacities: positions that each row has room for, by kind of state.
    """

    def __init__(self, specs: Sequence[StateSpec], arena: Arena, *, max_rows: int) -> None:
        self.arena, self.max_rows = arena, max_rows
        self.buffers = _buffers(specs, arena)
        self.rows = 0
        self.capacities: dict[StateKind, int] = {}

    @property
    def size(self) -> int:
        """Bytes allocated."""
        return sum(buffer.block.size for buffer in self.buffers)

    def clear(self) -> None:
        """Drops all rows and their memory."""
        self.rows, self.capacities = 0, {}
        for buffer in self.buffers:
            buffer.clear()

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
        for buffer in self.buffers:
            if wanted := by_kind.get(buffer.kind, own):  # most turns have none
                buffer.copy(wanted)


def _capacity(kind: StateKind, length: int) -> int:
    return shortlist_capacity_for(length) if kind == "shortlist" else capacity_for(length)


class PrefixStore:
    """Blocks of prompt positions that the prefix cache keeps: `self_kv` copied out of rows, one block a slot."""

    def __init__(self, specs: Sequence[StateSpec], arena: Arena) -> None:
        self.buffers = _buffers([spec for spec in specs if spec.kind == "self_kv"], arena)

    @property
    def size(self) -> int:
        """Bytes allocated."""
        return sum(buffer.block.size for buffer in self.buffers)

    def store(self, rows: CacheBuffers, block: PrefixBlock, *, slots: int) -> None:
        """Copies a block of a row into its slot. Memory for all `slots` is allocated once; unwritten pages are free."""
        for kept, buffer in zip(self.buffers, rows.of_kind("self_kv"), strict=True):
            if (kept.rows, kept.capacity) != (slots, block.count):
                kept.resize(slots, block.count, live=0)
            buffer.copy_to(kept, block.row, block.slot, source_start=block.start, target_start=0, count=block.count)

    def load(self, rows: CacheBuffers, block: PrefixBlock) -> None:
        """Copies a stored block into its row."""
        for kept, buffer in zip(self.buffers, rows.of_kind("self_kv"), strict=True):
            kept.copy_to(buffer, block.slot, block.row, source_start=0, target_start=block.start, count=block.count)


def outputs_by_state(variant: Variant) -> dict[str, list[str]]:
    """The outputs of `decode` that are bound to the memory of each state, by state name."""
    found: dict[str, list[str]] = {state.name: [] for state in variant.states}
    for output in variant.graphs["decode"].outputs if found else ():
        _, dot, name = output.partition(".")
        if dot and name in found:
            found[name].append(output)
    return found
