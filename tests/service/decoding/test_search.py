"""The choice of a strategy, and the step that extends all sequences of a turn."""

import dataclasses

import numpy as np
import pytest

from service.decoding.beam import BeamSearch
from service.decoding.greedy_and_sampling import GreedyAndSampling
from service.decoding.lexical_constraints import LexicalConstraints
from service.decoding.search import NotFinite, SingleTurn, advance
from service.decoding.token_selection import log_softmax
from service.encoder_request import EncoderRequest
from service.errors import Unsatisfiable
from service.request import FinishReason
from service.sequence import Sequence
from tests.fakes import EOS, brackets, decoding_request, scripted_output, search_of


def lines(*tokens, vocab_size=8):
    """Log-probabilities, float32 (len(tokens), V), in each of which one token is the most likely."""
    return np.stack([log_softmax(5.0 * (np.arange(vocab_size) == token).astype(np.float32)) for token in tokens])


def sequence_in(row, request):
    sequence = Sequence(request, search_of(request))
    sequence.rows = (row,)
    for hypothesis in sequence.hypotheses:
        hypothesis.row = row
    return sequence


PHRASE = LexicalConstraints([((5,),)], brackets(8, EOS), ordered=False, max_tokens=9)


@pytest.mark.parametrize(
    ("request_", "strategy"),
    [
        (decoding_request(), GreedyAndSampling),
        (decoding_request(temperature=1.0, num_sequences=3), GreedyAndSampling),
        (decoding_request(return_alternatives=True, num_hypotheses=3), GreedyAndSampling),
        (decoding_request(beam_size=4), BeamSearch),
        (decoding_request(phrases=("a",), logits_processors=(PHRASE,)), BeamSearch),
        (dataclasses.replace(decoding_request(), encoder_request=EncoderRequest(pooling="cls")), SingleTurn),
        (dataclasses.replace(decoding_request(), forced_target=(1, 5)), SingleTurn),
    ],
)
def test_options_select_the_strategy(request_, strategy):
    assert type(search_of(request_)) is strategy


def test_every_sequence_is_extended_by_the_best_token_of_its_row():
    sequences = [sequence_in(1, decoding_request("one")), sequence_in(0, decoding_request("two"))]
    advance(sequences, scripted_output(lines(5, 6), [(5, 2), (6, 2)], 0))
    assert [sequence.hypotheses[0].tokens for sequence in sequences] == [[6], [5]]


def test_a_draft_is_accepted_as_far_as_the_search_agrees():
    """Lines: the step of row 0, then what follows each token of its draft."""
    sequence = sequence_in(0, decoding_request())
    sequence.draft_tokens = (5, 6, 7)
    output = scripted_output(lines(3, 5, 6, 4, 3), [(5, 2)], 0, rows=1, drafts={0: sequence.draft_tokens})
    computed = sequence.num_computed
    advance([sequence], output)
    assert sequence.hypotheses[0].tokens == [5, 6, 4]  # 7 was wrong
    assert sequence.num_computed - computed == 2


def test_a_sequence_that_ends_within_its_draft_takes_no_more_tokens():
    sequence = sequence_in(0, decoding_request())
    sequence.draft_tokens = (5, EOS, 6)
    output = scripted_output(lines(3, 5, EOS, 6, 6), [(5, 2)], 0, rows=1, drafts={0: sequence.draft_tokens})
    advance([sequence], output)
    assert sequence.outcome is FinishReason.END_OF_SEQUENCE
    assert sequence.answers[0].tokens == [5, EOS]


class Nothing:
    """A mask that excludes every token."""

    is_mask = True

    def initial_state(self):
        return None

    def next_state(self, state, token):
        return None

    def applies(self, state, tokens):
        return True

    def apply(self, scores_V, state, tokens):
        scores_V.fill(-np.inf)

    def excluded(self, state, tokens):
        return None


def test_a_request_without_a_possible_token_ends_alone():
    sequences = [sequence_in(0, decoding_request(logits_processors=(Nothing(),))), sequence_in(1, decoding_request())]
    advance(sequences, scripted_output(lines(5, 6), [(5, 2), (6, 2)]))
    assert isinstance(sequences[0].outcome, Unsatisfiable)
    assert sequences[1].hypotheses[0].tokens == [6]


def test_a_row_that_is_not_finite_fails_the_turn_before_any_change():
    sequences = [sequence_in(0, decoding_request()), sequence_in(1, decoding_request())]
    broken = lines(5, 6)
    broken[1] = np.nan
    with pytest.raises(NotFinite, match=r"rows \[1\]"):
        advance(sequences, scripted_output(broken, [(5, 2), (6, 2)], 0))
    assert [sequence.hypotheses[0].tokens for sequence in sequences] == [[], []]


# ---- a single turn


def advanced(source, row):
    """A sequence in a row after its first turn; the scripted vector is its source."""
    request = dataclasses.replace(decoding_request(), encoder_request=EncoderRequest(pooling="cls"))
    search = SingleTurn()
    sequence = Sequence(request, search)
    sequence.rows = (row,)
    search.advance(sequence, scripted_output(np.zeros((2, 8), np.float32), [(9, 9), source], 0).predictions)
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
    assert (SingleTurn.top_k, SingleTurn.is_greedy) == (0, False)


def test_a_request_for_attention_finishes_without_tokens():
    request = dataclasses.replace(decoding_request(), forced_target=(1, 5), attention_kinds=("cross",))
    search = SingleTurn()
    sequence = Sequence(request, search)
    (hypothesis,) = sequence.hypotheses
    assert (hypothesis.tokens, sequence.outcome) == ([], None)
    search.advance(sequence, scripted_output(np.zeros((1, 8), np.float32), [(5, 2)], 0).predictions)
    assert sequence.outcome is FinishReason.ATTENTION
    assert (sequence.steps, sequence.hypotheses, sequence.answers, sequence.num_generated) == (1, [], [], 0)
