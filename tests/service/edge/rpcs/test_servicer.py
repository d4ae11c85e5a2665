import asyncio
import dataclasses
import math
import re
import threading
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from export.bundle.manifest import FORMAT_VERSION, AlignmentSpec
from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.preparation import Preparation
from service.edge.rpcs.model_calls import convert_off_loop, submitted
from service.edge.rpcs.servicer import RPCS
from service.errors import Unsatisfiable
from service.options import DecodingOptions
from service.request import Finished, FinishReason, Request, TextDelta
from tests.edge import ANSWER, RESULT, TIMINGS, FakePool, a_call, answered, decoding_request, failure, method, served

TEXT = "the small red house"


async def test_a_unary_response_has_the_whole_translation(edge, channel):
    response = await method(channel, "Translate")(text=TEXT)
    assert response.text == "zwei rote Häuser"
    assert response.finish_reason == pb.FINISH_REASON_END_OF_SEQUENCE
    assert (response.usage.prompt_tokens, response.usage.generated_tokens) == (4, 5)
    assert response.timings.total.ToTimedelta().total_seconds() == pytest.approx(0.010)
    assert list(response.tokens) == []
    request = edge.pool.requests[0]
    assert request.source[-1] == 2
    assert (len(request.source), request.prompt, request.max_tokens) == (5, (1,), 16)


async def test_token_ids_are_returned_on_request(channel):
    response = await method(channel, "Translate")(text=TEXT, include_tokens=True)
    assert list(response.tokens) == [5, 6, 7, 8, 2]


async def test_stream_concatenates_to_the_unary_answer_and_ends_with_final(channel):
    messages = [m async for m in method(channel, "StreamTranslate")(text=TEXT, include_tokens=True)]
    assert "".join(m.text for m in messages) == "zwei rote Häuser"
    assert [t for m in messages for t in m.tokens] == [5, 6, 7, 8, 2]
    assert [m.HasField("final") for m in messages] == [False] * (len(messages) - 1) + [True]
    assert messages[-1].final.usage.generated_tokens == 5


async def test_only_streaming_requests_are_marked_as_streamed(edge, channel):
    await method(channel, "Translate")(text=TEXT)
    [message async for message in method(channel, "StreamTranslate")(text=TEXT)]
    edge.pool.answer = answered(RESULT)
    await method(channel, "Score")(model="en-de", text=TEXT, target="zwei rote Häuser")
    assert [request.is_streamed for request in edge.pool.requests] == [False, True, False]


async def test_each_delta_is_sent_as_it_arrives(edge, channel):
    edge.pool.hold = True
    stream = method(channel, "StreamTranslate")(text=TEXT)
    await edge.pool.until(lambda: edge.pool.sinks)
    (sink,) = edge.pool.sinks
    for text in ("eins", "zwei"):
        sink(TextDelta(text, (5,)))
        assert (await stream.read()).text == text
    sink(Finished(FinishReason.STOP_STRING, "", (), timings=TIMINGS))
    assert (await stream.read()).final.finish_reason == pb.FINISH_REASON_STOP_STRING
    assert await stream.read() is grpc.aio.EOF


async def test_a_generation_prompt_follows_the_start_token(edge, channel):
    response = await method(channel, "Generate")(text="a cat", options={"max_tokens": 3, "stop": ["."]})
    request = edge.pools["en"].requests[0]
    assert (request.source, request.prompt[0], request.max_tokens, request.stop) == ((), 1, 3, (".",))
    assert response.text == "zwei rote Häuser"
    messages = [m async for m in method(channel, "StreamGenerate")(text="a cat")]
    assert "".join(m.text for m in messages) == "zwei rote Häuser"


async def test_options_reach_the_request_and_unset_ones_are_defaults(edge, channel):
    options = {"beam_size": 4, "length_penalty": 0.0, "early_stopping": "EARLY_STOPPING_NEVER", "logit_bias": {5: -1.0}}
    await method(channel, "Translate")(text=TEXT, options=options)
    await method(channel, "Translate")(text=TEXT)
    given, plain = (request.options for request in edge.pool.requests)
    assert given == DecodingOptions(beam_size=4, length_penalty=0.0, early_stopping="never", logit_bias={5: -1.0})
    assert plain == DecodingOptions()


