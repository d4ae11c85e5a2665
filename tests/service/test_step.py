"""Outputs of a turn, by row, after every draft token and after every extra step."""

import numpy as np
import pytest

from service.step import NewRow, StepPlan
from tests.fakes import certain, scripted_output

WORDS = 12


def lines_of(*tokens):
    return np.stack([certain(token, WORDS) for token in tokens])


def test_a_turn_without_scores_has_best_tokens_and_nothing_else():
    output = scripted_output(lines_of(5, 6), [(), ()], is_scored=False)
    assert output.top_ids == [[5], [6]]
    for read in (output.logprobs, output.logsumexp, lambda row: output.top_logprobs[row]):
        with pytest.raises(KeyError):
            read(0)


def test_a_turn_with_scores_has_distributions_by_row():
    logprobs_RV = lines_of(5, 6)
    output = scripted_output(logprobs_RV, [(), ()], 3)
    assert [output.top_ids[row][0] for row in range(2)] == [5, 6]
    assert len(output.top_ids[0]) == 3
    assert np.array_equal(output.logprobs(1), logprobs_RV[1])
    assert output.logsumexp(1) == 3.0


@pytest.mark.parametrize("is_scored", [False, True])
def test_extra_steps_of_a_row_are_outputs_of_that_row_one_after_another(is_scored):
    logprobs_LV = lines_of(5, 6, 7)
    first = scripted_output(
        logprobs_LV, [()], rows=1, is_scored=is_scored, token_lines={0: range(3)}, extra_tokens=[5, 6]
    )
    assert first.top_ids[0] == [5]
    after = list(first.turn.after_each_token(0))
    assert [output.top_ids[0] for output in after] == [[5], [6], [7]]
    for output, expected_V in zip(after, logprobs_LV, strict=True):
        if is_scored:
            assert output.logprobs(0).tolist() == expected_V.tolist()
            assert output.top_logprobs[0] == [expected_V.max()]
        else:
            with pytest.raises(KeyError):
                output.logprobs(0)


def test_outputs_after_draft_tokens_are_those_of_the_drafts_row():
    logprobs_LV = lines_of(1, 2, 3, 5, 6)
    output = scripted_output(logprobs_LV, [(), (), ()], rows=3, token_lines={2: range(3, 5)})
    after = list(output.turn.after_each_token(2))
    assert [one.top_ids[2] for one in after] == [[5], [6]]
    assert np.array_equal(after[1].logprobs(2), logprobs_LV[4])
    with pytest.raises(KeyError):
        after[0].logprobs(1)


def test_rows_that_are_not_there_are_a_broken_promise():
    output = scripted_output(lines_of(1, 2, 3), [(), (), ()], rows=2)
    with pytest.raises(IndexError):
        output.logprobs(2)


def test_scores_that_are_not_finite_are_found_in_every_line():
    output = scripted_output(lines_of(1, 2, 3), [()], rows=1, is_scored=False, token_lines={0: range(3)})
    assert output.turn.non_finite_lines() == []
    output.turn.top_scores[2][0] = np.nan
    assert output.turn.non_finite_lines() == [2]


def test_rows_after_copies_are_all_but_the_new_ones_at_the_end():
    new = (NewRow(1, ()), NewRow(3, ()), NewRow(4, ()))
    assert StepPlan(rows=5, new_rows=new).rows_after_copies == 3
    assert StepPlan(rows=6, new_rows=new).rows_after_copies == 6
