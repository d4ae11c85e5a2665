"""Rounding with feedback against the nearest integers, on inputs whose channels depend on each other."""

import numpy as np
import pytest

from export.passes.error_feedback import Feedback, round_with_feedback

INPUTS, OUTPUTS, ROWS = 48, 24, 400


@pytest.fixture
def problem():
    """A weight, inputs of half as many independent channels, and a step for each output."""
    random = np.random.default_rng(3)
    mixed = random.standard_normal((ROWS, INPUTS // 2)) @ random.standard_normal((INPUTS // 2, INPUTS))
    x_RK = (mixed + 0.1 * random.standard_normal((ROWS, INPUTS))).astype(np.float32)
    weight_KN = random.standard_normal((INPUTS, OUTPUTS)).astype(np.float32)
    return weight_KN, x_RK, np.abs(weight_KN).max(0) / 7


def output_error(weight_KN, x_RK, integers_KN, step):
    return float(np.square(x_RK @ (integers_KN * step - weight_KN)).mean())


def test_the_product_is_nearer_than_that_of_the_nearest_integers(problem):
    weight_KN, x_RK, step_N = problem
    integers_KN = round_with_feedback(weight_KN, step_N, -7, 7, [x_RK.T @ x_RK])
    assert np.array_equal(integers_KN, np.rint(integers_KN))
    assert np.abs(integers_KN).max() <= 7
    nearest = output_error(weight_KN, x_RK, np.rint(weight_KN / step_N), step_N)
    assert output_error(weight_KN, x_RK, integers_KN, step_N) < nearest / 2


def test_each_part_of_the_inputs_makes_up_for_itself_alone(problem):
    weight_KN, x_RK, step_N = problem
    cut = 20
    parts = [x_RK[:, :cut], x_RK[:, cut:]]
    together = round_with_feedback(weight_KN, step_N, -7, 7, [part.T @ part for part in parts])
    alone = [
        round_with_feedback(weight, step_N, -7, 7, [part.T @ part])
        for weight, part in zip((weight_KN[:cut], weight_KN[cut:]), parts, strict=True)
    ]
    assert np.array_equal(together, np.concatenate(alone))


def test_independent_inputs_leave_the_nearest_integers(problem):
    weight_KN, _, step_N = problem
    integers_KN = round_with_feedback(weight_KN, step_N, -7, 7, [np.eye(INPUTS, dtype=np.float32)])
    assert np.array_equal(integers_KN, np.rint(weight_KN / step_N))


def test_groups_of_inputs_change_nothing(problem, monkeypatch):
    """But for sums in another order, which may decide between two integers."""
    weight_KN, x_RK, step_N = problem
    found = list[np.ndarray]()
    for size in (64, 16):
        monkeypatch.setattr("export.passes.error_feedback.GROUP", size)
        found.append(round_with_feedback(weight_KN, step_N, -7, 7, [x_RK.T @ x_RK]))
    assert np.mean(found[0] == found[1]) > 0.98


def test_inputs_that_are_always_zero_do_no_harm(problem):
    weight_KN, _, step_N = problem
    integers_KN = round_with_feedback(weight_KN, step_N, -7, 7, [np.zeros((INPUTS, INPUTS), np.float32)])
    assert np.array_equal(integers_KN, np.rint(weight_KN / step_N))


def test_a_weight_is_rounded_once_in_each_grid(problem, monkeypatch):
    weight_KN, x_RK, step_N = problem
    feedback = Feedback({"layer.weight": [x_RK.T @ x_RK]})
    assert feedback.of("other.weight") is None
    rounded = feedback.of("layer.weight")
    assert rounded is not None
    first = rounded(weight_KN, step_N, -7, 7)
    coarse = rounded(weight_KN, step_N * 2, -3, 3)
    assert np.abs(coarse).max() <= 3
    monkeypatch.setattr("export.passes.error_feedback.round_with_feedback", None)
    assert rounded(weight_KN, step_N, -7, 7) is first


def test_inputs_are_spread_where_one_is_far_larger_and_rounded_by_their_spread_moments(problem):
    weight_KN, x_RK, step_N = problem
    even = Feedback({"layer.weight": [x_RK.T @ x_RK]})
    assert even.spread("layer.weight", weight_KN) is None
    x_RK[:, 5] *= 60
    moments = [x_RK.T @ x_RK]
    feedback = Feedback({"layer.weight": [moments[0][:20, :20], moments[0][20:, 20:]]})
    assert feedback.spread("other.weight", weight_KN) is None
    spread_K = feedback.spread("layer.weight", weight_KN)
    assert spread_K is not None
    size_K, largest_K = np.sqrt(moments[0].diagonal()), np.abs(weight_KN).max(1)
    expected_K = size_K**0.6 / largest_K**0.4
    assert spread_K == pytest.approx(expected_K / np.median(expected_K), rel=1e-5)
    wide_KN = weight_KN * spread_K[:, None]
    step_N = np.abs(wide_KN).max(0) / 7
    rounded = feedback.of("layer.weight", spread_K)
    assert rounded is not None
    divided = moments[0] / (spread_K[:, None] * spread_K)
    alone = [divided[:20, :20], divided[20:, 20:]]
    assert np.array_equal(rounded(wide_KN, step_N, -7, 7), round_with_feedback(wide_KN, step_N, -7, 7, alone))
