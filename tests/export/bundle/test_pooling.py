import math

import numpy as np
import pytest

from export.bundle.manifest import Pooling
from export.bundle.pooling import pool


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_states_are_pooled_in_float32(length, dtype):
    states_SM = np.random.default_rng(1).normal(0, 100, (length, 4)).astype(dtype)
    mean_M, first_M = pool("mean", states_SM), pool("cls", states_SM)
    assert mean_M.dtype == first_M.dtype == np.float32
    assert mean_M == pytest.approx(states_SM.astype(np.float64).mean(0), rel=1e-5)
    assert first_M.tolist() == states_SM[0].tolist()
    last_M, largest_M = pool("last", states_SM), pool("max", states_SM)
    assert last_M.dtype == largest_M.dtype == np.float32
    assert last_M.tolist() == states_SM[-1].tolist()
    assert largest_M.tolist() == states_SM.max(0).tolist()


@pytest.mark.parametrize("first", [0, 2, 4])
def test_positions_of_a_prompt_are_left_out(first):
    states_SM = np.random.default_rng(1).normal(0, 1, (5, 4)).astype(np.float32)
    rest_SM, places_S = states_SM[first:].astype(np.float64), np.arange(5)[first:] + 1.0
    expected: dict[Pooling, np.ndarray] = {
        "mean": rest_SM.sum(0) / len(rest_SM),
        "mean_sqrt_len": rest_SM.sum(0) / math.sqrt(len(rest_SM)),
        "weighted_mean": places_S @ rest_SM / places_S.sum(),
        "max": rest_SM.max(0),
        "cls": rest_SM[0],
        "last": rest_SM[-1],
    }
    for pooling, vector_M in expected.items():
        found = pool(pooling, states_SM, first)
        assert found.dtype == np.float32
        assert found == pytest.approx(vector_M, rel=1e-5, abs=1e-6), pooling


def test_the_mean_of_large_float16_states_does_not_overflow():
    assert pool("mean", np.full((4, 2), 60_000, np.float16)).tolist() == [60_000.0, 60_000.0]
