import asyncio
import itertools
import math
import statistics

import pytest

from cli.load.load_generator import (
    OK,
    UNFINISHED,
    Outcome,
    Patience,
    Planned,
    SendFailed,
    Window,
    arrival_times,
    drawn,
    run_closed_loop,
    run_load,
)
from tests.virtual_time import run_virtually, stall

WHOLE = Window(warm_up_s=0, duration_s=10)


def plan(*moments, text="x"):
    return [Planned(at_s, text) for at_s in moments]


def steady(*waits, tokens=1):
    """A service that sends so many tokens after each of these waits."""

    async def send(text):
        for seconds in waits:
            await asyncio.sleep(seconds)
            yield tokens

    return send


def load(send, moments, window=WHOLE, wait_s=10.0, **more):
    return run_virtually(run_load(send, moments, window=window, wait_s=wait_s, **more))


# ---- when requests are sent


def test_arrivals_are_those_of_the_seed():
    moments = arrival_times(5, 20, seed=3)
    assert moments == arrival_times(5, 20, seed=3)
    assert moments != arrival_times(5, 20, seed=4)
    assert moments == sorted(moments)
    assert 0 < moments[0] < moments[-1] < 20


def test_a_rate_stretches_the_same_arrivals():
    slow, fast = arrival_times(5, 20, seed=3), arrival_times(10, 10, seed=3)
    assert fast == pytest.approx([at_s / 2 for at_s in slow])


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_spread_of_their_distribution(burstiness):
    moments = arrival_times(100, 400, burstiness=burstiness, seed=1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1 / 100, rel=0.02)
    assert statistics.pstdev(gaps) / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.03)


def test_poisson_gaps_are_exponential():
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(arrival_times(10, 2000, seed=2)))
    distances = [abs(1 - math.exp(-10 * gap) - (place + 0.5) / len(gaps)) for place, gap in enumerate(gaps)]
    assert max(distances) < 1.63 / math.sqrt(len(gaps))  # Kolmogorov and Smirnov's bound at 1 %


def test_texts_are_those_of_the_seed():
    texts = list("abcdef")
    first = list(itertools.islice(drawn(texts, seed=1), 40))
    assert first == list(itertools.islice(drawn(texts, seed=1), 40))
    assert first != list(itertools.islice(drawn(texts, seed=2), 40))
    assert set(first) == set(texts)


# ---- what became of them


def test_requests_are_sent_on_schedule_however_long_answers_take():
    done = load(steady(7.0), plan(0.5, 1.0, 1.25))
    assert [outcome.sent_s for outcome in done.outcomes] == pytest.approx([0.5, 1.0, 1.25])
    assert [outcome.end_to_end_s for outcome in done.outcomes] == pytest.approx([7.0, 7.0, 7.0])
    assert done.most_outstanding == 3
    assert done.wall_s == pytest.approx(8.25)


def test_times_of_an_answer():
    (outcome,) = load(steady(0.5, 0.25, 0.125, tokens=2), plan(1.0)).outcomes
    assert outcome.status == OK
    assert outcome.tokens == 6
    assert outcome.first_token_s == pytest.approx(0.5)
    assert outcome.gaps_s == pytest.approx([0.25, 0.125])
    assert outcome.per_token_s == pytest.approx(0.375 / 4)  # of the four tokens after the first piece
    assert outcome.end_to_end_s == pytest.approx(0.875)


def test_events_without_tokens_are_not_pieces():
    async def send(text):
        yield 0
        await asyncio.sleep(0.5)
        yield 1
        await asyncio.sleep(0.5)
        yield 0

    (outcome,) = load(send, plan(0.0)).outcomes
    assert (outcome.first_token_s, outcome.tokens, outcome.end_to_end_s) == pytest.approx((0.5, 1, 1.0))
    assert outcome.gaps_s == []
    assert outcome.per_token_s is None
    assert Outcome(intended_s=0.0, sent_s=0.0).first_token_s is None


def test_a_stalled_generator_does_not_hide_the_wait():
    """The loop is busy for 3 s: requests that were due then are sent late, and are counted from when they were due."""

    async def send(text):
        if text == "stall":
            stall(3.0)
        await asyncio.sleep(0.25)
        yield 1

    moments = [Planned(1.0, "stall"), *plan(1.5, 2.0, 3.5), *plan(5.0)]
    done = load(send, moments)
    assert [outcome.intended_s for outcome in done.outcomes] == [1.0, 1.5, 2.0, 3.5, 5.0]
    assert [outcome.sent_s for outcome in done.outcomes] == pytest.approx([1.0, 4.0, 4.0, 4.0, 5.0])
    assert [outcome.lag_s for outcome in done.outcomes] == pytest.approx([0.0, 2.5, 2.0, 0.5, 0.0])
    assert [outcome.end_to_end_s for outcome in done.outcomes] == pytest.approx([3.25, 2.75, 2.25, 0.75, 0.25])
    assert [outcome.first_token_s for outcome in done.outcomes] == pytest.approx([3.25, 2.75, 2.25, 0.75, 0.25])


