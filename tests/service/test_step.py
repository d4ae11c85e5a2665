"""Predictions of a turn, by row, after every draft token and after every extra step."""

import numpy as np
import pytest

from service.memory.cache_layout import CacheShape
from service.step import NewRow, StepPlan, non_finite
from tests.fakes import certain, scripted_output

WORDS = 12


def lines_of(*tokens):
    return np.stack([certain(token, WORDS) for token in tokens])


def test_a_plain_turn_has_best_tokens_and_nothing_else():
    found = scripted_output(lines_of(5, 6), [(), ()], 0).predictions
    assert [found.best(row) for row in range(2)] == [5, 6]
    assert not {"logprobs", "logsumexp", "top_logprobs"} & set(dir(found))


def test_a_ranked_turn_has_distributions_by_row():
    logprobs_RV = lines_of(5, 6)
    found = scripted_output(logprobs_RV, [(), ()], 3).predictions
    assert [found.best(row) for row in range(2)] == [5, 6]
    assert len(found.top_ids[0]) == 3
    assert np.array_equal(found.logprobs(1), logprobs_RV[1])
    assert found.logsumexp(1) == 3.0


@pytest.mark.parametrize("top_k", [0, 1])
def test_extra_steps_of_a_row_are_predictions_of_that_row_one_after_another(top_k):
    logprobs_LV = lines_of(5, 6, 7)
    turn = scripted_output(logprobs_LV, [()], top_k, rows=1, extra_tokens=[5, 6])
    assert (turn.predictions.best(0), turn.extra_steps) == (5, 2)
    after = [turn.predictions.moved({0: line}) for line in turn.bursts[0].lines]
    assert [found.best(0) for found in after] == [5, 6, 7]
    if top_k:
        assert [found.logprobs(0).tolist() for found in after] == logprobs_LV.tolist()
        assert [found.top_logprobs[0] for found in after] == logprobs_LV.max(1, keepdims=True).tolist()


def test_predictions_after_draft_tokens_are_those_of_the_drafts_row():
    logprobs_LV = lines_of(1, 2, 3, 5, 6)
    turn = scripted_output(logprobs_LV, [(), (), ()], rows=3, drafts={2: (5,)})
    after = [turn.predictions.moved({2: line}) for line in turn.drafts[2].lines]
    assert [found.best(2) for found in after] == [5, 6]
    assert np.array_equal(after[1].logprobs(2), logprobs_LV[4])
    with pytest.raises(KeyError):
        after[0].logprobs(1)


def test_rows_that_are_not_there_are_a_broken_promise():
    found = scripted_output(lines_of(1, 2, 3), [(), (), ()], rows=2).predictions
    with pytest.raises(IndexError):
        found.logprobs(2)


def test_scores_that_are_not_finite_are_found():
    assert non_finite([0.0, -1.0]) == []
    assert non_finite([float("nan"), -1.0, float("inf"), -float("inf")]) == [0, 2, 3]


def test_rows_after_copies_are_all_but_the_new_ones_at_the_end():
    new = (NewRow(1, ()), NewRow(3, ()), NewRow(4, ()))
    assert StepPlan(0, CacheShape(rows=5), new_rows=new).rows_after_copies == 3
    assert StepPlan(0, CacheShape(rows=6), new_rows=new).rows_after_copies == 6
