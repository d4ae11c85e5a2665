import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.decoding.expand import NotFinite, best_of, check_finite, log_softmax
from tests.fakes import ScriptedOutputs

scores = st.lists(st.sampled_from([-math.inf, -3.0, -2.5, -1.0, 0.0, 1.5]), min_size=1, max_size=40)


@given(values=scores, count=st.integers(1, 45))
def test_the_best_are_those_of_a_stable_sort(values, count):
    expected = sorted((-value, token) for token, value in enumerate(values) if value > -math.inf)[:count]
    assert best_of(np.array(values, np.float32), count) == [(token, -value) for value, token in expected]


def test_log_softmax_keeps_what_is_masked_and_adds_up_to_one():
    scores_V = np.array([1.0, -math.inf, 3.0, 80.0], np.float32)
    result = log_softmax(scores_V)
    assert result[1] == -math.inf
    assert np.exp(result.astype(np.float64)).sum() == pytest.approx(1.0)
    assert result[3] - result[0] == pytest.approx(79.0)


def test_a_row_that_is_no_distribution_is_noticed():
    logprobs_RV = np.log(np.full((3, 4), 0.25, np.float32))
    check_finite(ScriptedOutputs(logprobs_RV, [(), (), ()], 1, 0.0, 0.0))
    logprobs_RV[1] = np.nan
    with pytest.raises(NotFinite, match=r"rows \[1\]"):
        check_finite(ScriptedOutputs(logprobs_RV, [(), (), ()], 1, 0.0, 0.0))
