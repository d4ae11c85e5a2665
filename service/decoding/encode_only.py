"""No decoding at all: the source was read, and what the encoder says of it is the answer."""

from __future__ import annotations

from service.decoding.token_selection import NotFinite
from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from service.step import StepOutput


class EncodeOnly:
    """Ends a sequence in its first turn. Where there is a decoder its row is stepped once like all others, because rows
    are a prefix; where there is none, a turn is nothing but the encoder."""

    top_k = 1
    is_greedy = is_scored = False

    def start(self) -> Hypothesis:
        return Hypothesis()

    def advance(self, sequence: Sequence, output: StepOutput) -> None:
        sequence.steps += 1
        sequence.encoder_output = output.turn.encoder_outputs[sequence.rows[0]]
        if not sequence.encoder_output.is_finite:
            raise NotFinite("what the encoder says is not finite")
        sequence.hypotheses = []
        sequence.finish(FinishReason.ENCODED)
