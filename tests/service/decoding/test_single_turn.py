"""Requests for encoder outputs and for the attention of given tokens: one turn, no generated tokens."""

import dataclasses

import numpy as np
import pytest

from service.decoding.single_turn import SingleTurn
from service.decoding.token_selection import NotFinite
from service.encoder_request import EncoderRequest
from service.request import FinishReason
from service.sequence import Sequence
from tests.fakes import decoding_request, scripted_output


def advanced(source, row):
    """A sequence in a row after its first turn; the scripted vector is its source."""
    request = dataclasses.replace(decoding_request(), encoder_request=EncoderRequest(pooling="cls"))
    search = SingleTurn()
    sequence = Sequence(request, search)
    sequence.rows = (row,)
    search.advance(sequence, scripted_output(np.zeros((2, 8), np.float32), [(9, 9), source], is_scored=False))
    return sequence


def test_the_encoder_output_of_the_row_is_the_answer():
    sequence = advanced((5, 6, 2), row=1)
    assert sequence.encoder_output.vector.tolist() == [5, 6, 2]
    assert sequence.outcome is FinishReason.ENCODED
    assert (sequence.steps, sequence.hypotheses, sequence.answers) == (1, [], [])


def test_an_output_that_is_not_finite_is_an_error():
    with pytest.raises(NotFinite, match="the encoder's output is not finite"):
        advanced((5, np.nan), row=1)


def test_no_log_probabilities_and_no_extra_steps_are_requested():
    assert (SingleTurn.top_k, SingleTurn.is_scored, SingleTurn.is_greedy) == (1, False, False)


def test_a_request_for_attention_finishes_without_tokens():
    request = dataclasses.replace(decoding_request(), forced_target=(1, 5), attention_kinds=("cross",))
    search = SingleTurn()
    sequence = Sequence(request, search)
    (hypothesis,) = sequence.hypotheses
    assert (hypothesis.tokens, sequence.outcome) == ([], None)
    search.advance(sequence, scripted_output(np.zeros((1, 8), np.float32), [(5, 2)], is_scored=False))
    assert sequence.outcome is FinishReason.ATTENTION
    assert (sequence.steps, sequence.hypotheses, sequence.answers, sequence.num_generated) == (1, [], [], 0)
