"""The outputs of `decode` and `logprobs`: where they are stored and how a turn reads them.

They stay in the memory of the graphs, main memory or a device's. Where no row is scored and logits are in main
memory, the most likely token of each row is found there. Otherwise the best tokens of each row come to the host in
every step, and a distribution on demand.

Outputs are stored in lines: one for each row of the step, then one for each draft token or extra step.

Shapes: L lines, V vocabulary, K best tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from export.manifest import AttentionKind
from service.runtime.bindings import Arena, Binding, BindingCache, Place
from service.runtime.memory import Block
from service.step import Scored

FEW_LINES = 8
"""At most this many lines are searched one by one. After a step that read many megabytes of weights no instruction is
in a cache any more, and the shorter way takes 40 microseconds where that for many lines takes 80."""

TOP_K_STEPS = (2, 4, 8, 16, 32, 64, 128)  # TopK is slower for one than for a few
FLOAT: np.dtype[Any] = np.dtype(np.float32)
RANKED = ("logprobs", "normaliser", "top_logprobs", "top_ids")
DTYPES = {"logits": FLOAT, "states": FLOAT, **dict.fromkeys(RANKED, FLOAT), "top_ids": np.dtype(np.int64)}


def top_k_for(wanted: int) -> int:
    """How many best tokens the graph returns for at least `wanted`: a step above, so that bindings last."""
    return next((step for step in TOP_K_STEPS if step >= wanted), wanted)


class OutputBlocks:
    """Graph outputs by name, each a block of memory with lines of one width."""

    def __init__(self, arena: Arena, widths: dict[str, int]) -> None:
        self._arena, self._memory, self._widths = arena, arena.memory, widths
        self._blocks: dict[str, Block] = {name: arena.allocate(0) for name in widths}

    @property
    def size(self) -> int:
        """Bytes of all outputs."""
        return sum(block.size for block in list(self._blocks.values()))

    def _hold(self, name: str, lines: int, width: int) -> None:
        """Makes a block large enough for `lines` lines."""
        size = lines * width * DTYPES[name].itemsize
        if self._blocks[name].size < size:
            self._blocks[name] = self._arena.allocate(size)

    def _place(self, name: str, first: int, lines: int) -> Place:
        width, dtype = self._widths[name], DTYPES[name]
        shape = (lines,) if name == "normaliser" else (lines, width)
        return self._arena.place(self._blocks[name], first * width * dtype.itemsize, dtype, shape)

    def _read(self, name: str, first: int, lines: int) -> np.ndarray:
        width, dtype = self._widths[name], DTYPES[name]
        return self._memory.read(self._blocks[name], first * width * dtype.itemsize, (lines, width), dtype)


class LogitsBlocks(OutputBlocks):
    """The outputs of `decode` and `logprobs` for all lines of a turn.

    top_k: int64 (1,), K as the graph takes it; 0: the best token is found in the logits. is_ranked: whether the lines
    of this turn have log-probabilities, or will have them.
    """

    def __init__(self, arena: Arena, vocab_size: int, session: Any = None) -> None:
        """session: of the graph `logprobs`."""
        widths = {"logits": vocab_size, "logprobs": vocab_size, "normaliser": 1, "top_ids": 0, "top_logprobs": 0}
        super().__init__(arena, widths)
        self._lines = {"logits": 0, **dict.fromkeys(RANKED, 0)}
        self.top_k = np.zeros(1, np.int64)
        self.is_ranked = False
        self._first_V: list[np.ndarray] = []  # the logits of the first few lines, where they can be read in place
        self._session, self._rankings = session, BindingCache[Binding](arena)

    def must_rank(self, *, is_scored: bool) -> bool:
        """Whether a turn needs the graph `logprobs`."""
        return is_scored or self._memory.device != "cpu"

    def ensure(self, lines: int, top_k: int, *, is_scored: bool = True) -> None:
        """Makes room for `lines` lines, and if they are ranked for at least `top_k` best tokens of each."""
        is_device = self._memory.device != "cpu"
        self.is_ranked = self.must_rank(is_scored=is_scored)
        if self._grow("logits", lines) and not is_device:
            self._first_V = list(self._read("logits", 0, min(lines, FEW_LINES)))
        if not self.is_ranked:
            return
        # One token is found faster here than by TopK in the graph, if the logits are in main memory.
        top_k = 0 if top_k <= 1 and not is_device else min(top_k_for(top_k), self._widths["logits"])
        if top_k != self.top_k[0]:
            self.top_k[0] = self._widths["top_ids"] = self._widths["top_logprobs"] = top_k
            self._lines |= {"top_ids": 0, "top_logprobs": 0}
        for name in RANKED:
            self._grow(name, lines)

    def _grow(self, name: str, lines: int) -> bool:
        """Makes room for `lines` lines of one output. Returns whether there was too little."""
        if lines <= self._lines[name]:
            return False
        self._hold(name, lines, self._widths[name])
        self._lines[name] = lines  # only once there is room: the allocation may fail
        return True

    def bind(self, binding: Binding, first: int, lines: int) -> None:
        """Lets `decode` write to lines [first, first + lines)."""
        binding.write("logits", self._place("logits", first, lines))

    def rank(self, first: int, lines: int) -> None:
        """Computes log-probabilities and best tokens of lines [first, first + lines) from their logits."""
        key = first, lines, int(self.top_k[0])
        binding = self._rankings.get(key)
        if binding is None:
            binding = self._rankings.add(key, Binding(self._session))
            self.bind_ranking(binding, first, lines)
        binding.run()

    def bind_ranking(self, binding: Binding, first: int, lines: int) -> None:
        """Lets `logprobs` read the logits of these lines and write its results. Valid for one value of `top_k`."""
        binding.read("logits", self._place("logits", first, lines))
        binding.read_array("top_k", self.top_k)
        for name in RANKED:
            binding.write(name, self._place(name, first, lines))

    def best(self, lines: int) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and log-probabilities of the best tokens of each of the first lines; of lines that are not ranked the
        best token and its logit."""
        if self.is_ranked and self.top_k[0]:
            return self._read("top_ids", 0, lines).tolist(), self._read("top_logprobs", 0, lines).tolist()
        if lines <= len(self._first_V):
            ids = [int(logits_V.argmax()) for logits_V in self._first_V[:lines]]
            scores = self._read("logprobs", 0, lines) if self.is_ranked else self._first_V
            return [[token] for token in ids], [[scores[line].item(token)] for line, token in enumerate(ids)]
        logits_LV = self._read("logits", 0, lines)
        ids_L, scores_LV = logits_LV.argmax(1), self._read("logprobs", 0, lines) if self.is_ranked else logits_LV
        return ids_L[:, None].tolist(), scores_LV[np.arange(lines), ids_L][:, None].tolist()

    def most_likely(self, line: int) -> Scored:
        """The best token of one line, and its logit, or its log-probability where the graph found it."""
        if self.is_ranked and self.top_k[0]:
            return int(self._read("top_ids", line, 1)[0, 0]), float(self._read("top_logprobs", line, 1)[0, 0])
        logits_V = self._first_V[line] if line < len(self._first_V) else self._read("logits", line, 1)[0]
        token = int(logits_V.argmax())
        return token, logits_V.item(token)

    def logprobs(self, row: int, line: int) -> np.ndarray:
        """The distribution of a ranked line, float32 (V,), in main memory."""
        row_V: np.ndarray = self._read("logprobs", line, 1)[0]
        return row_V

    def logsumexp(self, row: int, line: int) -> float:
        """Log-sum-exp of the logits of a ranked line."""
        return float(self._read("normaliser", line, 1)[0, 0])


