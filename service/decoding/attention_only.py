"""The strategy of requests for attention weights (`AttentionOnly`): one decode step, no generated tokens.

The weights come from a separate pass over the given tokens, which `service.engine.response` requests.
"""

from __future__ import annotations

from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from service.step import StepOutput


class AttentionOnly:
    """Finishes a sequence in its first turn. Its row takes part in one decode step, whose output is ignored."""

    top_k = 1
    is_greedy = is_scored = False

    def start(self) -> Hypothesis:
        """Returns the only hypothesis, which stays without tokens."""
        return Hypothesis()

    def advance(self, sequence: Sequence, output: StepOutput) -> None:
        """Finishes the sequence."""
        sequence.steps += 1
        sequence.hypotheses = []
        sequence.finish(FinishReason.ATTENTION)
