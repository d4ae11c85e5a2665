"""Envoy with deploy/envoy/overload.yaml in front of a server: what it passes on, and what it refuses itself."""

import asyncio
import contextlib

import grpc
import pytest

from bench.load import envoy
from bench.load.calls import UNARY
from bench.load.lean_client import RST_STREAM, CallFailed, LeanConnection, frame
from bench.load.status_connection import CANCEL
from glossa.v1 import glossa_pb2 as pb
from tests.edge import failure, method, running

MAX_REQUESTS = 96
TEXT = "the small red house"
NO_RETRIES = (("grpc.enable_retries", 0),)

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def behind_envoy():
    """A server on fake pools, and the address of the Envoy before it."""
    binary = envoy.find()
    assert binary, envoy.HOW_TO_GET_IT
    async with running() as edge:
        front = envoy.in_front_of([edge.address], binary)
        found = await asyncio.to_thread(front.__enter__)  # it asks the server, which this thread runs
        try:
            yield edge, found.address
        finally:
            await asyncio.to_thread(front.__exit__, None, None, None)


async def test_calls_and_deadlines_reach_the_server():
    async with behind_envoy() as (edge, address), grpc.aio.insecure_channel(address) as channel:
        answer = await method(channel, "Translate")(text=TEXT, timeout=20.0)
        assert answer.text == "zwei rote Häuser"
        assert [message async for message in method(channel, "StreamTranslate")(text=TEXT)]
        assert edge.pool.requests[0].deadline_s - asyncio.get_running_loop().time() < 20.0


async def test_calls_beyond_the_limit_are_unavailable_with_a_hint():
    async with behind_envoy() as (edge, address), grpc.aio.insecure_channel(address, NO_RETRIES) as channel:
        edge.pool.hold = True
        open_calls = [method(channel, "Translate")(text=TEXT, timeout=60.0) for _ in range(MAX_REQUESTS)]
        await edge.pool.until(lambda: len(edge.pool.sinks) == MAX_REQUESTS)
        error, details = await failure(method(channel, "Translate")(text=TEXT, timeout=60.0))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert error.details() == "too many calls; try again in 0.5 s"
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "500"
        assert details["RetryInfo"].retry_delay.ToMilliseconds() == 500
        assert len(edge.pool.sinks) == MAX_REQUESTS, "the server has not seen it"
        for call in open_calls:
            call.cancel()
        await edge.server.calls.idle()


async def test_a_server_that_is_not_serving_gets_no_calls():
    async with behind_envoy() as (edge, address), grpc.aio.insecure_channel(address, NO_RETRIES) as channel:
        edge.server.health.close()
        error: grpc.aio.AioRpcError | None = None
        async with asyncio.timeout(60):
            while error is None:
                before = len(edge.pool.requests)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await method(channel, "Translate")(text=TEXT)
                    continue
                error, _ = await failure(method(channel, "Translate")(text=TEXT))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "500"
        assert len(edge.pool.requests) == before


async def test_a_connection_that_resets_its_calls_is_closed():
    async with behind_envoy() as (_, address):
        message = pb.TranslateRequest(text=TEXT).SerializeToString()

        def reset_until_closed():
            with LeanConnection(address) as connection:
                for key in range(5000):
                    stream = connection._next_stream
                    connection.start(UNARY, [(key, message)])
                    connection._socket.sendall(frame(RST_STREAM, 0, stream, CANCEL))
                while True:
                    connection.ended()

        with pytest.raises((CallFailed, ConnectionError)):
            await asyncio.wait_for(asyncio.to_thread(reset_until_closed), 60)
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(60):
            answer = None
            while answer is None:  # so many resets may also count as those of an overloaded server, for a second
                with contextlib.suppress(grpc.aio.AioRpcError):
                    answer = await method(channel, "Translate")(text=TEXT)
            assert answer.text
