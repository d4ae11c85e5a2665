"""What a request asks to be told of attention: which kinds, layers and heads, and the matrices that this comes to.

Weights come from the graph, all layers and heads of a kind as one array; here some of them are chosen or averaged. How
much that would be is known before anything is computed.

L layers, H heads, Q positions of queries, K of keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from export.bundle import AttentionKind, AttentionMaps
from service.errors import InvalidRequest

FLOAT_BYTES = 4
TOKEN_BYTES = 32  # of a token with its text and span in a message


class Matrix(NamedTuple):
    """Weights of one head. layer, head: from 1; 0: the mean of those that were chosen."""

    kind: AttentionKind
    layer: int
    head: int
    weights_QK: np.ndarray  # float32


class Lengths(NamedTuple):
    """Tokens that encoder and decoder read; 0 where there is none, or nobody asks."""

    source: int
    target: int

    def of(self, kind: AttentionKind) -> tuple[int, int]:
        """Positions of queries and of keys."""
        return (self.target if kind != "encoder" else self.source), (self.target if kind == "decoder" else self.source)


@dataclass(frozen=True, kw_only=True)
class AttentionChoice:
    """Which attention is told. layers and heads count from 1; (): all. mean_layers, mean_heads: their mean instead of
    each of them."""

    kinds: tuple[AttentionKind, ...] = ()  # (): all that the model has
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    mean_layers: bool = False
    mean_heads: bool = False

    def checked(self, seen: Sequence[AttentionMaps], *, text_only: bool) -> AttentionChoice:
        """The same with its kinds filled in, for a model that has `seen`. text_only: nothing is answered, so that where
        there is an encoder only that is told. Raises InvalidRequest."""
        there = {one.kind: one for one in seen}
        if text_only and "encoder" in there:
            there = {"encoder": there["encoder"]}
        for place, kind in enumerate(self.kinds):
            if kind not in there:
                why = " with text_only" if text_only else ""
                raise InvalidRequest(f"kinds[{place}]", f"must be one of {', '.join(there)}{why}, got {kind}")
        kinds = tuple(kind for kind in there if kind in self.kinds or not self.kinds)
        for name in ("layers", "heads"):
            numbers: tuple[int, ...] = getattr(self, name)
            for place, number in enumerate(numbers):
                for kind in kinds:
                    most = getattr(there[kind], name)
                    if not 1 <= number <= most:
                        raise InvalidRequest(f"{name}[{place}]", f"must be 1..{most} for {kind}, got {number}")
                if number in numbers[:place]:
                    raise InvalidRequest(
                        f"{name}[{place}]", f"must be another one than those before it, got {number} again"
                    )
        return dataclasses.replace(self, kinds=kinds)

    def matrices(self, weights: Mapping[AttentionKind, np.ndarray]) -> Iterator[Matrix]:
        """weights: float32 (L, H, Q, K) of each of the kinds. Means are those of float32 sums."""
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

    def response_bytes(self, seen: Sequence[AttentionMaps], lengths: Lengths) -> int:
        """Of all matrices and tokens in a message."""
        size = TOKEN_BYTES * (lengths.source + 2 * lengths.target)
        for one in seen:
            if one.kind in self.kinds:
                layers = 1 if self.mean_layers else len(self.layers) or one.layers
                heads = 1 if self.mean_heads else len(self.heads) or one.heads
                size += layers * heads * _bytes(one.kind, lengths)
        return size


def computed_bytes(seen: Sequence[AttentionMaps], lengths: Lengths) -> int:
    """Of all weights of a pass, whatever is told of them: every layer has its own, and they are put together."""
    return sum(2 * one.layers * one.heads * _bytes(one.kind, lengths) for one in seen)


def _bytes(kind: AttentionKind, lengths: Lengths) -> int:
    queries, keys = lengths.of(kind)
    return FLOAT_BYTES * queries * keys
