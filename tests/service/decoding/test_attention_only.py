"""Requests for the attention of given tokens: one turn, no generated tokens."""

import dataclasses

import numpy as np

from service.decoding.attention_only import AttentionOnly
from service.request import FinishReason
from service.sequence import Sequence
from tests.fakes import decoding_request, scripted_output


def test_the_sequence_finishes_in_its_first_turn_without_tokens():
    request = dataclasses.replace(decoding_request(), forced_target=(1, 5), attention_kinds=("cross",))
    search = AttentionOnly()
    sequence = Sequence(request, search)
    (hypothesis,) = sequence.hypotheses
    assert (hypothesis.tokens, sequence.outcome) == ([], None)
    search.advance(sequence, scripted_output(np.zeros((1, 8), np.float32), [(5, 2)], is_scored=False))
    assert sequence.outcome is FinishReason.ATTENTION
    assert (sequence.steps, sequence.hypotheses, sequence.answers, sequence.num_generated) == (1, [], [], 0)


def test_no_log_probabilities_and_no_extra_steps_are_requested():
    assert (AttentionOnly.top_k, AttentionOnly.is_scored, AttentionOnly.is_greedy) == (1, False, False)
