"""The confidence of a translation by two models, composed of those of both answers along the second one's alignment
(`composed_confidence`).

The second model is sure or not of its words given the text between, of which the first one may not be sure. The
confidence of a word is lowered by that of the words between that it attends to, but not by all of it: a word that is
not the reference's may be a synonym, whose translation is right. docs/LOG.md has what else was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from export.bundle.confidence import merged
from glossa.v1 import glossa_pb2 as pb
from service.edge.models.alignment import Span

HARMLESS = 0.6  # of words between that are not the reference's, those that are translated as well: fitted (docs/LOG.md)


def composed_confidence(
    first: pb.Confidence,
    second: pb.Confidence,
    weights_TS: np.ndarray,
    target_spans: Sequence[Span],
    source_spans: Sequence[Span],
    *,
    adequacy: float,
    threshold: float,
) -> pb.Confidence:
    """The confidence of the last answer, in whose place `second` is.

    first: of the text between. weights_TS, target_spans, source_spans: the alignment of the last answer's tokens with
    those of the text between, and their places. adequacy: of the text between, which the second model does not see.
    threshold: words below it are uncertain. `calibrated` is false.
    """
    answered, between = _spans(second), _spans(first)
    sure_S, has_words_S = _sure(source_spans, between, first)
    shared_WT = _overlaps(answered, target_spans) > 0
    weights_WS = np.where(has_words_S, shared_WT.astype(float) @ weights_TS, 0.0)
    sums_W = weights_WS.sum(axis=1)
    mean = float(np.mean([word.confidence for word in first.words])) if first.words else 1.0
    via_W = np.where(sums_W > 0, weights_WS @ sure_S / np.maximum(sums_W, 1e-12), mean)
    own_W = np.array([word.confidence for word in second.words])
    found_W = own_W * (HARMLESS + (1 - HARMLESS) * via_W)
    uncertain = (found_W < threshold).tolist()
    share = float(found_W.mean() / own_W.mean()) if len(own_W) and own_W.mean() > 0 else 1.0
    return pb.Confidence(
        sentence=second.sentence * share * adequacy,
        words=[
            pb.WordConfidence(span=word.span, confidence=confidence, is_uncertain=is_uncertain)
            for word, confidence, is_uncertain in zip(second.words, found_W.tolist(), uncertain, strict=True)
        ],
        uncertain=[pb.Span(start=start, end=end) for start, end in merged(answered, uncertain)],
    )


def _spans(confidence: pb.Confidence) -> list[Span]:
    return [(word.span.start, word.span.end) for word in confidence.words]


def _sure(tokens: Sequence[Span], words: Sequence[Span], confidence: pb.Confidence) -> tuple[np.ndarray, np.ndarray]:
    """For each token the mean confidence of the words that it has characters of, and whether it has any; float (S,),
    bool (S,)."""
    shared_SW = _overlaps(tokens, words)
    sums_S = shared_SW.sum(axis=1)
    sure_W = np.array([word.confidence for word in confidence.words])
    return shared_SW @ sure_W / np.maximum(sums_S, 1), sums_S > 0


def _overlaps(ones: Sequence[Span], others: Sequence[Span]) -> np.ndarray:
    """How many characters each span of one sequence shares with each of another, float (N, M)."""
    one, other = np.asarray(ones, float).reshape(-1, 2), np.asarray(others, float).reshape(-1, 2)
    starts = np.maximum(one[:, None, 0], other[None, :, 0])
    shared: np.ndarray = np.maximum(0.0, np.minimum(one[:, None, 1], other[None, :, 1]) - starts)
    return shared