async def test_hypotheses_are_returned_best_first(edge, channel):
    second = dataclasses.replace(RESULT, text="zwei Häuser", tokens=(5, 8, 2), score=-0.5, cumulative_logprob=-1.5)
    edge.pool.answer = answered(RESULT, second)
    fields = {"text": TEXT, "options": {"beam_size": 4, "num_hypotheses": 2}, "include_tokens": True}
    response = await method(channel, "Translate")(**fields)
    assert [(h.text, list(h.tokens), h.score) for h in response.hypotheses] == [
        ("zwei rote Häuser", [5, 6, 7, 8, 2], -0.375),
        ("zwei Häuser", [5, 8, 2], -0.5),
    ]
    assert [h.cumulative_logprob for h in response.hypotheses] == [-1.875, -1.5]
    assert list(response.hypotheses[0].token_logprobs) == []
    assert (response.text, response.HasField("seed")) == ("zwei rote Häuser", False)
    *_, last = [m async for m in method(channel, "StreamTranslate")(**fields)]
    assert list(last.final.hypotheses) == list(response.hypotheses)


async def test_hypotheses_are_returned_only_on_request(channel):
    assert list((await method(channel, "Translate")(text=TEXT)).hypotheses) == []
    response = await method(channel, "Translate")(text=TEXT, options={"token_logprobs": True})
    (hypothesis,) = response.hypotheses
    assert [t.logprob for t in hypothesis.token_logprobs] == [-0.5, -0.25, -0.125, -0.5, -0.5]


async def test_the_seed_is_returned_when_it_was_used(edge, channel):
    translate = method(channel, "Translate")
    assert (await translate(text=TEXT, options={"seed": 2**64 - 1})).seed == 2**64 - 1
    assert (await translate(text=TEXT, options={"seed": 0})).HasField("seed")
    assert (await translate(text=TEXT, options={"top_k": 5})).seed == edge.pool.requests[-1].seed > 0
    assert not (await translate(text=TEXT, options={"temperature": 0.0})).HasField("seed")
    *_, last = [m async for m in method(channel, "StreamTranslate")(text=TEXT, options={"seed": 7})]
    assert last.final.seed == 7


async def test_large_responses_are_converted_in_a_thread():
    alignment = AlignmentSpec(layers=6, heads=8, default_layer=1)
    model = served("en-de", FakePool())
    model = dataclasses.replace(model, manifest=dataclasses.replace(model.manifest, alignment=alignment))
    request = Request(request_id="r", source=(5,) * 200, prompt=(1,), max_tokens=200, deadline_s=9.0)
    preparation = Preparation(0.8)
    for options, is_large in (
        ({}, False),
        ({"alignment": "hard"}, True),
        ({"alignment": "soft"}, True),
        ({"top_logprobs": 20}, True),
        ({"token_logprobs": True}, False),
    ):
        given = dataclasses.replace(request, options=DecodingOptions(**options))
        thread = await convert_off_loop(preparation, model, given, threading.current_thread)
        assert (thread is not threading.current_thread()) == is_large, options
    preparation.close()


async def test_the_prompt_is_echoed_once(edge, channel):
    edge.pools["en"].answer = (TextDelta("", (9,)), *ANSWER)
    fields = {"text": "a cat", "options": {"echo": True, "token_logprobs": True}, "include_tokens": True}
    response = await method(channel, "Generate")(**fields)
    assert response.text == response.hypotheses[0].text == "a catzwei rote Häuser"
    messages = [m async for m in method(channel, "StreamGenerate")(**fields)]
    assert "".join(m.text for m in messages) == response.text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"num_sequences": 2}, "num_sequences"),
        ({"return_alternatives": True, "num_hypotheses": 2}, "return_alternatives"),
    ],
)
async def test_options_without_a_single_text_are_rejected_in_a_stream(edge, channel, options, field):
    error, details = await failure(method(channel, "StreamTranslate")(text=TEXT, options=options))
    assert details["BadRequest"].field_violations[0].field == f"options.{field}"
    assert "call the method that does not stream" in error.details()
    assert (await method(channel, "Translate")(text=TEXT, options=options)).text


async def test_constraints_that_cannot_be_met_are_a_failed_precondition(edge, channel):
    edge.pool.answer = (Unsatisfiable("the constraints leave no possible token after 3 of them; loosen them"),)
    error, details = await failure(method(channel, "Translate")(text=TEXT))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert details["ErrorInfo"].reason == "CONSTRAINTS_UNSATISFIABLE"
    (violation,) = details["PreconditionFailure"].violations
    assert (violation.type, violation.subject) == ("CONSTRAINTS_UNSATISFIABLE", "options")
    assert "loosen them" in violation.description


