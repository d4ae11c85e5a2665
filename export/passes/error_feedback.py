"""Rounding of a weight input by input, where later inputs make up for the error of earlier ones (Frantar et al. 2023,
GPTQ): the error of the product, for inputs like those of a text, is half to a third of that of the nearest integers.

Shapes: K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from export.passes.calibrate import Moments

DAMPING = 0.01  # of the mean moment, added to the diagonal
PEAK = 3.0  # of the largest input's size to that of all of them, from which inputs are spread
SHARE = 0.6  # of the inputs in a spread: feedback makes the rounding of weights cost less
SMALLEST = 1e-8
GROUP = 64  # inputs whose errors reach the inputs after them together


Round = Callable[[np.ndarray, ArrayLike, ArrayLike, ArrayLike], np.ndarray]
"""See `round_with_feedback`; the moments are bound."""


class Feedback:
    """Rounds the weights whose moments it has; each only once in a grid, as several graphs and schemes share it."""

    def __init__(self, moments: Moments) -> None:
        self._moments, self._rounded = moments, dict[tuple[str, tuple[int, ...], float, bool], np.ndarray]()

    def of(self, weight: str, spread_K: np.ndarray | None = None) -> Round | None:
        """Return the function that rounds the weight of this name; None for one without moments. spread_K: divisors
        of the inputs, by which the weight is multiplied."""
        return partial(self._round, weight, spread_K) if weight in self._moments else None

    def spread(self, weight: str, weight_KN: np.ndarray) -> np.ndarray | None:
        """Return divisors of a product's inputs, float32 (K,), after which rounding of its inputs and of its weights
        cost alike (Xiao et al. 2023, SmoothQuant, 4); None where no input is much larger than the others."""
        if weight not in self._moments:
            return None
        size_K = np.sqrt(np.concatenate([moment_KK.diagonal() for moment_KK in self._moments[weight]]))
        if size_K.max() <= PEAK * np.sqrt(np.square(size_K).mean()):
            return None
        weight_K = np.abs(weight_KN).max(1).astype(np.float32)
        spread_K: np.ndarray = np.maximum(size_K, SMALLEST) ** SHARE / np.maximum(weight_K, SMALLEST) ** (1 - SHARE)
        spread_K /= np.median(spread_K)
        return spread_K.astype(np.float32, copy=False)

    def _round(
        self,
        weight: str,
        spread_K: np.ndarray | None,
        weight_KN: np.ndarray,
        step_KN: ArrayLike,
        low_KN: ArrayLike,
        high_KN: ArrayLike,
    ) -> np.ndarray:
        grid = weight, np.shape(step_KN), float(np.max(high_KN)), spread_K is not None
        if grid not in self._rounded:
            moments = self._moments[weight]
            if spread_K is not None:
                moments = _spread_out(moments, spread_K)
            rounded_KN = round_with_feedback(weight_KN, step_KN, low_KN, high_KN, moments)
            self._rounded[grid] = rounded_KN.astype(np.int8)
        return self._rounded[grid]


def _spread_out(moments: Sequence[np.ndarray], spread_K: np.ndarray) -> list[np.ndarray]:
    """The moments of inputs that are divided by `spread_K`."""
    parts = np.split(spread_K, np.cumsum([len(moment_KK) for moment_KK in moments])[:-1])
    return [moment_KK / (part[:, None] * part) for moment_KK, part in zip(moments, parts, strict=True)]


def round_with_feedback(
    weight_KN: np.ndarray, step_KN: ArrayLike, low_KN: ArrayLike, high_KN: ArrayLike, moments: Sequence[np.ndarray]
) -> np.ndarray:
    """Return integers, float32 (K, N), of a float32 weight: within `low_KN` and `high_KN`, in units of `step_KN`, all
    of which broadcast. moments: see `export.passes.calibrate.Moments`."""
    ends = np.cumsum([len(moment_KK) for moment_KK in moments])
    assert ends[-1] == len(weight_KN), (ends, weight_KN.shape)
    wide = (np.broadcast_to(part, weight_KN.shape) for part in (step_KN, low_KN, high_KN))
    blocks = [np.split(part, ends[:-1]) for part in (weight_KN, *wide)]
    return np.concatenate([_round(*parts) for parts in zip(*blocks, moments, strict=True)])


def _round(
    weight_KN: np.ndarray, step_KN: np.ndarray, low_KN: np.ndarray, high_KN: np.ndarray, moment_KK: np.ndarray
) -> np.ndarray:
    """The inputs that matter most come first, so that most of the others can make up for them."""
    order = np.argsort(-moment_KK.diagonal(), kind="stable")
    rest_KN, step_KN = weight_KN[order].astype(np.float32), step_KN[order]
    low_KN, high_KN = low_KN[order], high_KN[order]
    factor_KK = _inverse_factor(moment_KK[order][:, order].astype(np.float64))
    integers_KN = np.empty_like(rest_KN)
    for start in range(0, len(order), GROUP):
        stop = min(start + GROUP, len(order))
        error_KN = np.empty_like(rest_KN[start:stop])
        for k in range(start, stop):
            integers_KN[k] = np.clip(np.rint(rest_KN[k] / step_KN[k]), low_KN[k], high_KN[k])
            error_KN[k - start] = (rest_KN[k] - integers_KN[k] * step_KN[k]) / factor_KK[k, k]
            rest_KN[k + 1 : stop] -= factor_KK[k, k + 1 : stop, None] * error_KN[k - start]
        rest_KN[stop:] -= factor_KK[start:stop, stop:].T @ error_KN
    found_KN = np.empty_like(integers_KN)
    found_KN[order] = integers_KN
    return found_KN


def _inverse_factor(moment_KK: np.ndarray) -> np.ndarray:
    """The upper Cholesky factor of the inverse, float32: row k tells how the error of input k spreads to later ones."""
    damping = max(DAMPING * float(moment_KK.diagonal().mean()), 1e-12)
    inverse_KK = np.linalg.inv(moment_KK + damping * np.eye(len(moment_KK)))
    upper_KK: np.ndarray = np.linalg.cholesky(inverse_KK).T
    return upper_KK.astype(np.float32)
