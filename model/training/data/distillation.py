"""Training data of distillation: of a teacher's best translations, the ones nearest to the reference.

Sequence-level interpolation of Kim and Rush 2016: a beam's hypotheses are easier to learn than the reference, because a
model wrote them, and the nearest of them are as right. The similarity is theirs, sentence BLEU with add-1 smoothing, on
words separated by spaces.
"""

from __future__ import annotations

from collections.abc import Iterable

from sacrebleu.metrics.bleu import BLEU

_BLEU = BLEU(smooth_method="add-k", smooth_value=1, tokenize="none", force=True, effective_order=False)


def nearest(hypotheses: Iterable[str], reference: str, count: int) -> list[str]:
    """Up to `count` different hypotheses, the most similar first; of equally similar ones the earlier first. Those
    that are empty, or the reference itself, are left out."""
    different = dict.fromkeys(text for text in hypotheses if text.split() and text != reference)
    return sorted(different, key=lambda text: -similarity(text, reference))[:count]


def similarity(hypothesis: str, reference: str) -> float:
    """Sentence BLEU of 0 .. 1 (Lin and Och 2004: one is added to the counts of n-grams of two words and more)."""
    score: float = _BLEU.corpus_score([hypothesis], [[reference]]).score  # `sentence_score` warns of the smoothing
    return score / 100
