"""Per-row vocabulary shortlists: cached output-projection columns, and the log-probabilities over them.

`project_shortlist` runs once for a row, when it starts. `shortlist_logprobs` replaces the last product of `decode` and
`logprobs` in every step; each row is computed over its own shortlist, whatever the others are. This module is
independent of the choice of shortlists.

Shapes: R rows, L lines, W shortlist capacity, V vocabulary, K best tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from service.runtime.bindings import Arena, Binding, BindingCache
from service.runtime.kv_cache import CacheBuffers
from service.runtime.memory import StoredArray
from service.runtime.step_inputs import RowInputs
from service.runtime.step_outputs import FLOAT, RANKED, OutputBlocks, top_k_for
from service.step import NewRow

STATES, IDS = "states", "word_ids"


class RowShortlist(OutputBlocks):
    """One engine's shortlist sessions, and their outputs of a turn.

    caches: of all rows, with the projection columns among them.
    """

    def __init__(
        self,
        project: Any,
        rank: Any,
        arena: Arena,
        rows: RowInputs,
        caches: CacheBuffers,
        vocab_size: int,
        *,
        captured: Arena | None = None,
        options: Any = None,
    ) -> None:
        """project, rank: the sessions of `project_shortlist` and `shortlist_logprobs`; options: of their runs."""
        self._project, self._rank, self._options = project, rank, options
        self.caches, self._buffers = caches, caches.of_kind("shortlist")
        by_name = {spec.name: buffer for buffer in self._buffers for spec in buffer.specs}
        self._ids, width = by_name[IDS], int(by_name["word_weight"].spec.shape[1])
        super().__init__(arena, {STATES: width, **dict.fromkeys(RANKED, 0), "normaliser": 1}, captured)
        self._rows, self._counts, self._vocab_size = rows, rows["word_counts"], vocab_size
        self._lines, self._shape = 0, (0, 0)  # lines, and entries and best tokens of each, that there is room for
        self._places = np.zeros(0, np.int32)
        self._places_block = arena.allocate(0)
        self._top_k = np.zeros(1, np.int64)
        self._rankings = BindingCache(arena, self._captured)
        self._projections = BindingCache(arena, self._captured)

    def fill(self, new: NewRow) -> None:
        """Computes the projection columns of a row into its caches; unused ones repeat token 0."""
        count = self._counts[new.row] = len(new.shortlist)
        if not count:
            return
        key = new.row, len(self._places)
        binding = self._projections.get(key)
        if binding is None:
            binding = self._projections.add(key, Binding(self._project, self._options))
            binding.arrays["ids"] = np.zeros((1, len(self._places)), np.int64)
            for buffer in self._buffers:
                for name, place in buffer.places(new.row, 1):
                    binding.write(name, place)
        ids = binding.arrays["ids"]
        ids[0, :count], ids[0, count:] = new.shortlist, 0
        binding.upload("ids", ids, self._memory)
        binding.run()

    def copy(self, source: int, target: int) -> None:
        """Gives row `target` the shortlist length of row `source`; its columns are copied with the caches."""
        self._counts[target] = self._counts[source]

    def restore(self, row: int, count: int) -> None:
        """Gives a row its shortlist length again; its columns are restored with the caches."""
        self._counts[row] = count

    def ensure(self, lines: int, top_k: int) -> None:
        """Makes room for `lines` lines, each with at least `top_k` best tokens of its shortlist."""
        width = self.caches.capacities.get("shortlist", 0)
        top_k = min(top_k_for(max(top_k, 2)), width)
        if lines <= self._lines and (width, top_k) == self._shape:
            return
        lines = max(lines, self._lines)
        self._lines, self._shape = 0, (width, top_k)
        self._widths |= {"logprobs": width, "top_ids": top_k, "top_logprobs": top_k}
        for name in self._blocks:
            self._hold(name, lines)
        if width != len(self._places):
            self._places = np.arange(width, dtype=np.int32)
            if self._places_block.size < self._places.nbytes:  # otherwise its first entries are the same
                self._places_block = self._arena.allocate(self._places.nbytes)
                self._memory.write(self._places_block, self._places)
        if top_k != self._top_k[0]:
            self._top_k = np.full(1, top_k, np.int64)
        self._lines = lines  # only once there is room: the allocation may fail

    def bind_states(self, binding: Binding, rows: int) -> None:
        """Lets `decode` write the states of the first rows."""
        binding.write(STATES, self._place(STATES, 0, rows))

    def rank(self, rows: int, line: int) -> None:
        """Computes the log-probabilities of the first rows into lines from `line` on."""
        key = rows, line, self._shape
        binding = self._rankings.get(key) or self._rankings.add(key, self._ranking(rows, line))
        binding.run()

    def _ranking(self, rows: int, line: int) -> Binding:
        binding = Binding(self._rank, self._options)
        for buffer in self._buffers:
            for name, place in buffer.places(0, rows):
                binding.read(name, place)
        binding.read(STATES, self._place(STATES, 0, rows))
        self._rows.bind(binding, rows, ("word_counts",))
        binding.read("word_places", self._arena.place(self._places_block, 0, self._places.dtype, self._places.shape))
        binding.read_array("top_k", self._top_k)
        for name in RANKED:
            binding.write(name, self._place(name, line, rows))
        return binding

    def best(self, lines: int) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and log-probabilities of the best tokens of each of the first lines; fewer where a shortlist is short."""
        return possible(*self._read_best(0, lines))

    def stored_row(self, row: int, line: int) -> tuple[StoredArray, ...]:
        """Where the arrays are that `distribution` takes of a line."""
        offset = dict(self._ids.offsets(row))[IDS]
        ids = StoredArray(self._ids.block, offset, (int(self._counts[row]),), self._ids.dtype)
        return ids, self.stored("logprobs", line, 1)

    def distribution(self, *arrays: np.ndarray) -> np.ndarray:
        """The distribution of a line over the full vocabulary, float32 (V,): -inf outside the row's shortlist."""
        ids, logprobs_1W = arrays
        logprobs_V = np.full(self._vocab_size, -np.inf, FLOAT)
        logprobs_V[ids] = logprobs_1W[0, : len(ids)]
        return logprobs_V


def possible(ids: list[list[int]], logprobs: list[list[float]]) -> tuple[list[list[int]], list[list[float]]]:
    """The best tokens of each line without those that its shortlist does not have."""
    for line, own in enumerate(logprobs):
        if own[-1] == -np.inf:
            count = max(1, own.index(-np.inf))
            ids[line], logprobs[line] = ids[line][:count], own[:count]
    return ids, logprobs
