import asyncio
import dataclasses
import re
from typing import Any

import grpc
import pytest

from glossa.version import VERSION
from service.adaptors.inference import open_inference_pb2 as oip
from service.adaptors.tensors import input_tensors
from service.errors import Overloaded, ShuttingDown
from service.options import DecodingOptions
from service.request import Finished, FinishReason, TextDelta
from tests.edge import ANSWER, RESULT, TIMINGS, answered, failure, health, running

SERVICE = "inference.GRPCInferenceService"
TEXT = "the small red house"
TRANSLATION = "zwei rote Häuser"


def method(channel, name):
    """A callable for an RPC by its name."""
    described: Any = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[name]
    make = channel.stream_stream if described.client_streaming else channel.unary_unary
    return make(
        f"/{SERVICE}/{name}",
        request_serializer=described.input_type._concrete_class.SerializeToString,
        response_deserializer=described.output_type._concrete_class.FromString,
    )


def infer_request(*texts, model="en-de", shape=None, **fields):
    contents = {"bytes_contents": [text.encode() for text in texts]}
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": shape or [len(texts)], "contents": contents}
    return oip.ModelInferRequest(model_name=model, inputs=[tensor], **fields)


def outputs(response):
    """Shape and values of each output by name."""
    tensors = [{"name": o.name, "datatype": o.datatype, "shape": o.shape} for o in response.outputs]
    read = input_tensors(oip.ModelInferRequest(inputs=tensors, raw_input_contents=response.raw_output_contents))
    return {tensor.name: (tensor.shape, tensor.values) for tensor in read}


def is_final(response):
    return response.parameters["triton_final_response"].bool_param


async def stream(channel, *requests):
    """The responses to requests that are all sent at the start."""
    call: Any = method(channel, "ModelStreamInfer")(iter(requests), timeout=10)
    return [response async for response in call]


