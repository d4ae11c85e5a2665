"""Calls with many items on a real port: what their messages mean, and how such a call ends."""

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2

from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.request_memory import answer_bytes, message_bytes
from service.edge.calls.batches import MAX_ID, MAX_ITEMS, defaults_bytes
from service.edge.calls.items import ITEM_BYTES
from service.edge.requests.request_limits import answer_size
from service.errors import EngineUnavailable, Overloaded
from tests.edge import ANSWER, FakePool, failure, method, running, served

TEXTS = ("the small red house", "a black cat", "the house")


def items(*texts, **fields):
    return [pb.TranslateBatchItem(request=pb.TranslateRequest(text=text, **fields)) for text in texts]


def batch(*texts, **fields):
    return pb.TranslateBatchRequest(items=items(*texts), **fields)


async def results(call):
    return [result async for message in call for result in message.results]


async def run(channel, *messages, name="TranslateBatch", **options):
    return await results(method(channel, name)(iter(messages), **options))


async def memory_given_back(edge):
    """Returns when no call has memory: with the end of its task, which comes after its status is written."""
    async with asyncio.timeout(10):
        while edge.server.calls.memory.reserved_bytes:
            await asyncio.sleep(0)


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


@pytest.fixture
async def channel(edge):
    async with grpc.aio.insecure_channel(edge.address) as channel:
        yield channel


async def test_each_item_has_the_answer_of_the_unary_call(channel):
    unary = await method(channel, "Translate")(text=TEXTS[0])
    found = await run(channel, batch(*TEXTS))
    assert sorted(result.id for result in found) == ["0", "1", "2"]
    assert [result.response for result in found] == [unary] * 3


async def test_numbers_go_on_from_message_to_message(channel):
    found = await run(channel, batch(*TEXTS, in_order=True), batch(), batch(*TEXTS))
    assert [result.id for result in found] == ["0", "1", "2", "3", "4", "5"]


async def test_an_items_request_is_merged_into_the_defaults(channel, edge):
    defaults = pb.TranslateRequest(
        model="en-de", include_tokens=True, options=pb.DecodingOptions(max_tokens=7, stop=["a"])
    )
    first = batch(TEXTS[0], defaults=defaults, in_order=True)
    first.items.extend(items(TEXTS[1], options=pb.DecodingOptions(max_tokens=3, stop=["b"])))
    found = await run(channel, first)
    assert [len(result.response.tokens) for result in found] == [5, 5]
    assert [(request.max_tokens, request.stop) for request in edge.pool.requests] == [(7, ("a",)), (3, ("a", "b"))]


async def test_a_bad_item_has_the_error_of_the_unary_call_and_harms_no_other(channel):
    found = await run(channel, batch(TEXTS[0], "", "zebra", TEXTS[1], in_order=True))
    assert [result.WhichOneof("result") for result in found] == ["response", "error", "error", "response"]
    error, details = await failure(method(channel, "Translate")(text=""))
    assert (found[1].error.code, found[1].error.message) == (error.code().value[0], error.details())
    bad = error_details_pb2.BadRequest()
    assert [detail.Unpack(bad) for detail in found[1].error.details] == [False, True]
    assert bad == details["BadRequest"]
    assert "do not know these words" in found[2].error.message or "does not know" in found[2].error.message


async def test_an_item_for_another_model_is_refused(channel):
    first = batch(TEXTS[0], defaults=pb.TranslateRequest(model="en-de"), in_order=True)
    first.items.extend(items(TEXTS[0], model="en"))
    good, bad = await run(channel, first)
    assert good.HasField("response")
    assert bad.error.message.startswith("model: must be that of the call's defaults, 'en-de', or empty, got 'en'")


async def test_an_engines_fault_ends_its_items_only(channel, edge):
    edge.pool.answer = (EngineUnavailable("the engine's process ended", retry_after_s=0.5),)
    first = asyncio.Event()

    async def messages():
        yield batch(TEXTS[0])
        await first.wait()
        edge.pool.answer = ANSWER
        yield batch(TEXTS[1])

    found = []
    async for message in method(channel, "TranslateBatch")(messages()):
        found += message.results
        first.set()
    assert found[0].error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert found[1].HasField("response")


