"""Shadows on a running server with fake pools."""

import asyncio
import dataclasses

import msgspec
import pytest

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.shadows import MAX_SHADOWS, TRIES, is_random, told
from service.edge.requests.traffic import Traffic
from service.errors import InternalFailure, Overloaded
from service.request import Priority
from service.wire.messages import State
from tests.edge import ANSWER, RESULT, FakePool, answered, method, served

TEXT = "the small red house"
BUSY = State(rows=2, queued=1, kv_ratio=0.0, heartbeat_s=0.0, is_healthy=True, has_lost_device=False)


def with_shadow(edge, share=100, **changes):
    """Adds a version to the translation model, on which calls run too."""
    pool = FakePool(**changes)
    shadow = served("en-de", pool, version="new", beats=lambda: pool.beats)
    edge.server._catalog.add(shadow, is_default=False)
    edge.server._catalog.set_traffic("en-de", Traffic(shadow="new", shadow_share=share))
    edge.server.metrics.traffic.show("en-de", {}, "new")
    return shadow


def outcomes(edge):
    """How many shadows there were, by outcome."""
    value = edge.server.metrics.registry.get_sample_value
    labels = {"model": "en-de", "version": "new"}
    names = ("same", "different", "failed", "skipped")
    counts = {name: value("glossa_shadow_calls_total", {**labels, "outcome": name}) for name in names}
    return {name: count for name, count in counts.items() if count}


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_calls_and_streams_run_on_a_shadow_and_answers_are_compared(edge, channel):
    shadow = with_shadow(edge)
    call = method(channel, "Translate")(text=TEXT, metadata=(("x-glossa-tenant", "acme"),))
    assert (await call).text == "zwei rote Häuser"
    assert dict(await call.trailing_metadata())["x-glossa-version"] == "cd" * 6, "that of the live version"
    await until(lambda: outcomes(edge) == {"same": 1})
    [message async for message in method(channel, "StreamTranslate")(text=TEXT)]
    await until(lambda: outcomes(edge) == {"same": 2})
    shadow.pool.answer = answered(dataclasses.replace(RESULT, text="ein Haus"))
    await method(channel, "Translate")(text=TEXT)
    await until(lambda: outcomes(edge) == {"same": 2, "different": 1})
    assert [request.priority for request in shadow.pool.requests] == [Priority.LOW] * 3
    assert shadow.users.count == 0
    await until(lambda: edge.server.calls.memory.reserved_bytes == 0)  # live calls end after their answers
    value = edge.server.metrics.registry.get_sample_value
    labels = {"model": "en-de", "version": "new"}
    assert value("glossa_shadow_seconds_count", labels) == value("glossa_shadowed_seconds_count", labels) == 3
    handled = {"grpc_type": "unary", "grpc_service": "glossa.v1.TranslationService", "grpc_method": "Translate"}
    assert value("grpc_server_started_total", handled) == 2, "a shadow is no call"


async def test_a_stream_that_began_before_the_shadow_is_not_compared(edge, channel):
    edge.pool.hold = True
    stream = method(channel, "StreamTranslate")(text=TEXT)
    await until(lambda: edge.pool.sinks)
    edge.pool.send(edge.pool.sinks[-1], ANSWER[:1])
    assert (await anext(aiter(stream))).text
    shadow = with_shadow(edge)
    edge.pool.send(edge.pool.sinks[-1], ANSWER[1:])
    assert [message async for message in stream]
    await method(channel, "Translate")(text=TEXT, model="en-de@new")
    assert (len(shadow.pool.requests), outcomes(edge)) == (1, {}), "the client's own"


async def test_a_shadow_that_fails_or_is_refused_costs_the_live_call_nothing(edge, channel):
    shadow = with_shadow(edge, answer=(InternalFailure("r"),))
    assert (await method(channel, "Translate")(text=TEXT)).text
    await until(lambda: outcomes(edge) == {"failed": 1})
    shadow.pool.refuse = Overloaded("full", retry_after_s=1, limit=1)
    assert (await method(channel, "Translate")(text=TEXT)).text
    await until(lambda: outcomes(edge) == {"failed": 1, "skipped": 1})


async def test_a_live_call_interrupts_a_shadow_which_begins_again(edge, channel):
    shadow = with_shadow(edge, hold=True)
    await method(channel, "Translate")(text=TEXT)
    for number in range(1, TRIES + 1):
        await until(lambda: len(shadow.pool.requests) == number)  # noqa: B023
        await method(channel, "Generate")(text="a black cat")
        assert len(shadow.pool.cancelled) == number
    await until(lambda: outcomes(edge) == {"skipped": 1})
    assert len(shadow.pool.requests) == TRIES
    await until(lambda: shadow.users.count == edge.server.calls.memory.reserved_bytes == 0)


async def test_shadows_wait_for_idle_engines_and_are_few(edge, channel):
    shadow = with_shadow(edge)
    edge.pool.states.append(BUSY)
    for _ in range(MAX_SHADOWS + 1):
        await method(channel, "Translate")(text=TEXT)
    await until(lambda: outcomes(edge) == {"skipped": 1})
    assert shadow.pool.requests == []
    edge.pool.states.clear()
    await until(lambda: outcomes(edge) == {"skipped": 1, "same": MAX_SHADOWS})


@pytest.mark.parametrize(("queued", "outcome"), [(0, "same"), (1, "skipped")])
async def test_where_engines_are_never_idle_a_free_row_is_enough(edge, channel, monkeypatch, queued, outcome):
    monkeypatch.setattr("service.edge.calls.shadows.WAIT_S", 0.0)
    with_shadow(edge)
    edge.pool.states.append(msgspec.structs.replace(BUSY, queued=queued))
    await method(channel, "Translate")(text=TEXT)
    await until(lambda: outcomes(edge) == {outcome: 1})


async def test_a_change_of_the_traffic_ends_shadows(channel_to, tmp_path):
    async with channel_to(admin_socket=tmp_path / "admin") as (edge, channel):
        shadow = with_shadow(edge, hold=True)
        await method(channel, "Translate")(text=TEXT)
        await until(lambda: shadow.pool.requests)
        edge.server._catalog.set_default(shadow)
        await until(lambda: shadow.pool.cancelled and not shadow.users.count)


async def test_only_what_the_default_version_answered_with_an_engine_is_shadowed(edge, channel):
    shadow = with_shadow(edge)
    await method(channel, "Translate")(text=TEXT, model="en-de@new")
    await method(channel, "Generate")(text="a black cat")
    await method(channel, "Tokenize")(text=TEXT, model="en-de")
    await method(channel, "Translate")(text=TEXT, options={"temperature": 0.7})
    edge.server._catalog.set_traffic("en-de", Traffic())
    await method(channel, "Translate")(text=TEXT)
    assert len(shadow.pool.requests) == 1, "the client's own"
    assert outcomes(edge) == {}


def test_chance_is_told_from_a_seed():
    assert is_random(pb.TranslateRequest(options={"top_k": 4}))
    assert not is_random(pb.TranslateRequest(options={"top_k": 4, "seed": 1}))
    assert not is_random(pb.TranslateRequest(options={"beam_size": 4}))
    assert not is_random(pb.EmbedRequest(text="a"))


def test_an_answer_is_its_text_or_all_but_its_timings():
    assert told(pb.TranslateResponse(text="a", seed=1)) == "a"
    one, other = pb.EmbedResponse(values=[1.0]), pb.EmbedResponse(values=[1.0])
    other.timings.total.seconds = 3
    assert told(one) == told(other) != told(pb.EmbedResponse(values=[2.0]))
