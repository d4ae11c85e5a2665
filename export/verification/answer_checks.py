"""Checks of complete greedy answers against the PyTorch reference; a correct one may become the golden answer."""

from __future__ import annotations

import numpy as np

from export.manifest import Golden
from export.verification.case import Case
from export.verification.golden import RightAnswer, answer_greedily
from export.verification.inputs import Ids
from export.verification.measure import Measured, NamedCheck, judged_tolerance
from model.reference.greedy import greedy

GREEDY_TOKENS = 24
TIES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 5e-2, "int4": 5e-2}  # gaps below which either of two tokens is correct
SURE_CHOICES = {"fp32": 1e-3, "fp16": 0.5, "int8": 1e-2, "int4": 1e-2}  # gaps above which other processors agree


class AnswerChecks:
    """The check of greedy answers; afterwards `answers` holds the correct ones."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.answers: list[RightAnswer] = []

    def checks(self) -> list[NamedCheck]:
        return [NamedCheck("greedy answers against the reference", self.greedy, 0.0)]

    def greedy(self) -> Measured:
        """Complete answers, token by token; if the two best are closer than the tolerance, either is correct."""
        half = max(1, self.case.config.max_target_len // 2)
        start = len(self.case.config.template.target_prefix)
        prompts = [
            target[: half if self.case.config.supports_chunked_prefill else max(start, 1)]
            for target in self.case.targets
        ]
        longest = self.case.config.max_target_len - max(map(len, prompts)) + 1
        max_tokens = min(GREEDY_TOKENS, longest)
        sources = self.case.sources if self.case.config.has_encoder else ()
        answers = answer_greedily(self.case.served, sources, prompts, self.case.config.eos_ids, max_tokens)
        wrong, ties = list[str](), list[str]()
        for source, prompt, answer in zip(self.case.sources, prompts, answers, strict=True):
            reference = tuple(greedy(self.case.model, prompt, source=source, max_tokens=max_tokens))
            if answer.tokens == reference:
                golden = Golden(source=source, prompt=prompt, output=reference)
                is_sure = answer.smallest_gap > SURE_CHOICES[self.case.precision]
                self.answers.append(RightAnswer(golden, is_sure, answer.smallest_gap))
                continue
            gap, limit = self._gap(source, prompt, answer.tokens, reference)
            (ties if gap <= limit else wrong).append(f"{gap:.1e}")
        closest = min(answer.smallest_gap for answer in answers)
        note = f"{len(answers)} answers of up to {max_tokens} tokens, closest choice {closest:.1e}"
        note += f"; near-ties: {', '.join(ties)}" if ties else ""
        return float(len(wrong)), note + (f"; wrong choices by: {', '.join(wrong)}" if wrong else "")

    def _gap(self, source: Ids, prompt: Ids, actual: Ids, reference: Ids) -> tuple[float, float]:
        """The margin by which PyTorch prefers its own token at the first difference of two answers, as a share of its
        largest log-probability, and the largest margin that float32 cannot resolve there."""
        at = next(i for i, (a, b) in enumerate(zip(actual, reference, strict=False)) if a != b)
        tracker, target = self.case.tracker(), (*prompt, *reference[:at])
        logprobs = self.case.expected.logprobs(source, target)[-1]
        tracker.add("logprobs", logprobs.float32, logprobs)
        gap = (logprobs.float32[reference[at]] - logprobs.float32[actual[at]]) / np.abs(logprobs.float32).max()
        return float(gap), judged_tolerance(TIES[self.case.precision], tracker.float32_error)
