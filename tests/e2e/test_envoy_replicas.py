"""Envoy with deploy/envoy/replicas.yaml in front of two servers: JSON, gRPC-Web, its log, drains.

The servers have fake pools, so that a test decides when an answer comes. tests/e2e/test_envoy_faults.py stops and kills
real ones.
"""

import asyncio
import base64
import contextlib
import http.client
import json
import shutil
import struct

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import error_details_pb2, status_pb2

from bench.load import envoy
from glossa.v1 import glossa_pb2 as pb
from service.errors import EngineUnavailable, Overloaded
from tests.edge import failure, method, running

TEXT = "the small red house"
ANSWER = "zwei rote Häuser"
NO_RETRIES = (("grpc.enable_retries", 0),)
FULL = Overloaded("full", retry_after_s=0.5, limit=4)
TRANSLATE = "/v1/models/en-de:translate"

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def replicas(**changes):
    """Two servers on fake pools, and the Envoy before them. changes: of its route."""
    binary = envoy.find()
    assert binary, envoy.HOW_TO_GET_IT
    settings = envoy.read("replicas")
    envoy.route_of(settings).update(changes)
    async with running() as one, running() as other:
        front = envoy.in_front_of([one.address, other.address], binary, settings)
        found = await asyncio.to_thread(front.__enter__)  # it asks the servers, which this thread runs
        try:
            yield found, [one, other]
        finally:
            await asyncio.to_thread(front.__exit__, None, None, None)


async def ask(front, verb, path, body=None, **headers):
    """Status, headers and body of an HTTP/1.1 answer."""

    def call():
        connection = http.client.HTTPConnection(front.address, timeout=60)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(verb, path, body, named)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    return await asyncio.to_thread(call)


async def post(front, path, fields, **headers):
    """Status, headers and JSON of an answer to a JSON request."""
    status, found, body = await ask(front, "POST", path, json.dumps(fields), content_type="application/json", **headers)
    assert found["content-type"] == "application/json"
    return status, found, json.loads(body)


def refuse(edges, error):
    for edge in edges:
        edge.pool.refuse = error


async def test_a_translation_is_json():
    async with replicas() as (front, edges):
        status, headers, answer = await post(front, TRANSLATE, {"text": TEXT, "options": {"maxTokens": 7}})
        assert (status, answer["text"], answer["finishReason"]) == (200, ANSWER, "FINISH_REASON_END_OF_SEQUENCE")
        assert answer["usage"] == {"promptTokens": 4, "generatedTokens": 5}
        assert [request.max_tokens for edge in edges for request in edge.pool.requests] == [7]
        assert headers["x-request-id"]


async def test_the_names_of_the_proto_are_taken_too():
    async with replicas() as (front, edges):
        assert (await post(front, TRANSLATE, {"text": TEXT, "options": {"max_tokens": 3}}))[0] == 200
        assert [request.max_tokens for edge in edges for request in edge.pool.requests] == [3]


