"""What a step reads of each row: its token, where that stands, how long row and source are, how many words are its own.

Filled in main memory. A device has a block of its own, which is bound once and written as a whole before each step: a
graph that was captured reads what it always reads.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import numpy as np

from service.runtime.memory import Memory

FIELDS = (  # name, type, values a row; the widest types come first
    ("tokens", np.int64, (1,)),
    ("starts", np.int64, ()),
    ("positions", np.int64, (2,)),  # (row, token) of each line of the outputs
    ("asked", np.int64, ()),  # the row of each line of the outputs
    ("lengths", np.int32, ()),
    ("source_lengths", np.int32, ()),
    ("word_counts", np.int32, ()),  # 0: the row chooses among all words
)


class RowInputs:
    """Arrays by the names that graphs have for them, all rows of an engine in each. `positions` are those of the only
    token of each row."""

    def __init__(self, memory: Memory, max_rows: int) -> None:
        self._memory = memory
        sizes = [max_rows * math.prod(width) * np.dtype(dtype).itemsize for _, dtype, width in FIELDS]
        self._host = np.zeros(sum(sizes), np.uint8)
        self._offsets = {name: sum(sizes[:place]) for place, (name, _, _) in enumerate(FIELDS)}
        self._arrays: dict[str, np.ndarray] = {
            name: np.ndarray((max_rows, *width), dtype, self._host.data, self._offsets[name])
            for name, dtype, width in FIELDS
        }
        self._arrays["positions"][:, 0] = self._arrays["asked"][:] = np.arange(max_rows)
        self._block = None if memory.device == "cpu" else memory.allocate(self._host.nbytes)
        self._address: int = self._host.ctypes.data if self._block is None else self._block.address

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def write(self) -> None:
        """Lets the device have what was filled in."""
        if self._block is not None:
            self._memory.write(self._block, self._host)

    def bind(self, binding: Any, rows: int, wanted: Container[str], *, asked: int = 0) -> None:
        """Lets a graph read those arrays that it wants of the first rows, here and now and in every later run.

        asked: of how many `decode` is to tell logits, where it has to be asked.
        """
        for name, array in self._arrays.items():
            if name in wanted:
                count = asked if name == "asked" else rows
                shape, address = (count, *array.shape[1:]), self._address + self._offsets[name]
                binding.bind_input(name, self._memory.device, 0, array.dtype, shape, address)
