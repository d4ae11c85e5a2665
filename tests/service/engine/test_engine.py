import asyncio
import threading

import pytest

from service.errors import (
    Cancelled,
    EngineUnavailable,
    InternalFailure,
    InvalidRequest,
    ShuttingDown,
)
from service.options import DecodingOptions
from tests.engines import engine_limits, never_ends, request, spell
from tests.fakes import (
    ScriptedRunner,
    Sink,
    ask,
    scripted_answer,
)


async def test_answers_are_those_of_the_model(start):
    requests = [request(str(n), source=(n % 20 + 3, 2), max_tokens=1 + n % 13) for n in range(100)]
    sinks = await ask(start(), *requests)
    assert [sink.tokens for sink in sinks] == [scripted_answer(asked) for asked in requests]


async def test_a_request_that_ended_early_frees_its_row(start):
    engine = start(ScriptedRunner(rule=spell(*"abcdef")), settings=engine_limits(max_rows=1))
    sinks = await ask(engine, request(stop=("b",)), request(stop=("b",)), request())
    assert [sink.text for sink in sinks] == ["a", "a", "abcdef"]


async def test_many_requests_share_steps(start):
    runner = ScriptedRunner(rule=never_ends)
    runner.gate = threading.Event()
    answers = asyncio.create_task(ask(start(runner), *(request(str(n), max_tokens=1 + n % 30) for n in range(60))))
    await asyncio.to_thread(runner.entered.wait)
    runner.gate.set()
    await answers
    assert len(runner.plans) <= 30 + 2, "steps are about the longest, not the sum; 32 sources are encoded in one turn"


async def test_a_request_that_can_never_run_is_not_accepted(start):
    engine = start(settings=engine_limits(max_rows=8))
    with pytest.raises(InvalidRequest, match="the request needs 9 rows, the server has 8"):
        engine.submit(request(options=DecodingOptions(beam_size=9)), asyncio.get_running_loop(), Sink())
    assert [one.inbox.unfinished for one in engine.engines] == [0]


async def test_a_cancelled_request_is_answered_once_and_frees_its_row(start):
    runner = ScriptedRunner(rule=never_ends)
    runner.gate = threading.Event()
    engine = start(runner)
    loop = asyncio.get_running_loop()
    sink = Sink(loop)
    cancel = engine.submit(request(), loop, sink)
    await asyncio.to_thread(runner.entered.wait)
    cancel()
    cancel()
    runner.gate.set()
    await sink.done
    cancel()
    assert isinstance(sink.finals[0], Cancelled)
    assert len(sink.finals) == 1
    await ask(engine, request())
    await asyncio.to_thread(engine.close)
    assert [one.inbox.unfinished for one in engine.engines] == [0]


async def test_an_idle_engine_marks_its_runner_as_idle(start, monkeypatch):
    monkeypatch.setattr("service.engine.engine.IDLE_TURN_S", 0.001)
    runner = ScriptedRunner()
    await ask(start(runner), request())
    before = runner.idle_marks
    async with asyncio.timeout(60):
        while runner.idle_marks == before:
            await asyncio.sleep(0)


async def test_an_idle_engine_is_woken_by_a_request(start, monkeypatch):
    monkeypatch.setattr("service.engine.engine.IDLE_TURN_S", 3600)
    engine = start()
    for _ in range(3):
        await ask(engine, request(max_tokens=1))


async def test_an_idle_engine_keeps_its_heartbeat(start, monkeypatch):
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
    assert engine.engines[0].heartbeat_s > 0


async def test_close_ends_every_unfinished_request(start):
    runner = ScriptedRunner(rule=never_ends)
    runner.gate = threading.Event()
    engine = start(runner, settings=engine_limits(max_rows=2))
    loop = asyncio.get_running_loop()
    sinks = [Sink(loop) for _ in range(5)]
    for sink in sinks:
        engine.submit(request(max_tokens=60), loop, sink)
    await asyncio.to_thread(runner.entered.wait)
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    while any(one.inbox.is_accepting for one in engine.engines):
        await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        engine.submit(request(), loop, Sink())
    runner.gate.set()
    await closing
    await asyncio.gather(*(sink.done for sink in sinks))
    assert all(len(sink.finals) == 1 and isinstance(sink.finals[0], ShuttingDown) for sink in sinks)
    engine.close()
    assert [one.inbox.unfinished for one in engine.engines] == [0]


def test_close_ends_the_requests_of_an_engine_without_a_thread(manual):
    engine, loop = manual(ScriptedRunner(rule=never_ends))
    running, queued = Sink(), Sink()
    engine.submit(request(), loop, running)
    engine.turn()
    engine.submit(request(), loop, queued)
    engine.close()
    engine.close()
    loop.run()
    assert [type(event) for sink in (running, queued) for event in sink.finals] == [ShuttingDown, ShuttingDown]


async def test_close_ends_requests_of_a_turn_that_never_comes_back(start, caplog):
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
    assert not engine.is_ready
    runner.gate.set()
    await asyncio.to_thread(engine.close)
    assert "an abandoned turn came back" in caplog.text
    assert "died" not in caplog.text
    await asyncio.sleep(0)
    assert all(len(sink.finals) == 1 and isinstance(sink.finals[0], ShuttingDown) for sink in sinks)


async def test_the_death_of_the_thread_ends_every_request(start, caplog):
    runner = ScriptedRunner()

    def die():
        raise SystemExit("out of memory")

    runner.before_run = die
    engine = start(runner, settings=engine_limits(max_rows=1))
    sinks = await ask(engine, request("a"), request("b"))
    assert all(isinstance(sink.finals[0], InternalFailure) for sink in sinks)
    assert [sink.finals[0].request_id for sink in sinks] == ["a", "b"]
    assert not engine.is_ready
    with pytest.raises(ShuttingDown):
        engine.submit(request(), asyncio.get_running_loop(), Sink())
    assert "the engine's thread died" in caplog.text
    await asyncio.to_thread(engine.close)
    assert runner.idle_marks, "it keeps nothing from others"


async def test_an_engine_ends_with_its_device_and_answers_nothing_more(start, caplog):
    runner = ScriptedRunner()
    runner.fail_on, runner.has_lost_device = {2}, True
    engine = start(runner, settings=engine_limits(max_rows=1))
    sinks = await ask(engine, request("a"), request("b"))
    assert [type(sink.finals[0]) for sink in sinks] == [EngineUnavailable, EngineUnavailable], "both may try again"
    assert all(len(sink.finals) == 1 for sink in sinks)
    assert runner.runs == 2
    assert not engine.is_ready
    assert engine.engines[0].has_lost_device
    with pytest.raises(ShuttingDown):
        engine.submit(request(), asyncio.get_running_loop(), Sink())
    assert "the engine ends with its device: the device is lost" in caplog.text
