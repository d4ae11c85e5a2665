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
GROUP = 64  # inputs whose errors reach the inputs after them together


Round = Callable[[np.ndarray, ArrayLike, ArrayLike, ArrayLike], np.ndarray]
"""See `round_with_feedback`; the moments are bound."""


class Feedback:
    """Rounds the weights whose moments it has; each only once in a grid, as several graphs and schemes share it."""

    def __init__(self, moments: Moments) -> None:
        self._moments, self._rounded = moments, dict[tuple[str, tuple[int, ...], float], np.ndarray]()

    def of(self, weight: str) -> Round | None:
        """Return the function that rounds the weight of this name; None for one without moments."""
        return partial(self._round, weight) if weight in self._moments else None

    def _round(
        self, weight: str, weight_KN: np.ndarray, step_KN: ArrayLike, low_KN: ArrayLike, high_KN: ArrayLike
    ) -> np.ndarray:
        grid = weight, np.shape(step_KN), float(np.max(high_KN))
        if grid not in self._rounded:
            rounded_KN = round_with_feedback(weight_KN, step_KN, low_KN, high_KN, self._moments[weight])
            self._rounded[grid] = rounded_KN.astype(np.int8)
        return self._rounded[grid]


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
    spread_KK = _spread(moment_KK[order][:, order].astype(np.float64))
    integers_KN = np.empty_like(rest_KN)
    for start in range(0, len(order), GROUP):
        stop = min(start + GROUP, len(order))
        error_KN = np.empty_like(rest_KN[start:stop])
        for k in range(start, stop):
            integers_KN[k] = np.clip(np.rint(rest_KN[k] / step_KN[k]), low_KN[k], high_KN[k])
            error_KN[k - start] = (rest_KN[k] - integers_KN[k] * step_KN[k]) / spread_KK[k, k]
            rest_KN[k + 1 : stop] -= spread_KK[k, k + 1 : stop, None] * error_KN[k - start]
        rest_KN[stop:] -= spread_KK[start:stop, stop:].T @ error_KN
    found_KN = np.empty_like(integers_KN)
    found_KN[order] = integers_KN
    return found_KN


def _spread(moment_KK: np.ndarray) -> np.ndarray:
    """The upper Cholesky factor of the inverse, float32: row k tells how the error of input k spreads to later ones."""
    damping = max(DAMPING * float(moment_KK.diagonal().mean()), 1e-12)
    inverse_KK = np.linalg.inv(moment_KK + damping * np.eye(len(moment_KK)))
    upper_KK: np.ndarray = np.linalg.cholesky(inverse_KK).T
    return upper_KK.astype(np.float32)
