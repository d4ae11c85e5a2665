"""No decoding at all: the source was read, and the mean of the encoder's states is the answer."""

from __future__ import annotations

from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from service.step import Distributions


class Embed:
    """Ends a sequence in its first turn. Its row is stepped once like all others: a single encoder serves both."""

    top_k = 1
    is_greedy = False

    def start(self) -> Hypothesis:
        return Hypothesis()

    def advance(self, sequence: Sequence, model: Distributions) -> None:
        sequence.steps += 1
        sequence.embedding = model.mean_state(sequence.rows[0])
        sequence.hypotheses = []
        sequence.finish(FinishReason.EMBEDDED)
