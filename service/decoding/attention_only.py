"""No decoding at all: what is asked for is the attention of tokens that are given."""

from __future__ import annotations

from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from service.step import StepOutput


class AttentionOnly:
    """Ends a sequence in its first turn. Its row is stepped once like all others; what is told comes from a pass of its
    own (`service.engine.response`)."""

    top_k = 1
    is_greedy = is_scored = False

    def start(self) -> Hypothesis:
        return Hypothesis()

    def advance(self, sequence: Sequence, output: StepOutput) -> None:
        sequence.steps += 1
        sequence.hypotheses = []
        sequence.finish(FinishReason.ATTENTION)
