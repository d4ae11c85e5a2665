import hashlib
import random

import pytest

from model.corpus.lexicon import ANIMALS, LYING_THINGS, STANDING_THINGS
from model.corpus.references import PRONOUNS, SENTENCES, documents, references
from tests.model.corpus import held_out as only_test

HELD_OUT = only_test.ADJECTIVES | only_test.PLACES
GENDERS = {noun.de: noun.gender for noun in (*ANIMALS, *LYING_THINGS, *STANDING_THINGS)}


def test_pronouns_agree_with_the_noun_of_the_first_sentence():
    pairs = references(5, 3_000, "train")
    assert len(pairs) % SENTENCES == 0
    for start in range(0, len(pairs), SENTENCES):
        (_, opening), *others = pairs[start : start + SENTENCES]
        (noun,) = [word for word in opening.split()[:3] if word in GENDERS]
        for english, german in others:
            assert english.startswith("It is ")
            assert german.split()[0].lower() == PRONOUNS[GENDERS[noun]], (opening, german)


@pytest.mark.slow
def test_no_pronoun_can_be_known_from_its_sentence():
    """Each is as frequent as the others, also among the sentences that are the same in English."""
    found = dict[str, set[str]]()
    for english, german in references(6, 60_000, "train"):
        if english.startswith("It is ") and " and " in english:
            found.setdefault(english, set()).add(german.split()[0])
    assert all(pronouns == {"Er", "Sie", "Es"} for pronouns in found.values())


@pytest.mark.parametrize(("split", "held_out"), [("train", 0), ("test", 1)])
def test_only_test_documents_contain_a_held_out_combination(split, held_out):
    uniform = random.Random(4).random
    for _ in range(2_000):
        document = documents(split == "test").draw(uniform)
        assert sum(pair in HELD_OUT for pair in document.combinations) == held_out, document


def test_the_same_seed_gives_the_same_documents():
    digest = hashlib.sha256(repr([references(1, 999, split) for split in ("train", "test")]).encode()).hexdigest()
    assert digest == "c9000e9aa4d5564c58bd8b5898eb36f0d4b511eeeb469ebd0ecc51e9af248ebe"
