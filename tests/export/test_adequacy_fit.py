"""The fit of adequacy: norms and weights that are known, and answers that say little."""

import math

import numpy as np
import pytest

from export.adequacy_fit import DAMAGED_SHARE, SMALLEST_DEVIATION, fit_adequacy
from export.bundle.adequacy import Traits

COUNT = 4000


def whole(count=COUNT, seed=0):
    """Answers of 3 + 0.9 S tokens with a deviation of 0.4 sqrt(S), to sources of e^-1.2 tokens a character."""
    random = np.random.default_rng(seed)
    source_N = random.integers(4, 40, count)
    answer_N = np.maximum(1, np.round(3 + 0.9 * source_N + 0.4 * np.sqrt(source_N) * random.standard_normal(count)))
    rate_N = np.exp(-1.2 + 0.2 * random.standard_normal(count))
    end_N = random.beta(1, 12, count)
    rows = zip(source_N.tolist(), answer_N.astype(int).tolist(), end_N.tolist(), rate_N.tolist(), strict=True)
    return [Traits(source, answer, 0.0, end, rate) for source, answer, end, rate in rows]


def halved(answers):
    return [one._replace(answer_tokens=one.answer_tokens // 2) for one in answers]


def test_norms_are_those_of_the_answers():
    found = fit_adequacy(whole(), [halved(whole(seed=1))])
    assert (found.length_base, found.length_slope, found.length_deviation) == pytest.approx((3, 0.9, 0.4), abs=0.1)
    assert (found.log_tokens_per_character, found.log_tokens_deviation) == pytest.approx((-1.2, 0.2), abs=0.02)


def test_the_intercept_assumes_the_share_of_damaged_answers():
    """Mean adequacy is the share of whole answers: what the intercept of a logistic regression does."""
    answers, damaged = whole(), halved(whole(seed=1))
    found = fit_adequacy(answers, [damaged])
    means = [np.mean([found(one) for one in group]) for group in (answers, damaged)]
    assert (1 - DAMAGED_SHARE) * means[0] + DAMAGED_SHARE * means[1] == pytest.approx(1 - DAMAGED_SHARE, abs=1e-3)
    assert means[0] > 0.9
    assert means[1] < 0.6


def test_each_kind_gives_its_sign_a_weight():
    other = whole(seed=1)
    repeated = [one._replace(repetition=0.5, answer_tokens=2 * one.answer_tokens) for one in other]
    open_end = [one._replace(open_end=0.9) for one in other]
    foreign = [one._replace(tokens_per_character=2 * one.tokens_per_character) for one in other]
    found = fit_adequacy(whole(), [halved(other), repeated, open_end, foreign])
    assert min(found.missing, found.repetition, found.open_end, found.foreign) > 0.5
    for group in (halved(other), repeated, open_end, foreign):
        assert np.mean([found(one) for one in group]) < 0.7 < 0.9 < np.mean([found(one) for one in whole()])


def test_a_sign_that_would_speak_for_an_answer_has_no_weight():
    surer = [one._replace(open_end=0.0, answer_tokens=one.answer_tokens // 2) for one in whole(seed=1)]
    found = fit_adequacy(whole(), [surer])
    assert (found.open_end, found.repetition) == (0.0, 0.0)
    assert found.missing > 0.5


def test_kinds_count_alike_however_many_answers_they_have():
    other = whole(seed=1)
    foreign = [one._replace(tokens_per_character=2 * one.tokens_per_character) for one in other]
    many = fit_adequacy(whole(), [halved(other), foreign])
    few = fit_adequacy(whole(), [halved(other), foreign[:400]])
    assert (few.missing, few.foreign) == pytest.approx((many.missing, many.foreign), rel=0.2)


def test_answers_that_one_sign_divides_without_error_have_finite_weights():
    repeated = [one._replace(repetition=0.5) for one in whole(seed=1)]
    found = fit_adequacy(whole(), [repeated])
    assert 1 < found.repetition < 1e3
    assert np.mean([found(one) for one in repeated]) < 0.1


@pytest.mark.parametrize("length", [0, 1, 7])
def test_answers_that_are_all_alike_can_be_fitted(length):
    alike = [Traits(5, length, 0.0, 0.0, 0.25)] * 50
    found = fit_adequacy(alike, [alike])
    assert (found.length_deviation, found.log_tokens_deviation) == (SMALLEST_DEVIATION, SMALLEST_DEVIATION)
    assert found(alike[0]) == pytest.approx(1 - DAMAGED_SHARE, abs=1e-3), "nothing tells them apart"
    assert all(math.isfinite(value) for value in vars(found).values())


def test_longer_sources_are_not_expected_to_have_shorter_answers():
    falling = [Traits(source, 40 - source, 0.0, 0.0, 0.25) for source in range(4, 40)]
    found = fit_adequacy(falling, [falling])
    assert found.length_slope == 0.0
    assert found.length_base == pytest.approx(40 - 21.5)