async def test_an_item_waits_while_the_queue_is_full(channel, edge):
    edge.pool.refuse = Overloaded("the queue is full", retry_after_s=0.05, limit=1)
    running_call = asyncio.create_task(run(channel, batch(*TEXTS)))
    error, _ = await failure(method(channel, "Translate")(text=TEXTS[0]))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not running_call.done()
    edge.pool.refuse = None
    assert all(result.HasField("response") for result in await running_call)


@pytest.mark.parametrize(
    ("messages", "code", "text"),
    [
        ([batch(defaults=pb.TranslateRequest(model="xx"))], "NOT_FOUND", "model 'xx' is not served here"),
        ([batch(defaults=pb.TranslateRequest(model="en"))], "FAILED_PRECONDITION", "en"),
        ([batch(), batch(defaults=pb.TranslateRequest())], "INVALID_ARGUMENT", "defaults: must be set in the first"),
        ([batch(), batch(in_order=True)], "INVALID_ARGUMENT", "in_order: must be set in the first message"),
        (
            [batch(*[TEXTS[0]] * (MAX_ITEMS + 1))],
            "INVALID_ARGUMENT",
            f"items: must be at most {MAX_ITEMS} in a message, got {MAX_ITEMS + 1}",
        ),
        (
            [pb.TranslateBatchRequest(items=[pb.TranslateBatchItem(id="x" * (MAX_ID + 1))])],
            "INVALID_ARGUMENT",
            f"items[0].id: must be at most {MAX_ID} characters, got {MAX_ID + 1}",
        ),
        ([b"\xff"], "INVALID_ARGUMENT", "request: is not a message of this method"),
        ([batch(), b"\xff"], "INVALID_ARGUMENT", "request: is not a message of this method"),
    ],
)
async def test_a_bad_call_ends_with_its_error(channel, edge, messages, code, text):
    call = method(channel, "TranslateBatch")(iter(messages))
    error, _ = await failure(call)
    assert error.code().name == code
    assert text in error.details()
    await memory_given_back(edge)


async def test_an_id_in_flight_ends_the_call(channel, edge):
    edge.pool.hold = True
    message = pb.TranslateBatchRequest(
        items=[pb.TranslateBatchItem(id="a", request=pb.TranslateRequest(text=TEXTS[0]))] * 2
    )
    call = method(channel, "TranslateBatch")(iter([message]))
    await edge.pool.until(lambda: edge.pool.sinks)
    edge.pool.send(edge.pool.sinks[0], ANSWER)
    assert [result.id for result in (await anext(aiter(call))).results] == ["a"]
    error, _ = await failure(call)
    assert "items.id: must be that of no item without a result yet, got 'a'" in error.details()


async def test_the_trailers_name_the_bundle(channel):
    call = method(channel, "TranslateBatch")(iter([batch(TEXTS[0])]), metadata=(("x-request-id", "mine"),))
    await results(call)
    trailers = dict(await call.trailing_metadata())
    assert (trailers["x-request-id"], trailers["x-glossa-bundle-sha256"]) == ("mine", "cd" * 32)


async def test_all_items_are_answered_by_one_version(channel, edge):
    newer = FakePool()
    read = asyncio.Event()

    async def messages():
        yield batch(TEXTS[0], defaults=pb.TranslateRequest(model="en-de"))
        await read.wait()
        edge.server._catalog.add(served("en-de", newer, version="2"))
        yield batch(TEXTS[1])
        yield pb.TranslateBatchRequest(items=items(TEXTS[1], model="en-de@2"))

    found = []
    call = method(channel, "TranslateBatch")(messages())
    async for message in call:
        found += message.results
        read.set()
    assert [result.WhichOneof("result") for result in found] == ["response", "response", "error"]
    assert (len(edge.pool.requests), newer.requests) == (2, [])
    await method(channel, "Translate")(text=TEXTS[0], model="en-de")
    assert len(newer.requests) == 1


async def test_a_call_is_one_line_of_the_log(channel, edge, caplog):
    caplog.set_level("INFO", logger="glossa")
    await run(channel, batch(TEXTS[0], ""))
    await edge.server.calls.idle()
    (line,) = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "request"]
    assert {name: line[name] for name in ("code", "items", "answered", "failures", "generated_tokens")} == {
        "code": "OK",
        "items": 2,
        "answered": 1,
        "failures": {"INVALID_FIELD": 1},
        "generated_tokens": 5,
    }


