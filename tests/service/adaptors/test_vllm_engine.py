import asyncio
import dataclasses
import hashlib
import io
import zipfile
from typing import Any

import grpc
import pytest

from glossa.version import VERSION
from service.adaptors.vllm import vllm_engine_pb2 as vllm
from service.errors import StartupError
from service.options import DecodingOptions
from service.request import Finished, FinishReason, TextDelta
from service.wire.messages import State
from tests.edge import RESULT, TIMINGS, TOKENIZERS, answered, failure, running

SERVICE = "vllm.grpc.engine.VllmEngine"
PROMPT = (1, *TOKENIZERS["generation"].encode("a cat"))


def method(channel, name):
    """A callable for an RPC by its name."""
    described: Any = vllm.DESCRIPTOR.services_by_name["VllmEngine"].methods_by_name[name]
    make = channel.unary_stream if described.server_streaming else channel.unary_unary
    return make(
        f"/{SERVICE}/{name}",
        request_serializer=described.input_type._concrete_class.SerializeToString,
        response_deserializer=described.output_type._concrete_class.FromString,
    )


def generate_request(*tokens, **fields):
    return vllm.GenerateRequest(**{"tokenized": {"input_ids": tokens or PROMPT}, "request_id": "one", **fields})


async def generate(channel, *tokens, metadata=None, **fields):
    call = method(channel, "Generate")(generate_request(*tokens, **fields), timeout=10, metadata=metadata)
    return [response async for response in call]


@pytest.fixture
def pool(edge):
    return edge.pools["en"]


async def test_a_server_that_is_ready_is_healthy(edge, channel):
    health = await method(channel, "HealthCheck")(vllm.HealthCheckRequest())
    assert (health.healthy, health.message) == (True, "")
    edge.pool.is_ready = False
    health = await method(channel, "HealthCheck")(vllm.HealthCheckRequest())
    assert (health.healthy, health.message) == (False, "model en-de: no engine runs")


async def test_the_model_is_described(channel):
    model = await method(channel, "GetModelInfo")(vllm.GetModelInfoRequest())
    assert (model.served_model_name, model.is_generation) == ("en", True)
    assert (model.max_context_length, model.max_req_input_len) == (16, 16)
    assert model.vocab_size == TOKENIZERS["generation"].vocab_size
    assert (list(model.eos_token_ids), model.bos_token_id, model.pad_token_id) == ([2], 1, 0)
    assert model.model_path.startswith("bundle:"), "gateways look for it at a hub"


async def test_the_server_is_described(edge, channel):
    server = await method(channel, "GetServerInfo")(vllm.GetServerInfoRequest())
    assert (server.server_type, server.data_parallel_size, server.active_requests) == ("vllm-grpc", 1, 0)
    assert server.max_num_seqs == edge.server.settings.max_rows


async def test_loads_are_those_of_the_engines(edge, channel, pool):
    pool.states = [State(3, 2, 0.25, 0.0, True, False), State(5, 0, 0.5, 0.0, True, False)]
    loads = await method(channel, "GetLoads")(vllm.GetLoadsRequest())
    (load,) = loads.loads
    assert (loads.version, loads.dp_rank_count) == (VERSION, 1)
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (8, 2, 10)
    assert (load.token_usage, load.utilization) == (0.5, 8 / edge.server.settings.max_rows)


async def test_the_tokenizer_comes_in_pieces_with_its_digest_at_the_end(monkeypatch, channel):
    monkeypatch.setattr("service.adaptors.vllm_engine.CHUNK_BYTES", 500)
    chunks = [chunk async for chunk in method(channel, "GetTokenizer")(vllm.GetTokenizerRequest())]
    data = b"".join(chunk.data for chunk in chunks)
    assert len(chunks) > 1
    assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert sorted(archive.namelist()) == ["tokenizer.json", "tokenizer_config.json"]


async def test_tokens_are_continued(channel, pool):
    (response,) = await generate(channel, sampling_params={"temperature": 0.0, "max_tokens": 5})
    complete = response.complete
    assert (list(complete.output_ids), complete.finish_reason, complete.matched_token_id) == (
        [5, 6, 7, 8, 2],
        "stop",
        2,
    )
    assert (complete.prompt_tokens, complete.completion_tokens) == (len(PROMPT), 5)
    (request,) = pool.requests
    assert (request.prompt, request.max_tokens, request.is_streamed) == (PROMPT, 5, False)
    assert request.continued_text == "a cat"
    assert request.options == DecodingOptions(temperature=0.0, max_tokens=5)


async def test_start_tokens_are_added_where_they_are_missing(channel, pool):
    await generate(channel, *PROMPT[1:], request_id="two")
    await generate(channel, tokenized=None, text="a cat", request_id="three")
    assert [request.prompt for request in pool.requests] == [PROMPT, PROMPT]


