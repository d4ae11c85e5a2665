"""Errors of outputs, and the largest error that a check permits.

Both a float32 graph and PyTorch's own float32 are compared with PyTorch in float64. The error of a graph may be
FLOAT32_FACTOR times PyTorch's error by the same measure, or the limit of the check if that is larger. A model with
large weights amplifies every rounding error, and no float32 graph of it can stay within a fixed share; a fault is far
outside both limits. Float64 is not computed for a graph that is within two thirds of the limit of PyTorch's float32,
because it passes then: the error of the graph exceeds that of PyTorch by two thirds of the limit at most, so it is
within the limit, or PyTorch's error is more than a third of the limit, and four times that is larger than the sum.

A quantized graph is compared with a PyTorch model that emulates its roundings
(`export.verification.emulated_quantization`). Sums in another order differ in the last bit, which moves values that lie
between two integers by a step; in a deep model, or one with large channels, such steps add up to a good part of what
rounding itself changes. The error of the graph may therefore be as large as that of PyTorch without the roundings.

`export.verification.checks` defines what is compared, and the limits; this module knows no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Three random models with weights of standard deviation 0.4 (3+3 and 6+2 layers of d64): the error of graphs is
# at most 1.1 times PyTorch's, which is up to 1.5e-4.
FLOAT32_FACTOR = 4.0
SETTLED = 2 / 3  # of a limit, within which a float32 graph is not compared with float64
LARGEST_TOLERANCE = 1e-2  # regardless of PyTorch's error, which is arbitrary in a model that overflows float32
NEVER = -1e4  # a logit below it is of a token that a bias rules out (-3e4), and the measure of no error
LARGEST_ROUNDED_TOLERANCE = 0.9  # of quantized graphs; unrelated outputs differ by 1.4 standard deviations

Array = NDArray[Any]
Arrays = dict[str, Array]  # by name


@dataclass(frozen=True)
class Expectation:
    """One output of PyTorch, in float32 or of an emulated quantized model, and how to compute another one if this one
    does not settle a check: in float64, or without the roundings."""

    own: Array
    compute_other: Callable[[], Array]

    @property
    def other(self) -> Array:
        return self.compute_other()

    def __getitem__(self, index: Any) -> Expectation:
        return Expectation(self.own[index], lambda: self.compute_other()[index])


Comparison = tuple[str, Array, Expectation | Array]
"""The name of an output, its value, and the expected one."""


class Measured(NamedTuple):
    """The error of a check, and a note on it. float32_error: the same measure of PyTorch in float32 against PyTorch in
    float64, or for quantized graphs of PyTorch without the roundings; 0 if it was not needed."""

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


def largest_error(
    comparisons: Iterable[Comparison], limit: float | None = None, *, is_quantized: bool = False
) -> Measured:
    """The largest error of any output, as a share of the output's largest value.

    limit: of the check; what it takes to judge a larger error is not computed for a smaller one. None: it is computed
    in any case. is_quantized: measure an output's root mean squared error as a share of its standard deviation instead;
    expectations then are those of an emulated quantized model.
    """
    compared = [_of_possible_tokens(*comparison) for comparison in comparisons]
    found = _largest([(name, actual, _own(expected)) for name, actual, expected in compared], is_quantized)
    if limit is not None and found.error <= limit * (1 if is_quantized else SETTLED):
        return found
    others = [_other(expected) for _, _, expected in compared]
    if not is_quantized:
        exact = [(name, actual, other) for (name, actual, _), other in zip(compared, others, strict=True)]
        found = _largest(exact, is_quantized)
    pairs = [(_own(expected), other) for (_, _, expected), other in zip(compared, others, strict=True)]
    errors = [_error(other, own, True) if is_quantized else _error(own, other, False) for own, other in pairs]
    return found._replace(float32_error=max(errors, default=0.0))


def _of_possible_tokens(name: str, actual: Array, expected: Expectation | Array) -> Comparison:
    """A comparison of logits or log-probabilities without those of tokens that a bias rules out, beside which any error
    is small; with them if `actual` does not rule them out."""
    own = _own(expected)
    if "log" not in name or actual.shape != own.shape or np.any(actual[own <= NEVER] > NEVER):
        return name, actual, expected
    return name, actual[own > NEVER], expected[own > NEVER]


def _own(expected: Expectation | Array) -> Array:
    return expected.own if isinstance(expected, Expectation) else expected


def _other(expected: Expectation | Array) -> Array:
    return expected.other if isinstance(expected, Expectation) else expected


def _largest(comparisons: Sequence[tuple[str, Array, Array]], by_deviation: bool) -> Measured:
    return worst(
        (name, _error(actual, expected, by_deviation))
        if actual.shape == expected.shape
        else (f"{name}: shape {actual.shape} instead of {expected.shape}", float("inf"))
        for name, actual, expected in comparisons
    )


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
