"""Processor time of gRPC per streamed message: a server without a model sends messages at intervals to a client in
another process, and each reports the processor time it used.

This is a lower bound of the cost of a streamed token in Python; all other work of a server adds to it.

"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc

from bench.case import case
from bench.measure import Spread, report

METHOD, TEXT = "/bare/Stream", b"a word or so"


def serve(end: Connection, messages: int, gap_s: float) -> None:
    """Sends its port, then its processor time on each request."""

    async def run() -> None:
        async def stream(_request: bytes, context: Any) -> None:
            for _ in range(messages):
                await asyncio.sleep(gap_s)
                await context.write(TEXT)

        class Handler(grpc.GenericRpcHandler):
            def service(self, _details: Any) -> Any:
                return grpc.unary_stream_rpc_method_handler(stream)

        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Handler(),))
        end.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        while await asyncio.to_thread(end.recv):
            end.send(time.process_time())
        await server.stop(0)

    asyncio.run(run())


async def ask(port: int, calls: int, streams: int) -> int:
    """Messages received by `calls` calls, `streams` of them concurrently."""
    room = asyncio.Semaphore(streams)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = channel.unary_stream(METHOD)

        async def one() -> int:
            async with room:
                return sum([1 async for _ in stub(b"")])

        return sum(await asyncio.gather(*[one() for _ in range(calls)]))


@case(streams=128, calls=600, messages=30, gap_ms=40.0, repetitions=5)
def grpc_alone(asked: argparse.Namespace) -> None:
    own, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(other, asked.messages, asked.gap_ms / 1e3)
    )
    process.start()
    other.close()  # so that its end without a word ends the wait for one
    port = own.recv()

    def used_by_server() -> float:
        own.send(True)
        return float(own.recv())

    spent: dict[str, list[float]] = {"server": [], "client": []}
    for repetition in range(1 + asked.repetitions):
        before = used_by_server(), time.process_time()
        count = asyncio.run(ask(port, asked.calls, asked.streams))
        after = used_by_server(), time.process_time()
        if repetition:  # the first one warms up
            for name, begin, end in zip(spent, before, after, strict=True):
                spent[name].append(1e6 * (end - begin) / count)
    own.send(False)
    process.join()
    figures = {f"{name}, µs per message": Spread.of(values) for name, values in spent.items()}
    report({"unit": "processor time", "streams": asked.streams, **figures}, [], as_json=asked.json)
