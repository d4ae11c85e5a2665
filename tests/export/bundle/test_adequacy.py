"""Adequacy: traits counted by hand, and the logistic regression on what speaks against an answer."""

import math

import pytest

from export.bundle.adequacy import Traits, traits_of
from tests.calibrated import ADEQUACY

END = 2
WHOLE = Traits(source_tokens=4, answer_tokens=6, repetition=0.0, open_end=0.0, tokens_per_character=0.25)


def test_traits_are_those_of_the_text_and_of_the_answer_without_its_end():
    found = traits_of((5, 6, 7, 8), 10, (11, 12, 13, END), (-9.0, -9.0, -9.0, math.log(0.75)), {END, 3})
    assert found == pytest.approx(Traits(4, 3, 0.0, 0.25, 0.4))


def test_an_answer_that_was_cut_has_no_end():
    assert traits_of((5,), 1, (11, 12), (-9.0, -9.0), {END}) == Traits(1, 2, 0.0, 0.0, 1.0)
    assert traits_of((5,), 1, (), (), {END}) == Traits(1, 0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ((11, 12, 13), 0.0),
        ((11,), 0.0),
        ((11, 11), 0.0),  # one pair
        ((11, 11, 11), 1 / 2),  # 11 11 twice
        ((11, 12, 11, 12), 1 / 3),  # 11 12, 12 11, 11 12
        ((11, 12, 13, 11, 12, 13), 2 / 5),
        ((11,) * 101, 99 / 100),
    ],
)
def test_repetition_is_the_share_of_pairs_that_were_there_before(answer, share):
    assert traits_of((5, 6, 7), 9, (*answer, END), [0.0] * (len(answer) + 1), {END}).repetition == pytest.approx(share)


def test_what_the_source_repeats_an_answer_may_repeat():
    """No, no, no! is Nein, nein, nein!"""
    assert traits_of((5, 5, 5, 5), 9, (11, 11, 11, 11, END), [0.0] * 5, {END}).repetition == 0.0
    assert traits_of((5, 5, 5, 5), 9, (11, 12, END), [0.0] * 3, {END}).repetition == 0.0


def test_a_text_without_tokens_or_characters_has_traits():
    assert traits_of((), 0, (END,), (-1.0,), {END})[:2] == (1, 0)


def test_only_too_few_tokens_and_too_many_pieces_speak_against_an_answer():
    """ADEQUACY expects 2 + S tokens with a deviation of sqrt(S) / 2, and e^-1.5 tokens a character times or by
    e^0.25."""
    signs = ADEQUACY.signs(WHOLE)
    assert signs.missing == 0.0
    assert ADEQUACY.signs(WHOLE._replace(answer_tokens=3)).missing == pytest.approx(3.0)
    assert ADEQUACY.signs(WHOLE._replace(answer_tokens=60)).missing == 0.0
    assert ADEQUACY.signs(WHOLE._replace(tokens_per_character=math.exp(-1.0))).foreign == pytest.approx(2.0)
    assert ADEQUACY.signs(WHOLE._replace(tokens_per_character=0.01)).foreign == 0.0


def test_adequacy_is_the_logistic_function_of_the_weighted_signs():
    whole = WHOLE._replace(tokens_per_character=0.1)
    assert ADEQUACY(whole) == pytest.approx(1 / (1 + math.exp(-4)))
    assert ADEQUACY(whole._replace(answer_tokens=3)) == pytest.approx(1 / (1 + math.exp(-4 + 3)))
    assert ADEQUACY(whole._replace(repetition=0.5)) == pytest.approx(1 / (1 + math.exp(-4 + 4)))
    assert ADEQUACY(whole._replace(open_end=0.5)) == pytest.approx(1 / (1 + math.exp(-4 + 2)))
    assert ADEQUACY(whole._replace(tokens_per_character=math.exp(-1.0))) == pytest.approx(1 / (1 + math.exp(-4 + 1)))


def test_nothing_that_speaks_against_an_answer_makes_it_more_adequate():
    worse = [
        *(WHOLE._replace(answer_tokens=count) for count in range(6, -1, -1)),
        *(Traits(4, 0, share / 9, 0.0, 0.25) for share in range(10)),
        *(Traits(4, 0, 1.0, share / 9, 0.25) for share in range(10)),
        *(Traits(4, 0, 1.0, 1.0, rate) for rate in (0.3, 1.0, 4.0, 1e6)),
        Traits(1 << 24, 0, 1.0, 1.0, 1e6),
    ]
    found = [ADEQUACY(traits) for traits in worse]
    assert found == sorted(found, reverse=True)
    assert 0.0 <= found[-1] < 1e-9
