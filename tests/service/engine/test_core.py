import itertools
import random
from typing import Any

import pytest

from service.errors import (
    Cancelled,
    DeadlineExceeded,
    DeadlineTooSoon,
    InternalFailure,
    RequestError,
)
from service.measurements import (
    Admitted,
    FirstToken,
    Generated,
    NextTokens,
    Prefilled,
    RequestEnded,
    Stepped,
    TurnFailed,
)
from service.memory.cache_layout import CacheLayout
from service.request import Finished, FinishReason, Request
from service.step import DeviceLost
from tests.engines import (
    Recorded,
    answer_events,
    continued,
    drafting,
    engine_limits,
    never_ends,
    repeating,
    request,
)
from tests.fakes import (
    ScriptedRunner,
    Sink,
    scripted_answer,
)


def test_a_failed_turn_ends_exactly_its_requests_and_the_engine_goes_on(manual, caplog):
    runner = ScriptedRunner(rule=never_ends)
    runner.fail_on = {2}
    engine, loop = manual(runner, engine_limits(max_rows=2))
    sinks = [Sink() for _ in range(3)]
    for name, sink in zip("abc", sinks, strict=True):
        engine.submit(request(name), loop, sink)
    for _ in range(20):
        engine.turn()
    loop.run()
    assert [type(sink.finals[0]) for sink in sinks] == [InternalFailure, InternalFailure, Finished]
    assert all(len(sink.finals) == 1 for sink in sinks)
    assert "its requests: a, b" in caplog.text
    assert caplog.text.count("a turn failed") == 1
    assert engine.is_ready


def test_an_engine_whose_turns_all_fail_is_unhealthy_until_one_succeeds(manual):
    runner = ScriptedRunner()
    runner.fail_on = {1, 2, 3}
    engine, loop = manual(runner)
    health = []
    for _ in range(4):
        engine.submit(request(), loop, Sink())
        engine.turn()
        health.append(engine.is_ready)
    assert health == [True, True, False, True]


def test_a_failed_turn_is_measured_once_however_many_requests_it_ends(manual):
    runner, measured = ScriptedRunner(rule=never_ends), Recorded()
    runner.fail_on = {2}
    engine, loop = manual(runner, engine_limits(max_rows=2), measure=measured.append)
    for name in "ab":
        engine.submit(request(name), loop, Sink())
    engine.turn()
    assert measured.of(TurnFailed) == []
    engine.turn()
    assert measured.of(TurnFailed) == [[]]
    assert measured.of(RequestEnded) == [["internal", 1], ["internal", 1]]


def test_a_turn_that_fails_with_its_device_is_measured(manual):
    runner, measured = ScriptedRunner(), Recorded()
    runner.fail_on, runner.has_lost_device = {1}, True
    engine, loop = manual(runner, measure=measured.append)
    engine.submit(request(), loop, Sink())
    with pytest.raises(DeviceLost):
        engine.turn()
    assert measured.of(TurnFailed) == [[]]


def test_numbers_that_are_not_finite_fail_the_turn(manual):
    class Poisoned(ScriptedRunner):
        def run(self, plan):
            result = super().run(plan)
            result.non_finite = [0]
            return result

    engine, loop = manual(Poisoned())
    sink = Sink()
    engine.submit(request(), loop, sink)
    engine.turn()
    loop.run()
    assert isinstance(sink.finals[0], InternalFailure)


def test_an_answer_whose_text_fails_ends_alone(manual, caplog):
    class Misleading(ScriptedRunner):
        def run(self, plan):
            result = super().run(plan)
            result.predictions.tokens[0] = -7
            return result

    engine, loop = manual(Misleading(rule=never_ends))
    bad, good = Sink(), Sink()
    engine.submit(request("bad"), loop, bad)
    engine.submit(request("good"), loop, good)
    engine.turn()
    loop.run()
    assert isinstance(bad.finals[0], InternalFailure)
    assert good.events[0].text
    assert "request bad: its text failed" in caplog.text


def test_deadlines_end_requests_at_the_next_turn(manual):
    engine, loop = manual(ScriptedRunner(rule=never_ends))
    sink = Sink()
    engine.submit(request(deadline_s=105.0), loop, sink)
    engine.turn()
    engine.clock.advance(5.0)
    engine.turn()
    loop.run()
    assert isinstance(sink.finals[0], DeadlineExceeded)
    assert engine.runner.rows == [] or len(engine.runner.plans) == 1