async def test_a_stream_sends_tokens_as_they_come(channel, pool):
    pool.hold = True
    call = method(channel, "Generate")(generate_request(stream=True), timeout=10)
    await pool.until(lambda: pool.sinks)
    for count, tokens in ((1, (5,)), (3, (6, 7))):
        pool.sinks[0](TextDelta("", tokens))
        chunk = (await call.read()).chunk
        assert (tuple(chunk.token_ids), chunk.completion_tokens, chunk.prompt_tokens) == (tokens, count, len(PROMPT))
    pool.sinks[0](Finished(FinishReason.LENGTH, "", timings=TIMINGS))
    complete = (await call.read()).complete
    assert (list(complete.output_ids), complete.finish_reason) == ([5, 6, 7], "length")
    assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_and_log_probabilities_come_at_the_end(channel, pool, stream):
    first = dataclasses.replace(RESULT, alternatives=(((5, -0.5), (9, -1.5)),) * 5)
    second = dataclasses.replace(first, reason=FinishReason.LENGTH)
    pool.answer = answered(first, second)
    responses = await generate(channel, sampling_params={"n": 2, "logprobs": 2, "seed": 1}, stream=stream)
    kinds = ["chunk", "complete"] if stream else ["complete"]
    assert [one.WhichOneof("response") for one in responses] == kinds * 2
    completes = [one.complete for one in responses if one.HasField("complete")]
    assert [(one.index, one.finish_reason) for one in completes] == [(0, "stop"), (1, "length")]
    logprobs = (responses[0].chunk if stream else responses[0].complete).output_logprobs
    assert (list(logprobs.token_ids), list(logprobs.token_logprobs)) == (
        list(RESULT.tokens),
        list(RESULT.token_logprobs),
    )
    assert [(list(top.token_ids), list(top.values)) for top in logprobs.top_logprobs] == [([5, 9], [-0.5, -1.5])] * 5
    assert not pool.requests[0].is_streamed


async def test_the_stop_string_is_named(channel, pool):
    tokens = tuple(TOKENIZERS["generation"].encode("house red"))
    pool.answer = (Finished(FinishReason.STOP_STRING, "", tokens, timings=TIMINGS),)
    (response,) = await generate(channel, sampling_params={"stop": ["x", "red"]})
    assert (response.complete.finish_reason, response.complete.matched_stop_str) == ("stop", "red")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"sampling_params": {"top_p": 2.0}}, "options.top_p"),
        ({"sampling_params": {"structural_tag": "x"}}, "sampling_params.structural_tag"),
        ({"tokenized": {"input_ids": [1, 5000]}}, "prompt[1]"),
        ({"tokenized": {"input_ids": [1, *[5] * 16]}}, "prompt"),
        ({"mm_inputs": {}}, "mm_inputs"),
        ({"media_refs": {}}, "media_refs"),
        ({"kv_transfer_params_json": "{}"}, "kv_transfer_params_json"),
        ({"extra_mm_inputs": [{}]}, "extra_mm_inputs"),
    ],
)
async def test_a_request_that_cannot_be_answered_names_its_field(channel, pool, fields, field):
    error, details = await failure(method(channel, "Generate")(generate_request(**fields)))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == field
    assert pool.requests == []


async def test_an_abort_ends_a_request_of_its_tenant_alone(edge, channel, pool):
    pool.hold = True
    ours, theirs = (("x-glossa-tenant", "ours"),), (("x-glossa-tenant", "theirs"),)
    call = method(channel, "Generate")(generate_request(stream=True), timeout=60, metadata=ours)
    await pool.until(lambda: pool.sinks)
    abort, named = method(channel, "Abort"), vllm.AbortRequest(request_ids=["one", "unknown"])
    await abort(named, metadata=theirs)
    assert pool.cancelled == []
    server = await method(channel, "GetServerInfo")(vllm.GetServerInfoRequest())
    assert server.active_requests == 1
    await abort(named, metadata=ours)
    error, details = await failure(call)
    assert (error.code(), details["ErrorInfo"].reason) == (grpc.StatusCode.CANCELLED, "CANCELLED")
    assert len(pool.cancelled) == 1
    await edge.server.calls.idle()


async def test_two_requests_have_different_names(channel, pool):
    pool.hold = True
    call = method(channel, "Generate")(generate_request(stream=True), timeout=60)
    await pool.until(lambda: pool.sinks)
    _, details = await failure(method(channel, "Generate")(generate_request()))
    assert details["BadRequest"].field_violations[0].field == "request_id"
    call.cancel()
    await pool.until(lambda: len(pool.cancelled) == 1)


async def test_requests_without_a_name_do_not_collide(channel, pool):
    pool.hold = True
    calls = [asyncio.create_task(generate(channel, request_id="")) for _ in range(2)]
    await pool.until(lambda: len(pool.sinks) == 2)
    for sink in pool.sinks:
        pool.send(sink, pool.answer)
    assert [len(answer) for answer in await asyncio.gather(*calls)] == [1, 1]


async def test_a_client_that_leaves_cancels_its_request(edge, channel, pool):
    pool.hold = True
    call = method(channel, "Generate")(generate_request(stream=True), timeout=60)
    await pool.until(lambda: pool.sinks)
    call.cancel()
    await pool.until(lambda: pool.cancelled)
    await edge.server.calls.idle()
    server = await method(channel, "GetServerInfo")(vllm.GetServerInfoRequest())
    assert server.active_requests == 0


async def test_a_server_without_one_generation_model_does_not_start():
    with pytest.raises(StartupError, match=r"needs exactly one generation model.*; served are none"):
        async with running(adaptors="vllm", models={"en-de": "/none"}):
            pass