def test_requests_of_the_warm_up_do_not_count():
    done = load(steady(0.5), plan(0.0, 1.999, 2.0, 4.999), Window(warm_up_s=2, duration_s=3))
    assert len(done.outcomes) == 4
    assert [outcome.intended_s for outcome in done.counted] == [2.0, 4.999]


def test_failures_have_their_status():
    async def send(text):
        await asyncio.sleep(0.5)
        if text == "bad":
            raise SendFailed("INVALID_ARGUMENT", "text: too long")
        yield 1

    bad, good = load(send, [Planned(1.0, "bad"), Planned(2.0, "good")]).outcomes
    assert (bad.status, bad.message, bad.is_answered) == ("INVALID_ARGUMENT", "text: too long", False)
    assert bad.end_to_end_s == pytest.approx(0.5)
    assert (good.status, good.is_answered) == (OK, True)


def test_answers_are_waited_for_up_to_a_limit():
    closed = []

    async def send(text):
        try:
            await asyncio.sleep(float(text))
            yield 1
        finally:
            closed.append(text)

    done = load(send, [Planned(9.0, "2.5"), Planned(9.0, "1000")], wait_s=2.0)
    assert [outcome.status for outcome in done.outcomes] == [OK, UNFINISHED]
    assert closed == ["2.5", "1000"]
    assert done.wall_s == pytest.approx(12.0)
    assert done.outcomes[1].ended_s == pytest.approx(12.0)


def test_a_defect_of_the_sender_is_raised_and_ends_the_load():
    async def send(text):
        if text == "bad":
            raise ZeroDivisionError("a defect")
        await asyncio.sleep(1000)
        yield 1

    with pytest.raises(ZeroDivisionError, match="a defect"):
        load(send, [Planned(1.0, "good"), Planned(2.0, "bad"), Planned(3.0, "good")])


def test_a_load_is_cut_short_when_patience_is_over():
    window = Window(warm_up_s=1, duration_s=8)
    slow = load(steady(100.0), plan(*range(9)), window, patience=Patience(limit_s=2.5, misses=2))
    assert slow.is_cut_short  # when the second counted one, to be sent at 2 s, has taken 2.5 s
    assert [outcome.status for outcome in slow.outcomes] == [UNFINISHED] * 5
    assert [outcome.ended_s for outcome in slow.outcomes] == pytest.approx([4.5] * 5)
    quick = load(steady(2.25), plan(*range(9)), window, patience=Patience(limit_s=2.5, misses=1))
    assert not quick.is_cut_short
    assert [outcome.status for outcome in quick.outcomes] == [OK] * 9


def test_failures_are_missed_however_soon_they_come():
    async def send(text):
        raise SendFailed("UNAVAILABLE")
        yield 1

    window = Window(warm_up_s=1, duration_s=8)
    done = load(send, plan(*range(9)), window, patience=Patience(limit_s=0.5, misses=3))
    assert done.is_cut_short
    assert len(done.outcomes) == 4


# ---- closed loop


def test_clients_of_a_closed_loop_send_after_each_answer():
    texts = drawn(["x"])
    work = run_closed_loop(steady(1.0), texts, concurrency=3, window=Window(warm_up_s=1.5, duration_s=3), wait_s=5)
    done = run_virtually(work)
    assert [outcome.intended_s for outcome in done.outcomes] == pytest.approx(
        [second for second in range(5) for _ in range(3)]
    )
    assert done.most_outstanding == 3
    assert len(done.counted) == 9
    assert {outcome.status for outcome in done.outcomes} == {OK}


def test_rejected_clients_of_a_closed_loop_pause():
    async def send(text):
        raise SendFailed("UNAVAILABLE")
        yield 1

    window = Window(warm_up_s=0, duration_s=1)
    done = run_virtually(run_closed_loop(send, drawn(["x"]), concurrency=2, window=window, wait_s=5))
    assert 20 <= len(done.outcomes) <= 22
    assert {outcome.status for outcome in done.outcomes} == {"UNAVAILABLE"}


def test_a_closed_loop_waits_at_most_wait_s():
    window = Window(warm_up_s=0, duration_s=1)
    done = run_virtually(run_closed_loop(steady(100.0), drawn(["x"]), concurrency=2, window=window, wait_s=5))
    assert [outcome.status for outcome in done.outcomes] == [UNFINISHED] * 2
    assert done.wall_s == pytest.approx(6.0)
