import asyncio

import pytest

from bench.overload import LATE, OpenLoop, p99
from glossa.v1 import glossa_pb2 as pb
from tests.edge import running

MESSAGES = [pb.TranslateRequest(text="the small red house").SerializeToString()]


async def offered(edge, *, rate=200.0, deadline_s=10.0):
    """A load of half a second."""
    return await asyncio.to_thread(OpenLoop(edge.address, MESSAGES, deadline_s, 2).run, rate, 0.5, 0)


async def test_answers_in_time_are_the_goodput():
    async with running() as edge:
        load = await offered(edge)
    assert 60 < load.offered * 0.5 < 140, "Poisson, 100 expected"
    assert load.ends == {"OK": round(load.offered * 0.5)}
    assert load.goodput == pytest.approx(load.offered)
    assert load.tokens == 5 * load.ends["OK"]
    assert 0 < load.answered_s < 10
    assert 0 < load.health_s < 10


async def test_refusals_count_with_their_status_and_hint():
    async with running() as edge:
        for pool in edge.pools.values():
            pool.prediction = 100.0
        load = await offered(edge)
    assert load.ends == {"RESOURCE_EXHAUSTED": round(load.offered * 0.5)}
    assert (load.goodput, load.hinted, load.tokens) == (0.0, 1.0, 0)
    assert load.refused_s > 0


async def test_calls_end_at_their_deadline():
    async with running() as edge:
        edge.pool.hold = True
        load = await offered(edge, deadline_s=0.3)
        await edge.server.calls.idle()
    assert sum(load.ends.values()) == round(load.offered * 0.5)
    assert set(load.ends) <= {LATE, "DEADLINE_EXCEEDED", "RESET", "CANCELLED"}
    assert load.goodput == 0.0


def test_p99_of_few_values_is_the_largest():
    assert p99([]) == 0.0
    assert p99([3.0, 1.0, 2.0]) == 3.0
    assert p99([float(value) for value in range(1000)]) == 990.0