def test_a_turn_reports_its_metrics(manual):
    runner = ScriptedRunner(rule=never_ends)
    measured = Recorded()
    engine, loop = manual(runner, measure=measured.append)
    runner.before_run = lambda: engine.clock.advance(0.25)
    engine.submit(request("a", max_tokens=2), loop, Sink())
    engine.submit(request("b", max_tokens=3, deadline_s=100.6), loop, Sink())
    engine.turn()
    assert engine.snapshot[:2] == (2, 0)
    assert 0 < engine.snapshot.kv_ratio < 1
    for _ in range(3):
        engine.turn()
    assert engine.snapshot[:3] == (0, 0, 0.0)
    assert measured.of(Admitted) == [[0.0, 4], [0.0, 4]]
    assert measured.of(Prefilled) == [[0.001, 32, 10]]
    assert measured.of(Stepped) == [[0.002, 2, 1], [0.002, 2, 1], [0.002, 1, 1]]
    assert measured.of(FirstToken) == [[0.25], [0.25]]
    assert measured.of(NextTokens) == [[0.25, 2], [0.25, 1]]
    assert measured.of(Generated) == [[2], [2], [1]]
    assert measured.of(RequestEnded) == [["length", 0], ["length", 0]]


def test_the_bytes_that_rows_use_are_brought_up_to_date_now_and_then_and_when_none_is_left(manual):
    runner = ScriptedRunner(rule=never_ends, layout=CacheLayout(target_bytes=10))
    engine, loop = manual(runner)
    runner.before_run = lambda: engine.clock.advance(0.11)
    engine.submit(request(max_tokens=6), loop, Sink())
    used = []
    for _ in range(7):
        engine.turn()
        used.append(engine.snapshot.kv_used_bytes)
    assert used == [10, 10, 30, 30, 50, 50, 0]


def test_tokens_of_a_cancelled_request_are_counted_as_wasted(manual):
    measured = Recorded()
    engine, loop = manual(ScriptedRunner(rule=never_ends), measure=measured.append)
    cancel = engine.submit(request(max_tokens=60), loop, Sink())
    for _ in range(3):
        engine.turn()
    cancel()
    engine.turn()
    assert measured.of(RequestEnded) == [["cancelled", 3]]


@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_gets_one_final_answer_each(manual, seed):
    rng = random.Random(seed)
    runner = ScriptedRunner()
    settings = engine_limits(max_rows=6, kv_cache_bytes=6000, failures_until_unhealthy=10**6)
    engine, loop = manual(runner, settings)
    asked: list[Any] = []
    for _ in range(1200):
        engine.clock.advance(1.0)
        for _ in range(rng.choice([0, 0, 1, 2])):
            new = Request(
                request_id=str(len(asked)),
                source=tuple(rng.randrange(3, 24) for _ in range(rng.randrange(1, 20))),
                prompt=(1,),
                max_tokens=rng.randrange(1, 30),
                stop=rng.choice([(), ("ab", "f"), ("t",)]),
                deadline_s=rng.choice([None, engine.clock() + rng.randrange(60)]),
            )
            if engine.engine.inbox.unfinished < 16:
                sink = Sink()
                asked.append((new, sink, engine.submit(new, loop, sink)))
        if asked and rng.random() < 0.1:
            rng.choice(asked[-12:])[2]()
        if rng.random() < 0.01:
            runner.fail_on.add(len(runner.plans) + 1)
        engine.turn()
        if rng.random() < 0.3:
            loop.run()
    while engine.engine.inbox.unfinished:
        engine.turn()
    loop.run()
    kinds = {type(sink.finals[0]) for _, sink, _ in asked}
    assert kinds == {Finished, Cancelled, DeadlineExceeded, DeadlineTooSoon, InternalFailure}
    for new, sink, _ in asked:
        assert len(sink.finals) == 1
        assert sink.events[-1] is sink.finals[0], "nothing comes after the final answer"
        answer = scripted_answer(new)
        assert sink.tokens == answer[: len(sink.tokens)]
        if isinstance(sink.finals[0], RequestError):
            continue
        if sink.finals[0].reason is not FinishReason.STOP_STRING:
            assert sink.tokens == answer


