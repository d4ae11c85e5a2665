import pytest

from service.engine.engine import EngineConfig
from service.engine.scheduler import SchedulerConfig
from service.errors import (
    Overloaded,
)
from tests.engines import never_ends, request
from tests.fakes import (
    ScriptedRunner,
    Sink,
)


def test_a_full_queue_rejects_requests_with_a_hint_when_to_retry(manual):
    engine, loop = manual(
        ScriptedRunner(rule=never_ends), EngineConfig(scheduler=SchedulerConfig(max_rows=2), max_queue=3)
    )
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
    engine, loop = manual(ScriptedRunner(), EngineConfig(scheduler=SchedulerConfig(max_rows=1), max_queue=20))
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
