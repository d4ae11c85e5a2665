"""How checks call the graphs of one variant, whatever runs them: the protocol, its results and its arrays.

Rows are ragged, stand in the first rows of larger buffers, and the buffers are full of garbage, because a server's are.
`export.verification.ort_graphs` is the implementation; tests have doubles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from export.bundle import Role
from export.verification.emulated_quantization import Roundings, SeenProduct
from export.verification.inputs import Ids

GARBAGE = 37.0  # what buffers hold before they are written: large, and finite, so that a weight of 0 makes it 0
INT8_GARBAGE = -128  # the same of int8 caches, whose largest value is 127 times their step

Array = NDArray[Any]
Arrays = dict[str, Array]


class Prediction(NamedTuple):
    """What `decode` says of the next token of each row, or behind each token that it was asked for, and what `logprobs`
    makes of that; fields are named like their outputs."""

    logits: Array  # float32 (rows, V)
    logprobs: Array  # float32 (rows, V)
    normaliser: Array  # float32 (rows,): logits = logprobs + normaliser
    top_logprobs: Array  # float32 (rows, N), best first
    top_ids: Array  # int64 (rows, N)

    @property
    def normalised(self) -> Array:
        """The logits from the normaliser, float32 (rows, V)."""
        logits: Array = self.logprobs + self.normaliser[:, None]
        return logits

    def row(self, i: int) -> Prediction:
        """One row alone: still arrays of rows."""
        return Prediction(*(array[i : i + 1] for array in self))


class ShortlistPrediction(NamedTuple):
    """What a step says of rows that choose among words of their own: the first W of each row's, in their order."""

    states: Array  # float32 (rows, M), which logits are made of
    logprobs: Array  # float32 (rows, W), -inf behind a row's own words
    normaliser: Array  # float32 (rows,)
    top_logprobs: Array  # float32 (rows, N), best first
    top_ids: Array  # int64 (rows, N)


class Graphs(Protocol):
    """The graphs of one variant, run as a server runs them. Buffers belong to the caller; calls write into them."""

    @property
    def roles(self) -> Collection[str]:
        """Which graphs there are."""
        ...

    def roundings(self, *roles: Role) -> Roundings:
        """What the graphs of these roles round, where they exist."""
        ...

    def seen_products(
        self, sources: Sequence[Ids], tokens: Sequence[int], starts: Sequence[int], buffers: Arrays, cross: Arrays
    ) -> list[SeenProduct]:
        """What the products of `encode` and of a step of `decode` read and gave."""
        ...

    def encode(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        """All outputs of `encode` for a ragged batch, by name. places: of each source those that are to be told, where
        the graph tells any."""
        ...

    def buffers(self, rows: int, capacity: int) -> Arrays:
        """Self-attention caches full of garbage, (rows, K, capacity, D), by the names of the states."""
        ...

    def decode(
        self,
        blocks: Sequence[Sequence[int]],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        top_k: int = 1,
        asked: Sequence[tuple[int, int]] | None = None,
    ) -> Prediction:
        """What follows each row's block; `buffers` and `cross` hold exactly these rows.

        cross: source_lengths and the source's keys and values, or nothing. Blocks of more than one token are a prefill,
        with starts of 0, or of a single row. top_k: how many best tokens of each row to name. asked: tokens, each by
        its row and its place in the block, behind which to predict instead, for models that read blocks; if none,
        nothing is ranked.
        """
        ...

    def shortlist_logprobs(
        self,
        words: Sequence[Ids],
        tokens: Sequence[int],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        width: int,
    ) -> ShortlistPrediction:
        """What follows one token of each row among the row's own words, in buffers of them that have room for `width`
        and are full of garbage; `decode` is asked for no logits."""
        ...

    def align(self, targets: Sequence[Ids], cross: Mapping[str, Array]) -> Array:
        """How much each position of the targets attends to each of the source, float32 (L, B, H, T, S), T and S padded.

        targets: as fed to the decoder, bos first. cross: as for `decode`.
        """
        ...


def garbage(shape: Sequence[int], dtype: Any) -> Array:
    """What buffers hold before they are written."""
    return np.full(shape, INT8_GARBAGE if np.dtype(dtype) == np.int8 else GARBAGE, dtype)


def padded(rows: Sequence[Sequence[int]], length: int) -> Array:
    """Right-padded with id 0, int64 (rows, length)."""
    return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int64)


def last_positions(blocks: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The last token of each row's block, by its row and its place there."""
    return [(row, len(block) - 1) for row, block in enumerate(blocks)]


def lengths(rows: Sequence[Sequence[int]]) -> Array:
    return np.array([len(row) for row in rows], np.int32)


def round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def differing(actual: Array, expected: Array) -> int:
    return int((actual != expected).sum())


def rows_of(arrays: Mapping[str, Array], start: int, stop: int) -> Arrays:
    """Rows of every array: views of the same memory."""
    return {name: array[start:stop] for name, array in arrays.items()}


def compared_outputs(one: Prediction, other: Prediction) -> list[tuple[Array, Array]]:
    """Outputs in which two predictions of a row must agree; the number of best tokens may differ."""
    return [(one.logits, other.logits), (one.logprobs, other.logprobs), (one.normaliser, other.normaliser)]
