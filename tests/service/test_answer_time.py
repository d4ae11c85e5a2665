import pytest

from service.answer_time import WEIGHT, AnswerTime, AnswerTimes
from service.progress import Timings
from service.request import Finished, FinishReason


def answer(seconds, *, tokens=10, queue_s=0.0):
    timings = Timings(queue_s=queue_s, total_s=queue_s + seconds)
    return Finished(FinishReason.LENGTH, generated_tokens=tokens, timings=timings)


def learned(*seconds, rows=1, **options):
    time = AnswerTime()
    for one in seconds:
        time.learn(answer(one, **options), rows)
    return time


def test_the_first_answer_is_what_is_known():
    assert AnswerTime().seconds() == 0.0
    assert learned(0.4, queue_s=5.0).seconds() == pytest.approx(0.4)


def test_later_answers_weigh_more():
    expected = (1.0 * (1 - WEIGHT) + 3.0) / (2 - WEIGHT)
    assert learned(1.0, 3.0).seconds() == pytest.approx(expected)
    assert learned(*[1.0] * 50, 2.0).seconds() == pytest.approx(1.0 + WEIGHT, rel=1e-3)


def test_a_fuller_step_takes_longer():
    assert learned(0.8, 0.8, rows=4).seconds(rows=8) == pytest.approx(1.6)


@pytest.mark.parametrize(("max_tokens", "expected"), [(0, 0.8), (4, 0.32), (10, 0.8), (99, 0.8)])
def test_a_short_answer_takes_a_part_of_the_mean(max_tokens, expected):
    assert learned(0.8, 0.8).seconds(max_tokens=max_tokens) == pytest.approx(expected)


def test_answers_without_tokens_count_whole():
    assert learned(0.8, tokens=0).seconds(max_tokens=3) == pytest.approx(0.8)


def test_what_was_answered_longest_ago_is_forgotten():
    times = AnswerTimes[str](3)
    for number in range(4):
        times[f"t{number}"].learn(answer(1.0))
        times["kept"].learn(answer(2.0))
    assert [key for key in ("t0", "t1", "t2", "t3", "kept") if times.get(key)] == ["t2", "t3", "kept"]
    kept = times.get("kept")
    assert kept is not None
    assert kept.seconds() == pytest.approx(2.0)
