"""The attention that a request selects: kinds, layers and heads, and the matrices of that selection.

The graph returns all layers and heads of a kind as one array; here some of them are selected or averaged. The size of a
response is known before anything is computed.

L layers, H heads, Q positions of queries, K of keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from export.bundle.manifest import AttentionKind, AttentionMaps
from service.errors import InvalidRequest

FLOAT_BYTES = 4
TOKEN_BYTES = 32  # of a token with its text and span in a message


class Matrix(NamedTuple):
    """Weights of one head. layer, head: from 1; 0: the mean of the selected ones."""

    kind: AttentionKind
    layer: int
    head: int
    weights_QK: np.ndarray  # float32


class Lengths(NamedTuple):
    """Input tokens of encoder and decoder; 0 without one, or if it is not requested."""

    source: int
    target: int

    def of(self, kind: AttentionKind) -> tuple[int, int]:
        """Number of queries and of keys."""
        return (self.target if kind != "encoder" else self.source), (self.target if kind == "decoder" else self.source)


@dataclass(frozen=True, kw_only=True)
class AttentionChoice:
    """A selection. layers and heads count from 1; () means all. mean_layers, mean_heads: their mean instead of each."""

    kinds: tuple[AttentionKind, ...] = ()  # (): all kinds of the model
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    mean_layers: bool = False
    mean_heads: bool = False

    def checked(self, maps: Sequence[AttentionMaps], *, text_only: bool) -> AttentionChoice:
        """The selection with all kinds named, for a model with these maps. text_only: without an answer; a model
        with an encoder has encoder attention only. Raises InvalidRequest."""
        available = {one.kind: one for one in maps}
        if text_only and "encoder" in available:
            available = {"encoder": available["encoder"]}
        for index, kind in enumerate(self.kinds):
            if kind not in available:
                why = " with text_only" if text_only else ""
                raise InvalidRequest(f"kinds[{index}]", f"must be one of {', '.join(available)}{why}, got {kind}")
        kinds = tuple(kind for kind in available if kind in self.kinds or not self.kinds)
        for kind in kinds:
            check_numbers("layers", self.layers, available[kind].layers, f" for {kind}")
            check_numbers("heads", self.heads, available[kind].heads, f" for {kind}")
        return dataclasses.replace(self, kinds=kinds)

    def matrices(self, weights: Mapping[AttentionKind, np.ndarray]) -> Iterator[Matrix]:
        """The selected matrices. weights: float32 (L, H, Q, K) by kind. Means are float32."""
        for kind in self.kinds:
            all_LHQK = weights[kind]
            layers, heads = (
                chosen or tuple(range(1, count + 1))
                for chosen, count in zip((self.layers, self.heads), all_LHQK.shape[:2], strict=True)
            )
            chosen_LHQK = all_LHQK[np.ix_([layer - 1 for layer in layers], [head - 1 for head in heads])]
            if self.mean_heads:
                chosen_LHQK, heads = chosen_LHQK.mean(1, keepdims=True, dtype=np.float32), (0,)
            if self.mean_layers:
                chosen_LHQK, layers = chosen_LHQK.mean(0, keepdims=True, dtype=np.float32), (0,)
            for layer, of_layer_HQK in zip(layers, chosen_LHQK, strict=True):
                for head, weights_QK in zip(heads, of_layer_HQK, strict=True):
                    yield Matrix(kind, layer, head, weights_QK)

    def response_bytes(self, maps: Sequence[AttentionMaps], lengths: Lengths) -> int:
        """Bytes of all matrices and tokens in a message."""
        size = TOKEN_BYTES * (lengths.source + 2 * lengths.target)
        for one in maps:
            if one.kind in self.kinds:
                layers = 1 if self.mean_layers else len(self.layers) or one.layers
                heads = 1 if self.mean_heads else len(self.heads) or one.heads
                size += layers * heads * _bytes(one.kind, lengths)
        return size


def check_numbers(field: str, numbers: Sequence[int], most: int, where: str = "") -> None:
    """Rejects layers or heads outside 1..most, and repeated ones."""
    for index, number in enumerate(numbers):
        if not 1 <= number <= most:
            raise InvalidRequest(f"{field}[{index}]", f"must be 1..{most}{where}, got {number}")
        if number in numbers[:index]:
            raise InvalidRequest(f"{field}[{index}]", f"must not repeat a number, got {number} again")


def computed_bytes(maps: Sequence[AttentionMaps], lengths: Lengths) -> int:
    """Bytes of all weights of a pass, whatever the selection: each layer's, and their concatenation."""
    return sum(2 * one.layers * one.heads * _bytes(one.kind, lengths) for one in maps)


def _bytes(kind: AttentionKind, lengths: Lengths) -> int:
    queries, keys = lengths.of(kind)
    return FLOAT_BYTES * queries * keys
