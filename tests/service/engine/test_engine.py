import asyncio
import random
import threading
from typing import Any

import pytest

from service.encoder_request import EncoderRequest
from service.engine.engine import EngineConfig
from service.engine.scheduler import SchedulerConfig
from service.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalFailure,
    InvalidRequest,
    Overloaded,
    RequestError,
    ShuttingDown,
)
from service.options import DecodingOptions
from service.request import Finished, FinishReason, Request, TextDelta
from tests.fakes import (
    EOS,
    ManualEngine,
    ManualLoop,
    ScriptedRunner,
    Sink,
    ask,
    doubtful,
    scripted_answer,
)


def request(name="r", source=(5, 6, 2), max_tokens=8, **more):
    return Request(request_id=name, source=source, prompt=(1,), max_tokens=max_tokens, **more)


def config(**changes):
    return EngineConfig(checks_invariants=True, **changes)


def never_ends(source, fed, vocab_size):
    return 4 + (len(fed) + sum(source)) % (vocab_size - 4)


def spell(*letters):
    """A rule that answers these letters, whatever was asked, and then ends."""
    tokens = [ord(letter) - ord("a") + 4 for letter in letters]
    return lambda source, fed, vocab_size: tokens[len(fed) - 1] if len(fed) <= len(tokens) else EOS


