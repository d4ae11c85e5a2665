"""What a smaller model learns from larger ones: of their best translations, those that are nearest to the reference.

Sequence-level interpolation of Kim and Rush 2016: a beam's hypotheses are easier to learn than the reference, because a
model wrote them, and the nearest of them are as right. The similarity is theirs, sentence BLEU with add-1 smoothing, on
words separated by spaces.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

ORDERS = 4  # of n-grams


def nearest(hypotheses: Iterable[str], reference: str, count: int) -> list[str]:
    """Up to `count` different hypotheses, the most similar first; of equally similar ones the earlier first. Those
    that are empty, or the reference itself, are left out."""
    different = dict.fromkeys(text for text in hypotheses if text.split() and text != reference)
    return sorted(different, key=lambda text: -similarity(text, reference))[:count]


def similarity(hypothesis: str, reference: str) -> float:
    """Sentence BLEU of 0 .. 1 (Lin and Och 2004: one is added to the counts of n-grams of two words and more)."""
    words, wanted = hypothesis.split(), reference.split()
    total = 0.0
    for order in range(1, ORDERS + 1):
        grams, wanted_grams = _grams(words, order), _grams(wanted, order)
        found, added = (grams & wanted_grams).total(), int(order > 1)
        if found + added == 0:
            return 0.0
        total += math.log((found + added) / (grams.total() + added))
    brevity = min(0.0, 1 - len(wanted) / len(words))
    return math.exp(brevity + total / ORDERS)


def _grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))
