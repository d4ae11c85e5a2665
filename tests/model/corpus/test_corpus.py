import hashlib
import random
from itertools import pairwise

import pytest

from model.corpus.corpus import clause_of, pairs, sentences
from model.corpus.inflection import HABITS, NOW, PERFECT, WANT, Phrase, conjugate
from model.corpus.lexicon import HANDLING
from model.corpus.phrases import Predicate
from model.tokenizer import Tokenizer
from tests.model.corpus import held_out as only_test
from tests.model.corpus.derivations import count

HELD_OUT = only_test.ADJECTIVES | only_test.PLACES
FIRST_THOUSAND = "b6ca6b25c81d72dd373bb179e21586aacbe61d4c61d613700b5cf682c7c5861e"


def test_more_than_a_hundred_million_sentences():
    assert count(sentences("train")) > 10**8
    assert count(sentences("test")) > 10**8


@pytest.mark.parametrize(("split", "held_out"), [("train", 0), ("test", 1)])
def test_only_test_sentences_contain_a_held_out_combination(split, held_out):
    uniform = random.Random(3).random
    for _ in range(5_000):
        sentence = sentences(split).draw(uniform)
        assert sum(pair in HELD_OUT for pair in sentence.combinations) == held_out, sentence


@pytest.mark.slow
def test_no_held_out_adjective_stands_before_its_noun_in_train_text():
    words = [en.strip(".?").replace(",", "").split() for en, _ in pairs(4, 20_000, "train")]
    seen = {pair for sentence in words for pair in pairwise(sentence)}
    assert not seen & only_test.ADJECTIVES


@pytest.mark.slow
def test_every_word_of_the_test_split_occurs_in_train_text():
    texts = [text for pair in pairs(5, 20_000, "train") for text in pair]
    tokenizer = Tokenizer.train(texts, kind="words", vocab_size=2_000)
    for pair in pairs(6, 5_000, "test"):
        for text in pair:
            assert tokenizer.unknown_words(text) == []
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.slow
def test_one_english_sentence_has_one_german_answer():
    answers: dict[str, str] = {}
    for split in ("train", "test"):
        for en, de in pairs(7, 100_000, split):
            assert answers.setdefault(en, de) == de


def test_the_same_seed_gives_the_same_pairs_in_every_python_version():
    digest = hashlib.sha256(repr([pairs(1, 1_000, split) for split in ("train", "test")]).encode()).hexdigest()
    assert digest == FIRST_THOUSAND
    assert pairs(1, 10, "train") == pairs(1, 1_000, "train")[:10]
    assert pairs(2, 10, "train") != pairs(1, 10, "train")


PICK_UP = next(verb for verb in HANDLING if verb.en == "pick")


@pytest.mark.parametrize(
    ("tense", "second", "first", "last"),
    [
        (NOW, "der Mann hebt einen Ball auf", "hebt der Mann einen Ball auf", "der Mann einen Ball aufhebt"),
        (
            HABITS[0],
            "der Mann hebt oft einen Ball auf",
            "hebt der Mann oft einen Ball auf",
            "der Mann oft einen Ball aufhebt",
        ),
        (
            PERFECT,
            "der Mann hat einen Ball aufgehoben",
            "hat der Mann einen Ball aufgehoben",
            "der Mann einen Ball aufgehoben hat",
        ),
        (
            WANT,
            "der Mann will einen Ball aufheben",
            "will der Mann einen Ball aufheben",
            "der Mann einen Ball aufheben will",
        ),
    ],
)
def test_the_german_verb_stands_second_first_or_last(tense, second, first, last):
    predicate = Predicate(conjugate(PICK_UP, tense, plural=False), Phrase("a ball", "einen Ball"))
    clause = clause_of(Phrase("the man", "der Mann"), predicate)
    assert (clause.verb_second, clause.verb_first, clause.verb_last) == (second, first, last)


def test_english_questions_begin_with_the_auxiliary():
    predicate = Predicate(conjugate(PICK_UP, PERFECT, plural=True), Phrase("a ball", "einen Ball"))
    clause = clause_of(Phrase("two men", "zwei Männer"), predicate)
    assert clause.english == "two men have picked up a ball"
    assert clause.question == "have two men picked up a ball"


def test_sentences_are_clean_text_of_six_to_thirty_words_and_marks():
    for en, de in pairs(8, 5_000, "train"):
        for text in (en, de):
            assert text[0].isupper()
            assert text[-1] in ".?"
            assert text[:-1].replace(", ", " ").replace("-", "").replace(" ", "").isalpha(), text
            assert 5 <= len(text.replace(",", " ,").split()) + 1 <= 30, text
