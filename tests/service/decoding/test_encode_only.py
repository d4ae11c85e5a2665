"""Requests for encoder outputs: one turn, whose encoder output is the answer."""

import dataclasses

import numpy as np
import pytest

from service.decoding.encode_only import EncodeOnly
from service.decoding.token_selection import NotFinite
from service.encoder_request import EncoderRequest
from service.request import FinishReason
from service.sequence import Sequence
from tests.fakes import decoding_request, scripted_output


def advanced(source, row):
    """A sequence in a row after its first turn; the scripted vector is its source."""
    request = dataclasses.replace(decoding_request(), encoder_request=EncoderRequest(pooling="cls"))
    search = EncodeOnly()
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
    assert (EncodeOnly.top_k, EncodeOnly.is_scored, EncodeOnly.is_greedy) == (1, False, False)
