"""The outputs of `decode` and `logprobs`: where they are stored and how a turn reads them.

They stay in the memory of the graphs, main memory or a device's. Where no row is scored and logits are in main
memory, the most likely token of each row is found there. Otherwise the best tokens of each row come to the host in
every step, and a distribution on demand.

Outputs are stored in lines: one for each row of the step, then one for each draft token or extra step.

Shapes: L lines, V vocabulary, K best tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from service.runtime.bindings import Arena, Binding, BindingCache, Place
from service.runtime.memory import Block, StoredArray
from service.runtime.sessions import run_options
from service.step import Scored

FEW_LINES = 8
"""At most this many lines are searched one by one. After a step that read many megabytes of weights no instruction is
in a cache any more, and the shorter way takes 40 microseconds where that for many lines takes 80."""

TOP_K_STEPS = (2, 4, 8, 16, 32, 64, 128)  # TopK is slower for one than for a few
CAPTURED_TOP_K = (2, 8, 16, 64)
"""Of the captured runs of `logprobs`: greedy search; masks and small beams; larger beams; sampling."""
FLOAT: np.dtype[Any] = np.dtype(np.float32)
CAPTURED = ("logits", "states")  # outputs of `decode`
RANKED = ("logprobs", "normaliser", "top_logprobs", "top_ids")
DTYPES = {"logits": FLOAT, "states": FLOAT, **dict.fromkeys(RANKED, FLOAT), "top_ids": np.dtype(np.int64)}


def top_k_for(wanted: int, steps: Sequence[int] = TOP_K_STEPS) -> int:
    """How many best tokens the graph returns for at least `wanted`: a step above, so that bindings last."""
    return next((step for step in steps if step >= wanted), wanted)


class OutputBlocks:
    """Graph outputs by name, each a block of memory with lines of one width."""

    def __init__(self, arena: Arena, widths: dict[str, int], captured: Arena | None = None) -> None:
        """captured: the arena of what captured steps write, if it is another one."""
        self._arena, self._captured, self._memory, self._widths = arena, captured or arena, arena.memory, widths
        self._blocks: dict[str, Block] = {name: self._arena_of(name).allocate(0) for name in widths}

    def _arena_of(self, name: str) -> Arena:
        return self._captured if name in CAPTURED else self._arena

    @property
    def size(self) -> int:
        """Bytes of all outputs."""
        return sum(block.size for block in list(self._blocks.values()))

    def _hold(self, name: str, lines: int) -> None:
        """Makes a block large enough for `lines` lines."""
        size = lines * self._widths[name] * DTYPES[name].itemsize
        if self._blocks[name].size < size:
            self._blocks[name] = self._arena_of(name).allocate(size)

    def _place(self, name: str, first: int, lines: int) -> Place:
        width, dtype = self._widths[name], DTYPES[name]
        shape = (lines,) if name == "normaliser" else (lines, width)
        return self._arena_of(name).place(self._blocks[name], first * width * dtype.itemsize, dtype, shape)

    def _read(self, name: str, first: int, lines: int) -> np.ndarray:
        return self._memory.read(self.stored(name, first, lines))[0]

    def stored(self, name: str, first: int, lines: int) -> StoredArray:
        """Where the output `name` of lines [first, first + lines) is."""
        width, dtype = self._widths[name], DTYPES[name]
        return StoredArray(self._blocks[name], first * width * dtype.itemsize, (lines, width), dtype)

    def _read_best(self, first: int, lines: int) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and log-probabilities of the best tokens that the graph found of these lines."""
        ids, scores = self._memory.read(*self.stored_best(first, lines))
        return ids.tolist(), scores.tolist()

    def stored_best(self, first: int, lines: int) -> tuple[StoredArray, StoredArray]:
        """Where ids and log-probabilities of the best tokens of these lines are, as far as the graph ranks them."""
        return self.stored("top_ids", first, lines), self.stored("top_logprobs", first, lines)

    def most_likely(self, line: int) -> Scored:
        """The best token of one line that the graph ranked, and its log-probability."""
        ids, scores = self._read_best(line, 1)
        return ids[0][0], scores[0][0]

    def stored_row(self, row: int, line: int) -> tuple[StoredArray, ...]:
        """Where the arrays are that `distribution` takes of a ranked line."""
        return (self.stored("logprobs", line, 1),)

    def distribution(self, *arrays: np.ndarray) -> np.ndarray:
        """The distribution of a line, float32 (V,)."""
        row_V: np.ndarray = arrays[0][0]
        return row_V

    def logprobs(self, row: int, line: int) -> np.ndarray:
        """The distribution of a ranked line, float32 (V,), in main memory."""
        return self.distribution(*self._memory.read(*self.stored_row(row, line)))

    def logsumexp(self, row: int, line: int) -> float:
        """Log-sum-exp of the logits of a ranked line."""
        return float(self._read("normaliser", line, 1)[0, 0])


