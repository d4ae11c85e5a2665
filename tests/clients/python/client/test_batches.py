"""Many requests in one call, as both clients make it: order, errors as values, a bounded window, early ends."""

import asyncio
import contextlib
import threading
import time

import grpc
import pytest
from google.rpc import status_pb2

from glossa.client import AsyncClient, Client, ClientError, feed
from glossa.client.batches import _Attempts
from glossa.client.feed import TOGETHER, WINDOW
from glossa.client.types import Answer
from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.admission import NOBODY
from service.errors import EngineUnavailable, Overloaded
from tests.clients.python.client.conftest import TEXT
from tests.e2e.process import PATIENCE_S
from tests.edge import ANSWER, running

ANSWERED = "zwei rote Häuser"


def endless(taken, text=TEXT):
    while True:
        taken.append(1)
        yield text


async def test_answers_come_in_the_order_of_the_texts(edge, client):
    texts = [" ".join(["cat"] * (1 + number % 5)) for number in range(3 * TOGETHER)]
    answers = [answer async for answer in client.translate_batch(texts, max_tokens=7, include_tokens=True)]
    assert [answer.text for answer in answers] == [ANSWERED] * len(texts)
    assert answers[0].tokens == (5, 6, 7, 8, 2)
    assert sorted(len(request.source) for request in edge.pool.requests) == sorted(2 + n % 5 for n in range(len(texts)))
    assert {request.max_tokens for request in edge.pool.requests} == {7}


async def test_a_slow_item_holds_up_the_results_after_it_and_not_their_work(edge, client):
    edge.pool.hold, count = True, 10 * edge.pool.window

    async def answer_all_but_the_first():
        for done in range(1, count):
            await edge.pool.until(lambda done=done: len(edge.pool.sinks) > done)
            edge.pool.send(edge.pool.sinks[done], ANSWER)
        assert not reading.done()
        edge.pool.send(edge.pool.sinks[0], ANSWER)

    found: list[Answer] = []
    reading = asyncio.create_task(collect(client.translate_batch([TEXT] * count), found))
    await asyncio.wait_for(answer_all_but_the_first(), 30)
    await reading
    assert len(found) == count


