import asyncio

import pytest

from bench.load.lean_client import CallFailed
from bench.load.open_loop import LATE, OpenLoop, Source, offer, p99
from bench.load.status_connection import PUSHBACK, STATUS, DeadlineConnection, huffman, number_of
from glossa.v1 import glossa_pb2 as pb
from service.errors import Overloaded
from tests.edge import running

MESSAGES = [pb.TranslateRequest(text="the small red house").SerializeToString()]


def source(edge, *phases, deadline_s=10.0, **changes):
    return Source([DeadlineConnection(edge.address, deadline_s) for _ in range(2)], MESSAGES, phases, **changes)


async def offered(edge, *, rate=200.0, deadline_s=10.0):
    """A load of half a second."""
    return await asyncio.to_thread(offer, edge.address, source(edge, (rate, 0.5), deadline_s=deadline_s), 0)


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


def test_names_and_numbers_are_read_plain_and_in_huffman_code():
    assert huffman("grpc-status") == bytes.fromhex("889acac8b21234da8f")  # as in RFC 7541, appendix B
    plain = b"\0\x0bgrpc-status\x0214"
    assert (number_of(plain, STATUS), number_of(plain, PUSHBACK)) == (14, None)
    coded = b"\0" + huffman("grpc-status") + b"\x018\0" + huffman("grpc-retry-pushback-ms") + b"\x82\x6c\x00"
    assert (number_of(coded, STATUS), number_of(coded, PUSHBACK)) == (8, 500)


async def test_refused_calls_are_tried_again_when_the_server_asks():
    async with running() as edge:
        edge.pool.refuse = Overloaded("full", retry_after_s=0.1, limit=1)
        load = source(edge, (100.0, 0.2), (50.0, 0.2), retries=2)
        loop = OpenLoop([load], seed=0)
        running_load = asyncio.create_task(asyncio.to_thread(loop.run))
        while not loop._due:
            await asyncio.sleep(0)
        edge.pool.refuse = None
        await running_load
    assert {found.end.status for found in load.outcomes} == {"OK"}
    assert max(found.seconds for found in load.outcomes) >= 0.1
    assert 10 < len(load.outcomes) < 60, "each counts once"
    assert 0.2 < max(found.due_s for found in load.outcomes) < 0.4


async def test_a_call_is_not_tried_again_after_its_deadline_or_the_last_attempt():
    async with running() as edge:
        for retry_after_s, retries in ((10.0, 4), (0.05, 2)):
            edge.pool.refuse = Overloaded("full", retry_after_s=retry_after_s, limit=1)
            load = source(edge, (50.0, 0.2), deadline_s=5.0, retries=retries)
            await asyncio.to_thread(OpenLoop([load], seed=0).run)
            assert load.ends.keys() == {"RESOURCE_EXHAUSTED"}


async def test_a_connection_that_the_server_closes_is_an_error_unless_the_source_opens_it_again():
    async with running() as edge:
        load = source(edge, (200.0, 0.5))
        load.connections[0].send(bytes(100))  # no frames
        with pytest.raises((CallFailed, OSError)):
            await asyncio.to_thread(OpenLoop([load], seed=0).run)
