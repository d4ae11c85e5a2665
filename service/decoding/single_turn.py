"""Requests that end in their first turn (`SingleTurn`): encoder outputs, and attention weights of given tokens.

If the model has a decoder, the row takes part in one decode step, because live rows are a dense prefix; the output of
that step is ignored. Attention weights come from a separate pass, which `service.engine.response` requests.
"""

from __future__ import annotations

from service.decoding.token_selection import NotFinite
from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from service.step import StepOutput


class SingleTurn:
    """Finishes a sequence in its first turn, without tokens."""

    top_k = 1
    is_greedy = is_scored = False

    def start(self) -> Hypothesis:
        """Returns the only hypothesis, which stays without tokens."""
        return Hypothesis()

    def advance(self, sequence: Sequence, output: StepOutput) -> None:
        """Takes the encoder's output if it is requested. Raises NotFinite if that contains NaN or infinity."""
        sequence.steps += 1
        reason = FinishReason.ATTENTION
        if sequence.request.encoder_request is not None:
            reason = FinishReason.ENCODED
            sequence.encoder_output = output.turn.encoder_outputs[sequence.rows[0]]
            if not sequence.encoder_output.is_finite:
                raise NotFinite("the encoder's output is not finite")
        sequence.hypotheses = []
        sequence.finish(reason)