async def test_errors_of_items_are_values(client):
    outcomes = [outcome async for outcome in client.translate_batch([TEXT, "", TEXT]).outcomes()]
    assert [isinstance(outcome, ClientError) for outcome in outcomes] == [False, True, False]
    assert (outcomes[1].code, outcomes[1].reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert outcomes[1].field_violations == {"text": "must not be empty or blank"}


async def test_an_items_error_has_its_retry_delay(edge, client):
    edge.pool.answer = (EngineUnavailable("gone", retry_after_s=0.5),)
    (outcome,) = [outcome async for outcome in client.translate_batch([TEXT]).outcomes()]
    assert (outcome.code, outcome.reason, outcome.retry_after_s) == ("UNAVAILABLE", "ENGINE_UNAVAILABLE", 0.5)


async def test_without_outcomes_the_first_error_is_raised(edge, client):
    found: list[Answer] = []
    with pytest.raises(ClientError, match="must not be empty"):
        await collect(client.translate_batch([TEXT, "", TEXT]), found)
    assert [answer.text for answer in found] == [ANSWERED]
    await edge.server.calls.idle()


async def collect(batch, found):
    async for one in batch:
        found.append(one)


async def test_items_may_be_requests_and_come_from_an_asynchronous_iterable(edge, client):
    async def texts():
        yield pb.TranslateRequest(text=TEXT, options=pb.DecodingOptions(max_tokens=3))
        yield TEXT

    answers = [answer async for answer in client.translate_batch(texts(), max_tokens=9)]
    assert len(answers) == 2
    assert [request.max_tokens for request in edge.pool.requests] == [3, 9]


async def test_pairs_are_scored(client):
    unary = await client.score(TEXT, "zwei rote Häuser", model="en-de")
    scores = [score async for score in client.score_batch([(TEXT, "zwei rote Häuser")] * 2, model="en-de")]
    assert scores == [unary] * 2


@pytest.mark.parametrize("concurrency", [0, 2])
async def test_pairs_are_scored_without_their_end_token(edge, client, concurrency):
    items = [(TEXT, "zwei rote"), pb.ScoreRequest(text=TEXT, target="zwei")]
    async for _ in client.score_batch(items, omit_eos=True, concurrency=concurrency, model="en-de"):
        pass
    assert [request.prefix[-1] == 2 for request in edge.pool.requests] == [False, False]
    async for _ in client.score_batch(items[:1], concurrency=concurrency, model="en-de"):
        pass
    assert edge.pool.requests[-1].prefix[-1] == 2


async def test_an_error_of_the_call_is_raised(client):
    with pytest.raises(ClientError, match="model 'xx' is not served here"):
        await collect(client.translate_batch([TEXT], model="xx"), [])
    for batch in (client.embed_batch([TEXT], model="en"), client.classify_batch([TEXT], model="en-de")):
        with pytest.raises(ClientError) as caught:
            await collect(batch, [])
        assert caught.value.code == "FAILED_PRECONDITION"


async def test_an_error_of_the_iterable_is_raised_after_the_answers(client):
    def texts():
        yield TEXT
        raise ZeroDivisionError

    found: list[Answer] = []
    with pytest.raises(ZeroDivisionError):
        await collect(client.translate_batch(texts()), found)
    assert len(found) == 1


async def test_what_is_no_item_is_refused(client):
    found: list[Answer] = []
    problem = r"item 1 \(from 0\): text must be a text, got 3.5 \(float\)"
    with pytest.raises(TypeError, match=problem):
        await collect(client.translate_batch([TEXT, 3.5]), found)
    assert len(found) == 1
    with pytest.raises(TypeError, match=problem):
        await collect(client.translate_batch([TEXT, 3.5], concurrency=1), found)
    for pair in ("ab", ("a",), 5):
        with pytest.raises(TypeError, match=r"item 1 \(from 0\): must be a pair of text and target, got"):
            await collect(client.score_batch([(TEXT, TEXT), pair], model="en-de"), found)


@pytest.mark.parametrize("concurrency", [0, 2])
async def test_an_error_has_the_place_of_its_item(edge, client, concurrency):
    texts = [TEXT, "", TEXT, " "]
    outcomes = [outcome async for outcome in client.translate_batch(texts, concurrency=concurrency).outcomes()]
    assert [outcome.item for outcome in outcomes if isinstance(outcome, ClientError)] == [1, 3]
    with pytest.raises(ClientError, match=r"^item 1 \(from 0\): INVALID_ARGUMENT: text") as caught:
        await collect(client.translate_batch(texts, concurrency=concurrency), [])
    assert caught.value.message.startswith("text")
    with Client(edge.address) as blocking:
        found = await asyncio.to_thread(
            lambda: list(blocking.translate_batch(texts, concurrency=concurrency).outcomes())
        )
    assert [outcome.item for outcome in found if isinstance(outcome, ClientError)] == [1, 3]


async def test_a_single_text_is_no_batch(edge, client):
    """Its characters would be items."""
    with pytest.raises(TypeError, match=r"texts must be a list of items, got the text .*; put it in"):
        client.translate_batch(TEXT)
    with (
        Client(edge.address) as blocking,
        pytest.raises(TypeError, match=r"texts must .*got b'a' .*; put it in"),
    ):
        blocking.embed_batch(b"a", concurrency=2)  # type: ignore[arg-type]


async def test_an_item_is_sent_though_the_next_one_has_not_come(client):
    results: asyncio.Queue[None] = asyncio.Queue()

    async def texts():
        yield TEXT
        await results.get()
        yield TEXT

    async for _ in client.translate_batch(texts()):
        results.put_nowait(None)


async def test_no_more_items_are_taken_than_the_window_has_room_for(edge, client):
    edge.pool.hold, taken = True, list[int]()
    async with contextlib.aclosing(client.translate_batch(endless(taken))) as batch:
        reading = asyncio.create_task(anext(batch))
        await edge.pool.until(lambda: len(edge.pool.sinks) == edge.pool.window)
        async with asyncio.timeout(10):
            while len(taken) <= WINDOW:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(taken) == WINDOW + 1
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await edge.pool.until(lambda: len(edge.pool.cancelled) == edge.pool.window)


async def test_long_texts_are_spread_over_messages_that_the_server_accepts(edge, client):
    text = "cat " * 1000  # too long for the model, but not for a message
    outcomes = [outcome async for outcome in client.translate_batch([text] * TOGETHER).outcomes()]
    assert {outcome.reason for outcome in outcomes if isinstance(outcome, ClientError)} == {"INVALID_FIELD"}
    assert len(outcomes) == TOGETHER


async def test_concurrency_makes_a_call_of_each_item(edge, client):
    outcomes = [outcome async for outcome in client.translate_batch([TEXT, "", TEXT], concurrency=2).outcomes()]
    assert [isinstance(outcome, ClientError) for outcome in outcomes] == [False, True, False]
    assert not any("/" in request.request_id for request in edge.pool.requests)


async def test_the_blocking_client_does_the_same(edge):
    def use():
        with Client(edge.address, timeout_s=5) as client:
            answers = list(client.translate_batch([TEXT] * 500))
            outcomes = list(client.translate_batch([TEXT, ""]).outcomes())
            separate = list(client.translate_batch([TEXT] * 5, concurrency=2))
            scores = list(client.score_batch([(TEXT, "zwei rote Häuser")], model="en-de"))
            with pytest.raises(ClientError, match="must not be empty"):
                list(client.translate_batch(["", TEXT]))
            with pytest.raises(ZeroDivisionError):
                list(client.translate_batch(str(1 // zero) for zero in [0]))
            with pytest.raises(ClientError, match="is not served here"):
                list(client.translate_batch([TEXT], model="xx"))
            return answers, outcomes, separate, scores

    answers, outcomes, separate, scores = await asyncio.to_thread(use)
    assert [answer.text for answer in answers] == [ANSWERED] * 500
    assert [isinstance(outcome, ClientError) for outcome in outcomes] == [False, True]
    assert [answer.text for answer in separate] == [ANSWERED] * 5
    assert len(scores) == 1


async def test_a_blocking_batch_left_early_is_cancelled(edge):
    def use():
        taken: list[int] = []
        with Client(edge.address) as client:
            batch = client.translate_batch(endless(taken))
            next(batch)
            edge.pool.hold = True
            batch.close()
        return len(taken)

    assert await asyncio.to_thread(use) <= WINDOW + 3 * TOGETHER
    await edge.server.calls.idle()
    async with asyncio.timeout(10):
        while any(thread.name == "glossa-batch" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)


def blocking(address, texts):
    with Client(address) as client:
        return list(client.translate_batch(texts))


async def asynchronous(address, texts):
    async with AsyncClient(address) as client:
        return [answer async for answer in client.translate_batch(texts)]


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
@pytest.mark.parametrize("answered", [0, 2])  # without an answer, gRPC itself begins the call again
async def test_a_batch_goes_on_after_the_end_of_its_connection(kind, answered):
    async with running(max_connection_age_s=1.0, max_connection_age_grace_s=0.5) as edge:
        edge.pool.hold, count = True, 5
        run = asyncio.to_thread(blocking, edge.address, [TEXT] * count) if kind == "blocking" else None
        reading = asyncio.create_task(run or asynchronous(edge.address, [TEXT] * count))
        await edge.pool.until(lambda: len(edge.pool.sinks) == count)
        for sink in edge.pool.sinks[:answered]:
            edge.pool.send(sink, ANSWER)
        await edge.pool.until(lambda: len(edge.pool.cancelled) == count - answered)
        edge.pool.hold = False
        assert [answer.text for answer in await reading] == [ANSWERED] * count
        assert len(edge.pool.requests) == count + count - answered


def error_of(code, reason=""):
    error = ClientError.of_status(status_pb2.Status(code=code.value[0], message="lost"))
    error.reason = reason
    return error


def test_only_a_call_that_brought_results_and_is_ended_by_the_server_is_followed_by_another_one():
    unavailable, attempts = grpc.StatusCode.UNAVAILABLE, _Attempts({"timeout_s": 1e9})
    assert 0 < attempts.options()["timeout_s"] < 1e9
    with pytest.raises(ClientError, match="UNAVAILABLE: lost"):
        attempts.fail(error_of(unavailable))
    assert len(list(attempts.results(pb.TranslateBatchResponse(results=[{"id": "0"}])))) == 1
    attempts.fail(error_of(unavailable))
    attempts.fail(error_of(unavailable, "ENGINE_UNAVAILABLE"))
    attempts.fail(error_of(grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGES_MISSING"))
    for error in (error_of(unavailable, "SHUTTING_DOWN"), error_of(grpc.StatusCode.INTERNAL)):
        with pytest.raises(ClientError):
            attempts.fail(error)
    assert attempts.options().keys() == {"timeout_s"}
    with pytest.raises(ClientError):
        attempts.fail(error_of(unavailable))


@pytest.mark.parametrize("name", ["translate_batch", "translate_document"])
async def test_a_call_that_is_refused_while_its_requests_are_sent_has_the_status_of_the_server(edge, name):
    refused = NOBODY, Overloaded("full", retry_after_s=0.25, limit=1)
    edge.server.calls.admission.admit = lambda *_: refused
    async with AsyncClient(edge.address, retries=False) as client:
        for _ in range(20):
            if name == "translate_batch":
                called = collect(client.translate_batch(["a cat " * 50] * 2000), [])
            else:
                called = client.translate_document("a cat. " * 100_000)
            with pytest.raises(ClientError) as caught:
                await called
            error = caught.value
            assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
            assert error.retry_after_s is not None


async def test_other_tasks_have_their_turn_while_items_are_taken(client):
    turns = 0

    def texts():
        due_s = time.monotonic() + PATIENCE_S
        for number in range(WINDOW):
            while number >= 10 * (turns + 1):  # ten items are taken, and then another task must have had a turn
                assert time.monotonic() < due_s, number
                yield TEXT
            yield TEXT

    async def count():
        nonlocal turns
        while True:
            turns += 10
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    taking = feed.each(texts())
    taken = [item async for item in taking]
    counting.cancel()
    assert len(taken) >= WINDOW


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_call_that_cannot_start_takes_no_items(edge, kind):
    client, taken = kind(edge.address), list[int]()
    for channel in client._channels:
        await channel.close() if kind is AsyncClient else channel.close()
    batch = client.translate_batch(endless(taken))
    with pytest.raises((ValueError, grpc.aio.UsageError)):
        next(batch) if kind is Client else await anext(batch)
    async with asyncio.timeout(10):
        while any(thread.name == "glossa-batch" for thread in threading.enumerate()):
            await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "AsyncFeed" in repr(task)]


async def test_a_call_that_is_refused_is_retried(edge):
    admitted, refused = edge.server.calls.admission.admit, list[int]()

    def refuse_once(*arguments):
        if refused:
            return admitted(*arguments)
        refused.append(1)
        return NOBODY, Overloaded("full", retry_after_s=0.01, limit=1)

    edge.server.calls.admission.admit = refuse_once

    def use():
        with Client(edge.address) as client:
            return list(client.translate_batch([TEXT] * 3, timeout_s=10.0))

    assert len(await asyncio.to_thread(use)) == 3
    async with AsyncClient(edge.address) as client:
        refused.clear()
        assert len([answer async for answer in client.translate_batch([TEXT] * 3, timeout_s=10.0)]) == 3
    assert edge.pool.answer == ANSWER
