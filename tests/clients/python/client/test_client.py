import asyncio
import contextlib
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from glossa.client import AsyncClient, Client, ClientError
from glossa.client.batches import Blocking
from glossa.client.types import Token, TokenCount, TokenLimits
from glossa.v1 import glossa_pb2 as pb
from service.errors import Overloaded
from service.request import Finished, FinishReason, TextDelta
from tests.clients.python.client.conftest import TEXT
from tests.edge import RESULT, TIMINGS, answered


async def test_whole_answers(edge, client):
    answer = await client.translate(TEXT, include_tokens=True, max_tokens=7, stop=["."])
    assert (answer.text, answer.finish_reason, answer.tokens) == (
        "zwei rote Häuser",
        "end_of_sequence",
        (5, 6, 7, 8, 2),
    )
    assert (answer.prompt_tokens, answer.generated_tokens) == (4, 5)
    assert (answer.queue_s, answer.total_s) == pytest.approx((0.001, 0.010))
    assert (edge.pool.requests[0].max_tokens, edge.pool.requests[0].stop) == (7, (".",))
    assert (await client.generate("a cat", model="en")).text == answer.text


async def test_options_reach_the_server_by_their_names(edge, client):
    await client.translate(TEXT, beam_size=4, num_hypotheses=2, early_stopping="never", prefix_tokens=[5, 6])
    await client.generate("a cat", model="en", seed=7, temperature=0.5, logit_bias={5: -1.5}, echo=True)
    (beam,), (sampled,) = edge.pool.requests, edge.pools["en"].requests
    assert (beam.options.beam_size, beam.options.num_hypotheses, beam.options.early_stopping) == (4, 2, "never")
    assert beam.prefix == (5, 6)
    assert (sampled.options.temperature, sampled.options.logit_bias, sampled.seed) == (0.5, {5: -1.5}, 7)


