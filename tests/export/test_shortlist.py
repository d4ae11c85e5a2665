"""Which words a source can be translated with: against Model 1 written down as the paper has it, and on toy corpora."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export import shortlist as learning
from export.shortlist import learn_shortlist, shortlist_of, translation_probabilities
from model.tokenizer import Tokenizer

# das Haus, das Buch, ein Buch → the house, the book, a book: the corpus that explains Model 1 in textbooks
DAS, HAUS, BUCH, EIN = 4, 5, 6, 7
THE, HOUSE, BOOK, A = 8, 9, 10, 11
BOOKS = [([DAS, HAUS], [THE, HOUSE]), ([DAS, BUCH], [THE, BOOK]), ([EIN, BUCH], [A, BOOK])]
VOCABULARY = 12


def model_1(pairs: Any, iterations: int) -> dict[Any, float]:
    """Brown et al. 1993, as one writes it down: P(target | source) by (source, target); None is the empty word."""
    probability: defaultdict[Any, float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, totals = defaultdict[Any, float](float), defaultdict[Any, float](float)
        for source, target in pairs:
            for word in target:
                norm = sum(probability[cause, word] for cause in [None, *source])
                for cause in [None, *source]:
                    counts[cause, word] += probability[cause, word] / norm
                    totals[cause] += probability[cause, word] / norm
        probability = defaultdict(float, {key: count / totals[key[0]] for key, count in counts.items()})
    return {key: value for key, value in probability.items() if key[0] is not None}


def learned(pairs, iterations, vocab_size=VOCABULARY):
    found = zip(*translation_probabilities(pairs, vocab_size, iterations), strict=True)
    return {(int(source), int(target)): float(probability) for source, target, probability in found}


words = st.lists(st.integers(0, 7), min_size=1, max_size=6)


@settings(max_examples=60)
@given(pairs=st.lists(st.tuples(words, words), min_size=1, max_size=8), iterations=st.integers(1, 4))
def test_probabilities_are_those_of_model_1(pairs, iterations):
    assert learned(pairs, iterations, 8) == pytest.approx(model_1(pairs, iterations))


def test_probabilities_of_a_source_word_add_up_to_one_and_find_its_translation():
    found = learned(BOOKS, 20)
    for source, target in ((DAS, THE), (HAUS, HOUSE), (BUCH, BOOK), (EIN, A)):
        row = {other: probability for (word, other), probability in found.items() if word == source}
        assert sum(row.values()) == pytest.approx(1)
        assert max(row, key=row.__getitem__) == target
    assert learned(BOOKS, 5)[HAUS, HOUSE] < found[HAUS, HOUSE]


def test_the_best_come_first_and_the_improbable_not_at_all(monkeypatch):
    shortlist = shortlist_of(BOOKS * 3, VOCABULARY, always=(2,))
    assert shortlist.always == (2, THE), "one word is an eighth of the vocabulary, and of two as frequent it is this"
    assert shortlist.by_source[HAUS][0] == HOUSE
    monkeypatch.setattr(learning, "BEST", 1)
    assert shortlist_of(BOOKS * 3, VOCABULARY).by_source == {DAS: (THE,), HAUS: (HOUSE,), BUCH: (BOOK,), EIN: (A,)}
    monkeypatch.setattr(learning, "LEAST_PROBABILITY", 0.99)
    assert shortlist_of(BOOKS * 3, VOCABULARY).by_source == {}


def test_of_equally_good_words_the_lower_id_comes_first():
    shortlist = shortlist_of([([4], [9, 7, 8])], 80)
    assert shortlist.by_source == {4: (7, 8, 9)}
    assert shortlist.always == (7, 8, 9)


TEXTS = [("ein Haus", "a house"), ("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book")]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([f"{source} {target}" for source, target in TEXTS], kind="words", vocab_size=64)


def test_a_shortlist_is_learned_from_text_and_measured_on_what_was_held_out(tokenizer):
    shortlist, figures = learn_shortlist(TEXTS * 30, tokenizer, eos_id=2)
    assert figures == {"pairs": 108, "held_out": 12, "coverage": 1.0, "mean_allowed": figures["mean_allowed"]}
    assert 0 < figures["mean_allowed"] < tokenizer.vocab_size
    assert 2 in shortlist.always
    (house,) = tokenizer.encode("Haus")
    assert shortlist.by_source[house][0] == tokenizer.encode("house")[0]
    assert learn_shortlist(TEXTS * 30, tokenizer, eos_id=2) == (shortlist, figures)


def test_a_few_pairs_are_all_learned_from(tokenizer):
    assert learn_shortlist(TEXTS, tokenizer, eos_id=2)[1] == {"pairs": 4, "held_out": 0}


def test_of_a_long_text_pairs_from_everywhere_are_used_and_no_more_than_the_limits_allow(tokenizer, monkeypatch):
    monkeypatch.setattr(learning, "MAX_PAIRS", 40)
    monkeypatch.setattr(learning, "HELD_OUT", 10)
    late = [("ein Haus", "a house")] * 800 + [("das Buch", "the book")] * 200
    shortlist, figures = learn_shortlist(late, tokenizer, eos_id=2)
    assert (figures["pairs"], figures["held_out"]) == (40, 5)
    assert tokenizer.encode("Buch")[0] in shortlist.by_source
    monkeypatch.setattr(learning, "MAX_LINKS", 6 * 7 + 5)  # (2 + the empty word) * 2 links a pair
    assert learn_shortlist(late, tokenizer, eos_id=2)[1]["pairs"] == 7
    monkeypatch.setattr(learning, "MAX_LINKS", 1)
    assert learn_shortlist(late, tokenizer, eos_id=2)[1]["pairs"] == 1


def test_empty_and_long_sentences_are_left_out(tokenizer):
    long = " ".join(["Haus"] * (learning.MAX_TOKENS + 1))
    texts = [*TEXTS, ("", "a"), ("ein", ""), (long, "a"), ("ein", long)]
    assert learn_shortlist(texts, tokenizer, eos_id=2)[1]["pairs"] == 4
    with pytest.raises(ValueError, match=r"no pair has 1\.\.100 tokens on either side"):
        learn_shortlist([("", "")], tokenizer, eos_id=2)
    with pytest.raises(ValueError, match="no pair"):
        learn_shortlist([], tokenizer, eos_id=2)
