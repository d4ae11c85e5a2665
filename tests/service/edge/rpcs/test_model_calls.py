"""Calls on their way to an engine: answers that were kept, and quotas of tokens."""

import asyncio
import dataclasses

import grpc
import pytest

from export.bundle.manifest import Tokens
from glossa.v1 import glossa_pb2 as pb
from service.edge.models.answer_cache import CACHE, AnswerCache
from service.edge.security.tenants import TENANT
from service.errors import Overloaded, Unsatisfiable
from tests.edge import failure, manifest, method

TEXT, AGE = "the small red house", "x-glossa-cache-age-s"
ACME, OTHER = (TENANT, "acme"), (TENANT, "other")


def series_of(edge, model):
    """The series of the version that is open."""
    return edge.server.metrics.model(model.name).versions[model.version].series


@pytest.fixture
def cache(edge):
    """A cache that both models have."""
    found = AnswerCache(1 << 22, edge.server.metrics.answer_cache)
    for model in edge.models.values():
        model.kept_answers = found.answers(series_of(edge, model))
    return found


async def translated(channel, *metadata, text=TEXT, **fields):
    """The response, without its times, and its age."""
    call = method(channel, "Translate")(text=text, metadata=metadata, **fields)
    response = await call
    response.ClearField("timings")
    return response, dict(await call.trailing_metadata()).get(AGE)


def value(edge, name, **labels):
    """The sum of the samples with these labels."""
    samples = [sample for family in edge.server.metrics.registry.collect() for sample in family.samples]
    found = [one for one in samples if one.name == f"glossa_{name}" and labels.items() <= one.labels.items()]
    assert found, name
    return sum(one.value for one in found)


async def test_an_equal_request_gets_the_same_answer_without_an_engine(edge, channel, cache):
    first, age = await translated(channel, include_tokens=True)
    assert (age, len(edge.pool.requests)) == (None, 1)
    second, age = await translated(channel, include_tokens=True)
    assert second.SerializeToString(deterministic=True) == first.SerializeToString(deterministic=True)
    assert (float(age) >= 0, len(edge.pool.requests)) == (True, 1)
    more, _ = await translated(channel, options=pb.DecodingOptions(max_tokens=5))
    assert (more.text, len(edge.pool.requests)) == (first.text, 2)
    assert value(edge, "answer_cache_hits_total", model="en-de") == 1
    assert value(edge, "answer_cache_misses_total", model="en-de") == 2
    assert value(edge, "request_seconds_count", model="en-de") == 3
    assert value(edge, "tenant_tokens_total", tenant="other", kind="generated") == 15
    assert value(edge, "wasted_tokens_total", model="en-de") == 0


async def test_a_stream_is_replayed_in_one_message(channel, cache):
    def calls():
        return method(channel, "StreamTranslate")(text=TEXT, include_tokens=True)

    computed, kept = [[message async for message in calls()] for _ in range(2)]
    assert len(kept) == 1
    assert kept[0].text == "".join(one.text for one in computed)
    assert list(kept[0].tokens) == [token for one in computed for token in one.tokens]
    for one in (kept[0].final, computed[-1].final):
        one.ClearField("timings")
    assert kept[0].final == computed[-1].final


async def test_items_of_a_batch_are_looked_up_one_by_one(edge, channel, cache):
    await translated(channel)
    items = [pb.TranslateBatchItem(id=str(n), request=pb.TranslateRequest(text=TEXT)) for n in range(3)]
    items.append(pb.TranslateBatchItem(id="new", request=pb.TranslateRequest(text="a black cat")))
    call = method(channel, "TranslateBatch")([pb.TranslateBatchRequest(items=items)])
    results = [result async for message in call for result in message.results]
    assert {result.response.text for result in results} == {"zwei rote Häuser"}
    assert (len(results), len(edge.pool.requests)) == (4, 2)


async def test_a_call_may_ask_for_a_new_answer_or_have_its_own_not_kept(edge, channel, cache):
    await translated(channel, (CACHE, "no-store"))
    assert (len(edge.pool.requests), cache.bytes) == (1, 0)
    await translated(channel, (CACHE, "no-cache"))
    assert len(edge.pool.requests) == 2
    for words in ("no-cache", "no-cache, no-store"):
        assert (await translated(channel, (CACHE, words)))[1] is None
    assert len(edge.pool.requests) == 4
    assert (await translated(channel, (CACHE, "no-store")))[1] is not None


