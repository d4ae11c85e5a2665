"""Every check of an export: its name, what it compares, and its limit.

A check is a function of a `Case`. It yields comparisons (the name of an output, its value, the expected value) or
returns a measured error. With a limit of 0 the values that differ in any bit are counted; otherwise the largest error
of any output must be within the limit (`export.verification.measure`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from export.verification import (
    answer_checks,
    attention_checks,
    decode_checks,
    encode_checks,
    quantization_checks,
    shortlist_checks,
    window_checks,
)
from export.verification.case import Case
from export.verification.measure import Comparison, Measured, count_differences, judged_tolerance, largest_error

# Largest error of an output, as a share of its largest value. fp32: some 50 times the error of models with 20 million
# parameters. fp16: the most sensitive random model reaches half of it.
# int8, int4: the root mean squared error of a row as a share of the row's standard deviation, against the model with
# the same roundings. Most rows have 1e-6. A sum that differs in its last bit can round to the neighbouring integer,
# which moves later values by a step: of 20 random models the most sensitive reaches 0.07, most reach 0.01.
TOLERANCES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 0.15, "int4": 0.15, "w4a16": 0.15}
# Weights are at most 1. The error of a weight is up to half the error of its score, and float32's error is proportional
# to the score: above LARGE_SCORE the tolerance grows in proportion. Unscaled random models have scores above 100, where
# PyTorch itself has an error of 1e-5.
ATTENTION_TOLERANCES = {**TOLERANCES, "fp32": 1e-5}
# Error of a shortlist's logits against the same states times the checkpoint's weights: seven bits reach 0.02.
SHORTLIST_TOLERANCES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 0.1, "int4": 0.1, "w4a16": 3e-2}
# The same measure as TOLERANCES, of logits against the unquantized model, in the median row. The most sensitive random
# models, whose predictions have small margins, reach half of it. A graph whose output ignores the token has an error
# of 1.
UNROUNDED_TOLERANCES = {"int8": 0.6, "int4": 0.9, "w4a16": 0.9}
# The same measure of an encoder's states, in the median row of the sources of the worst length. Trained models reach
# 0.02 to 0.2, random ones 0.17; weights of 4 bits 0.08 and 0.17, with BLEU of 81 to 88 against fp32 at every length. A
# student of Marian whose static ranges come from short text has 0.35, and then translates texts of 150 tokens wrongly
# (BLEU 39); one with scales of channels that spoil these texts 1.2 to 1.7.
UNROUNDED_STATES_TOLERANCE = 0.3
STATES = "states against PyTorch without rounding"
# The same measure for one product of integers: models reach 1e-6, and some 1e-5 where a value between two integers is
# rounded to the other one.
PRODUCT_TOLERANCE = 1e-3
HALF_A_STEP = 0.501  # between a weight and its integer: half a step plus the error of float32
HALF_A_FLOAT16_STEP = 0.57  # the same if the weight was float16, whose error is up to 2^-11 of 127 steps
SUM_TOLERANCE = 5e-5  # of a row's probabilities, in any precision: log-softmax is always computed in float32
SUM_TOKENS = 1 << 16  # that it holds for

Compare = Callable[[Case], Iterable[Comparison]]


class CheckSpec(NamedTuple):
    """A check that has not run yet. limit: the floor of the tolerance if PyTorch in float32 is compared, too."""

    name: str
    measure: Callable[[Case], Iterable[Comparison] | Measured]
    limit: float


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check's result. `max_error`: the largest difference of any output, as a share of that output's largest value;
    for quantized graphs the largest error of any row as a share of its standard deviation; for checks of equality the
    number of values or sequences that differ, with tolerance 0. `float32_error`: the same measure of PyTorch in float32
    against PyTorch in float64, 0 where it was not needed to judge; `tolerance` includes it."""

    name: str
    precision: str
    inputs: str
    max_error: float
    tolerance: float
    passed: bool
    note: str = ""
    float32_error: float = 0.0


def sum_tolerance(vocab_size: int) -> float:
    """The largest error of the sum of a row's probabilities. The kernel of log-softmax adds exponentials up one after
    the other, so it grows with the vocabulary: 2.1e-5 for 49,152 tokens, 9.9e-5 for 262,144."""
    return SUM_TOLERANCE * max(1.0, vocab_size / SUM_TOKENS)