async def end_of(call):
    """The error that a stream of requests ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value


async def test_the_server_and_its_models_are_ready(edge, channel):
    assert (await method(channel, "ServerLive")(oip.ServerLiveRequest())).live
    assert (await method(channel, "ServerReady")(oip.ServerReadyRequest())).ready
    assert (await method(channel, "ModelReady")(oip.ModelReadyRequest(name="en-de", version="1"))).ready
    edge.pool.is_ready = False
    assert not (await method(channel, "ServerReady")(oip.ServerReadyRequest())).ready
    assert not (await method(channel, "ModelReady")(oip.ModelReadyRequest(name="en-de"))).ready
    assert (await method(channel, "ModelReady")(oip.ModelReadyRequest(name="en"))).ready
    for request, code in (({"name": "fr"}, "NOT_FOUND"), ({"name": "en", "version": "2"}, "INVALID_ARGUMENT")):
        error, _ = await failure(method(channel, "ModelReady")(oip.ModelReadyRequest(**request)))
        assert error.code().name == code


async def test_health_knows_the_service(channel):
    from grpc_health.v1 import health_pb2

    check: Any = health(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await check).status == health_pb2.HealthCheckResponse.SERVING


async def test_server_and_models_are_described(channel):
    server = await method(channel, "ServerMetadata")(oip.ServerMetadataRequest())
    assert (server.name, server.version) == ("glossa", VERSION)
    model = await method(channel, "ModelMetadata")(oip.ModelMetadataRequest(name="en-de"))
    assert (model.name, list(model.versions)) == ("en-de", ["1"])
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in model.inputs] == [
        ("text_input", "BYTES", [-1])
    ]
    response = await method(channel, "ModelInfer")(infer_request(TEXT))
    assert [(o.name, o.datatype) for o in response.outputs] == [(o.name, o.datatype) for o in model.outputs]


async def test_a_text_is_translated(edge, channel):
    response = await method(channel, "ModelInfer")(infer_request(TEXT, id="one"))
    assert (response.model_name, response.model_version, response.id) == ("en-de", "1", "one")
    assert outputs(response) == {
        "text_output": ((1,), [TRANSLATION]),
        "finish_reason": ((1,), ["end_of_sequence"]),
        "prompt_tokens": ((1,), [4]),
        "generated_tokens": ((1,), [5]),
    }
    assert not edge.pool.requests[0].is_streamed


async def test_several_texts_are_rows_of_one_request(edge, channel):
    edge.pool.hold = True
    answer = asyncio.ensure_future(
        method(channel, "ModelInfer")(infer_request(TEXT, "a black cat", shape=[2, 1]), timeout=10)
    )
    await edge.pool.until(lambda: len(edge.pool.sinks) == 2)
    for place in (1, 0):
        text = f"answer {place}"
        edge.pool.send(
            edge.pool.sinks[place], [Finished(FinishReason.LENGTH, text, generated_tokens=2, timings=TIMINGS)]
        )
    assert outputs(await answer)["text_output"] == ((2, 1), ["answer 0", "answer 1"])
    assert edge.pool.cancelled == []


async def test_a_row_that_fails_cancels_the_others(edge, channel):
    edge.pool.hold = True
    call = method(channel, "ModelInfer")(infer_request(TEXT, "a black cat"), timeout=10)
    await edge.pool.until(lambda: len(edge.pool.sinks) == 2)
    edge.pool.send(edge.pool.sinks[0], [Overloaded("the queue is full", retry_after_s=0.5, limit=3)])
    error, details = await failure(call)
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (details["ErrorInfo"].reason, "RetryInfo" in details) == ("QUEUE_FULL", True)
    assert len(edge.pool.cancelled) == 2


async def test_options_reach_the_request(edge, channel):
    parameters = {"beam_size": {"int64_param": 4}, "stop": {"string_param": '["."]'}}
    await method(channel, "ModelInfer")(infer_request(TEXT, parameters=parameters))
    assert edge.pool.requests[0].options == DecodingOptions(beam_size=4, stop=(".",))


async def test_hypotheses_are_a_dimension_of_their_own(edge, channel):
    second = dataclasses.replace(RESULT, text="zwei Häuser", score=-0.5)
    edge.pool.answer = answered(RESULT, second)
    parameters = {"beam_size": {"int64_param": 4}, "num_hypotheses": {"int64_param": 2}}
    found = outputs(await method(channel, "ModelInfer")(infer_request(TEXT, parameters=parameters)))
    assert found["text_output"] == ((1,), [TRANSLATION])
    assert found["hypotheses"] == ((1, 2), [TRANSLATION, "zwei Häuser"])
    assert found["scores"] == ((1, 2), [-0.375, -0.5])


async def test_only_the_outputs_that_are_wanted_are_sent(channel):
    response = await method(channel, "ModelInfer")(infer_request(TEXT, outputs=[{"name": "generated_tokens"}]))
    assert outputs(response) == {"generated_tokens": ((1,), [5])}


async def test_a_prompt_is_echoed(edge, channel):
    edge.pools["en"].answer = answered(dataclasses.replace(RESULT, text=" sleeps"))
    request = infer_request("a cat", model="en", parameters={"echo": {"bool_param": True}})
    assert outputs(await method(channel, "ModelInfer")(request))["text_output"] == ((1,), ["a cat sleeps"])
    responses = [one.infer_response for one in await stream(channel, request)]
    assert "".join(outputs(one)["text_output"][1][0] for one in responses) == "a cat sleeps"


async def test_the_timeout_of_a_request_is_its_deadline(edge, channel):
    now_s = asyncio.get_running_loop().time()
    await method(channel, "ModelInfer")(infer_request(TEXT, parameters={"timeout": {"int64_param": 2_000_000}}))
    assert edge.pool.requests[0].deadline_s - now_s == pytest.approx(2.0, abs=1.0)


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (infer_request(TEXT, model="fr"), "NOT_FOUND", ""),
        (infer_request(TEXT, model_version="2"), "INVALID_ARGUMENT", "model_version"),
        (oip.ModelInferRequest(model_name="en-de"), "INVALID_ARGUMENT", "inputs[text_input]"),
        (infer_request(shape=[0]), "INVALID_ARGUMENT", "inputs[text_input]"),
        (infer_request(*[TEXT] * 65), "INVALID_ARGUMENT", "inputs[text_input]"),
        (infer_request(TEXT, "the smallest house"), "INVALID_ARGUMENT", "text_input[1]"),
        (infer_request(TEXT, parameters={"top_p": {"double_param": 2.0}}), "INVALID_ARGUMENT", "options.top_p"),
        (infer_request(TEXT, outputs=[{"name": "vector"}]), "INVALID_ARGUMENT", "outputs[vector]"),
        (
            infer_request(
                TEXT, outputs=[{"name": "text_output", "parameters": {"classification": {"int64_param": 1}}}]
            ),
            "INVALID_ARGUMENT",
            "outputs[text_output]",
        ),
        (infer_request(TEXT, parameters={"stream": {"bool_param": True}}), "INVALID_ARGUMENT", "parameters.stream"),
    ],
)
async def test_a_request_that_cannot_be_answered_has_the_status_of_its_error(edge, channel, request_, code, field):
    error, details = await failure(method(channel, "ModelInfer")(request_))
    assert error.code().name == code
    if field:
        assert details["BadRequest"].field_violations[0].field == field
    assert edge.pool.requests == []


async def test_a_stream_sends_text_as_it_comes(edge, channel):
    edge.pool.hold = True
    call = method(channel, "ModelStreamInfer")(timeout=10)
    await call.write(infer_request(TEXT, id="one"))
    await edge.pool.until(lambda: edge.pool.sinks)
    for text in ("eins", " zwei"):
        edge.pool.sinks[0](TextDelta(text, (5,)))
        response = (await call.read()).infer_response
        assert (outputs(response), is_final(response)) == ({"text_output": ((1,), [text])}, False)
    edge.pool.sinks[0](Finished(FinishReason.LENGTH, "", generated_tokens=2, timings=TIMINGS))
    response = (await call.read()).infer_response
    assert (response.id, is_final(response)) == ("one", True)
    assert outputs(response)["generated_tokens"] == ((1,), [2])
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert edge.pool.requests[0].is_streamed


async def test_requests_of_a_stream_are_answered_in_turn(edge, channel):
    whole = {"stream": {"bool_param": False}}
    responses = await stream(
        channel,
        infer_request(TEXT, id="a", parameters=whole),
        infer_request(TEXT, id="b", parameters={"top_p": {"double_param": 2.0}}),
        infer_request("a black cat", TEXT, id="c"),
        infer_request(TEXT, id="d", parameters={"num_sequences": {"int64_param": 2}}),
    )
    ids = [one.infer_response.id for one in responses]
    assert ids == ["a", "b", "c", "d"]
    assert [bool(one.error_message) for one in responses] == [False, True, False, False]
    assert responses[1].error_message.startswith("INVALID_ARGUMENT: options.top_p: must be")
    assert all(is_final(one.infer_response) for one in responses)
    assert outputs(responses[2].infer_response)["text_output"] == ((2,), [TRANSLATION, TRANSLATION])
    assert "".join(outputs(responses[0].infer_response)["text_output"][1]) == TRANSLATION


async def test_streaming_several_texts_is_refused_when_it_is_asked_for(channel):
    request = infer_request(TEXT, TEXT, parameters={"stream": {"bool_param": True}})
    (response,) = await stream(channel, request)
    assert "needs one text" in response.error_message


async def test_each_request_of_a_stream_is_counted(edge, channel):
    await stream(channel, infer_request(TEXT), infer_request(TEXT, model="fr"), infer_request(TEXT))
    found = edge.server.metrics.render().decode()
    labels = f'grpc_method="ModelStreamInfer",grpc_service="{SERVICE}",grpc_type="bidi_stream"'
    assert f"grpc_server_msg_received_total{{{labels}}} 3.0" in found
    assert f'grpc_server_handled_total{{grpc_code="OK",{labels}}} 1.0' in found
    assert re.search(r'glossa_request_prompt_tokens_count{model="en-de",version="\w+"} 2.0', found)
    assert edge.server.calls.memory.reserved_bytes == 0


async def test_a_client_that_cancels_a_stream_cancels_its_request(edge, channel):
    edge.pool.hold = True
    call = method(channel, "ModelStreamInfer")(timeout=10)
    await call.write(infer_request(TEXT))
    await edge.pool.until(lambda: edge.pool.sinks)
    call.cancel()
    await edge.pool.until(lambda: edge.pool.cancelled)
    await edge.server.calls.idle()


async def test_a_stream_without_a_request_does_not_delay_a_drain(edge, channel):
    call = method(channel, "ModelStreamInfer")(timeout=60)
    await call.write(infer_request(TEXT, parameters={"stream": {"bool_param": False}}))
    assert is_final((await call.read()).infer_response)
    assert await edge.server.calls.drain(60.0) == 0
    error: Any = await end_of(call)
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, str(ShuttingDown()))


async def test_a_stream_that_is_answering_while_the_server_drains_ends_after_its_answer(edge, channel):
    edge.pool.hold = True
    call = method(channel, "ModelStreamInfer")(timeout=60)
    await call.write(infer_request(TEXT))
    await edge.pool.until(lambda: edge.pool.sinks)
    draining = asyncio.create_task(edge.server.calls.drain(60.0))
    await asyncio.sleep(0)
    edge.pool.send(edge.pool.sinks[0], ANSWER)
    assert is_final((await call.read()).infer_response)
    assert await draining == 0
    assert (await end_of(call)).code() == grpc.StatusCode.UNAVAILABLE


async def test_a_silent_stream_is_ended():
    changes = {"adaptors": "open-inference", "message_timeout_s": 0.5}
    async with running(**changes) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        call = method(channel, "ModelStreamInfer")(timeout=60)
        await call.write(infer_request(TEXT, parameters={"stream": {"bool_param": False}}))
        await call.read()
        error: Any = await end_of(call)
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no message came within 0.5 s" in error.details()


async def test_texts_are_logged_only_where_the_operator_wants_it(caplog):
    caplog.set_level("INFO", logger="glossa")
    for log_text in (False, True):
        changes = {"adaptors": "open-inference", "log_text": log_text}
        async with running(**changes) as edge, grpc.aio.insecure_channel(edge.address) as channel:
            await method(channel, "ModelInfer")(infer_request(TEXT))
            await stream(channel, infer_request(TEXT))
    lines: list[Any] = [record for record in caplog.records if record.getMessage() == "request"]
    asked = [line.fields for line in lines if line.fields["model"] == "en-de"]
    assert [fields.get("text") for fields in asked] == [None, None, TEXT, TEXT]
    assert [fields.get("answer") for fields in asked] == [None, None, TRANSLATION, TRANSLATION]


async def test_an_adaptor_that_is_off_does_not_exist():
    async with running() as edge, grpc.aio.insecure_channel(edge.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "ServerLive")(oip.ServerLiveRequest())
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert SERVICE not in edge.server.metrics.render().decode()
