"""The translations of teachers that a smaller model learns from."""

import random

import pytest
from sacrebleu.metrics.bleu import BLEU

from model.training.distillation import nearest, similarity


def test_the_similarity_is_the_sentence_bleu_of_sacrebleu():
    oracle = BLEU(smooth_method="add-k", smooth_value=1, tokenize="none", force=True, effective_order=False)
    rng = random.Random(1)
    for _ in range(200):
        reference = " ".join(rng.choices(["a", "b", "c", "d"], k=rng.randrange(4, 12)))
        hypothesis = " ".join(rng.choices(["a", "b", "c", "d", "e"], k=rng.randrange(4, 14)))
        expected = oracle.sentence_score(hypothesis, [reference]).score / 100
        assert similarity(hypothesis, reference) == pytest.approx(expected, abs=1e-9)


def test_texts_without_a_common_word_are_not_similar():
    assert similarity("e e e e", "a b c d") == 0.0


def test_the_nearest_hypotheses_come_first_and_once():
    reference = "a man rides a horse ."
    worse, best = "a man is on a horse .", "a man rides the horse ."
    found = nearest([worse, best, "", " ", reference, best, "no", "none"], reference, 3)
    assert found == [best, worse, "no"]
    assert nearest([worse, best], reference, 1) == [best]
