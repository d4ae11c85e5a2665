"""Rows that choose among words of their own: what is kept of these beside a row's caches, and what a step says of them.

`project_shortlist` is run once for a row, when it joins, and `shortlist_logprobs` in every step instead of the last
product of `decode` and of `logprobs`: over the words of one row, independent of other rows.

Shapes: R rows, L lines, W room for words, V vocabulary, K best tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from service.runtime.kv_cache import CacheBuffers
from service.runtime.memory import Memory
from service.runtime.step_inputs import RowInputs
from service.runtime.step_outputs import DTYPES, FLOAT, RANKED, OutputBlocks, top_k_for
from service.step import NewRow, Scored

STATES, IDS = "states", "word_ids"


class RowShortlist(OutputBlocks):
    """One engine's sessions of `project_shortlist` and `shortlist_logprobs`, and their outputs of a turn."""

    def __init__(
        self, words: Any, ranking: Any, memory: Memory, rows: RowInputs, states: CacheBuffers, vocab_size: int
    ) -> None:
        """words, ranking: sessions. states: of all rows; whoever replaces them says so here."""
        self.states = states
        self._words, self._ranking = words, ranking
        (weights,) = [buffer for buffer in states.of_kind("shortlist") if "word_weight" in buffer.names]
        super().__init__(memory, {STATES: int(weights.spec.shape[1]), **dict.fromkeys(RANKED, 0), "normaliser": 1})
        self._rows, self._counts, self._vocab_size = rows, rows["word_counts"], vocab_size
        self._lines = 0
        self._places = np.zeros(0, np.int32)
        self._ids = np.zeros((1, 0), np.int64)
        self._top_k = np.zeros(1, np.int64)
        self._bindings: dict[tuple[int, int], Any] = {}  # of rankings, by rows and line
        self._fillings: dict[int, Any] = {}  # by row

    def forget(self) -> None:
        """Of what was bound, some has moved."""
        self._bindings.clear()
        self._fillings.clear()

    def fill(self, join: NewRow) -> None:
        """Has what is kept of a row's words computed, in its place; behind them that of the first word there is."""
        count = self._counts[join.row] = len(join.shortlist)
        if not count:
            return
        self._ids[0, :count], self._ids[0, count:] = join.shortlist, 0
        binding = self._fillings.get(join.row)
        if binding is None or self._memory.device != "cpu":  # others copy what is bound when it is bound
            binding = self._fillings[join.row] = self._words.io_binding()
            binding.bind_input("ids", "cpu", 0, self._ids.dtype, self._ids.shape, self._ids.ctypes.data)
            for buffer in self.states.of_kind("shortlist"):
                for name, address in buffer.addresses(join.row):
                    binding.bind_output(name, self._memory.device, 0, buffer.dtype, buffer.shape(1), address)
        self._words.run_with_iobinding(binding)

    def copy(self, source: int, target: int) -> None:
        """The words of a row are those of another one."""
        self._counts[target] = self._counts[source]

    def ensure(self, lines: int, top_k: int) -> bool:
        """Makes room for so many lines, for at least `top_k` best words of each. True: states have another place."""
        room = self.states.capacities.get("shortlist", 0)
        top_k = min(top_k_for(max(top_k, 2)), room)
        widths = {**self._widths, "logprobs": room, "top_ids": top_k, "top_logprobs": top_k}
        if lines <= self._lines and widths == self._widths:
            return False
        self.forget()
        lines, states = max(lines, self._lines), self._blocks[STATES]
        for name, block in self._blocks.items():
            size = lines * widths[name] * DTYPES[name].itemsize
            if block.size < size:
                self._blocks[name] = self._memory.allocate(size)
        if room != len(self._places):
            self._places, self._ids = np.arange(room, dtype=np.int32), np.zeros((1, room), np.int64)
        self._top_k[0] = top_k
        self._lines, self._widths = lines, widths  # not before there is room: it may be refused
        return self._blocks[STATES] is not states

    def bind_states(self, binding: Any, rows: int) -> None:
        """Lets `decode` write the states of the first rows."""
        binding.bind_output(STATES, *self._place(STATES, 0, rows))

    def rank(self, rows: int, line: int) -> None:
        """Has the states of the first rows ranked, into lines from `line` on."""
        binding = self._bindings.get((rows, line))
        if binding is None:
            binding = self._bindings[rows, line] = self._bound(rows, line)
        self._ranking.run_with_iobinding(binding)

    def _bound(self, rows: int, line: int) -> Any:
        binding = self._ranking.io_binding()
        for buffer in self.states.of_kind("shortlist"):
            for name, address in buffer.addresses(0):
                binding.bind_input(name, self._memory.device, 0, buffer.dtype, buffer.shape(rows), address)
        binding.bind_input(STATES, *self._place(STATES, 0, rows))
        self._rows.bind(binding, rows, ("word_counts",))
        for name, array in (("word_places", self._places), ("top_k", self._top_k)):
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name in RANKED:
            binding.bind_output(name, *self._place(name, line, rows))
        return binding

    def best(self, lines: int) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and log-probabilities of the best words of each of the first lines, as many as were asked for and there
        are."""
        ids, logprobs = self._read("top_ids", 0, lines).tolist(), self._read("top_logprobs", 0, lines).tolist()
        for line, own in enumerate(logprobs):
            if own[-1] == -np.inf:
                count = max(1, own.index(-np.inf))
                ids[line], logprobs[line] = ids[line][:count], own[:count]
        return ids, logprobs

    def likeliest(self, line: int) -> Scored:
        """The best word of one line, and its log-probability."""
        return int(self._read("top_ids", line, 1)[0, 0]), float(self._read("top_logprobs", line, 1)[0, 0])

    def logprobs(self, row: int, line: int) -> np.ndarray:
        """Over the whole vocabulary, float32 (V,): -inf wherever a word is not the row's own."""
        count = int(self._counts[row])
        logprobs_V = np.full(self._vocab_size, -np.inf, FLOAT)
        logprobs_V[self._ids_of(row, count)] = self._read("logprobs", line, 1)[0, :count]
        return logprobs_V

    def logsumexp(self, row: int, line: int) -> float:
        return float(self._read("normaliser", line, 1)[0, 0])

    def _ids_of(self, row: int, count: int) -> np.ndarray:
        (buffer,) = [buffer for buffer in self.states.of_kind("shortlist") if IDS in buffer.names]
        (address,) = [address for name, address in buffer.addresses(row) if name == IDS]
        return self._memory.read(buffer.block, address - buffer.block.address, (count,), buffer.dtype)