async def test_streams_end_with_the_whole_answer(client):
    for stream in (client.stream_translate(TEXT), client.stream_generate("a cat")):
        pieces = [piece async for piece in stream]
        assert "".join(piece.text for piece in pieces) == pieces[-1].answer.text == "zwei rote Häuser"
        assert [piece.answer for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_both_clients_have_the_same_calls_with_signature_and_docstring():
    kinds = [kind for kind in Client.__mro__[1:-1] if kind is not Blocking]
    calls = {name for kind in kinds for name in vars(kind) if not name.startswith("_")} - {"with_token"}
    rpcs = {method.name for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods}
    assert {name.title().replace("_", "") for name in calls} == rpcs | {"StreamTranslateDocument", "CountChatTokens"}
    for name in calls:
        blocking, asynchronous = getattr(Client, name), getattr(AsyncClient, name)
        assert blocking.__doc__, name
        assert inspect.signature(blocking).parameters == inspect.signature(asynchronous).parameters, name
    parameters = inspect.signature(Client.score).parameters
    assert list(parameters) == ["self", "text", "target", "target_tokens", "text_tokens", "omit_eos", "options"]


async def test_tokens_are_counted_listed_and_continued(edge, client):
    short, long = await client.count_tokens(["a cat", "cat " * 9], model="en-de")
    assert short == TokenCount(3, exceeds_limit=False, unknown_words=())
    assert long == TokenCount(10, exceeds_limit=True, unknown_words=())
    found = await client.tokenize("a cat", model="en", add_special_tokens=True)
    ids = tuple(token.token for token in found.tokens)
    assert found.tokens[0] == Token(1, "<bos>", (0, 0), is_special=True)
    assert (found.count, found.limits) == (len(ids), TokenLimits(16, 16384, 16 - len(ids) + 1))
    assert len((await client.tokenize(target="zwei rote", model="en-de")).tokens) == 2
    await client.generate(prompt_tokens=ids)
    [piece async for piece in client.stream_generate(prompt_tokens=ids)]
    edge.pools["en"].answer = answered(RESULT)
    await client.score("", "a cat", text_tokens=ids, model="en")
    assert [request.prompt for request in edge.pools["en"].requests] == [ids] * 3


async def test_models(client):
    assert [model.name for model in await client.list_models()] == ["en", "en-de"]
    assert (await client.get_model("en")).name == "en"


async def test_a_full_queue_is_retried_after_the_delay_that_the_server_names(edge, client):
    refusals = [Overloaded("full", retry_after_s=0.01, limit=1)] * 2
    submit = edge.pool.submit

    def full_at_first(request, loop, sink):
        if refusals:
            raise refusals.pop()
        return submit(request, loop, sink)

    edge.pool.submit = full_at_first
    assert (await client.translate(TEXT)).text == "zwei rote Häuser"
    assert refusals == []


async def test_retries_end(edge, client):
    tries = []

    def full(request, loop, sink):
        tries.append(request)
        raise Overloaded("full", retry_after_s=0.01, limit=1)

    edge.pool.submit = full
    with pytest.raises(ClientError) as caught:
        await client.translate(TEXT)
    assert (caught.value.code, caught.value.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
    assert caught.value.retry_after_s == pytest.approx(0.1, abs=0.05), "the next that is invited"
    assert len(tries) == 4


async def test_a_partly_answered_stream_is_not_retried(edge, client):
    edge.pool.answer = (TextDelta("zwei", (5,)), Overloaded("late", retry_after_s=0.01, limit=1))
    with pytest.raises(ClientError):
        _ = [piece async for piece in client.stream_translate(TEXT)]
    assert len(edge.pool.requests) == 1


async def test_calls_have_a_deadline_by_default(edge):
    edge.pool.hold = True
    async with AsyncClient(edge.address, timeout_s=0.05) as client:
        with pytest.raises(ClientError) as caught:
            await client.translate(TEXT)
    assert caught.value.code == "DEADLINE_EXCEEDED"


async def test_stream_left_early_is_cancelled(edge, client):
    edge.pool.hold = True
    async with contextlib.aclosing(client.stream_translate(TEXT)) as stream:
        first = asyncio.ensure_future(anext(stream))
        await edge.pool.until(lambda: edge.pool.sinks)
        edge.pool.sinks[0](TextDelta("zwei", (5,)))
        assert (await first).text == "zwei"
    await edge.pool.until(lambda: edge.pool.cancelled)


async def test_cancelled_task_cancels_its_call(edge, client):
    edge.pool.hold = True
    task = asyncio.create_task(client.translate(TEXT))
    await edge.pool.until(lambda: edge.pool.sinks)
    task.cancel()
    await edge.pool.until(lambda: edge.pool.cancelled)


async def test_batch_keeps_order_and_bounds_concurrency(edge, client):
    running_now, most = set(), 0

    def send(sink, request):
        running_now.discard(request.request_id)
        sink(Finished(FinishReason.LENGTH, str(len(request.source)), (5,), timings=TIMINGS))

    submit = edge.pool.submit

    def submit_and_count(request, loop, sink):
        nonlocal most
        running_now.add(request.request_id)
        most = max(most, len(running_now))
        loop.call_later(0.002 * (9 - len(request.source)), send, sink, request)
        return submit(request, loop, sink)

    edge.pool.hold, edge.pool.submit = True, submit_and_count
    texts = [" ".join(["cat"] * (1 + number % 5)) for number in range(20)]
    answers = [answer async for answer in client.translate_batch(texts, concurrency=3)]
    assert [answer.text for answer in answers] == [str(2 + number % 5) for number in range(20)]
    assert 2 <= most <= 3


async def test_the_blocking_client_returns_the_same(edge):
    def use():
        with Client(edge.address, timeout_s=5) as client:
            whole = client.translate(TEXT)
            pieces = list(client.stream_translate(TEXT))
            batch = list(client.translate_batch([TEXT] * 5, concurrency=2))
            names = [model.name for model in client.list_models()]
            with pytest.raises(ClientError) as caught:
                list(client.stream_generate(""))
            assert client.generate("a cat").text == whole.text
            return whole, pieces, batch, names, client.get_model("en").name, caught.value

    whole, pieces, batch, names, name, error = await asyncio.to_thread(use)
    assert whole.text == pieces[-1].answer.text == "zwei rote Häuser"
    assert [answer.text for answer in batch] == [whole.text] * 5
    assert (names, name) == (["en", "en-de"], "en")
    assert error.field_violations == {"text": "must not be empty or blank"}


async def test_blocking_stream_left_early_is_cancelled(edge):
    edge.pool.hold = True

    def use():
        with Client(edge.address, timeout_s=5) as client:
            stream = client.stream_translate(TEXT)
            first = next(stream)
            stream.close()
            return first

    using = asyncio.create_task(asyncio.to_thread(use))
    await edge.pool.until(lambda: edge.pool.sinks)
    edge.pool.sinks[0](TextDelta("zwei", (5,)))
    assert (await using).text == "zwei"
    await edge.pool.until(lambda: edge.pool.cancelled)


def test_a_blocking_stream_ends_though_its_server_ends_before_the_retry():
    refusals: list[bytes] = []

    class Refusing(grpc.GenericRpcHandler):
        def service(self, details):
            def refuse(request, context):
                refusals.append(request)
                if len(refusals) == 2:
                    server.stop(0)
                context.abort(grpc.StatusCode.UNAVAILABLE, "ending")

            return grpc.unary_stream_rpc_method_handler(refuse)

    def use():
        with Client(f"127.0.0.1:{port}", timeout_s=5) as client, pytest.raises(ClientError) as caught:
            list(client.stream_translate(TEXT))
        codes.append(caught.value.code)

    codes: list[str] = []
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Refusing()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    thread = threading.Thread(target=use, daemon=True)  # which must not keep a failing test from ending
    thread.start()
    thread.join(20)
    assert codes == ["UNAVAILABLE"]
    assert len(refusals) == 2