class RecordingMetrics:
    """Every call by name."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))

    def of(self, name):
        return [arguments for called, *arguments in self.calls if called == name]


@pytest.fixture
def manual():
    """An engine without a thread, on a clock and an event loop that the test turns."""

    def make(runner=None, settings=None, **more):
        runner, settings = runner or ScriptedRunner(), settings or config()
        runner.max_rows = settings.scheduler.max_rows
        return ManualEngine(runner, settings, **more), ManualLoop()

    return make


# ---- searches


async def test_a_beam_streams_what_is_certain_and_ends_with_all_answers(start):
    options = DecodingOptions(beam_size=4, num_hypotheses=3)
    (sink,) = await ask(start(ScriptedRunner(rule=doubtful)), request(options=options, max_tokens=20))
    *deltas, final = sink.events
    best = final.hypotheses[0]
    assert sink.tokens == list(best.tokens)
    assert sink.text == best.text == "".join(chr(ord("a") + token - 4) for token in best.tokens if token >= 4)
    assert len(final.hypotheses) == 3
    assert [answer.score for answer in final.hypotheses] == sorted((a.score for a in final.hypotheses), reverse=True)
    assert final.generated_tokens == sum(len(answer.tokens) for answer in final.hypotheses)
    assert all(isinstance(delta, TextDelta) for delta in deltas)


async def test_attention_is_told_for_every_answer(start):
    options = DecodingOptions(beam_size=4, num_hypotheses=2, alignment="hard")
    beside = request("beside", source=(7, 8, 9, 10, 2), max_tokens=20)
    _, sink = await ask(start(ScriptedRunner(rule=doubtful)), beside, request(options=options))
    for answer in sink.finals[0].hypotheses:
        assert answer.attention is not None
        assert answer.attention.shape == (1, 2, len(answer.tokens), 3)
        assert answer.attention[0, 0].argmax(1).tolist() == [place % 3 for place in range(len(answer.tokens))]


def test_a_request_for_attention_that_the_model_lacks_is_a_defect_of_the_edge(manual):
    runner = ScriptedRunner()
    runner.has_attention = False
    engine, loop = manual(runner)
    for options in (DecodingOptions(alignment="soft"), DecodingOptions(beam_size=2, coverage_penalty=0.2)):
        with pytest.raises(AssertionError, match="alignment="):
            engine.submit(request(options=options), loop, Sink())
    assert engine.unfinished == 0


async def test_an_embedding_is_the_answer_of_its_own(start):
    (embedded, answered) = await ask(
        start(), request("embed", encoder_request=EncoderRequest(pooling="mean")), request("text")
    )
    assert embedded.finals[0].encoder_output.vector.tolist() == [5.0, 6.0, 2.0]
    assert embedded.finals[0].reason is FinishReason.ENCODED
    assert answered.tokens == scripted_answer(request())


async def test_attention_of_an_answer_is_told_with_it(start):
    runner = ScriptedRunner()
    beside, seen = await ask(start(runner), request("beside"), request("seen", attention_kinds=("decoder", "cross")))
    answer = scripted_answer(request())
    assert (beside.finals[0].attention, beside.tokens) == (None, answer)
    told = seen.finals[0]
    assert told.hypotheses[0].tokens == tuple(answer)
    assert told.attention.decoder_tokens == (1, *answer[:-1])
    assert {kind: array.shape for kind, array in told.attention.weights.items()} == {
        "decoder": (2, 2, len(answer), len(answer)),
        "cross": (2, 2, len(answer), 3),
    }


async def test_attention_of_given_tokens_is_told_after_one_turn(start):
    runner = ScriptedRunner()
    (seen,) = await ask(
        start(runner), request("seen", attention_kinds=("cross",), forced_target=(1, 7, 8, 9), max_tokens=1)
    )
    (told,) = seen.finals
    assert (told.reason, told.hypotheses, told.generated_tokens) == (FinishReason.ATTENTION, (), 0)
    assert (told.prompt_tokens, told.attention.decoder_tokens) == (3 + 4, (1, 7, 8, 9))
    assert told.attention.weights["cross"].shape == (2, 2, 4, 3)
    assert runner.runs == 1


async def test_attention_that_fails_is_one_requests_failure(start):
    runner = ScriptedRunner()
    failing = request("failing", attention_kinds=("unheard of",), forced_target=(1, 7), max_tokens=1)
    failed, answered = await ask(start(runner), failing, request("text"))
    assert isinstance(failed.finals[0], InternalFailure)
    assert answered.tokens == scripted_answer(request())


async def test_a_stop_string_ends_one_hypothesis_and_not_its_beam(start):
    options = DecodingOptions(beam_size=4, num_hypotheses=4)
    (sink,) = await ask(start(ScriptedRunner(rule=doubtful)), request(options=options, stop=("c", "d"), max_tokens=20))
    answers = sink.finals[0].hypotheses
    assert any(answer.reason is FinishReason.STOP_STRING for answer in answers)
    assert not any("c" in answer.text or "d" in answer.text for answer in answers)


# ---- with its thread


async def test_answers_are_those_of_the_model(start):
    requests = [request(str(n), source=(n % 20 + 3, 2), max_tokens=1 + n % 13) for n in range(100)]
    sinks = await ask(start(), *requests)
    assert [sink.tokens for sink in sinks] == [scripted_answer(asked) for asked in requests]


async def test_deltas_and_the_final_event_are_the_whole_text(start):
    (sink,) = await ask(start(ScriptedRunner(rule=spell(*"hello"))), request())
    assert [event.text for event in sink.events] == ["h", "e", "l", "l", "o", ""]
    *deltas, final = sink.events
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    assert final.reason is FinishReason.END_OF_SEQUENCE
    assert final.tokens == (EOS,)
    assert (final.prompt_tokens, final.generated_tokens) == (4, 6)


async def test_an_answer_that_is_not_streamed_is_told_at_its_end_and_is_the_same(start):
    engine = start(ScriptedRunner(rule=spell(*"abcdef")))
    asked = [
        request(stop=("cx",), is_streamed=streamed, max_tokens=most) for streamed in (True, False) for most in (3, 9)
    ]
    sinks = await ask(engine, *asked)
    assert [len(sink.events) for sink in sinks[2:]] == [1, 1]
    for one, other in zip(sinks[:2], sinks[2:], strict=True):
        assert (one.text, one.tokens) == (other.text, other.tokens)
        assert one.finals[0].hypotheses[0].token_logprobs == other.finals[0].hypotheses[0].token_logprobs


async def test_an_answer_ends_before_a_stop_string(start):
    (sink,) = await ask(start(ScriptedRunner(rule=spell(*"abcdef"))), request(stop=("cd",)))
    assert sink.text == "ab"
    assert sink.tokens == [4, 5, 6, 7]
    assert sink.finals[0].reason is FinishReason.STOP_STRING


async def test_an_answer_ends_at_its_length_with_what_was_held_back(start):
    (sink,) = await ask(start(ScriptedRunner(rule=spell(*"abcdef"))), request(stop=("cx",), max_tokens=3))
    assert sink.text == "abc"
    assert sink.finals[0].reason is FinishReason.LENGTH


async def test_a_stopped_row_makes_room(start):
    engine = start(
        ScriptedRunner(rule=spell(*"abcdef")), settings=config(scheduler=SchedulerConfig(max_rows=1), max_queue=5)
    )
    sinks = await ask(engine, request(stop=("b",)), request(stop=("b",)), request())
    assert [sink.text for sink in sinks] == ["a", "a", "abcdef"]


async def test_many_requests_share_steps(start):
    runner = ScriptedRunner(rule=never_ends)
    runner.gate = threading.Event()
    answers = asyncio.create_task(ask(start(runner), *(request(str(n), max_tokens=1 + n % 30) for n in range(60))))
    await asyncio.to_thread(runner.entered.wait)
    runner.gate.set()
    await answers
    assert len(runner.plans) <= 30 + 2, "steps are about the longest, not the sum; 32 sources are read at once"


async def test_a_request_that_can_never_run_is_not_accepted(start):
    engine = start(settings=config(scheduler=SchedulerConfig(max_rows=8)))
    with pytest.raises(AssertionError, match="1000"):
        engine.submit(request(max_tokens=1000), asyncio.get_running_loop(), Sink())
    with pytest.raises(InvalidRequest, match="the request needs 9 rows, the server has 8"):
        engine.submit(request(options=DecodingOptions(beam_size=9)), asyncio.get_running_loop(), Sink())
    assert engine.unfinished == 0


async def test_a_cancelled_request_is_answered_once_and_frees_its_row(start):
    runner = ScriptedRunner(rule=never_ends)
    runner.gate = threading.Event()
    engine = start(runner)
    loop = asyncio.get_running_loop()
    sink = Sink(loop)
    submission = engine.submit(request(), loop, sink)
    await asyncio.to_thread(runner.entered.wait)
    submission.cancel()
    submission.cancel()
    runner.gate.set()
    await sink.done
    submission.cancel()
    assert isinstance(sink.finals[0], Cancelled)
    assert len(sink.finals) == 1
    await ask(engine, request())
    assert await asyncio.to_thread(engine.drain, 60)
    assert engine.unfinished == 0


async def test_a_sink_that_raises_costs_nobody_else_anything(start, caplog):
    engine = start()
    loop = asyncio.get_running_loop()

    def broken(event):
        raise RuntimeError("no")

    good = Sink(loop)
    engine.submit(request("a"), loop, broken)
    engine.submit(request("b"), loop, good)
    await good.done
    assert good.tokens == scripted_answer(request())
    assert "a sink raised" in caplog.text


async def test_an_idle_engine_lets_its_runner_rest(start, monkeypatch):
    monkeypatch.setattr("service.engine.engine.IDLE_TURN_S", 0.001)
    runner = ScriptedRunner()
    await ask(start(runner), request())
    before = runner.idle_marks
    async with asyncio.timeout(10):
        while runner.idle_marks == before:
            await asyncio.sleep(0)


async def test_an_idle_engine_is_woken_by_a_request(start, monkeypatch):
    monkeypatch.setattr("service.engine.engine.IDLE_TURN_S", 3600)
    engine = start()
    for _ in range(3):
        await ask(engine, request(max_tokens=1))


async def test_an_idle_engine_still_shows_that_it_is_alive(start, monkeypatch):
    monkeypatch.setattr("service.engine.engine.IDLE_TURN_S", 0.001)
    turned = threading.Event()
    ticks = iter(range(10_000_000))

    def clock():
        tick = next(ticks)
        if tick > 20:
            turned.set()
        return float(tick)

    engine = start(clock=clock)
    assert await asyncio.to_thread(turned.wait, 60)
    assert engine.heartbeat_s > 0


# ---- the ways to end


async def test_close_answers_everything_that_is_unfinished(start):
    runner = ScriptedRunner(rule=never_ends)
    runner.gate = threading.Event()
    engine = start(runner, settings=config(scheduler=SchedulerConfig(max_rows=2)))
    loop = asyncio.get_running_loop()
    sinks = [Sink(loop) for _ in range(5)]
    for sink in sinks:
        engine.submit(request(max_tokens=60), loop, sink)
    await asyncio.to_thread(runner.entered.wait)
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    while any(one.is_accepting for one in engine.engines):
        await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        engine.submit(request(), loop, Sink())
    runner.gate.set()
    await closing
    await asyncio.gather(*(sink.done for sink in sinks))
    assert all(len(sink.finals) == 1 and isinstance(sink.finals[0], ShuttingDown) for sink in sinks)
    engine.close()
    assert engine.unfinished == 0


async def test_close_answers_also_when_a_turn_never_comes_back(start, caplog):
    runner = ScriptedRunner()
    runner.gate = threading.Event()
    engine = start(runner)
    loop = asyncio.get_running_loop()
    sinks = [Sink(loop) for _ in range(3)]
    for sink in sinks:
        engine.submit(request(), loop, sink)
    await asyncio.to_thread(runner.entered.wait)
    await asyncio.to_thread(engine.close, 0.01)
    await asyncio.gather(*(sink.done for sink in sinks))
    assert not engine.is_healthy
    runner.gate.set()
    await asyncio.to_thread(engine.close)
    assert "an abandoned turn came back" in caplog.text
    assert "died" not in caplog.text
    await asyncio.sleep(0)
    assert all(len(sink.finals) == 1 and isinstance(sink.finals[0], ShuttingDown) for sink in sinks)


async def test_the_death_of_the_thread_answers_everything(start, caplog):
    runner = ScriptedRunner()

    def die():
        raise SystemExit("out of memory")

    runner.before_run = die
    engine = start(runner, settings=config(scheduler=SchedulerConfig(max_rows=1)))
    sinks = await ask(engine, request("a"), request("b"))
    assert all(isinstance(sink.finals[0], InternalFailure) for sink in sinks)
    assert [sink.finals[0].request_id for sink in sinks] == ["a", "b"]
    assert not engine.is_healthy
    with pytest.raises(ShuttingDown):
        engine.submit(request(), asyncio.get_running_loop(), Sink())
    assert "the engine's thread died" in caplog.text
    await asyncio.to_thread(engine.close)
    assert runner.idle_marks, "it keeps nothing from others"


async def test_a_closed_event_loop_does_not_stop_the_engine(start):
    engine = start()
    closed = asyncio.new_event_loop()
    closed.close()
    engine.submit(request("gone"), closed, Sink())
    (sink,) = await ask(engine, request())
    assert sink.tokens == scripted_answer(request())


# ---- turn by turn


def test_a_turn_wakes_the_event_loop_once(manual):
    engine, loop = manual(ScriptedRunner(rule=never_ends))
    sinks = [Sink() for _ in range(10)]
    for sink in sinks:
        engine.submit(request(), loop, sink)
    engine.turn()
    assert len(loop.calls) == 1
    loop.run()
    assert all(len(sink.events) == 1 for sink in sinks)


def test_a_failed_turn_answers_exactly_its_rows_and_the_engine_lives_on(manual, caplog):
    runner = ScriptedRunner(rule=never_ends)
    runner.fail_on = {2}
    engine, loop = manual(runner, config(scheduler=SchedulerConfig(max_rows=2)))
    sinks = [Sink() for _ in range(3)]
    for name, sink in zip("abc", sinks, strict=True):
        engine.submit(request(name), loop, sink)
    for _ in range(20):
        engine.turn()
    loop.run()
    assert [type(sink.finals[0]) for sink in sinks] == [InternalFailure, InternalFailure, Finished]
    assert all(len(sink.finals) == 1 for sink in sinks)
    assert "its requests: a, b" in caplog.text
    assert engine.is_healthy
    assert engine.snapshot.failures == 1


def test_an_engine_whose_turns_all_fail_is_unhealthy_until_one_succeeds(manual):
    runner = ScriptedRunner()
    runner.fail_on = {1, 2, 3}
    engine, loop = manual(runner)
    health = []
    for _ in range(4):
        engine.submit(request(), loop, Sink())
        engine.turn()
        health.append(engine.is_healthy)
    assert health == [True, True, False, True]


def test_numbers_that_are_none_fail_the_turn(manual):
    class Poisoned(ScriptedRunner):
        def run(self, plan):
            result = super().run(plan)
            result.turn.top_scores[0][0] = float("nan")
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
            result.top_ids[0][0] = -7
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


def test_a_full_queue_refuses_and_says_when_to_come_back(manual):
    engine, loop = manual(ScriptedRunner(rule=never_ends), config(scheduler=SchedulerConfig(max_rows=2), max_queue=3))
    for _ in range(5):
        engine.submit(request(max_tokens=4), loop, Sink())
    with pytest.raises(Overloaded, match="3 requests are waiting already") as refused:
        engine.submit(request(), loop, Sink())
    assert refused.value.limit == 3
    assert refused.value.retry_after_s == 0.05
    for _ in range(8):
        engine.clock.advance(1.0)
        engine.turn()
    engine.submit(request(), loop, Sink())


def test_the_hint_follows_the_pace_of_answers(manual):
    engine, loop = manual(ScriptedRunner(), config(scheduler=SchedulerConfig(max_rows=1), max_queue=20))
    for _ in range(15):
        engine.submit(request(max_tokens=1), loop, Sink())
    for _ in range(15):
        engine.clock.advance(0.5)
        engine.turn()
    for _ in range(21):
        engine.submit(request(max_tokens=1), loop, Sink())
    with pytest.raises(Overloaded) as refused:
        engine.submit(request(), loop, Sink())
    assert 4.0 < refused.value.retry_after_s < 6.0, "half a queue at two answers a second"


def test_timings_tell_queue_prefill_and_tokens_apart(manual):
    runner = ScriptedRunner(rule=never_ends)
    engine, loop = manual(runner, config(scheduler=SchedulerConfig(max_rows=1)))
    clock = engine.clock
    runner.before_run = lambda: clock.advance(1.0)
    first, second = Sink(), Sink()
    engine.submit(request(max_tokens=2), loop, first)
    engine.submit(request(max_tokens=2), loop, second)
    for _ in range(4):
        engine.turn()
    loop.run()
    times = second.finals[0].timings
    assert (times.queue_s, times.prefill_s, times.first_token_s, times.total_s) == (2.0, 0.001, 3.0, 4.0)


def test_metrics_are_told(manual):
    runner = ScriptedRunner(rule=never_ends)
    metrics = RecordingMetrics()
    engine, loop = manual(runner, metrics=metrics)
    runner.before_run = lambda: engine.clock.advance(0.25)
    engine.submit(request("a", max_tokens=2), loop, Sink())
    engine.submit(request("b", max_tokens=3, deadline_s=100.6), loop, Sink())
    for _ in range(4):
        engine.turn()
    assert metrics.of("admitted") == [[0.0, 4], [0.0, 4]]
    assert metrics.of("prefilled") == [[0.001]]
    assert metrics.of("stepped") == [[0.002, 2, 1], [0.002, 2, 1], [0.002, 1, 1]]
    assert metrics.of("first_token") == [[0.25], [0.25]]
    assert metrics.of("next_tokens") == [[0.25, 2], [0.25, 1]]
    assert metrics.of("generated") == [[2], [2], [1]]
    assert metrics.of("finished") == [["length", 0], ["length", 0]]
    queued, running, kv_ratio = metrics.of("state")[0]
    assert (queued, running) == (0, 2)
    assert 0 < kv_ratio < 1
    assert metrics.of("state")[-1] == [0, 0, 0.0]


def test_tokens_nobody_reads_are_counted_as_wasted(manual):
    metrics = RecordingMetrics()
    engine, loop = manual(ScriptedRunner(rule=never_ends), metrics=metrics)
    submission = engine.submit(request(max_tokens=60), loop, Sink())
    for _ in range(3):
        engine.turn()
    submission.cancel()
    engine.turn()
    assert metrics.of("finished") == [["cancelled", 3]]


@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_gets_one_final_answer_each(manual, seed):
    rng = random.Random(seed)
    runner = ScriptedRunner()
    settings = config(
        scheduler=SchedulerConfig(max_rows=6, kv_cache_bytes=6000), max_queue=10, failures_until_unhealthy=10**6
    )
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
            sink = Sink()
            try:
                asked.append((new, sink, engine.submit(new, loop, sink)))
            except Overloaded:
                continue
        if asked and rng.random() < 0.1:
            rng.choice(asked[-12:])[2].cancel()
        if rng.random() < 0.01:
            runner.fail_on.add(len(runner.plans) + 1)
        engine.turn()
        if rng.random() < 0.3:
            loop.run()
    while engine.unfinished:
        engine.turn()
    loop.run()
    kinds = {type(sink.finals[0]) for _, sink, _ in asked}
    assert kinds == {Finished, Cancelled, DeadlineExceeded, InternalFailure}
    for new, sink, _ in asked:
        assert len(sink.finals) == 1
        assert sink.events[-1] is sink.finals[0], "nothing comes after the final answer"
        answer = scripted_answer(new)
        assert sink.tokens == answer[: len(sink.tokens)]
        if isinstance(sink.finals[0], RequestError):
            continue
        if sink.finals[0].reason is not FinishReason.STOP_STRING:
            assert sink.tokens == answer


# ---- steps that a row makes by itself


def test_steps_of_one_turn_are_counted_one_by_one(manual):
    metrics = RecordingMetrics()
    runner = ScriptedRunner(rule=never_ends)
    scheduler = SchedulerConfig(max_rows=4, greedy_steps_per_turn=4)
    engine, loop = manual(runner, config(scheduler=scheduler), metrics=metrics)
    runner.before_run = lambda: engine.clock.advance(0.25)
    sink = Sink()
    engine.submit(request(max_tokens=6, is_streamed=False), loop, sink)
    for _ in range(2):
        engine.turn()
    loop.run()
    assert sink.finals[0].generated_tokens == 6
    assert metrics.of("stepped") == [[0.002, 1, 4], [0.002, 1, 2]]
    assert metrics.of("first_token") == [[pytest.approx(0.25 - 3 * 0.002)]], "it was there before the others"
    assert sink.finals[0].timings.first_token_s == pytest.approx(0.25 - 3 * 0.002)
    assert metrics.of("next_tokens") == [[0.002, 3], [0.125, 2]]
    assert metrics.of("generated") == [[4], [2]]
    assert engine.snapshot.steps == engine.snapshot.tokens == 6


def test_a_stop_string_inside_such_a_turn_ends_the_answer_there(manual):
    engine, loop = manual(ScriptedRunner(rule=spell(*"abcdefgh")))
    (final,) = told_by(engine, loop, request(max_tokens=20, stop=("cd",), is_streamed=False)).events
    assert (final.text, final.reason, final.generated_tokens) == ("ab", FinishReason.STOP_STRING, 4)
    (final,) = told_by(engine, loop, request(max_tokens=20, stop=("b",), is_streamed=False)).events
    assert (final.text, final.reason, final.generated_tokens) == ("a", FinishReason.STOP_STRING, 2)


# ---- drafts


def repeating(*letters, ends_at=10**6):
    """A rule that spells these letters again and again, as the prompt did."""
    tokens = [ord(letter) - ord("a") + 4 for letter in letters]
    return lambda source, fed, vocab_size: EOS if len(fed) == ends_at else tokens[(len(fed) - 1) % len(tokens)]


def drafting(manual, rule, **more):
    runner = ScriptedRunner(has_source=False, max_block=0, rule=rule)
    return manual(runner, config(scheduler=SchedulerConfig(max_rows=4, draft_tokens=4)), **more)


def continued(text, **more):
    return Request(request_id="r", prompt=(1, *[ord(letter) - ord("a") + 4 for letter in text]), **more)


def told_by(engine, loop, asked):
    sink = Sink()
    engine.submit(asked, loop, sink)
    while not sink.finals:
        engine.turn()
        loop.run()
    return sink


def test_tokens_of_a_draft_are_told_one_by_one_in_their_order(manual):
    metrics = RecordingMetrics()
    engine, loop = drafting(manual, repeating(*"abcd"), metrics=metrics)
    sink = told_by(engine, loop, continued("abcdab", max_tokens=14))
    *deltas, final = sink.events
    assert [delta.text for delta in deltas] == list("cdabcdabcdabc")
    assert [len(delta.tokens) for delta in deltas] == [1] * 13
    assert (final.text, final.reason, final.generated_tokens) == ("d", FinishReason.LENGTH, 14)
    ((drafted, right), *_) = metrics.of("speculated")
    assert drafted == right == 4
    assert sum(tokens for (tokens,) in metrics.of("generated")) == 14
    assert sum(count for _, count in metrics.of("next_tokens")) == 13, "each but the first one"
    assert engine.snapshot.steps < 8


def test_an_answer_that_nobody_streams_is_told_at_once_with_drafts_too(manual):
    engine, loop = drafting(manual, repeating(*"abcd", ends_at=12))
    (final,) = told_by(engine, loop, continued("abcdab", max_tokens=30, is_streamed=False)).events
    assert (final.text, final.reason) == ("cdabc", FinishReason.END_OF_SEQUENCE)
    assert final.hypotheses[0].tokens[-1] == EOS


def test_a_stop_string_inside_a_draft_ends_the_answer_there(manual):
    engine, loop = drafting(manual, repeating(*"abcd"))
    sink = told_by(engine, loop, continued("abcdab", max_tokens=30, stop=("abc",)))
    (final,) = sink.finals
    assert (sink.text, final.reason) == ("cd", FinishReason.STOP_STRING)
    assert len(sink.tokens) == final.generated_tokens == 5


def test_a_request_with_drafts_is_cancelled_between_two_turns(manual):
    engine, loop = drafting(manual, repeating(*"abcd"))
    sink = Sink()
    submission = engine.submit(continued("abcdab", max_tokens=50), loop, sink)
    for _ in range(3):
        engine.turn()
    submission.cancel()
    engine.turn()
    loop.run()
    assert isinstance(sink.finals[0], Cancelled)
    assert len(sink.tokens) > 3


def test_a_failed_turn_of_drafts_leaves_an_engine_that_goes_on(manual):
    engine, loop = drafting(manual, repeating(*"abcd"))
    engine.runner.fail_on.add(3)
    failed = told_by(engine, loop, continued("abcdab", max_tokens=50))
    assert isinstance(failed.finals[0], InternalFailure)
    good = told_by(engine, loop, continued("abcdab", max_tokens=9))
    assert good.text == "cdabcdabc"
