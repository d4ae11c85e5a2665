"""The check of complete greedy answers against the PyTorch reference; a correct one may become the golden answer."""

from __future__ import annotations

import numpy as np

from export.bundle.manifest import Golden
from export.verification.case import Case
from export.verification.golden import RightAnswer, answer_greedily
from export.verification.inputs import Ids
from export.verification.measure import Measured, judged_tolerance, largest_error
from model.reference.greedy import greedy

GREEDY_TOKENS = 24
# Gaps below which either of two tokens is correct, and above which other processors agree.
TIES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 5e-2, "int4": 5e-2, "w4a16": 3e-2}
SURE_CHOICES = {"fp32": 1e-3, "fp16": 0.5, "int8": 1e-2, "int4": 1e-2, "w4a16": 0.5}


def answers(case: Case) -> Measured:
    """The number of wrong answers; `case.right_answers` receives the correct ones. Answers are complete, token by
    token; if the two best are closer than the tolerance, either is correct."""
    config, model = case.config, case.expected.float32.model
    half, start = max(1, config.max_target_len // 2), max(1, len(config.template.target_prefix))
    prompts = [target[: half if config.supports_chunked_prefill else start] for target in case.targets]
    max_tokens = min(GREEDY_TOKENS, config.max_target_len - max(map(len, prompts)) + 1)
    sources = case.sources if config.has_encoder else ()
    found = answer_greedily(case.graphs, sources, prompts, config.eos_ids, max_tokens)
    wrong, ties = list[str](), list[str]()
    for source, prompt, answer in zip(case.sources, prompts, found, strict=True):
        reference = tuple(greedy(model, prompt, source=source, max_tokens=max_tokens))
        if answer.tokens == reference:
            golden = Golden(source=source, prompt=prompt, output=reference)
            is_sure = answer.smallest_gap > SURE_CHOICES[case.precision]
            case.right_answers.append(RightAnswer(golden, is_sure, answer.smallest_gap))
            continue
        gap, limit = _gap(case, source, prompt, answer.tokens, reference)
        (ties if gap <= limit else wrong).append(f"{gap:.1e}")
    closest = min(answer.smallest_gap for answer in found)
    note = f"{len(found)} answers of up to {max_tokens} tokens, closest choice {closest:.1e}"
    note += f"; near-ties: {', '.join(ties)}" if ties else ""
    note += f"; wrong choices by: {', '.join(wrong)}" if wrong else ""
    return Measured(float(len(wrong)), note)


def _gap(case: Case, source: Ids, prompt: Ids, actual: Ids, reference: Ids) -> tuple[float, float]:
    """The margin by which PyTorch prefers its own token at the first difference of two answers, as a share of its
    largest log-probability, and the largest margin that float32 cannot resolve there."""
    at = next(i for i, (a, b) in enumerate(zip(actual, reference, strict=False)) if a != b)
    logprobs = case.expected.logprobs(source, (*prompt, *reference[:at]))[-1]
    by_deviation = case.quantization is not None
    error = largest_error([("logprobs", logprobs.float32, logprobs)], by_deviation=by_deviation).float32_error
    gap = (logprobs.float32[reference[at]] - logprobs.float32[actual[at]]) / np.abs(logprobs.float32).max()
    return float(gap), judged_tolerance(TIES[case.precision], error)
