"""Errors of outputs, and the largest error that a check permits.

Both a float32 graph and PyTorch's own float32 are compared with PyTorch in float64. The error of a graph may be
FLOAT32_FACTOR times PyTorch's error by the same measure, or the limit of the check if that is larger. A model with
large weights amplifies every rounding error, and no float32 graph of it can stay within a fixed share; a fault is far
outside both limits. A quantized graph is compared with a PyTorch model that emulates its roundings
(`export.verification.emulated_quantization`). Sums in another order differ in the last bit, which moves values that lie
between two integers by a step; in a deep model, or one with large channels, such steps add up to a good part of what
rounding itself changes. The error of the graph may therefore be as large as that of PyTorch without the roundings.

`export.verification.checks` defines what is compared, and the limits; this module knows no graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Three random models with weights of standard deviation 0.4 (3+3 and 6+2 layers of d64): the error of graphs is
# at most 1.1 times PyTorch's, which is up to 1.5e-4.
FLOAT32_FACTOR = 4.0
LARGEST_TOLERANCE = 1e-2  # regardless of PyTorch's error, which is arbitrary in a model that overflows float32
LARGEST_ROUNDED_TOLERANCE = 0.9  # of quantized graphs; unrelated outputs differ by 1.4 standard deviations

Array = NDArray[Any]
Arrays = dict[str, Array]  # by name


@dataclass(frozen=True)
class Expectation:
    """One output of PyTorch: the exact one, in float64 or of an emulated quantized model, and another one that a graph
    need not be nearer to: in float32, or without the roundings."""

    exact: Array
    other: Array

    def __getitem__(self, index: Any) -> Expectation:
        return Expectation(self.exact[index], self.other[index])


Comparison = tuple[str, Array, Expectation | Array]
"""The name of an output, its value, and the expected one."""


class Measured(NamedTuple):
    """The error of a check, and a note on it. float32_error: the same measure of PyTorch in float32 against PyTorch in
    float64, or for quantized graphs of PyTorch without the roundings; 0 without such a comparison."""

    error: float
    note: str
    float32_error: float = 0.0


def worst(errors: Iterable[tuple[str, float]], note: str = "") -> Measured:
    """The largest of some named errors, where NaN is infinite; 0 and `note` if there are none."""
    largest = 0.0
    for name, error in errors:
        if not error <= largest:  # also if it is NaN
            largest, note = error if np.isfinite(error) else float("inf"), f"worst in {name}"
    return Measured(largest, note)


def largest_error(comparisons: Iterable[Comparison], *, by_deviation: bool = False) -> Measured:
    """The largest error of any output, as a share of the output's largest value.

    by_deviation: measure an output's root mean squared error as a share of its standard deviation instead.
    """
    errors, float32_error = list[tuple[str, float]](), 0.0
    for name, actual, expected in comparisons:
        if isinstance(expected, Expectation):
            float32_error = max(float32_error, _error(expected.other, expected.exact, by_deviation))
            expected = expected.exact
        if actual.shape == expected.shape:
            errors.append((name, _error(actual, expected, by_deviation)))
        else:
            errors.append((f"{name}: shape {actual.shape} instead of {expected.shape}", float("inf")))
    return worst(errors)._replace(float32_error=float32_error)


def _error(actual: Array, expected: Array, by_deviation: bool) -> float:
    if actual is expected or not expected.size:
        return 0.0
    difference = np.abs(actual.astype(np.float64) - expected)
    if by_deviation:
        deviation = expected.std() if expected.size > 1 else np.abs(expected).max()
        size, scale = float(np.sqrt(np.square(difference).mean())), float(deviation)
    else:
        size, scale = float(difference.max()), float(np.abs(expected).max())
    return size / max(scale, 1e-6)


def count_differences(comparisons: Iterable[Comparison]) -> Measured:
    """The number of values that differ in any bit; a scalar is compared with every value."""
    found = 0
    note = "no value differs"
    for name, actual, expected in comparisons:
        count = int(np.count_nonzero(actual != expected))
        if count and not found:
            note = f"values that differ in any bit, first in {name}"
        found += count
    return Measured(float(found), note)


def judged_tolerance(limit: float, float32_error: float, *, is_quantized: bool = False) -> float:
    """The permitted error of a graph when PyTorch's own float32, or PyTorch without the roundings of the graph, has
    `float32_error`."""
    if is_quantized:
        return max(limit, min(float32_error, LARGEST_ROUNDED_TOLERANCE))
    return max(limit, min(FLOAT32_FACTOR * float32_error, LARGEST_TOLERANCE))
