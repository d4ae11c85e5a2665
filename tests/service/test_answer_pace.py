"""The hint when to try again: half of the waiting requests, at the pace of the last answers."""

import pytest

from service.answer_pace import MAX_RETRY_S, MIN_RETRY_S, AnswerPace


def steady(s_per_answer, answers=100, now_s=50.0):
    """A pace after answers in regular intervals."""
    pace = AnswerPace(now_s)
    for number in range(1, answers + 1):
        pace.count(1, now_s + number * s_per_answer)
    return pace


def test_a_retry_makes_sense_when_half_of_the_waiting_requests_are_answered():
    assert steady(0.5).retry_after_s(8) == pytest.approx(2.0)
    assert steady(0.25).retry_after_s(8) == pytest.approx(1.0)


def test_answers_that_come_together_count_one_by_one():
    together = AnswerPace(0.0)
    for turn in range(1, 101):
        together.count(4, turn * 2.0)
    assert together.retry_after_s(8) == pytest.approx(steady(0.5).retry_after_s(8))


def test_time_without_work_is_left_out():
    rested, busy = steady(0.5), steady(0.5)
    rested.resume(1000.0)
    rested.count(1, 1000.5)
    busy.count(1, 1000.5)
    assert rested.retry_after_s(8) == pytest.approx(2.0)
    assert busy.retry_after_s(8) == MAX_RETRY_S


def test_a_new_pace_is_followed_by_a_fifth_each_answer():
    pace = steady(0.5, now_s=0.0)
    pace.count(1, 50.0 + 1.5)
    assert pace.retry_after_s(2) == pytest.approx(0.5 + 0.2 * (1.5 - 0.5))


@pytest.mark.parametrize(("s_per_answer", "waiting", "expected"), [(1e-6, 8, MIN_RETRY_S), (100.0, 8, MAX_RETRY_S)])
def test_the_hint_has_limits(s_per_answer, waiting, expected):
    assert steady(s_per_answer).retry_after_s(waiting) == expected


def test_before_the_first_answer_the_hint_is_the_shortest():
    assert AnswerPace(7.0).retry_after_s(256) == MIN_RETRY_S


def test_a_refusal_has_the_limit_and_the_hint():
    error = steady(0.5).overloaded(8)
    assert (error.limit, error.retry_after_s) == (8, pytest.approx(2.0))
    assert str(error) == "8 requests are waiting already; try again in 2 s"