async def test_a_stream_is_an_array_of_its_messages():
    async with replicas() as (front, _):
        status, _, pieces = await post(front, "/v1/models/en-de:streamTranslate", {"text": TEXT})
        assert status == 200
        assert "".join(piece.get("text", "") for piece in pieces) == ANSWER
        assert [("final" in piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


async def test_models_are_listed_and_described():
    async with replicas() as (front, _):
        status, _, body = await ask(front, "GET", "/v1/models")
        assert (status, [model["name"] for model in json.loads(body)["models"]]) == (200, ["en", "en-de"])
        status, _, body = await ask(front, "GET", "/v1/models/en-de")
        assert (status, json.loads(body)["model"]["task"]) == (200, "TASK_TRANSLATION")


def details_of(answer):
    """The details of an error in JSON by the names of their types."""
    return {detail["@type"].rpartition(".")[2]: detail for detail in answer["details"]}


async def test_an_error_has_the_http_status_of_its_code_and_the_whole_google_rpc_status():
    async with replicas() as (front, _):
        status, _, answer = await post(front, TRANSLATE, {"text": TEXT, "options": {"beamSize": 99}})
        assert (status, answer["code"]) == (400, grpc.StatusCode.INVALID_ARGUMENT.value[0])
        (violation,) = details_of(answer)["BadRequest"]["fieldViolations"]
        assert violation["field"] == "options.beam_size"
        assert details_of(answer)["ErrorInfo"]["domain"] == "glossa"

        status, _, answer = await post(front, "/v1/models/fr-de:translate", {"text": TEXT})
        assert (status, details_of(answer)["ResourceInfo"]["resourceName"]) == (404, "fr-de")


async def test_without_googles_error_details_an_error_would_have_no_body(tmp_path, monkeypatch):
    files = FileDescriptorSet.FromString((envoy.FOLDER / "glossa.binpb").read_bytes())
    own = FileDescriptorSet(file=[file for file in files.file if file.name != "google/rpc/error_details.proto"])
    (tmp_path / "glossa.binpb").write_bytes(own.SerializeToString())
    shutil.copy(envoy.FOLDER / "replicas.yaml", tmp_path)
    monkeypatch.setattr(envoy, "FOLDER", tmp_path)
    async with replicas() as (front, _):
        status, _, body = await ask(front, "POST", TRANSLATE, '{"text": ""}', content_type="application/json")
        assert (status, body) == (400, b"")


async def test_a_refusal_of_every_replica_is_a_429_with_a_hint():
    async with replicas() as (front, edges):
        refuse(edges, FULL)
        status, headers, answer = await post(front, TRANSLATE, {"text": TEXT})
        assert [line["attempts"] for line in await logged(front, 1)] == [3]
        assert (status, details_of(answer)["RetryInfo"]["retryDelay"]) == (429, "0.500s")
        assert headers["grpc-retry-pushback-ms"] == "500"


@pytest.mark.parametrize("error", [EngineUnavailable("gone", retry_after_s=0.5), FULL])
async def test_a_call_that_one_replica_cannot_take_is_repeated_on_another(error):
    async with replicas() as (front, (failing, other)):
        refuse([failing], error)
        for _ in range(6):
            assert (await post(front, TRANSLATE, {"text": TEXT}))[0] == 200
        assert len(other.pool.requests) == 6
        lines = await logged(front, 6)
        assert {line["replica"] for line in lines} == {other.address}
        assert max(line["attempts"] for line in lines) == 2


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("GET", "/v1/models?nme=en", None, 400),
        ("GET", "/v2/models", None, 404),
        ("POST", "/v1/models/en-de:summarize", "{}", 404),
        ("POST", TRANSLATE, "{", 400),
        ("POST", TRANSLATE, '{"text": 5}', 400),
        ("POST", TRANSLATE, '{"text": "' + "x" * 300_000 + '"}', 413),
    ],
)
async def test_what_is_no_request_does_not_reach_a_server(verb, path, body, status):
    async with replicas() as (front, edges):
        assert (await ask(front, verb, path, body, content_type="application/json"))[0] == status
        assert [edge.pool.requests for edge in edges] == [[], []]


async def test_a_deadline_of_a_json_request_reaches_the_server():
    async with replicas() as (front, edges):
        for edge in edges:
            edge.pool.hold = True
        status, _, answer = await post(front, TRANSLATE, {"text": TEXT}, grpc_timeout="300m")
        assert (status, answer["code"]) == (504, grpc.StatusCode.DEADLINE_EXCEEDED.value[0])


async def test_without_a_healthy_replica_json_and_grpc_get_a_hint():
    async with replicas() as (front, edges):
        for edge in edges:
            edge.server.health.close()
        status = 200
        async with asyncio.timeout(60):
            while status == 200:  # until the next health check
                status, _, answer = await post(front, TRANSLATE, {"text": TEXT})
        assert (status, answer["code"], answer["message"]) == (503, 14, "no replica answered; try again in 1 s")
        assert details_of(answer)["ErrorInfo"]["reason"] == "NO_REPLICA"
        async with grpc.aio.insecure_channel(front.address, NO_RETRIES) as channel:
            error, details = await failure(method(channel, "Translate")(text=TEXT))
            assert (error.code(), details["RetryInfo"].retry_delay.seconds) == (grpc.StatusCode.UNAVAILABLE, 1)
        async with asyncio.timeout(60):
            while [line["flags"] for line in await asyncio.to_thread(front.calls)].count("UH") < 2:
                await asyncio.sleep(0)


async def web(front, name, **fields):
    """A call of gRPC-Web: its messages as bytes, and its trailers."""
    message = getattr(pb, f"{name}Request")(**fields).SerializeToString()
    status, headers, body = await ask(
        front,
        "POST",
        f"/glossa.v1.TranslationService/{name}",
        struct.pack(">BI", 0, len(message)) + message,
        content_type="application/grpc-web+proto",
        x_grpc_web="1",
        origin="http://localhost:3000",
    )
    assert (status, headers["content-type"]) == (200, "application/grpc-web+proto")
    assert headers["access-control-allow-origin"] == "http://localhost:3000"
    messages, trailers = [], headers
    while body:
        flags, size = struct.unpack(">BI", body[:5])
        if flags & 0x80:
            trailers = dict(line.split(":", 1) for line in body[5 : 5 + size].decode().splitlines())
        else:
            messages.append(body[5 : 5 + size])
        body = body[5 + size :]
    return messages, trailers


async def test_a_browser_calls_by_grpc_web():
    async with replicas() as (front, _):
        (message,), trailers = await web(front, "Translate", text=TEXT, model="en-de")
        assert (pb.TranslateResponse.FromString(message).text, trailers["grpc-status"].strip()) == (ANSWER, "0")

        messages, trailers = await web(front, "StreamTranslate", text=TEXT, model="en-de")
        pieces = [pb.StreamTranslateResponse.FromString(message) for message in messages]
        assert ("".join(piece.text for piece in pieces), trailers["grpc-status"].strip()) == (ANSWER, "0")
        assert pieces[-1].final.usage.generated_tokens == 5