class ShortlistOutputs(Protocol):
    """Predictions over the shortlists of rows, each in a line: `service.runtime.row_shortlist.RowShortlist`."""

    def best(self, lines: int) -> tuple[list[list[int]], list[list[float]]]: ...
    def logprobs(self, row: int, line: int) -> np.ndarray: ...
    def logsumexp(self, row: int, line: int) -> float: ...


class AttentionPasses(Protocol):
    """Separate passes that return attention weights: see `service.step.DeferredOutputs`."""

    def cross_attention(self, row: int, tokens: Sequence[int]) -> np.ndarray: ...

    def attention(
        self, source: Sequence[int], tokens: Sequence[int], kinds: Sequence[AttentionKind]
    ) -> dict[AttentionKind, np.ndarray]: ...


class RunnerOutputs:
    """Reads the outputs of the last turn from the memory of a runner. See `service.step.DeferredOutputs`.

    shortlist_rows: rows of that turn whose predictions are over a shortlist.
    """

    def __init__(self, logits: LogitsBlocks, passes: AttentionPasses, shortlist: ShortlistOutputs | None) -> None:
        self._logits, self._shortlist = logits, shortlist
        self.shortlist_rows: frozenset[int] = frozenset()
        self.cross_attention, self.attention = passes.cross_attention, passes.attention

    def best(self, rows: int, lines: int) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and scores of the best tokens of each line. rows: live ones, of which the first lines are."""
        if self._shortlist is None or not self.shortlist_rows:
            return self._logits.best(lines)
        own_ids, own_scores = self._shortlist.best(lines)
        if len(self.shortlist_rows) == rows:
            return own_ids, own_scores
        ids, scores = self._logits.best(lines)
        for row in self.shortlist_rows:
            ids[row], scores[row] = own_ids[row], own_scores[row]
        return ids, scores

    def _of(self, row: int) -> LogitsBlocks | ShortlistOutputs:
        return self._shortlist if self._shortlist and row in self.shortlist_rows else self._logits

    def logprobs(self, row: int, line: int) -> np.ndarray:
        return self._of(row).logprobs(row, line)

    def logsumexp(self, row: int, line: int) -> float:
        return self._of(row).logsumexp(row, line)
