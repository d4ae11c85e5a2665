"""The inputs of a decode step per row: its token, that token's position, the lengths of row, source and shortlist.

The arrays are filled in main memory. A device has a block of its own, which is bound once and overwritten as a whole
before each step: a captured CUDA graph always reads the same addresses. Tokens that only the device knows are copied
into it there.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import numpy as np

from service.runtime.batching import contiguous_runs
from service.runtime.bindings import Arena, Binding
from service.runtime.memory import Region, StoredArray

TOKEN_BYTES = 8
FIELDS = (  # name, type, values per row; the widest types come first
    ("tokens", np.int64, (1,)),
    ("starts", np.int64, ()),
    ("positions", np.int64, (2,)),  # (row, token) of each line of the outputs
    ("asked", np.int64, ()),  # the row of each line of the outputs
    ("lengths", np.int32, ()),
    ("window_lengths", np.int32, ()),  # what the caches of layers with a window hold of these
    ("source_lengths", np.int32, ()),
    ("word_counts", np.int32, ()),  # shortlist entries; 0: the row has no shortlist
    ("sharpness", np.float32, (1,)),  # of `service.runtime.token_draws`, as the next
    ("draws", np.float32, (2, 6)),
)


class RowInputs:
    """Arrays by the names of graph inputs, with one entry for each row of an engine. `positions` are those of the only
    token of each row."""

    def __init__(self, arena: Arena, max_rows: int) -> None:
        self._arena, self.max_rows, memory = arena, max_rows, arena.memory
        sizes = [max_rows * math.prod(width) * np.dtype(dtype).itemsize for _, dtype, width in FIELDS]
        self._host = np.zeros(sum(sizes), np.uint8)
        self._offsets = {name: sum(sizes[:place]) for place, (name, _, _) in enumerate(FIELDS)}
        self._arrays: dict[str, np.ndarray] = {
            name: np.ndarray((max_rows, *width), dtype, self._host.data, self._offsets[name])
            for name, dtype, width in FIELDS
        }
        self._arrays["positions"][:, 0] = self._arrays["asked"][:] = np.arange(max_rows)
        self._block = None if memory.device == "cpu" else arena.allocate(self._host.nbytes)
        self._newest = arena.allocate(0 if memory.device == "cpu" else max_rows * TOKEN_BYTES)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def pad(self, first: int, stop: int) -> None:
        """Gives rows [first, stop) harmless inputs: token 0 at position 0, one source token."""
        for name in ("tokens", "starts", "word_counts"):
            self._arrays[name][first:stop] = 0
        for name in ("lengths", "window_lengths", "source_lengths"):
            self._arrays[name][first:stop] = 1

    def write(self, fed: Sequence[tuple[int, int]] = ()) -> None:
        """Copies the filled arrays to the device. fed: see `service.step.DecodeStep`."""
        if self._block is None:
            return
        self._arena.memory.write(self._block, self._host)
        tokens, newest = Region(self._block, TOKEN_BYTES), Region(self._newest, TOKEN_BYTES)
        for first, stop in contiguous_runs(fed):
            row, line = fed[first]
            source = newest.at(line * TOKEN_BYTES)
            target = tokens.at(self._offsets["tokens"] + row * TOKEN_BYTES)
            self._arena.memory.copy(target, source, width=TOKEN_BYTES, height=stop - first)

    def keep(self, first: int, best: StoredArray) -> None:
        """Keeps the best tokens of rows from `first` on for the next step. best: ids on the device, int64 (rows, K)."""
        lines, width = best.shape
        target = Region(self._newest, TOKEN_BYTES).at(first * TOKEN_BYTES)
        source = Region(best.block, width * TOKEN_BYTES).at(best.offset)
        self._arena.memory.copy(target, source, width=TOKEN_BYTES, height=lines)

    def stored_newest(self, rows: int) -> StoredArray:
        """Where the tokens of the first rows are kept for the next step: int64 (rows, 1)."""
        return StoredArray(self._newest, 0, (rows, 1), np.dtype(np.int64))

    def bind_newest(self, binding: Binding, name: str, rows: int) -> None:
        """Lets a graph write the tokens of the first rows that are kept for the next step."""
        block, offset, shape, dtype = self.stored_newest(rows)
        binding.write(name, self._arena.place(block, offset, dtype, shape))

    def bind(self, binding: Binding, rows: int, wanted: Container[str], *, num_logits: int = 0) -> None:
        """Binds the arrays that a graph takes, for the first rows. num_logits: rows of which `decode`
        returns logits."""
        for name, array in self._arrays.items():
            if name in wanted:
                part = array[: num_logits if name == "asked" else rows]
                if self._block is None:
                    binding.read_array(name, part)
                else:
                    binding.read(name, self._arena.place(self._block, self._offsets[name], part.dtype, part.shape))