async def test_an_error_of_grpc_web_has_its_details():
    async with replicas() as (front, _):
        messages, trailers = await web(front, "Translate", text=TEXT, model="fr-de")
        assert (messages, trailers["grpc-status"].strip()) == ([], "5")
        packed = trailers["grpc-status-details-bin"].strip()
        info = error_details_pb2.ErrorInfo()
        rich = status_pb2.Status.FromString(base64.b64decode(packed + "=" * (-len(packed) % 4)))
        assert rich.details[0].Unpack(info)
        assert (info.domain, info.metadata["models"]) == ("glossa", "en,en-de")


@pytest.mark.parametrize(("origin", "allowed"), [("http://localhost:3000", True), ("http://example.org", False)])
async def test_a_browser_learns_which_pages_may_call(origin, allowed):
    async with replicas() as (front, _):
        asked = {"access_control_request_method": "POST", "access_control_request_headers": "x-grpc-web"}
        _, headers, _ = await ask(front, "OPTIONS", "/glossa.v1.TranslationService/Translate", origin=origin, **asked)
        assert (headers.get("access-control-allow-origin") == origin) is allowed


async def logged(front, count):
    """The lines of the access log, once there are so many: Envoy writes them after a while."""
    async with asyncio.timeout(60):
        while len(lines := await asyncio.to_thread(front.calls)) < count:
            await asyncio.sleep(0)
    return lines


async def test_every_call_is_a_line_of_the_access_log():
    async with replicas() as (front, edges), grpc.aio.insecure_channel(front.address) as channel:
        await post(front, TRANSLATE, {"text": TEXT}, x_request_id="one")
        await post(front, "/v1/models/fr-de:translate", {"text": TEXT}, x_request_id="two")
        await method(channel, "Translate")(text=TEXT, metadata=(("x-request-id", "three"),))
        lines = {line["request_id"]: line for line in await logged(front, 3)}
        shown = {name: (line["path"], line["http_status"], line["grpc_status"]) for name, line in lines.items()}
        assert shown == {
            "one": (TRANSLATE, 200, "OK"),
            "two": ("/v1/models/fr-de:translate", 404, "Unimplemented"),
            "three": ("/glossa.v1.TranslationService/Translate", 200, "OK"),
        }
        assert {line["replica"] for line in lines.values()} <= {edge.address for edge in edges}
        assert {line["attempts"] for line in lines.values()} == {1}
        ids = [request.request_id for edge in edges for request in edge.pool.requests]
        assert sorted(ids) == ["one", "three"], "the server logs the same ids"


async def test_a_drain_cuts_no_stream_and_new_calls_go_elsewhere():
    async with replicas() as (front, edges), grpc.aio.insecure_channel(front.address, NO_RETRIES) as channel:
        for edge in edges:
            edge.pool.hold = True
        stream = method(channel, "StreamTranslate")(text=TEXT, timeout=60)
        async with asyncio.timeout(60):
            while not any(edge.pool.sinks for edge in edges):
                await asyncio.sleep(0)
        leaving, staying = sorted(edges, key=lambda edge: len(edge.pool.sinks), reverse=True)
        staying.pool.hold = False
        stopping = asyncio.create_task(leaving.server.stop())
        for _ in range(20):
            assert (await method(channel, "Translate")(text=TEXT, timeout=60)).text == ANSWER
        assert not stopping.done()
        leaving.pool.send(leaving.pool.sinks[0], leaving.pool.answer)
        assert "".join([piece.text async for piece in stream]) == ANSWER
        await stopping
        assert len(leaving.pool.requests) == 1


@pytest.mark.parametrize(("seconds", "code"), [(None, grpc.StatusCode.OK), ("0.2s", grpc.StatusCode.UNAVAILABLE)])
async def test_an_idle_timeout_of_each_try_would_end_slow_answers(seconds, code):
    """Why replicas.yaml has none: nothing comes of a unary answer until all of it does."""
    policy = dict(envoy.route_of(envoy.read("replicas"))["retry_policy"])
    if seconds:
        policy["per_try_idle_timeout"] = seconds
    async with (
        replicas(retry_policy=policy) as (front, edges),
        grpc.aio.insecure_channel(front.address, NO_RETRIES) as channel,
    ):
        for edge in edges:
            edge.pool.hold = True
        call = method(channel, "Translate")(text=TEXT, timeout=60)
        async with asyncio.timeout(60):
            while not any(edge.pool.sinks for edge in edges):
                await asyncio.sleep(0)
        if not seconds:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + 0.5
            while loop.time() < until_s:
                await asyncio.sleep(0)
            for edge in edges:
                for sink in edge.pool.sinks:
                    edge.pool.send(sink, edge.pool.answer)
        assert await call.code() == code