def checks_of(case: Case) -> Iterator[CheckSpec]:
    """The checks that apply to a variant, in the order of the report."""
    config, roles, precision = case.config, case.graphs.roles, case.precision
    near = TOLERANCES[precision]
    same = 0.0 if case.quantization is None or case.quantization.batch_invariant else near
    half_a_step = HALF_A_FLOAT16_STEP if precision == "w4a16" else HALF_A_STEP
    if case.quantization:
        if case.roundings.exponents is not None:
            yield CheckSpec(
                "equalized model against the checkpoint", quantization_checks.equalization, TOLERANCES["fp32"]
            )
        yield CheckSpec("weights against the checkpoint", quantization_checks.weights, half_a_step)
        yield CheckSpec("each product against its inputs", quantization_checks.products, PRODUCT_TOLERANCE)
        limit = UNROUNDED_TOLERANCES[precision]
        if config.has_decoder:
            yield CheckSpec("logits against PyTorch without rounding", quantization_checks.unrounded, limit)
        if config.has_encoder:
            yield CheckSpec(STATES, quantization_checks.unrounded_encoder, UNROUNDED_STATES_TOLERANCE)
    if config.supports_chunked_prefill:
        yield CheckSpec("prefill against PyTorch", decode_checks.prefill, near)
        yield CheckSpec("prefill in a batch as alone", _alone(decode_checks.prefill_alone, decode_checks.prefill), same)
        yield CheckSpec("prefill without requested logits", decode_checks.prefill_without_logits, 0.0)
        yield CheckSpec("block after a prefill against PyTorch", decode_checks.later_block, near)
        yield CheckSpec("several positions of a block against PyTorch", decode_checks.several_positions, near)
    if config.has_encoder:
        yield CheckSpec("encode against PyTorch", encode_checks.outputs, near)
        yield CheckSpec("encode in a batch as alone", _alone(encode_checks.outputs_alone, encode_checks.outputs), same)
        heads = case.graphs.variant.graphs["encode"].outputs
        if "place_logprobs" in heads:
            yield CheckSpec("masks in a batch as alone", _alone(encode_checks.masks_alone, encode_checks.outputs), same)
        if "token_weights" in heads:
            yield CheckSpec("weights stay within the text", encode_checks.weights_inside, 0.0)
    if "embed" in roles:
        yield CheckSpec("embed against PyTorch", encode_checks.embeddings, near)
    if config.has_decoder:
        yield CheckSpec("cached steps against the full sequence", decode_checks.steps, near)
        yield CheckSpec("caches against PyTorch", decode_checks.caches, near)
        yield CheckSpec("caches written nowhere else", decode_checks.caches_elsewhere, 0.0)
        yield CheckSpec("steps in a batch as alone", _alone(decode_checks.steps_alone, decode_checks.steps), same)
        yield CheckSpec("normaliser against PyTorch", decode_checks.normaliser, near)
        limit = sum_tolerance(config.vocab_size)
        yield CheckSpec("probabilities of a row add up to one", decode_checks.sums, limit)
        yield CheckSpec("best tokens are those of the sorted row", decode_checks.best_tokens, 0.0)
        yield CheckSpec("last position against PyTorch", decode_checks.last_position, near)
        yield CheckSpec("greedy answers against the reference", answer_checks.answers, 0.0)
    yield from _of_some_decoders(case, near, same)
    if "align" in roles:
        yield CheckSpec("attention against PyTorch", attention_checks.cross, near)
        yield CheckSpec("attention stays within the source", attention_checks.cross_inside, 0.0)
    if "attend" in roles:
        if case.quantization:
            name = "weights of every attention against the checkpoint"
            yield CheckSpec(name, quantization_checks.attend_weights, half_a_step)
        yield CheckSpec("every attention against PyTorch", attention_checks.every, ATTENTION_TOLERANCES[precision])
        yield CheckSpec("every attention stays within its rows", attention_checks.every_inside, 0.0)


def _of_some_decoders(case: Case, near: float, same: float) -> Iterator[CheckSpec]:
    """The checks of caches that hold a window, and of shortlists."""
    if case.graphs.with_window:
        yield CheckSpec("steps past a window against PyTorch", window_checks.steps, near)
        yield CheckSpec(
            "steps past a window in a batch as alone", _alone(window_checks.steps_alone, window_checks.steps), same
        )
    if "project_shortlist" in case.graphs.roles:
        limit = SHORTLIST_TOLERANCES[case.precision]
        yield CheckSpec("shortlist logits against PyTorch", shortlist_checks.predictions, limit)
        yield CheckSpec(
            "shortlists in a batch as alone",
            _alone(shortlist_checks.predictions_alone, shortlist_checks.predictions),
            same,
        )


def _alone(compare: Compare, expected: Compare) -> Callable[[Case], Iterable[Comparison] | Measured]:
    """Compares bits, or errors for a scheme whose rows may depend on their batch. Either of two such rows may be as far
    from PyTorch as `expected`, which compares the same outputs with it, permits."""

    def measure(case: Case) -> Iterable[Comparison] | Measured:
        if case.quantization is None or case.quantization.batch_invariant:
            return compare(case)
        comparisons = list(compare(case))
        differ, size = count_differences(comparisons).error, case.quantization.block_size
        note = f"bits not compared: answers in blocks of {size} may depend on the batch; {differ:.0f} values differ"
        unrounded = largest_error(expected(case), is_quantized=True).float32_error
        return largest_error(comparisons, is_quantized=True)._replace(note=note, float32_error=unrounded)

    return measure


def run_checks(
    case: Case, only: Collection[str] = (), tell: Callable[[int, int], object] = lambda *_: None
) -> tuple[Check, ...]:
    """The results of all checks, or of those with the names in `only`. tell: gets how many of how many are done."""
    specs, checks = [spec for spec in checks_of(case) if not only or spec.name in only], list[Check]()
    for spec in specs:
        tell(len(checks), len(specs))
        checks.append(_run(case, spec))
    return tuple(checks)


def _run(case: Case, spec: CheckSpec) -> Check:
    try:
        found = spec.measure(case)
        if not isinstance(found, Measured):
            is_quantized = case.quantization is not None
            if spec.limit:
                found = largest_error(found, spec.limit, is_quantized=is_quantized)
            else:
                found = count_differences(found)
    except Exception as failure:  # any error of the runtime for a graph it cannot run is a failed check
        found = Measured(float("inf"), f"{type(failure).__name__}: {failure!s:.200}")
    tolerance = judged_tolerance(spec.limit, found.float32_error, is_quantized=case.quantization is not None)
    return Check(
        name=spec.name,
        precision=case.precision,
        inputs=case.samples.describe(),
        max_error=min(found.error, 1e30),  # JSON has no infinity
        tolerance=tolerance,
        passed=found.error <= tolerance,
        note=found.note,
        float32_error=found.float32_error,
    )
