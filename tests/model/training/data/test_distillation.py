"""The translations of teachers that a smaller model learns from."""

import math
import random
from collections import Counter

import pytest

from model.training.data.distillation import nearest, similarity


def counted(hypothesis, reference):
    """BLEU by its definition, with one added to the counts of longer n-grams."""
    words, wanted, product = hypothesis.split(), reference.split(), 1.0
    for order in range(1, 5):
        grams, wanted_grams = (
            Counter(zip(*(side[k:] for k in range(order)), strict=False)) for side in (words, wanted)
        )
        found, added = (grams & wanted_grams).total(), int(order > 1)
        product *= (found + added) / (grams.total() + added)
    return math.exp(min(0.0, 1 - len(wanted) / len(words))) * product**0.25


def test_the_similarity_is_the_smoothed_sentence_bleu():
    rng = random.Random(1)
    for _ in range(200):
        reference = " ".join(rng.choices(["a", "b", "c", "d"], k=rng.randrange(1, 12)))
        hypothesis = " ".join(rng.choices(["a", "b", "c", "d", "e"], k=rng.randrange(1, 14)))
        assert similarity(hypothesis, reference) == pytest.approx(counted(hypothesis, reference), abs=1e-9)


def test_texts_without_a_common_word_are_not_similar():
    assert similarity("e e e e", "a b c d") == 0.0


def test_the_nearest_hypotheses_come_first_and_once():
    reference = "a man rides a horse ."
    worse, best = "a man is on a horse .", "a man rides the horse ."
    found = nearest([worse, best, "", " ", reference, best, "no", "none"], reference, 3)
    assert found == [best, worse, "no"]
    assert nearest([worse, best], reference, 1) == [best]
