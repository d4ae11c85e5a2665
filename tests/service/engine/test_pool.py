import asyncio
import threading

import pytest

from service.errors import (
    InternalFailure,
    ShuttingDown,
)
from service.request import Finished
from tests.engines import engine_limits, never_ends, request
from tests.fakes import (
    ScriptedRunner,
    Sink,
    ask,
    scripted_answer,
)


async def test_accepted_requests_finish_after_no_new_ones_are_accepted(start):
    runner = ScriptedRunner()
    runner.gate = threading.Event()
    pool = start(runner)
    loop = asyncio.get_running_loop()
    sink = Sink(loop)
    pool.submit(request(), loop, sink)
    await asyncio.to_thread(runner.entered.wait)
    pool.engines[0].inbox.stop_accepting()
    with pytest.raises(ShuttingDown):
        pool.submit(request(), loop, Sink())
    runner.gate.set()
    await sink.done
    assert sink.tokens == scripted_answer(request())


async def test_requests_go_to_the_engine_with_the_fewest_unfinished_ones(start):
    runners = [ScriptedRunner(rule=never_ends) for _ in range(2)]
    for runner in runners:
        runner.gate = threading.Event()
    pool = start(*runners)
    loop = asyncio.get_running_loop()
    sinks = [Sink(loop) for _ in range(6)]
    for sink in sinks:
        pool.submit(request(), loop, sink)
    assert [engine.inbox.unfinished for engine in pool.engines] == [3, 3]
    for runner in runners:
        runner.gate.set()
    await asyncio.gather(*(sink.done for sink in sinks))


async def test_a_pool_avoids_engines_that_are_not_healthy(start):
    bad, good = ScriptedRunner(), ScriptedRunner()
    bad.fail_on = set(range(100))
    settings = engine_limits(failures_until_unhealthy=1)
    pool = start(bad, good, settings=settings)
    assert pool.is_ready
    outcomes = []
    for _ in range(4):
        (sink,) = await ask(pool, request())
        outcomes.append(type(sink.finals[0]))
    assert outcomes == [InternalFailure, Finished, Finished, Finished]
    assert not pool.is_ready
    assert pool.problems() == ["an engine failed"]


async def test_closing_a_pool_ends_unfinished_requests(start):
    runner = ScriptedRunner(rule=never_ends)
    runner.gate = threading.Event()
    pool = start(runner)
    loop = asyncio.get_running_loop()
    sink = Sink(loop)
    pool.submit(request(max_tokens=60), loop, sink)
    await asyncio.to_thread(runner.entered.wait)
    runner.gate.set()
    await asyncio.to_thread(pool.close)
    await sink.done
    assert len(sink.finals) == 1


async def test_a_sink_that_raises_does_not_affect_other_requests(start, caplog):
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


async def test_a_closed_event_loop_does_not_stop_the_engine(start):
    engine = start()
    closed = asyncio.new_event_loop()
    closed.close()
    engine.submit(request("gone"), closed, Sink())
    (sink,) = await ask(engine, request())
    assert sink.tokens == scripted_answer(request())


def test_a_turn_wakes_the_event_loop_once(manual):
    engine, loop = manual(ScriptedRunner(rule=never_ends))
    sinks = [Sink() for _ in range(10)]
    for sink in sinks:
        engine.submit(request(), loop, sink)
    engine.turn()
    assert len(loop.calls) == 1
    loop.run()
    assert all(len(sink.events) == 1 for sink in sinks)
