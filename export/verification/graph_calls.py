"""The protocol by which checks call the graphs of one variant, with its results and arrays.

Rows are ragged and occupy the first rows of larger buffers that are full of garbage, as in a server.
`export.verification.ort_graphs` is the implementation; tests have doubles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from export.manifest import Role
from export.verification.emulated_quantization import Roundings, SeenProduct
from export.verification.inputs import Ids

GARBAGE = 37.0  # initial contents of buffers: large, but finite, so that a weight of 0 cancels it
INT8_GARBAGE = -128  # the same for int8 caches, whose largest value is 127 times their step

Array = NDArray[Any]
Arrays = dict[str, Array]


class Prediction(NamedTuple):
    """Outputs of `decode` and `logprobs` for the next token of each row, or after each requested token; fields are
    named like the outputs."""

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
        """One row, as arrays with one row each."""
        return Prediction(*(array[i : i + 1] for array in self))


class ShortlistPrediction(NamedTuple):
    """The predictions of a step over per-row shortlists: the first W tokens of each row's shortlist, in its order."""

    states: Array  # float32 (rows, M), from which logits are computed
    logprobs: Array  # float32 (rows, W), -inf after the end of a row's shortlist
    normaliser: Array  # float32 (rows,)
    top_logprobs: Array  # float32 (rows, N), best first
    top_ids: Array  # int64 (rows, N)


class Graphs(Protocol):
    """The graphs of one variant, run as a server runs them. Buffers belong to the caller; calls write into them."""

    @property
    def roles(self) -> Collection[str]:
        """The roles of the graphs that exist."""
        ...

    def roundings(self, *roles: Role) -> Roundings:
        """The roundings in the graphs of these roles, as far as they exist."""
        ...

    def seen_products(
        self, sources: Sequence[Ids], tokens: Sequence[int], starts: Sequence[int], buffers: Arrays, cross: Arrays
    ) -> list[SeenProduct]:
        """The inputs and outputs of the products of `encode` and of a step of `decode`."""
        ...

    def encode(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        """All outputs of `encode` for a ragged batch, by name. places: positions of each source to predict, if the
        graph has a masked head."""
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
        """Predictions after each row's block; `buffers` and `cross` hold exactly these rows.

        cross: source_lengths and the source's keys and values, or empty. Blocks of more than one token are a prefill
        with starts of 0, or belong to a single row. top_k: number of best tokens per row. asked: for models that
        support chunked prefill, the tokens after which to predict instead, each as (row, position in the block); if
        empty, nothing is ranked.
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
        """Predictions after one token of each row over the row's shortlist, in shortlist buffers of capacity `width`
        that are full of garbage; no logits of `decode` are requested."""
        ...

    def align(self, targets: Sequence[Ids], cross: Mapping[str, Array]) -> Array:
        """Weights with which target positions attend to source positions, float32 (L, B, H, T, S), T and S padded.

        targets: as fed to the decoder, bos first. cross: as for `decode`.
        """
        ...


def garbage(shape: Sequence[int], dtype: Any) -> Array:
    """The initial contents of a buffer."""
    return np.full(shape, INT8_GARBAGE if np.dtype(dtype) == np.int8 else GARBAGE, dtype)


def padded(rows: Sequence[Sequence[int]], length: int) -> Array:
    """Right-padded with id 0, int64 (rows, length)."""
    return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int64)


def last_positions(blocks: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The last token of each row's block, as (row, position in the block)."""
    return [(row, len(block) - 1) for row, block in enumerate(blocks)]


def lengths(rows: Sequence[Sequence[int]]) -> Array:
    return np.array([len(row) for row in rows], np.int32)


def round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def differing(actual: Array, expected: Array) -> int:
    return int((actual != expected).sum())


def rows_of(arrays: Mapping[str, Array], start: int, stop: int) -> Arrays:
    """Rows [start, stop) of every array: views of the same memory."""
    return {name: array[start:stop] for name, array in arrays.items()}


def compared_outputs(one: Prediction, other: Prediction) -> list[tuple[Array, Array]]:
    """The outputs in which two predictions of a row must agree; their numbers of best tokens may differ."""
    return [(one.logits, other.logits), (one.logprobs, other.logprobs), (one.normaliser, other.normaliser)]