def test_steps_of_one_turn_are_counted_one_by_one(manual):
    measured = Recorded()
    runner = ScriptedRunner(rule=never_ends)
    scheduler = engine_limits(max_rows=4, greedy_steps_per_turn=4)
    engine, loop = manual(runner, scheduler, measure=measured.append)
    runner.before_run = lambda: engine.clock.advance(0.25)
    sink = Sink()
    engine.submit(request(max_tokens=6, is_streamed=False), loop, sink)
    for _ in range(2):
        engine.turn()
    loop.run()
    assert sink.finals[0].generated_tokens == 6
    assert measured.of(Stepped) == [[0.002, 1, 4], [0.002, 1, 2]]
    assert measured.of(FirstToken) == [[pytest.approx(0.25 - 3 * 0.002)]], "it was there before the others"
    assert sink.finals[0].timings.first_token_s == pytest.approx(0.25 - 3 * 0.002)
    assert measured.of(NextTokens) == [[0.002, 3], [0.125, 2]]
    assert measured.of(Generated) == [[4], [2]]


def test_a_request_with_drafts_is_cancelled_between_two_turns(manual):
    engine, loop = drafting(manual, repeating(*"abcd"))
    sink = Sink()
    cancel = engine.submit(continued("abcdab", max_tokens=50), loop, sink)
    for _ in range(3):
        engine.turn()
    cancel()
    engine.turn()
    loop.run()
    assert isinstance(sink.finals[0], Cancelled)
    assert len(sink.tokens) > 3


def test_a_failed_turn_of_drafts_leaves_an_engine_that_goes_on(manual):
    engine, loop = drafting(manual, repeating(*"abcd"))
    engine.runner.fail_on.add(3)
    failed = answer_events(engine, loop, continued("abcdab", max_tokens=50))
    assert isinstance(failed.finals[0], InternalFailure)
    good = answer_events(engine, loop, continued("abcdab", max_tokens=9))
    assert good.text == "cdabcdabc"


def streamed(manual, sinks, *, messages_per_s, turn_s, tokens=20):
    """The times of every event of each request, all of which stream and begin together."""
    runner = ScriptedRunner(rule=never_ends)
    engine, loop = manual(runner, engine_limits(stream_messages_per_s=messages_per_s))
    runner.before_run = lambda: engine.clock.advance(turn_s)
    times = [list[float]() for _ in sinks]
    for number, sink in enumerate(sinks):

        def timed(event, sink=sink, seen=times[number]):
            seen.append(engine.clock())
            sink(event)

        engine.submit(request(str(number), max_tokens=tokens), loop, timed)
    began_s = engine.clock()
    while any(not sink.finals for sink in sinks):
        engine.turn()
        loop.run()
    return [[time_s - began_s for time_s in seen] for seen in times]


def test_streams_share_a_rate_of_messages_and_lose_no_token(manual):
    every, paced = [Sink() for _ in range(4)], [Sink() for _ in range(4)]
    for times in streamed(manual, every, messages_per_s=0, turn_s=0.01):
        assert len(times) == 20, "one for every token"
    for times in streamed(manual, paced, messages_per_s=110, turn_s=0.01):
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert times[0] == pytest.approx(0.01), "the first token does not wait"
        assert gaps[:-1] == pytest.approx([0.04] * len(gaps[:-1])), "4 streams, 36 ms at least"
        assert times[-1] == pytest.approx(0.2), "nor does the end"
    assert [(sink.text, sink.tokens) for sink in paced] == [(sink.text, sink.tokens) for sink in every]


def test_no_token_of_a_stream_waits_longer_than_the_limit(manual):
    for times in streamed(manual, [Sink() for _ in range(4)], messages_per_s=1, turn_s=0.03):
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps[:-1] == pytest.approx([0.12] * len(gaps[:-1])), "the first turn after 0.1 s"


def test_a_stream_that_is_alone_is_not_paced(manual):
    (times,) = streamed(manual, [Sink()], messages_per_s=110, turn_s=0.01)
    assert len(times) == 20