async def test_a_target_is_scored(edge, channel):
    edge.pool.answer = answered(RESULT)
    response = await method(channel, "Score")(model="en-de", text=TEXT, target="zwei rote Häuser")
    assert [(token.token, token.logprob) for token in response.tokens] == list(
        zip(RESULT.tokens, RESULT.token_logprobs, strict=True)
    )
    assert (response.cumulative_logprob, response.score) == (-1.875, -0.375)
    assert response.perplexity == pytest.approx(math.exp(0.375))
    request = edge.pool.requests[0]
    assert (len(request.prefix), request.max_tokens, request.prefix[-1]) == (4, 4, 2)


async def test_a_continuation_is_scored_even_after_an_empty_prompt(edge, channel):
    edge.pools["en"].answer = answered(RESULT)
    await method(channel, "Score")(model="en", target_tokens=[5, 6, 7, 8, 2])
    request = edge.pools["en"].requests[0]
    assert (request.prompt, request.prefix) == ((1,), (5, 6, 7, 8, 2))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": TEXT}, "target"),
        ({"text": TEXT, "target": "a", "target_tokens": [5]}, "target"),
        ({"text": "", "target": "a"}, "text"),
        ({"text": TEXT, "target": "a", "options": {"beam_size": 4}}, "options.beam_size"),
        ({"text": TEXT, "target": "a", "options": {"seed": 0}}, "options.seed"),
        ({"text": TEXT, "target": "elephants"}, "target"),
        ({"text": TEXT, "target_tokens": [2**31 - 1]}, "target_tokens[0]"),
    ],
)
async def test_invalid_score_requests_are_rejected(edge, channel, fields, field):
    error, details = await failure(method(channel, "Score")(model="en-de", **fields))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == field
    assert edge.pool.requests == []


async def test_a_score_whose_client_leaves_is_cancelled(edge, channel):
    edge.pool.hold = True
    call = method(channel, "Score")(model="en-de", text=TEXT, target="zwei")
    await edge.pool.until(lambda: edge.pool.sinks)
    call.cancel()
    await edge.pool.until(lambda: edge.pool.cancelled)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"text": ""}, "text", "must not be empty"),
        ({"text": " \n\t "}, "text", "must not be empty or blank"),
        ({"text": "a" * 16385}, "text", "at most 16384 bytes, got 16385; shorten"),
        ({"text": "the cat " * 20}, "text", "at most 8 tokens, got 41; shorten"),
        ({"text": "the green Häuser and elephants"}, "text", "does not know these words: green, and, elephants; use"),
        ({"text": TEXT, "options": {"beam_size": 33}}, "options.beam_size", "must be 1..32, got 33"),
        (
            {"text": TEXT, "options": {"early_stopping": 9}},
            "options.early_stopping",
            "one of true, false, never, got 9",
        ),
        (
            {"text": TEXT, "options": {"temperature": math.nan}},
            "options.temperature",
            "must be 0 or 0.01..100, got nan",
        ),
        ({"text": TEXT, "options": {"max_tokens": -1}}, "options.max_tokens", "must be at least 0, got -1"),
        ({"text": TEXT, "options": {"max_tokens": 17}}, "options.max_tokens", "must be 1..16.*got 17"),
        ({"text": TEXT, "options": {"stop": ["x"] * 9}}, "options.stop", "at most 8 strings, got 9"),
        ({"text": TEXT, "options": {"stop": ["x", ""]}}, r"options.stop\[1\]", "1..64 bytes, got 0"),
        ({"text": TEXT, "options": {"stop": ["ä" * 33]}}, r"options.stop\[0\]", "1..64 bytes, got 66"),
    ],
)
@pytest.mark.parametrize("name", ["Translate", "StreamTranslate"])
async def test_an_invalid_field_is_reported_with_value_limit_and_fix(edge, channel, name, fields, field, words):
    error, details = await failure(method(channel, name)(**fields))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details["ErrorInfo"].reason == "INVALID_FIELD"
    (violation,) = details["BadRequest"].field_violations
    assert error.details() == f"{violation.field}: {violation.description}"
    assert re.fullmatch(field, violation.field)
    assert re.search(words, violation.description)
    assert edge.pool.requests == []