class LogitsBlocks(OutputBlocks):
    """The outputs of `decode` and `logprobs` for all lines of a turn.

    top_k: int64 (1,), K as the graph takes it; 0: the best token is found in the logits. is_ranked: whether the lines
    of this turn have log-probabilities, or will have them.
    """

    def __init__(
        self, arena: Arena, vocab_size: int, session: Any = None, *, captured: Arena | None = None, options: Any = None
    ) -> None:
        """arena: nothing else moves in it once rankings are captured. session: of the graph `logprobs`; options: of its
        runs."""
        widths = {"logits": vocab_size, "logprobs": vocab_size, "normaliser": 1, "top_ids": 0, "top_logprobs": 0}
        super().__init__(arena, widths, captured)
        self._lines = self._ranked_lines = 0  # that there is room for
        self.top_k = np.zeros(1, np.int64)
        self.is_ranked = False
        self._first_V: list[np.ndarray] = []  # the logits of the first few lines, where they can be read in place
        self._session, self._options, self._rankings = session, options, BindingCache(*self.arenas)
        self._captured_rankings = BindingCache(*self.arenas)
        self._rooms: Sequence[int] = ()

    def ensure(self, lines: int, top_k: int) -> None:
        """Makes room for `lines` lines, and if they are ranked for at least `top_k` best tokens of each. top_k: see
        StepPlan; a device ranks always."""
        is_device = self._memory.device != "cpu"
        self.is_ranked = top_k > 0 or is_device
        if lines > self._lines:
            self._hold("logits", lines)
            self._lines = lines  # only once there is room: the allocation may fail
            self._first_V = [] if is_device else list(self._read("logits", 0, min(lines, FEW_LINES)))
        if not self.is_ranked:
            return
        # One token is found faster here than by TopK in the graph, if the logits are in main memory.
        steps = CAPTURED_TOP_K if is_device and top_k <= CAPTURED_TOP_K[-1] else TOP_K_STEPS
        top_k = 0 if top_k <= 1 and not is_device else min(top_k_for(top_k, steps), self._widths["logits"])
        if top_k != self.top_k[0]:
            self.top_k[0] = self._widths["top_ids"] = self._widths["top_logprobs"] = top_k
            self._ranked_lines = 0
        if lines > self._ranked_lines:
            for name in RANKED:
                self._hold(name, lines)
            self._ranked_lines = lines

    @property
    def arenas(self) -> tuple[Arena, Arena]:
        """Whose memory bindings to the outputs point into."""
        return self._arena, self._captured

    def read(self, binding: Binding, names: Iterable[str], lines: int) -> None:
        """Lets another graph read outputs of the first lines."""
        for name in names:
            binding.read(name, self._place(name, 0, lines))

    def bind(self, binding: Binding, first: int, lines: int) -> None:
        """Lets `decode` write to lines [first, first + lines)."""
        binding.write("logits", self._place("logits", first, lines))

    def capture(self, lines: int, rooms: Sequence[int], graph_ids: Iterator[int]) -> int:
        """Captures rankings of so many lines each, by CAPTURED_TOP_K. Returns their number. lines: there will never be
        more; the memory of all of them stays where it is. rooms: ascending."""
        self.ensure(lines, max(TOP_K_STEPS))
        self._rooms = rooms
        for top_k, room in itertools.product(CAPTURED_TOP_K, self._rooms):
            self.ensure(lines, top_k)
            if self._captured_rankings.get(key := (room, int(self.top_k[0]))) is None:  # a small vocabulary has few
                binding = self._captured_rankings.add(key, self._ranking(room))
                binding.options = run_options(next(graph_ids))
                binding.run()
        return len(self._captured_rankings)

    def room_for(self, lines: int) -> int:
        """Lines of the captured ranking that has room for so many; as many where there is none."""
        return next((room for room in self._rooms if room >= lines), lines)

    def rank(self, lines: int) -> None:
        """Computes log-probabilities and best tokens of the first lines from their logits; of more lines where only
        that has been captured."""
        top_k, room = int(self.top_k[0]), self.room_for(lines)
        binding = self._captured_rankings.get((room, top_k)) or self._rankings.get((lines, top_k))
        if binding is None:
            binding = self._rankings.add((lines, top_k), self._ranking(lines))
        binding.run()

    def _ranking(self, lines: int) -> Binding:
        """A run of `logprobs` for the first lines and this value of `top_k`."""
        binding = Binding(self._session, self._options)
        binding.read("logits", self._place("logits", 0, lines))
        binding.read_array("top_k", self.top_k)
        for name in RANKED:
            binding.write(name, self._place(name, 0, lines))
        return binding

    def best(self, lines: int) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and log-probabilities of the best tokens of each of the first lines; of lines that are not ranked the
        best token and its logit."""
        if self.is_ranked and self.top_k[0]:
            return self._read_best(0, lines)
        if lines <= len(self._first_V):
            ids = [int(logits_V.argmax()) for logits_V in self._first_V[:lines]]
            scores = self._read("logprobs", 0, lines) if self.is_ranked else self._first_V
            return [[token] for token in ids], [[scores[line].item(token)] for line, token in enumerate(ids)]
        logits_LV = self._read("logits", 0, lines)
        ids_L, scores_LV = logits_LV.argmax(1), self._read("logprobs", 0, lines) if self.is_ranked else logits_LV
        return ids_L[:, None].tolist(), scores_LV[np.arange(lines), ids_L][:, None].tolist()

    def most_likely(self, line: int) -> Scored:
        """The best token of one line, and its logit: extra steps ask for it before the lines of their turn are ranked.
        On a device, where there are none, what was ranked."""
        if self._memory.device != "cpu":
            return super().most_likely(line)
        logits_V = self._first_V[line] if line < len(self._first_V) else self._read("logits", line, 1)[0]
        token = int(logits_V.argmax())
        return token, logits_V.item(token)
