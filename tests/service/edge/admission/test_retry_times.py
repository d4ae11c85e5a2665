"""Refused calls are invited one after the other, at the rate of answers."""

import pytest

from service.edge.admission.retry_times import LEAST_PER_S, MOST_S, RetryTimes


def answering(per_s, seconds=10.0):
    """Times after so many seconds with a steady rate of answers."""
    times = RetryTimes(0.0)
    for number in range(round(per_s * seconds)):
        times.answered(number / per_s)
    return times


def test_refused_calls_are_invited_at_the_rate_of_answers():
    times = answering(200.0)
    moments = [times.after_s(0.0, 10.0) for _ in range(200)]
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(1.0, rel=0.05)


def test_nothing_is_invited_before_the_hint_of_the_refusal():
    times = answering(200.0)
    assert [times.after_s(0.3, 10.0) for _ in range(3)] == [0.3] * 3


def test_moments_that_have_passed_are_given_away_no_more():
    times = answering(100.0)
    for _ in range(50):
        times.after_s(0.0, 10.0)
    assert times.after_s(0.0, 10.4) == pytest.approx(0.11 + 0.01, abs=0.03)
    assert times.after_s(0.0, 20.0) <= 1 / LEAST_PER_S


def test_without_answers_some_are_invited():
    times = RetryTimes(0.0)
    assert [times.after_s(0.0, 100.0) for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])


def test_an_overload_that_lasts_spreads_calls_over_the_second_half_of_the_limit():
    times = answering(10.0)
    moments = [times.after_s(0.0, 10.0) for _ in range(5000)][1000:]
    assert MOST_S / 2 <= min(moments) < 0.51 * MOST_S
    assert 0.99 * MOST_S < max(moments) <= MOST_S
    assert max(moments.count(moment) for moment in set(moments)) < 300
