"""Fits the maps of `export.bundle.confidence` to examples, and measures how well confidences are calibrated and ranked.

Everything is pure and works on arrays: N examples, each with a confidence and its correctness, both 0..1. Correctness
is 0 or 1 of a word, and a share of a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from export.bundle.confidence import MAX_KNOTS, ConfidenceMap

Floats = NDArray[np.float64]

BINS = 15  # of an expected calibration error, as in Guo et al. 2017
FEWEST_A_KNOT = 25  # examples: the standard error of a share is then at most 0.1
FOLDS = 5  # of the cross-validation that chooses between the methods
DIGITS = 6  # decimal places of a stored number
TEMPERATURES = (0.05, 20.0)  # searched, on a logarithmic scale
_GOLDEN = (math.sqrt(5) - 1) / 2
_LEAST = 1e-9


def expected_calibration_error(confidence: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """The mean difference between confidence and correctness over bins of equal mass, weighted by their examples.

    Naeini et al. 2015 and Guo et al. 2017 take bins of equal width, most of which are nearly empty here (Nguyen and
    O'Connor 2015). Examples of one confidence are never divided, so that the result does not depend on their order.
    """
    confidence_N, right_N = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    groups = _equal_mass(confidence_N, bins)
    gaps = [abs(float(confidence_N[group].mean() - right_N[group].mean())) * len(group) for group in groups]
    return math.fsum(gaps) / len(confidence_N)


def _equal_mass(confidence_N: Floats, bins: int) -> list[NDArray[np.int64]]:
    """The indices of at most `bins` groups of about equal size, by ascending confidence. Equal ones stay together."""
    order_N = np.argsort(confidence_N, kind="stable")
    sorted_N = confidence_N[order_N]
    last = len(order_N)
    wanted = {round(last * part / bins) for part in range(1, bins)}
    cuts = sorted({int(np.searchsorted(sorted_N, sorted_N[cut], "left")) for cut in wanted if cut < last} - {0})
    return [group for group in np.split(order_N, cuts) if len(group)]


def isotonic(values: ArrayLike, weights: ArrayLike) -> Floats:
    """The non-descending sequence with the least weighted sum of squared differences from `values`: pool adjacent
    violators (Barlow et al. 1972; for calibration Zadrozny and Elkan 2002, Niculescu-Mizil and Caruana 2005)."""
    means: list[float] = []
    masses: list[float] = []
    counts: list[int] = []
    for value, weight in zip(np.asarray(values, float).tolist(), np.asarray(weights, float).tolist(), strict=True):
        mean, mass, count = value, weight, 1
        while means and means[-1] >= mean:
            total = masses[-1] + mass
            mean = (means.pop() * masses[-1] + mean * mass) / total
            mass, count = total, count + counts.pop()
            masses.pop()
        means.append(mean)
        masses.append(mass)
        counts.append(count)
    return np.repeat(means, counts)


def fit_isotonic(raw: ArrayLike, right: ArrayLike, *, from_zero: bool = False) -> ConfidenceMap:
    """An isotonic map: groups of equal mass, at least FEWEST_A_KNOT examples each, pooled until their shares ascend.

    A knot is the mean of a pooled group. Between knots the map ascends, so that it keeps the order of most confidences,
    which the usual step function does not. Each group gets one example more, of average correctness: no word is
    certainly right or wrong. from_zero: the map begins with a knot of 0 at 0, so that it ascends below all examples.
    """
    raw_N, right_N = np.asarray(raw, np.float64), np.asarray(right, np.float64)
    size, knots = FEWEST_A_KNOT, dict[float, float]()
    while not knots or len(knots) > MAX_KNOTS:
        knots = ({0.0: 0.0} if from_zero else {}) | _knots(raw_N, right_N, max(1, len(raw_N) // size))
        size *= 2
    return ConfidenceMap(method="isotonic", raw=tuple(knots), calibrated=tuple(knots.values()))


def _knots(raw_N: Floats, right_N: Floats, bins: int) -> dict[float, float]:
    groups = _equal_mass(raw_N, bins)
    sizes = [len(group) + 1 for group in groups]
    shares = [(right_N[group].sum() + right_N.mean()) / size for group, size in zip(groups, sizes, strict=True)]
    fitted = isotonic(shares, sizes)
    pooled = np.split(np.arange(len(groups)), np.flatnonzero(np.diff(fitted.round(DIGITS))) + 1)
    knots: dict[float, float] = {}  # groups whose means are equal when rounded become one knot
    for members in pooled:
        mean = float(raw_N[np.concatenate([groups[member] for member in members])].mean())
        knots[round(mean, DIGITS)] = round(min(max(float(fitted[members[0]]), 0.0), 1.0), DIGITS)
    return knots


def fit_temperature(raw: ArrayLike, right: ArrayLike) -> ConfidenceMap:
    """The temperature with the least cross-entropy, which has one minimum: found by golden-section search."""
    raw_N, right_N = np.asarray(raw, np.float64), np.asarray(right, np.float64)
    bounded_N = np.clip(raw_N, _LEAST, 1 - _LEAST)
    logits_N = np.log(bounded_N / (1 - bounded_N))

    def loss(log_temperature: float) -> float:
        scaled_N = logits_N / math.exp(log_temperature)
        return float(np.mean(np.logaddexp(0.0, scaled_N) - right_N * scaled_N))

    best = _least(loss, *map(math.log, TEMPERATURES))
    return ConfidenceMap(method="temperature", temperature=round(math.exp(best), DIGITS))


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """The argument that minimizes a function with one minimum, within 1e-6."""
    while high - low > 1e-6:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if function(left) <= function(right):
            high = right
        else:
            low = left
    return (low + high) / 2


def fit_map(raw: ArrayLike, right: ArrayLike, *, from_zero: bool = False) -> ConfidenceMap:
    """The map of the method with the smaller squared error (Brier score) in a cross-validation; of two equal ones the
    temperature, which has one number. from_zero: as of `fit_isotonic`; a temperature keeps 0 anyway."""
    raw_N, right_N = np.asarray(raw, np.float64), np.asarray(right, np.float64)
    fold_N = np.arange(len(raw_N)) % FOLDS
    errors = []
    step = partial(fit_isotonic, from_zero=from_zero)
    for fit in (fit_temperature, step):
        fitted = [(fold, fit(raw_N[fold_N != fold], right_N[fold_N != fold])) for fold in range(FOLDS)]
        squared = [np.square(mapped(map, raw_N[fold_N == fold]) - right_N[fold_N == fold]) for fold, map in fitted]
        errors.append(float(np.concatenate(squared).mean()))
    return fit_temperature(raw_N, right_N) if errors[0] <= errors[1] else step(raw_N, right_N)


def mapped(map: ConfidenceMap, raw: ArrayLike) -> Floats:
    """Calibrated confidences of raw ones."""
    return np.array([map(value) for value in np.asarray(raw, float).tolist()])


def ranking(confidence: ArrayLike, right: ArrayLike) -> float:
    """The probability that a right word has a higher confidence than a wrong one, ties counted by half: the area under
    the receiver operating characteristic. 0.5: confidence ranks no better than chance; nan: all right or all wrong."""
    confidence_N, right_N = np.asarray(confidence, np.float64), np.asarray(right, bool)
    positives, negatives = np.sort(confidence_N[right_N]), np.sort(confidence_N[~right_N])
    if not len(positives) or not len(negatives):
        return math.nan
    below = np.searchsorted(negatives, positives, "left") + np.searchsorted(negatives, positives, "right")
    return float(below.sum() / (2 * len(positives) * len(negatives)))


class ErrorShare(NamedTuple):
    """Errors among the least certain examples."""

    share: float  # of all errors
    rate: float  # of these examples that are wrong
    average_rate: float  # of all examples

    @property
    def lift(self) -> float:
        """How many times their share of the errors the least certain examples hold."""
        return self.rate / self.average_rate if self.average_rate else math.nan


def least_certain_errors(confidence: ArrayLike, right: ArrayLike, part: float = 0.1) -> ErrorShare:
    """The errors, 1 - correctness, among the `part` of the examples with the lowest confidence."""
    confidence_N, wrong_N = np.asarray(confidence, np.float64), 1 - np.asarray(right, np.float64)
    least = np.argsort(confidence_N, kind="stable")[: max(1, round(part * len(confidence_N)))]
    total = float(wrong_N.sum())
    return ErrorShare(
        float(wrong_N[least].sum()) / total if total else math.nan, float(wrong_N[least].mean()), float(wrong_N.mean())
    )
