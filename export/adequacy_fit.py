"""Fits an `Adequacy` to answers and to damaged ones: the norms of length and tokens to the answers, the weights by
logistic regression (Cox 1958) with weights of at least 0, so that no sign ever speaks for an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from export.bundle.adequacy import Adequacy, Signs, Traits
from export.confidence_fit import DIGITS

Floats = NDArray[np.float64]

DAMAGED_SHARE = 0.05  # of answers, as the intercept assumes: 0.1 tells more damaged ones, and good ones less well apart
RIDGE = 1e-4  # penalty of squared weights, so that answers that a sign divides without error have finite ones
STEPS = 100  # of Newton's method, at most; each changes no weight by more than LONGEST
LONGEST = 2.0
SMALLEST_DEVIATION = 0.05  # where all answers are alike


def fit_adequacy(whole: Sequence[Traits], damaged: Sequence[Sequence[Traits]]) -> Adequacy:
    """The adequacy that tells answers from damaged ones. damaged: those of each kind, each of which counts as much."""
    norms = _norms(whole)
    plain = Adequacy(**norms, intercept=0.0, missing=0.0, repetition=0.0, open_end=0.0, foreign=0.0)
    groups = [whole, *damaged]
    sizes_G = np.array(list(map(len, groups)))
    shares_G = np.array([1 - DAMAGED_SHARE, *([DAMAGED_SHARE / len(damaged)] * len(damaged))])
    signs_NF = np.array([plain.signs(traits) for group in groups for traits in group], np.float64)
    is_damaged_N = np.repeat(np.arange(len(groups)) > 0, sizes_G).astype(np.float64)
    mass_N = np.repeat(shares_G / sizes_G, sizes_G)
    intercept, weights = _logistic(signs_NF, is_damaged_N, mass_N)
    fitted = {name: round(weight, DIGITS) for name, weight in zip(Signs._fields, weights, strict=True)}
    return Adequacy(**norms, intercept=round(min(max(intercept, -100.0), 100.0), DIGITS), **fitted)


def _norms(whole: Sequence[Traits]) -> dict[str, float]:
    """The expected number of tokens, by least squares with a variance in proportion to the source's, and those of a
    character."""
    source_N = np.array([traits.source_tokens for traits in whole], np.float64)
    answer_N = np.array([traits.answer_tokens for traits in whole], np.float64)
    root_N = np.sqrt(source_N)
    base, slope = np.linalg.lstsq(np.stack([1 / root_N, root_N], 1), answer_N / root_N, rcond=None)[0]
    if slope < 0:
        base, slope = float(answer_N.mean()), 0.0
    logs_N = np.log([traits.tokens_per_character for traits in whole])
    norms = {
        "length_base": float(base),
        "length_slope": float(slope),
        "length_deviation": max(float(np.std((answer_N - base - slope * source_N) / root_N)), SMALLEST_DEVIATION),
        "log_tokens_per_character": float(logs_N.mean()),
        "log_tokens_deviation": max(float(logs_N.std()), SMALLEST_DEVIATION),
    }
    return {name: round(value, DIGITS) for name, value in norms.items()}


def _logistic(signs_NF: Floats, is_damaged_N: Floats, mass_N: Floats) -> tuple[float, list[float]]:
    """The intercept and the weights with the least penalized cross-entropy. Signs whose weight would be negative are
    left out, the most negative one first."""
    used = list(range(signs_NF.shape[1]))
    while True:
        fitted_F = _newton(np.c_[np.ones(len(signs_NF)), signs_NF[:, used]], is_damaged_N, mass_N)
        worst = int(np.argmin(fitted_F[1:])) if used else 0
        if not used or fitted_F[1 + worst] >= 0:
            weights = dict(zip(used, fitted_F[1:].tolist(), strict=True))
            return float(fitted_F[0]), [weights.get(place, 0.0) for place in range(signs_NF.shape[1])]
        del used[worst]


def _newton(inputs_NF: Floats, is_damaged_N: Floats, mass_N: Floats) -> Floats:
    """The coefficients of a logistic regression; the first one is the intercept and has no penalty."""
    found_F = np.zeros(inputs_NF.shape[1])
    penalty_F = np.r_[0.0, np.full(len(found_F) - 1, RIDGE)]
    for _ in range(STEPS):
        chance_N = 1 / (1 + np.exp(-np.clip(inputs_NF @ found_F, -500, 500)))
        slope_F = inputs_NF.T @ (mass_N * (chance_N - is_damaged_N)) + penalty_F * found_F
        curve_FF = (inputs_NF * (mass_N * chance_N * (1 - chance_N))[:, None]).T @ inputs_NF + np.diag(penalty_F + 1e-9)
        step_F = np.linalg.solve(curve_FF, slope_F)
        step_F *= min(1.0, LONGEST / max(float(np.abs(step_F).max()), 1e-12))
        found_F -= step_F
        if float(np.abs(step_F).max()) < 1e-9:
            break
    return found_F
