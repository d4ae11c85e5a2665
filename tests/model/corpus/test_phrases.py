import math
from typing import Any

import pytest

from model.corpus.grammar import Rule
from model.corpus.lexicon import PLACES, STAYING
from model.corpus.phrases import (
    CLOTHES,
    NOUNS,
    THINGS,
    adjectives_of,
    objects,
    outfit,
    predicate,
    somewhere,
    spots_of,
    spread,
)
from tests.model.corpus import held_out
from tests.model.corpus.derivations import count, outcomes

RULES: dict[str, Rule[Any]] = {
    "outfit": outfit(plural=False, novel=False),
    "outfits": outfit(plural=True, novel=True),
    "place": somewhere("stand", novel=False),
    "new place": somewhere("stand", novel=True),
    "things": objects(THINGS, "acc", None, novel=False),
    "people": objects(NOUNS["person"], "dat", None, novel=True),
    "animals": predicate("animal", "clause", None, plural=True, brief=True, novel=True),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_every_derivation_has_its_own_english_and_all_sum_to_one(rule):
    english, total = set(), 0.0
    for value, logprob in outcomes(rule):
        english.add(value.en if hasattr(value, "en") else (value.verb, value.complement.en))
        total += math.exp(logprob)
    assert len(english) == count(rule)
    assert math.isclose(total, 1.0)


def test_a_novel_rule_has_exactly_one_novel_part():
    assert spread(True, 3) == [(True, False, False), (False, True, False), (False, False, True)]
    assert spread(False, 3) == [(False, False, False)]


def test_every_noun_and_every_verb_of_place_has_known_and_held_out_company():
    nouns = [noun.en for group in (*NOUNS.values(), CLOTHES) for noun in group] + [place.en for place in PLACES]
    for noun in nouns:
        known, held_out = adjectives_of(noun, novel=False), adjectives_of(noun, novel=True)
        assert len(known) >= 5, noun
        assert 1 <= len(held_out) <= 2, noun
        assert not set(known) & set(held_out)
    for verb in STAYING["person"]:
        assert len(spots_of(verb.en, novel=False)) > len(spots_of(verb.en, novel=True)) >= 1, verb.en


def test_what_is_held_out_is_a_small_part_of_what_there_is():
    assert 80 <= len(held_out.ADJECTIVES) <= 160
    assert 50 <= len(held_out.PLACES) <= 130
