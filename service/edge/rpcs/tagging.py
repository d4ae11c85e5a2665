"""Label probabilities of tokens → labelled words → spans of a text (`words_of`, `spans_of_words`).

A word has the label of its first token, the one that models are trained on. Labels follow IOB2: B-NAME begins a span,
I-NAME continues the one before it if that has the same name, and begins one otherwise; O is outside. A label without
such a prefix continues its neighbour. The rules are those of the strategy "first" of the pipelines of `transformers`,
except that a word ends at every character that is no letter, digit or underscore (`Tokenizer.word_starts`).

Shapes: S tokens, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from service.edge.models.alignment import Span

OUTSIDE = "O"
BEGIN, INSIDE = "B-", "I-"


class Tagged(NamedTuple):
    """A labelled part of a text: a token, a word, or a span of words."""

    span: Span
    label: str
    probability: float


def token_labels(logits_SL: np.ndarray, labels: Sequence[str]) -> list[tuple[str, float]]:
    """The most likely label of each token, and its probability; of equal ones the first."""
    logits_SL = logits_SL.astype(np.float64)
    logits_SL -= logits_SL.max(-1, keepdims=True)
    best_S = logits_SL.argmax(-1)
    probabilities_S = 1 / np.exp(logits_SL).sum(-1)  # the largest logit is 0
    return [(labels[best], probability) for best, probability in zip(best_S, probabilities_S.tolist(), strict=True)]


def words_of(
    text: str, spans: Sequence[Span], starts: Sequence[bool], labels: Sequence[tuple[str, float]]
) -> list[Tagged]:
    """The words of a text with the labels of their first tokens.

    spans, starts, labels: of each token, special tokens left out; a token before the first word has none.
    """
    words: list[Tagged] = []
    for (start, end), is_start, (label, probability) in zip(spans, starts, labels, strict=True):
        if is_start:
            first = end - len(text[start:end].lstrip())
            words.append(Tagged((first, end), label, probability))
        elif words and text[start:end].strip():
            words[-1] = words[-1]._replace(span=(words[-1].span[0], max(end, words[-1].span[1])))
    return words


def spans_of_words(words: Sequence[Tagged]) -> list[Tagged]:
    """Words with the label of one name in a row, as one span with the mean of their probabilities. Words outside are
    left out."""
    groups: list[tuple[str, list[Tagged]]] = []
    last = ""
    for word in words:
        name = _name(word.label)
        if name:
            if name == last and not word.label.startswith(BEGIN):
                groups[-1][1].append(word)
            else:
                groups.append((name, [word]))
        last = name
    return [
        Tagged((group[0].span[0], group[-1].span[1]), name, sum(word.probability for word in group) / len(group))
        for name, group in groups
    ]


def _name(label: str) -> str:
    """The name of a span's label, without one prefix; "" for a word outside. A name may look like a label itself."""
    if label == OUTSIDE:
        return ""
    return label[len(BEGIN) :] if label.startswith((BEGIN, INSIDE)) else label


def label_probabilities(logits_L: np.ndarray, *, is_multi_label: bool) -> np.ndarray:
    """The sigmoid of each logit, or the softmax of all; float64 (L,)."""
    logits_L = logits_L.astype(np.float64)
    log_total = np.logaddexp(0.0, logits_L) if is_multi_label else np.logaddexp.reduce(logits_L)
    probabilities_L: np.ndarray = np.exp(logits_L - log_total)
    return probabilities_L