async def test_many_long_unknown_words_still_fit_into_trailing_metadata(channel):
    prefix = " ".join(chr(0x20000 + i) * 200 for i in range(15))  # letters of four bytes
    error, _ = await failure(method(channel, "Translate")(text="a black cat", options={"prefix": prefix}))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "5 more" in error.details()


async def test_prompt_and_new_tokens_share_the_context(edge, channel):
    error, _ = await failure(method(channel, "Generate")(text="a cat", options={"max_tokens": 16}))
    assert "after a prompt of" in error.details()
    error, _ = await failure(method(channel, "Generate")(text="xyz" * 20))
    assert "must be at most 16 tokens, got 61" in error.details()


async def test_an_unknown_model_is_not_found_and_the_known_ones_are_listed(channel):
    for name, fields in (("Translate", {"text": TEXT}), ("GetModel", {})):
        error, details = await failure(method(channel, name)(model="xx" * 100, **fields))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert details["ResourceInfo"].resource_type == "glossa.v1.Model"
        assert details["ErrorInfo"].metadata["models"] == "en,en-de"
        assert len(error.details()) < 200


async def test_model_of_another_task_is_a_failed_precondition(channel):
    error, details = await failure(method(channel, "Translate")(model="en", text=TEXT))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "GenerationService" in details["PreconditionFailure"].violations[0].description


async def test_model_must_be_named_when_several_fit(channel):
    error, _ = await failure(method(channel, "GetModel")())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "one of: en, en-de" in error.details()


async def test_long_text_is_tokenized_in_a_thread(edge, channel):
    await method(channel, "Translate")(text=TEXT + " " * 2000)
    assert len(edge.pool.requests[0].source) == 5


async def test_a_text_that_certainly_is_too_long_is_refused_on_the_event_loop(edge, channel, monkeypatch):
    threads = []
    monkeypatch.setattr(Preparation, "prepare", lambda self, caller, build: threads.append(build))
    error, _ = await failure(method(channel, "Translate")(text=TEXT + " dog" * 400))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "text: must be at most 8 tokens, got at least 404; shorten or split it"
    assert threads == []


async def test_models_are_described(channel):
    models = (await method(channel, "ListModels")()).models
    assert [model.name for model in models] == ["en", "en-de"]
    model = (await method(channel, "GetModel")(model="en-de")).model
    assert list(models[1].parity.checks) == []  # four fifths of the description of a model
    assert models[1].parity.passed
    models[1].parity.checks.extend(model.parity.checks)
    assert model == models[1]
    assert (model.task, model.architecture) == (pb.TASK_TRANSLATION, "encoder_decoder")
    assert (model.limits.max_prompt_tokens, model.limits.max_tokens, model.limits.max_text_bytes) == (8, 16, 16384)
    assert (model.precision, model.format_version, model.bundle_sha256) == ("fp32", FORMAT_VERSION, "cd" * 32)
    assert model.execution_provider.fallback
    assert model.execution_provider.reason == "no GPU; add one"
    shown = [(one.graph, one.provider, one.nodes) for one in model.execution_provider.graph_nodes]
    assert shown == [("decode", "CPUExecutionProvider", 70), ("encode", "CPUExecutionProvider", 30)]
    assert model.parity.passed
    assert list(model.parity.checks) == [pb.ParityCheck(name="greedy", max_error=0.5, passed=True)]
    assert (model.lineage.steps, model.lineage.git_commit) == (7, "c0ffee")


async def test_reflection_lists_every_service(channel):
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(timeout=5)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await call.read()).list_services_response.service}
    assert names >= {f"glossa.v1.{kind}Service" for kind in ("Translation", "Generation", "Scoring", "Model")}
    call.cancel()


async def test_an_answer_that_was_not_read_is_known_to_its_call(edge):
    edge.pool.hold = True
    model, now_s = served("en-de", edge.pool), asyncio.get_running_loop().time()
    call = a_call(RPCS[0], now_s + 60.0, started_s=now_s)
    async with submitted(model, decoding_request(model, "the small red house"), call):
        edge.pool.send(edge.pool.sinks[0], ANSWER)
    assert call.record.finished is ANSWER[-1]
    assert edge.pool.cancelled, "as if it had not come"
