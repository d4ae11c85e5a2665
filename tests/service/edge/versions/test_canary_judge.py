import pytest

from service.edge.versions.canary_judge import Bounds, Slice, check_times, is_above, judge
from service.errors import InvalidRequest

BOUNDS = Bounds(chrf=1.0, disagreement=0.2)
GOOD = Slice(
    calls=200,
    failed=0,
    slow=2,
    p99_s=0.02,
    default_calls=1800,
    default_failed=0,
    default_p99_s=0.018,
    timed=200,
    compared=100,
    different=10,
    memory=0.1,
    chrf_loss=0.2,
)
BAD = {
    "failed": GOOD._replace(failed=10),
    "p99": GOOD._replace(slow=20, p99_s=0.09),
    "chrf": GOOD._replace(chrf_loss=1.5),
    "disagreement": GOOD._replace(different=60),
    "memory": GOOD._replace(memory=0.7),
}


def verdict(*slices, left_s=10.0, bounds=BOUNDS):
    return judge(slices, bounds, left_s=left_s, patience_s=30.0)


def test_a_good_canary_goes_on_to_its_end_and_is_promoted():
    assert verdict().outcome == verdict(*[GOOD] * 5).outcome == ""
    assert verdict(*[GOOD] * 5, left_s=0.0).outcome == "promoted"


@pytest.mark.parametrize("bound", BAD)
def test_a_bound_that_is_broken_three_times_in_a_row_sends_back(bound):
    bad = BAD[bound]
    assert verdict(GOOD, bad, bad).outcome == verdict(bad, bad, GOOD, bad).outcome == ""
    found = verdict(GOOD, bad, bad, bad)
    assert found.outcome == bound
    assert found.reason


def test_different_bounds_in_a_row_do_not_add_up():
    assert verdict(BAD["failed"], BAD["p99"], BAD["memory"]).outcome == ""


def test_the_reason_has_the_figures():
    assert verdict(*[BAD["failed"]] * 3).reason == "it failed 10 of 200 requests, and 1.00% are allowed"
    assert "20 of 200 requests took longer than 1.5 times" in verdict(*[BAD["p99"]] * 3).reason
    assert "60 of 100 shadow answers differ, and 20.00% may" in verdict(*[BAD["disagreement"]] * 3).reason
    assert "grew by 70%, and 50% are allowed" in verdict(*[BAD["memory"]] * 3).reason


def test_failures_that_the_default_version_has_too_are_not_the_canarys():
    shared = GOOD._replace(failed=10, default_failed=90)
    assert verdict(*[shared] * 3).outcome == ""


def test_a_version_without_engines_fails():
    down = GOOD._replace(calls=0, slow=0, is_down=True)
    assert verdict(*[down] * 3) == ("failed", "no engine of it ran")


def test_a_canary_that_cannot_be_judged_goes_back_at_its_end():
    assert verdict(GOOD, GOOD, left_s=0.0).outcome == "too_few_calls"
    few = GOOD._replace(compared=2, different=1)
    assert verdict(*[few] * 3, left_s=0.0) == ("too_few_calls", "fewer than 20 shadow answers could be compared")
    assert verdict(*[GOOD._replace(chrf_loss=None)] * 3, left_s=-100.0).outcome == "", "its test set is being answered"


def test_one_that_begins_to_break_a_bound_at_its_end_has_its_patience():
    assert verdict(GOOD, GOOD, BAD["p99"], left_s=-1.0).outcome == ""
    assert verdict(GOOD, BAD["p99"], GOOD, left_s=-1.0).outcome == "promoted"
    assert verdict(GOOD, GOOD, BAD["p99"], left_s=-30.0).outcome == "p99"


def test_few_calls_decide_nothing():
    assert not is_above(1, 20, 0.01)
    assert is_above(3, 20, 0.01)
    assert not is_above(0, 0, 0.01)
    assert not is_above(12, 100, 0.10)
    assert is_above(19, 100, 0.10)
    assert is_above(1, 20, 0.0)


def test_the_tail_is_that_of_the_binomial_distribution():
    """By the exact sum: P(X >= 5) of 100 at 1 % is 0.0034, P(X >= 4) is 0.0184."""
    assert is_above(5, 100, 0.01)
    assert not is_above(4, 100, 0.01)


@pytest.mark.parametrize(
    ("bounds", "known", "problem"),
    [
        ({"chrf": 1.0}, {}, "bounds.chrf: 1 needs a test set"),
        ({"disagreement": 0.1}, {}, "bounds.disagreement: 0.1 needs shadow answers.* shadow_share is 0"),
        ({"failed": 1.0}, {}, "bounds.failed: must be at least 0 and below 1, got 1"),
        ({"p99": 1.0}, {}, "bounds.p99: must be above 1, got 1"),
        ({"p99": float("nan")}, {}, "bounds.p99: must be above 1, got nan"),
        ({"memory": 0.0}, {}, "bounds.memory: must be above 0, got 0"),
        ({"chrf": 101.0}, {"has_test_set": True}, r"bounds.chrf: must be 0..100, got 101"),
        ({"disagreement": -0.1}, {"has_shadow": True}, "bounds.disagreement: must be at least 0"),
    ],
)
def test_a_bound_that_is_none_or_that_nobody_measures_is_refused(bounds, known, problem):
    with pytest.raises(InvalidRequest, match=problem):
        Bounds(**bounds).check(**{"has_test_set": False, "has_shadow": False, **known})


@pytest.mark.parametrize(
    ("duration_s", "patience_s", "field"), [(0, 1, "duration"), (60, 21, "patience"), (9, 0, "patience")]
)
def test_times_that_are_none_are_refused(duration_s, patience_s, field):
    with pytest.raises(InvalidRequest, match=f"^{field}: must be above 0 and at most"):
        check_times(duration_s, patience_s)


def test_slow_answers_are_a_share_of_those_whose_times_are_kept():
    slow = BAD["p99"]._replace(calls=1_000_000, slow=500, timed=10_000)
    assert verdict(slow, slow, slow).outcome == "p99"


def test_a_default_version_without_answers_makes_no_canary_slow():
    nothing = GOOD._replace(slow=200, timed=0, default_failed=1800, default_p99_s=0.0)
    assert verdict(nothing, nothing, nothing).outcome == ""
