"""The check of complete greedy answers against the PyTorch reference; a correct one may become the golden answer."""

from __future__ import annotations

import itertools

import numpy as np

from export.bundle.manifest import Golden
from export.verification.case import Case
from export.verification.golden import RightAnswer
from export.verification.inputs import Ids
from export.verification.measure import Measured, judged_tolerance, largest_error
from export.verification.torch_reference import LAST

# Gaps below which either of two tokens is correct, and above which other processors agree.
TIES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 5e-2, "int4": 5e-2, "w4a16": 3e-2}
SURE_CHOICES = {"fp32": 1e-3, "fp16": 0.5, "int8": 1e-2, "int4": 1e-2, "w4a16": 0.5}


def answers(case: Case) -> Measured:
    """The number of wrong answers. Answers are complete, token by token; if the two best are closer than the tolerance,
    either is correct."""
    found, max_tokens = case.greedy_answers
    wrong, ties = list[str](), list[str]()
    for source, prompt, answer, reference in found:
        if answer.tokens != reference:
            gap, limit = _gap(case, source, prompt, answer.tokens, reference)
            (ties if gap <= limit else wrong).append(f"{gap:.1e}")
    closest = min(min(one.answer.gaps) for one in found)
    note = f"{len(found)} answers of up to {max_tokens} tokens, closest choice {closest:.1e}"
    note += f"; near-ties: {', '.join(ties)}" if ties else ""
    note += f"; wrong choices by: {', '.join(wrong)}" if wrong else ""
    return Measured(float(len(wrong)), note)


def right_answers(case: Case) -> tuple[RightAnswer, ...]:
    """The answers that equal the reference's, at most one per input. They end before a choice that another processor
    may make otherwise, unless it is the first."""
    sure, found = SURE_CHOICES[case.precision], list[RightAnswer]()
    for source, prompt, answer, reference in case.greedy_answers.rows:
        if answer.tokens == reference:
            count = len(list(itertools.takewhile(lambda gap: gap > sure, answer.gaps)))
            golden = Golden(source=source, prompt=prompt, output=reference[: count or None])
            found.append(RightAnswer(golden, count > 0, min(answer.gaps[: count or None])))
    return tuple(found)


def _gap(case: Case, source: Ids, prompt: Ids, actual: Ids, reference: Ids) -> tuple[float, float]:
    """The margin by which PyTorch prefers its own token at the first difference of two answers, as a share of its
    largest log-probability, and the largest margin that float32 cannot resolve there."""
    at = next(i for i, (a, b) in enumerate(zip(actual, reference, strict=False)) if a != b)
    logprobs = case.expected.logprobs(source, (*prompt, *reference[:at]), LAST)[0]
    is_plain = case.quantization is None
    error = largest_error([("logprobs", logprobs.own, logprobs)]).float32_error if is_plain else 0.0
    exact_V = logprobs.other if is_plain else logprobs.own
    gap = (exact_V[reference[at]] - exact_V[actual[at]]) / np.abs(exact_V).max()
    return float(gap), judged_tolerance(TIES[case.precision], error)
