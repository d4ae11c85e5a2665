"""Fits and measures of confidence, compared with slow and obviously right ones."""

import itertools
import math

import numpy as np
import pytest

from export.bundle.confidence import MAX_KNOTS, ConfidenceMap
from export.confidence_fit import (
    FEWEST_A_KNOT,
    expected_calibration_error,
    fit_isotonic,
    fit_map,
    fit_temperature,
    isotonic,
    least_certain_errors,
    mapped,
    ranking,
)


def test_the_calibration_error_is_that_by_hand():
    confidence = [0.1, 0.3, 0.5, 0.7, 0.9, 0.9]
    right = [0, 1, 0, 1, 1, 0]
    # Bins of two: |0.2 - 0.5|, |0.6 - 0.5|, |0.9 - 0.5|.
    assert expected_calibration_error(confidence, right, bins=3) == pytest.approx((0.3 + 0.1 + 0.4) / 3)
    assert expected_calibration_error(confidence, right, bins=1) == pytest.approx(abs(3.4 / 6 - 0.5))
    shuffled = [4, 2, 0, 5, 1, 3]
    confidence, right = np.array([confidence, right])[:, shuffled]
    assert expected_calibration_error(confidence, right, bins=3) == pytest.approx(0.8 / 3)


def test_equal_confidences_share_a_bin():
    assert expected_calibration_error([0.5] * 8, [0, 0, 0, 0, 1, 1, 1, 1]) == 0.0
    right = [1, 0, 1, 0, 1, 0]
    assert expected_calibration_error([0.5] * 4 + [0.9] * 2, right, bins=3) == pytest.approx((0 + 0.4 * 2) / 6)


def test_a_calibrated_confidence_has_no_error_and_a_constant_one_has_its_distance():
    random = np.random.default_rng(3)
    confidence = random.random(200_000)
    right = random.random(200_000) < confidence
    assert expected_calibration_error(confidence, right) < 0.005
    assert expected_calibration_error(np.full(1000, 0.9), np.arange(1000) % 2) == pytest.approx(0.4)


def brute_force_isotonic(values, weights):
    """The best of all partitions into blocks of equal values, whose means ascend: the quadratic problem's solution is
    one of them."""
    best, least = None, math.inf
    for cuts in itertools.product((False, True), repeat=len(values) - 1):
        starts = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), len(values)]
        fitted = np.concatenate(
            [
                np.full(end - start, np.average(values[start:end], weights=weights[start:end]))
                for start, end in itertools.pairwise(starts)
            ]
        )
        loss = float((weights * (fitted - values) ** 2).sum())
        if (np.diff(fitted) >= -1e-12).all() and loss < least - 1e-12:
            best, least = fitted, loss
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_isotonic_fit_solves_the_quadratic_problem(seed):
    random = np.random.default_rng(seed)
    values, weights = random.random(random.integers(1, 10)), random.integers(1, 5, 10).astype(float)
    weights = weights[: len(values)]
    fitted = isotonic(values, weights)
    np.testing.assert_allclose(fitted, brute_force_isotonic(values, weights), atol=1e-12)
    if len(values) > 1:  # no small feasible change is better
        better = fitted + random.normal(0, 1e-3, (2000, len(values)))
        feasible = better[(np.diff(better) >= 0).all(1)]
        assert (weights * (feasible - values) ** 2).sum(1).min(initial=np.inf) >= (
            weights * (fitted - values) ** 2
        ).sum()


def sample(count, seed=0, temperature=2.0):
    """Raw confidences, and correctness whose probability is a softened raw confidence."""
    random = np.random.default_rng(seed)
    raw = random.beta(4, 1, count)
    truth = mapped(ConfidenceMap(method="temperature", temperature=temperature), raw)
    return raw, random.random(count) < truth