async def test_texts_are_logged_for_each_item_if_the_operator_asks(caplog):
    caplog.set_level("INFO", logger="glossa")
    async with running(log_text=True) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        await run(channel, batch(TEXTS[0]))
        await edge.server.calls.idle()
    first, second = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "request"]
    assert (first["text"], first["answer"]) == (TEXTS[0], "zwei rote Häuser")
    assert (second["items"], "text" in second) == (1, False)


async def test_a_client_that_leaves_cancels_its_items(channel, edge):
    edge.pool.hold = True
    call = method(channel, "TranslateBatch")(iter([batch(*TEXTS)]), metadata=(("x-request-id", "mine"),))
    await edge.pool.until(lambda: len(edge.pool.requests) == 3)
    call.cancel()
    await edge.pool.until(lambda: len(edge.pool.cancelled) == 3)
    assert sorted(edge.pool.cancelled) == ["mine/0", "mine/1", "mine/2"]
    await memory_given_back(edge)


def limit_memory(edge, *, answers, item_bytes, count):
    """Leaves room for so many answers beside `count` items, which have `item_bytes` together."""
    size = answer_bytes(*answer_size(edge.models["en-de"].manifest, edge.pool.requests[0]))
    edge.server.calls.memory.limit_bytes = item_bytes + count * ITEM_BYTES + answers * size


async def test_a_second_search_takes_the_memory_of_the_first(channel, edge):
    glossary = pb.Glossary(terms=[pb.GlossaryTerm(source="house", targets=["black"])])
    defaults = pb.TranslateRequest(options=pb.DecodingOptions(beam_size=2), glossary=glossary)
    first = batch(*["the house"] * 3, defaults=defaults)
    await run(channel, first)
    assert len(edge.pool.requests) == 6
    await memory_given_back(edge)
    fixed = message_bytes(first.ByteSize()) + 3 * defaults_bytes(defaults)
    limit_memory(edge, answers=3, item_bytes=fixed, count=3)
    found = await run(channel, first, timeout=60)
    assert [result.error.message for result in found] == [""] * 3
    assert len(edge.pool.requests) == 12
    await memory_given_back(edge)


async def test_items_do_not_wait_for_the_memory_of_each_other(channel, edge):
    text = TEXTS[0] + " " * 2000  # prepared in a thread, while other items begin
    await run(channel, batch(text))
    await memory_given_back(edge)
    first = batch(*[text] * 8)
    limit_memory(edge, answers=0, item_bytes=message_bytes(first.ByteSize()), count=8)
    found = await run(channel, first, timeout=60)
    assert [result.error.message for result in found] == [""] * 8
    await memory_given_back(edge)


async def test_a_server_that_drains_finishes_what_has_begun(channel, edge):
    edge.pool.hold, edge.pool.window = True, 2
    call = method(channel, "TranslateBatch")(iter([batch(*TEXTS)]), timeout=30)
    await edge.pool.until(lambda: len(edge.pool.sinks) == 2)
    stopping = asyncio.create_task(edge.server.stop())
    while edge.server.state != "draining":
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    for sink in edge.pool.sinks:
        edge.pool.send(sink, ANSWER)
    found = list((await anext(aiter(call))).results)
    error, _ = await failure(call)
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert sorted(result.id for result in found) == ["0", "1"]
    assert len(edge.pool.sinks) == 2, "no item begins once the server drains"
    await stopping


async def test_targets_are_scored(channel):
    request = pb.ScoreRequest(text=TEXTS[0], target="zwei rote Häuser")
    first = pb.ScoreBatchRequest(
        defaults=pb.ScoreRequest(model="en-de"), items=[pb.ScoreBatchItem(request=request)] * 2
    )
    unary = await method(channel, "Score")(model="en-de", text=TEXTS[0], target="zwei rote Häuser")
    found = await run(channel, first, name="ScoreBatch")
    assert [result.response for result in found] == [unary] * 2


@pytest.mark.parametrize("name", ["EmbedBatch", "ClassifyBatch"])
async def test_models_must_fit_the_call(channel, name):
    first = getattr(pb, f"{name}Request")()
    first.defaults.model = "en"
    error, _ = await failure(method(channel, name)(iter([first])))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
