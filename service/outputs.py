"""Where `decode` writes what it says of each row, and how a search reads it.

Whole distributions stay where the graph computes, in main memory or on a device; only the best tokens of each row and
one number more come to the host in every step. Nothing here knows a session: a binding is whatever has `bind_output`.

Shapes: R rows, V vocabulary, K best tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from service.encoding import Encoded
from service.memory import Block, Memory

TOP_K_STEPS = (2, 4, 8, 16, 32, 64, 128)  # TopK is slower for one than for a few
FLOAT_BYTES = 4


def top_k_for(wanted: int) -> int:
    """How many best tokens the graph is asked for: a step above `wanted`, so that bindings last."""
    return next((step for step in TOP_K_STEPS if step >= wanted), wanted)


class OutputBuffers:
    """The outputs of `decode` for all rows of an engine. `top_k`: int64 (1,), K as the graph takes it."""

    def __init__(self, memory: Memory, vocab_size: int) -> None:
        self._memory, self._words = memory, vocab_size
        self._logprobs: Block = memory.allocate(0)
        self.top_k = np.zeros(1, np.int64)
        self._reshape(0, 0)

    @property
    def size(self) -> int:
        """Bytes of all outputs."""
        arrays = (self._normalisers, self._top_ids, self._top_logprobs)
        return self._logprobs.size + sum(array.nbytes for array in arrays)

    def ensure(self, rows: int, top_k: int) -> bool:
        """Makes room for `rows` rows and at least `top_k` best tokens of each. True: addresses or shapes changed."""
        # One token is found faster here than by TopK in the graph, if the distributions are in main memory.
        is_argmax = top_k <= 1 and self._memory.device == "cpu"
        top_k = 0 if is_argmax else min(top_k_for(top_k), self._words)
        if top_k == self.top_k[0] and rows <= len(self._normalisers):
            return False
        self._reshape(rows, top_k)
        return True

    def _reshape(self, rows: int, top_k: int) -> None:
        self.top_k[0] = top_k
        size = rows * self._words * FLOAT_BYTES
        if self._logprobs.size < size:
            self._logprobs = self._memory.allocate(size)
        self._normalisers = np.zeros(rows, np.float32)
        self._top_ids = np.zeros((rows, top_k), np.int64)
        self._top_logprobs = np.zeros((rows, top_k), np.float32)

    def bind(self, binding: Any, first: int, rows: int) -> None:
        """Lets `decode` write to rows [first, first + rows)."""
        address = self._logprobs.address + first * self._words * FLOAT_BYTES
        binding.bind_output("logprobs", self._memory.device, 0, np.float32, (rows, self._words), address)
        for name, array in (
            ("normaliser", self._normalisers),
            ("top_ids", self._top_ids),
            ("top_logprobs", self._top_logprobs),
        ):
            some = array[first : first + rows]
            binding.bind_output(name, "cpu", 0, some.dtype, some.shape, some.ctypes.data)

    def best(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids (R, K) and log-probabilities (R, K) of the best tokens of the first rows, as many as were asked for."""
        if self.top_k[0]:
            return self._top_ids[:rows], self._top_logprobs[:rows]
        logprobs_RV = self._memory.floats(self._logprobs, 0, rows * self._words).reshape(rows, self._words)
        ids_R = logprobs_RV.argmax(1)
        return ids_R[:, None], logprobs_RV[np.arange(rows), ids_R][:, None]

    def distribution(self, row: int) -> np.ndarray:
        """float32 (V,), in main memory."""
        return self._memory.floats(self._logprobs, row * self._words * FLOAT_BYTES, self._words)

    def normaliser(self, row: int) -> float:
        return float(self._normalisers[row])


class TurnOutputs:
    """What one turn says of its rows. See `service.step.Distributions`.

    attend: see there. encoded: by row, of rows that joined in the turn with a reading.
    """

    def __init__(
        self,
        outputs: OutputBuffers,
        rows: int,
        *,
        attend: Callable[[int, Sequence[int]], np.ndarray],
        encoded: Mapping[int, Encoded],
        join_s: float,
        step_s: float,
    ) -> None:
        self._outputs, self._rows = outputs, rows
        self._attend, self._encoded = attend, encoded
        self.join_s, self.step_s = join_s, step_s
        best_ids, best_logprobs = outputs.best(rows)
        self.top_ids: list[list[int]] = best_ids.tolist()
        self.top_logprobs: list[list[float]] = best_logprobs.tolist()

    def logprobs(self, row: int) -> np.ndarray:
        assert 0 <= row < self._rows, row
        return self._outputs.distribution(row)

    def normaliser(self, row: int) -> float:
        assert 0 <= row < self._rows, row
        return self._outputs.normaliser(row)

    def attend(self, row: int, tokens: Sequence[int]) -> np.ndarray:
        assert 0 <= row < self._rows, row
        return self._attend(row, tokens)

    def encoded(self, row: int) -> Encoded:
        return self._encoded[row]