def test_a_temperature_has_the_least_cross_entropy_of_a_grid():
    raw, right = sample(2000)

    def loss(temperature):
        confidence = np.clip(
            mapped(ConfidenceMap(method="temperature", temperature=temperature), raw), 1e-12, 1 - 1e-12
        )
        return float(-np.mean(right * np.log(confidence) + (1 - right) * np.log(1 - confidence)))

    fitted = fit_temperature(raw, right)
    grid = np.exp(np.linspace(math.log(0.5), math.log(8), 400))
    assert loss(fitted.temperature) <= min(map(loss, grid)) + 1e-9
    assert fitted.temperature == pytest.approx(2.0, rel=0.15)


def test_an_isotonic_map_has_ascending_knots_and_the_shares_of_its_groups():
    raw, right = sample(6000)
    fitted = fit_isotonic(raw, right)
    assert fitted.problem == ""
    assert 4 < len(fitted.raw) <= MAX_KNOTS
    assert expected_calibration_error(mapped(fitted, raw), right) < 0.02 < expected_calibration_error(raw, right)
    assert 0 < fitted.calibrated[0] <= fitted.calibrated[-1] < 1, "no word is certainly right or wrong"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_examples_that_are_all_alike_have_a_constant_map(share):
    fitted = fit_isotonic([0.5] * 60, [share] * 60)
    assert fitted.raw == (0.5,)
    assert fitted.calibrated == pytest.approx((share,))


def test_a_map_from_zero_ascends_below_all_examples():
    random = np.random.default_rng(6)
    raw = random.uniform(0.3, 1.0, 40 * FEWEST_A_KNOT)
    right = random.random(len(raw)) < raw
    plain, map = fit_isotonic(raw, right), fit_isotonic(raw, right, from_zero=True)
    assert (map.raw[0], map.calibrated[0], map(0.0)) == (0.0, 0.0, 0.0)
    assert (map.raw[-1], map.calibrated[-1]) == (plain.raw[-1], plain.calibrated[-1])
    assert map(map.raw[1] / 2) == pytest.approx(map.calibrated[1] / 2)
    assert map.problem == ""
    assert len(map.raw) <= MAX_KNOTS
    many = fit_isotonic(np.arange(1.0, 2000.0) / 2000, np.arange(1999) / 2000, from_zero=True)
    assert len(many.raw) <= MAX_KNOTS
    assert fit_map(raw, right, from_zero=True)(0.0) == pytest.approx(0.0, abs=0.05)
    zero = fit_isotonic([0.0] * 50, [1.0] * 50, from_zero=True)
    assert (zero.raw, zero(0.0)) == ((0.0,), 1.0), "examples at 0 count"


def test_a_few_examples_make_one_knot():
    fitted = fit_isotonic(np.linspace(0, 1, FEWEST_A_KNOT), [1, 0] * 12 + [1])
    assert len(fitted.raw) == 1


def test_the_method_with_the_smaller_error_on_other_examples_is_chosen():
    assert fit_map(*sample(300, seed=1)).method == "temperature"
    random = np.random.default_rng(5)
    raw = random.random(6000)
    steep = random.random(6000) < np.where(raw > 0.7, 0.95, 0.6)  # no temperature gives this
    assert fit_map(raw, steep).method == "isotonic"


def test_ranking_is_the_share_of_pairs_in_order():
    random = np.random.default_rng(2)
    confidence, right = random.integers(0, 6, 40) / 6, random.random(40) < 0.6
    pairs = [
        (one > other) + (one == other) / 2
        for (one, is_right), (other, is_other) in itertools.product(zip(confidence, right, strict=True), repeat=2)
        if is_right and not is_other
    ]
    assert ranking(confidence, right) == pytest.approx(np.mean(pairs))
    assert math.isnan(ranking([0.5], [True]))


def test_errors_of_the_least_certain_part():
    confidence, right = np.arange(100) / 100, np.arange(100) >= 20
    found = least_certain_errors(confidence, right)
    assert (found.share, found.rate, found.average_rate, found.lift) == (0.5, 1.0, 0.2, 5.0)
    assert least_certain_errors(1 - confidence, right).share == 0.0
    assert math.isnan(least_certain_errors([0.5], [True]).lift)