async def test_an_unknown_word_is_refused_by_every_method(channel):
    for call in (
        method(channel, "Translate")(text=TEXT, metadata=((CACHE, "max-age=5"),)),
        method(channel, "ListModels")(metadata=((CACHE, "no-cache"), (CACHE, "never"))),
    ):
        error, details = await failure(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert details["BadRequest"].field_violations[0].field == CACHE


async def test_tenants_have_no_answers_in_common(edge, channel, cache):
    assert (await translated(channel, ACME))[1] is None
    assert (await translated(channel, OTHER))[1] is None
    assert (await translated(channel, ACME))[1] is not None
    assert len(edge.pool.requests) == 2


async def test_an_answer_that_was_kept_waits_for_no_queue(edge, channel, cache):
    await translated(channel)
    edge.pool.refuse = Overloaded("full", retry_after_s=1.0, limit=1)
    assert (await translated(channel))[1] is not None
    assert (await failure(method(channel, "Translate")(text="a black cat")))[0].code() is AGAIN


async def test_unknown_tokens_of_an_answer_that_was_kept_count_like_its_prompt(edge, channel, cache):
    model = edge.models["en-de"]
    red = model.tokenizer.encode("red")[0]
    model.manifest = dataclasses.replace(manifest(), tokens=Tokens(pad=0, bos=1, eos=2, unk=red))
    for count in (1, 2):
        await translated(channel)
        assert value(edge, "request_prompt_tokens_count", model="en-de") == count
        assert value(edge, "request_unknown_tokens_total", model="en-de") == count
    assert len(edge.pool.requests) == 1


async def test_errors_are_not_kept(edge, channel, cache):
    answer, edge.pool.answer = edge.pool.answer, (Unsatisfiable("no way on"),)
    await failure(method(channel, "Translate")(text=TEXT))
    edge.pool.answer = answer
    assert (await translated(channel))[0].text == "zwei rote Häuser"


async def test_sentences_that_are_sampled_without_a_seed_are_not_kept(edge, channel, cache):
    for seed in (None, 3):
        options = pb.DecodingOptions(temperature=0.7, seed=seed)
        two = f"{TEXT}\n\n{TEXT}"
        await translated(channel, text=two, options=options, split_sentences=True)
        assert bool(cache.bytes) == (seed is not None)


async def test_a_model_that_is_closed_leaves_no_answer(edge, channel, cache):
    await translated(channel)
    assert cache.bytes
    await edge.models["en-de"].aclose()
    assert cache.bytes == 0


AGAIN = grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_tenant_gets_no_more_tokens_than_its_quota(channel_to):
    """A request may use 22 tokens, 6 of them in its source and prompt; the answer has 4 and 5."""
    async with channel_to(tenant_tokens_per_minute="acme=40") as (edge, channel):
        edge.pool.hold = True
        first = asyncio.ensure_future(translated(channel, ACME))
        await edge.pool.until(lambda: edge.pool.sinks)
        call = method(channel, "Translate")(text=TEXT, metadata=(ACME,))
        error, details = await failure(call)
        assert error.code() is AGAIN
        assert details["ErrorInfo"].reason == "TENANT_TOKENS"
        delay_s = details["RetryInfo"].retry_delay.ToTimedelta().total_seconds()
        assert 3 < delay_s <= 6, "until 4 tokens have come, of 40 a minute"
        assert details["QuotaFailure"].violations[0].description == "40 tokens a minute"
        edge.pool.hold = False
        await translated(channel, OTHER)
        edge.pool.send(edge.pool.sinks[0], edge.pool.answer)
        await first
        await translated(channel, ACME)
        assert value(edge, "requests_rejected_total", model="en-de", reason="tenant_tokens") == 1
        assert value(edge, "tenant_requests_total", tenant="acme", code="ResourceExhausted") == 1
        assert value(edge, "tenant_requests_total", tenant="acme", code="OK") == 2


async def test_a_request_larger_than_its_quota_is_refused_at_once(channel_to):
    async with channel_to(tenant_tokens_per_minute="acme=20") as (_, channel):
        error, details = await failure(method(channel, "Translate")(text=TEXT, metadata=(ACME,)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert details["BadRequest"].field_violations[0].field == "options.max_tokens"
        await translated(channel, ACME, options=pb.DecodingOptions(max_tokens=9))


async def test_an_item_waits_for_tokens_as_it_does_for_room(channel_to):
    async with channel_to(tenant_tokens_per_minute="acme=40") as (edge, channel):
        edge.pool.hold = True
        items = [pb.TranslateBatchItem(id=str(n), request=pb.TranslateRequest(text=TEXT)) for n in range(2)]
        call = method(channel, "TranslateBatch")([pb.TranslateBatchRequest(items=items)], metadata=(ACME,))
        await edge.pool.until(lambda: edge.pool.sinks)
        edge.pool.hold = False
        edge.pool.send(edge.pool.sinks[0], edge.pool.answer)
        results = [result async for message in call for result in message.results]
        assert [result.response.text for result in results] == ["zwei rote Häuser"] * 2


async def test_an_answer_that_was_kept_costs_no_tokens(channel_to):
    async with channel_to(tenant_tokens_per_minute="acme=22") as (edge, channel):
        edge.models["en-de"].kept_answers = AnswerCache(1 << 22, edge.server.metrics.answer_cache).answers(
            series_of(edge, edge.models["en-de"])
        )
        await translated(channel, ACME)
        for _ in range(3):
            assert (await translated(channel, ACME))[1] is not None
        assert (await failure(method(channel, "Translate")(text="a black cat", metadata=(ACME,))))[0].code() is AGAIN
