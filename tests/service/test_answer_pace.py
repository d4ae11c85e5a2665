"""The hint when to try again: half of the waiting requests, at the pace of the last answers."""

import pytest

from service.answer_pace import (
    MARGIN,
    MAX_RETRY_S,
    MIN_RETRY_S,
    STANDING_AFTER_S,
    STANDING_WEIGHT,
    AnswerPace,
    too_late,
)
from service.progress import Timings
from service.request import Finished, FinishReason


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


def test_what_the_first_answer_of_many_rows_takes_is_no_pace():
    pace = AnswerPace(0.0)
    for burst_s in (0.0, 1000.0):
        pace.resume(burst_s)
        for number in range(64):
            pace.count(1, burst_s + 0.8 + number * 0.004)
            assert pace.predicted_s(1000, 64) < 1000 * 0.005


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


def learned(service_s, rows, *, tokens=10, s_per_answer=0.1, queue_s=0.0):
    """A pace that many such answers have taught."""
    pace = steady(s_per_answer)
    timings = Timings(queue_s=queue_s, total_s=queue_s + service_s)
    for _ in range(100):
        pace.time.learn(Finished(FinishReason.LENGTH, generated_tokens=tokens, timings=timings), rows)
    return pace


@pytest.mark.parametrize(
    ("unfinished", "expected"),
    [
        (0, 0.0),  # idle
        (3, 0.4),  # half as many rows as when the answers took 0.8 s
        (7, 0.8),
        (8, 0.8 + 0.1),  # it waits for one answer
        (27, 0.8 + 2.0),
    ],
)
def test_an_answer_is_predicted_from_rows_and_queue(unfinished, expected):
    assert learned(0.8, 8, queue_s=5.0).predicted_s(unfinished, 8) == pytest.approx(expected)


def test_a_short_answer_is_predicted_sooner_and_a_long_one_like_the_mean():
    pace = learned(0.8, 8, tokens=10)
    assert pace.predicted_s(7, 8, max_tokens=2) == pytest.approx(0.16)
    assert pace.predicted_s(7, 8, max_tokens=100) == pytest.approx(0.8)
    assert pace.predicted_s(8, 8, max_tokens=2) == pytest.approx(0.16 + 0.1), "the queue is the same"


def test_a_queue_that_stands_counts_more_until_it_was_empty():
    pace = learned(0.8, 8)

    def predicted_s(unfinished, now_s):
        pace.observe(unfinished, 8, now_s)
        return pace.predicted_s(unfinished, 8)

    assert predicted_s(7, 60.0) == pytest.approx(0.8), "none waits"
    assert predicted_s(17, 60.0 + STANDING_AFTER_S) == pytest.approx(0.8 + 1.0)
    assert predicted_s(17, 60.1 + STANDING_AFTER_S) == pytest.approx(0.8 + STANDING_WEIGHT * 1.0)
    assert pace.predicted_s(9, 8) == pytest.approx(0.8 + STANDING_WEIGHT * 0.2), "for one before whom fewer go, too"
    assert predicted_s(7, 70.0) == pytest.approx(0.8)
    assert predicted_s(17, 70.1) == pytest.approx(0.8 + 1.0)
    pace.resume(80.0)
    assert predicted_s(17, 80.1) == pytest.approx(0.8 + 1.0)


def test_nothing_is_predicted_before_the_first_answer():
    assert AnswerPace(0.0).predicted_s(100, 8) == 0.0


def test_a_request_is_refused_when_its_answer_is_expected_too_late():
    assert too_late(1.0, MARGIN) is None
    assert too_late(0.0, 0.0) is None, "no prediction, no refusal"
    error = too_late(1.23, 1.0)
    assert error is not None
    assert error.retry_after_s == pytest.approx(1.1)  # 1.23 * 1.7 - 1.0, rounded
    assert str(error) == "an answer may take 2 s now, too long for the deadline: allow more time; try again in 1.1 s"
    assert str(too_late(123.0, 60.0)).startswith("an answer may take 200 s now"), "no exponent"
