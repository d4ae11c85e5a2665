"""Which encoder outputs are requested of one text (`EncoderRequest`), and the outputs (`EncoderOutput`).

A request refers to outputs of `encode` by their names in a bundle. Which of them a model has is in its manifest, and
checked at the edge. This module knows no text, session or thread.

Shapes: M width of a state, N mask positions, V vocabulary, L labels, S positions of the text, special tokens included,
P selected positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from export.bundle.manifest import Pooling as StatePooling

Pooling = StatePooling | Literal["pooler"]

STATES, POOLED, PLACES, LABELS, WEIGHTS, TOKEN_LABELS = (
    "encoder_states",
    "pooled",
    "place_logprobs",
    "label_logits",
    "token_weights",
    "token_label_logits",
)


@dataclass(frozen=True, kw_only=True)
class EncoderRequest:
    """Encoder outputs requested of one text.

    pooling: how states become one vector (`export.bundle.pooling`), or the output of the model's pooler. pooled_from:
    the first position that counts. has_dense: whether the layers of `embed` follow. normalized: whether the vector is
    scaled to length 1 in the end.
    mask_positions: positions of the text whose most likely tokens are requested, `top_k` of each.
    state_positions: positions of the text whose states are requested, ascending.
    labels, token_weights: whether the label logits, or the weights of all tokens, are requested.
    token_labels: whether the label logits of all tokens are requested.
    """

    pooling: Pooling | None = None
    pooled_from: int = 0
    has_dense: bool = False
    normalized: bool = False
    mask_positions: tuple[int, ...] = ()
    top_k: int = 0
    labels: bool = False
    token_weights: bool = False
    state_positions: tuple[int, ...] = ()
    token_labels: bool = False

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs of `encode` that it needs."""
        requested = {
            STATES: self.pooling not in (None, "pooler") or bool(self.state_positions),
            POOLED: self.pooling == "pooler",
            PLACES: bool(self.mask_positions),
            LABELS: self.labels,
            WEIGHTS: self.token_weights,
            TOKEN_LABELS: self.token_labels,
        }
        return frozenset(name for name, is_requested in requested.items() if is_requested)


@dataclass(frozen=True, eq=False)
class EncoderOutput:
    """The outputs that were requested; None or empty for the rest.

    vector: float32 (M,), or as wide as `embed` makes it. mask_predictions: the most likely tokens of each mask
    position, best first, ties by lower id, as (id, log-probability). label_logits: float32 (L,). token_weights: float32
    (S,), which sum to 1.
    states: float32 (P, M), of the selected positions. token_label_logits: float32 (S, L).
    """

    vector: np.ndarray | None = None
    mask_predictions: tuple[tuple[tuple[int, float], ...], ...] = ()
    label_logits: np.ndarray | None = None
    token_weights: np.ndarray | None = None
    states: np.ndarray | None = None
    token_label_logits: np.ndarray | None = None

    @property
    def is_finite(self) -> bool:
        """Whether no number is NaN or infinite, as after an overflow or with broken weights."""
        found = (self.vector, self.label_logits, self.token_weights, self.states, self.token_label_logits)
        arrays = [array for array in found if array is not None]
        logprobs = [logprob for filling in self.mask_predictions for _, logprob in filling]
        return all(bool(np.isfinite(array).all()) for array in arrays) and bool(np.isfinite(logprobs).all())


def scaled_to_1(vector_M: np.ndarray) -> np.ndarray:
    """A vector divided by its L2 norm; one of zeros stays as it is."""
    return vector_M / np.float32(max(float(np.linalg.norm(vector_M)), 1e-12))


def most_likely(logprobs_NV: np.ndarray, top_k: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """See `EncoderOutput.mask_predictions`."""
    return tuple(_most_likely(logprobs_V, min(top_k, len(logprobs_V))) for logprobs_V in logprobs_NV)


def _most_likely(logprobs_V: np.ndarray, top_k: int) -> tuple[tuple[int, float], ...]:
    least = np.partition(logprobs_V, -top_k)[-top_k]
    ids = np.flatnonzero(~(logprobs_V < least)).tolist()  # with NaN, all of them
    best = sorted((-float(logprobs_V[token]), token) for token in ids)[:top_k]
    return tuple((token, -score) for score, token in best)
