"""Measures and criteria of checks: errors, tolerances and the yardstick.

Both a float32 graph and PyTorch's own float32 are compared with PyTorch in float64. The error of a graph may be
FLOAT32_FACTOR times PyTorch's error by the same measure, or the floor of the check if that is larger. A model with
large weights amplifies every rounding error, and no float32 graph of it can stay within a fixed share; a fault is far
outside both limits. A quantized graph is compared with a PyTorch model that emulates its roundings
(`export.verification.emulated_quantization`), against a fixed tolerance.

The modules of checks define what is compared; this module knows no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.manifest import Quantization
from export.verification.inputs import Samples
from export.verification.torch_reference import Expectation

# Largest error of an output, as a share of its largest value. fp32: some 50 times the error of models with 20 million
# parameters. fp16: the most sensitive random model reaches half of it.
# int8, int4: the root mean squared error of a row as a share of the row's standard deviation, against the model with
# the same roundings. Most rows have 1e-6. A sum that differs in its last bit can round to the neighbouring integer,
# which moves later values by a step: of 20 random models the most sensitive reaches 0.07, most reach 0.01.
TOLERANCES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 0.15, "int4": 0.15}
# The same measure, of logits against the unquantized model, in the median row. The most sensitive random models, whose
# predictions have small margins, reach half of it. A graph whose output ignores the token has an error of 1.
PLAIN_TOLERANCES = {"int8": 0.6, "int4": 0.9}
# The same measure for one product of integers: models reach 1e-6, and some 1e-5 where a value between two integers is
# rounded to the other one.
PRODUCT_TOLERANCE = 1e-3
HALF_A_STEP = 0.501  # between a weight and its integer: half a step plus the error of float32
# Three random models with weights of standard deviation 0.4 (3+3 and 6+2 layers of d64): the error of graphs is
# at most 1.1 times PyTorch's, which is up to 1.5e-4.
FLOAT32_FACTOR = 4.0
LARGEST_TOLERANCE = 1e-2  # regardless of PyTorch's error, which is arbitrary in a model that overflows float32

Measured = tuple[float, str]  # the error and a note


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison. `max_error`: the largest difference of any output, as a share of that output's largest value; for
    quantized graphs the largest error of any row as a share of its standard deviation; for checks of equality the
    number of values or sequences that differ, with tolerance 0. `float32_error`: the same measure of PyTorch in float32
    against PyTorch in float64, 0 where that is not the yardstick; `tolerance` includes it."""

    name: str
    precision: str
    inputs: str
    max_error: float
    tolerance: float
    passed: bool
    note: str = ""
    float32_error: float = 0.0


class ErrorTracker:
    """The largest error of any output so far, its location, and the largest error of PyTorch in float32."""

    def __init__(self, *, by_deviation: bool = False) -> None:
        """by_deviation: measure an output's root mean squared error as a share of its standard deviation, instead of
        its largest error as a share of its largest value."""
        self.error, self.note, self.float32_error, self.by_deviation = 0.0, "", 0.0, by_deviation

    def add(self, name: str, actual: NDArray[Any], expected: Expectation | NDArray[Any]) -> None:
        """Records the error of an output. expected: an array if it has no separate float32 values."""
        if isinstance(expected, Expectation):
            self.float32_error = max(self.float32_error, self._error(expected.float32, expected.exact))
            expected = expected.exact
        if actual.shape != expected.shape:
            error, note = float("inf"), f"{name}: shape {actual.shape} instead of {expected.shape}"
        else:
            error, note = self._error(actual, expected), f"worst in {name}" if expected.size else ""
        if not error <= self.error:  # also if it is NaN
            self.error, self.note = error if np.isfinite(error) else float("inf"), note

    def scale(self, factor: float) -> None:
        """Multiplies both errors, for outputs whose magnitude does not reflect that of their inputs."""
        self.error, self.float32_error = self.error * factor, self.float32_error * factor

    def _error(self, actual: NDArray[Any], expected: NDArray[Any]) -> float:
        if actual is expected or not expected.size:
            return 0.0
        difference = np.abs(actual.astype(np.float64) - expected)
        if self.by_deviation:
            deviation = expected.std() if expected.size > 1 else np.abs(expected).max()
            size, scale = float(np.sqrt(np.square(difference).mean())), float(deviation)
        else:
            size, scale = float(difference.max()), float(np.abs(expected).max())
        return size / max(scale, 1e-6)


def judged_tolerance(floor: float, float32_error: float) -> float:
    """The permitted error of a graph when PyTorch's own float32 has `float32_error`."""
    return max(floor, min(FLOAT32_FACTOR * float32_error, LARGEST_TOLERANCE))


class NamedCheck(NamedTuple):
    """A check that has not run yet. tolerance: the floor if the yardstick is PyTorch in float32."""

    name: str
    measure: Callable[[], Measured | ErrorTracker]
    tolerance: float


class Checker:
    """Runs the checks of one variant, independently of the kind of graph."""

    def __init__(self, precision: str, samples: Samples, quantization: Quantization | None) -> None:
        self.precision, self.samples, self.quantization = precision, samples, quantization
        self.tolerance = TOLERANCES[precision]
        is_invariant = quantization is None or quantization.batch_invariant
        self.alone_tolerance = 0.0 if is_invariant else self.tolerance

    def tracker(self) -> ErrorTracker:
        return ErrorTracker(by_deviation=self.quantization is not None)

    def run(self, checks: Iterable[NamedCheck], only: Collection[str] = ()) -> tuple[Check, ...]:
        """The results of all checks, or of those with the names in `only`."""
        return tuple(self._result(check) for check in checks if not only or check.name in only)

    def _result(self, check: NamedCheck) -> Check:
        error, float32_error = float("inf"), 0.0
        try:
            measured = check.measure()
        except Exception as failure:  # any error of the runtime for a graph it cannot run is a failed check
            note = f"{type(failure).__name__}: {failure!s:.200}"
        else:
            if isinstance(measured, ErrorTracker):
                error, note, float32_error = measured.error, measured.note, measured.float32_error
            else:
                error, note = measured
        tolerance = judged_tolerance(check.tolerance, float32_error)
        return Check(
            name=check.name,
            precision=self.precision,
            inputs=self.samples.describe(),
            max_error=min(error, 1e30),  # JSON has no infinity
            tolerance=tolerance,
            passed=error <= tolerance,
            note=note,
            float32_error=float32_error,
        )

    def alone(self, pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> Measured:
        """The difference of rows in a batch from the same rows in batches of one: the number of values that differ, or
        the error for a scheme that is not batch-invariant."""
        if not self.alone_tolerance:
            return float(sum(int((one != other).sum()) for one, other in pairs)), "values that differ in any bit"
        tracker, differ = self.tracker(), 0
        for together, alone in pairs:
            tracker.add("a row", together, alone)
            differ += int((together != alone).sum())
        assert self.quantization is not None
        size = self.quantization.block_size
        note = f"bits not compared: answers in blocks of {size} may depend on the batch"
        return tracker.error, f"{note}; {differ} values differ"
