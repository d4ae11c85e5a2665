"""The messages of a stream of requests: as requests that are answered in turn (`requests_of`), each with a deadline and
a log line of its own, or as messages of items that are answered together (`messages_of`).

Answered in turn, such a stream is one request to the server at any time, as any other call is; what many are is in
`items`. Nothing here knows gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from service.edge.calls.call import Call
from service.edge.calls.record import report_request
from service.edge.observability.metrics import Metrics

T = TypeVar("T")
Behaviour = TypeVar("Behaviour", bound=Callable[..., Any])


def takes_items(behaviour: Behaviour) -> Behaviour:
    """Marks a method whose messages are those of `messages_of`."""
    vars(behaviour)["takes_items"] = True
    return behaviour


def has_items(behaviour: Callable[..., Any]) -> bool:
    """Whether `takes_items` marks a method."""
    return getattr(behaviour, "takes_items", False)


async def messages_of(
    call: Call, first: T, read: Callable[[], Awaitable[T | None]], metrics: Metrics
) -> AsyncGenerator[T, None]:
    """The messages of a call, each read when it is asked for. Their memory is part of the call's. Parameters as of
    `requests_of`."""
    yield first
    while (message := await read()) is not None:
        metrics.rpc_received(call.rpc.method)
        yield message


async def read_on(read: Awaitable[T]) -> T:
    """What `read` returns. It goes on if its caller is cancelled: grpc frees what a read has allocated only when the
    read ends, which it does with the call."""
    reading = asyncio.ensure_future(read)
    reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # or asyncio would log an error
    return await asyncio.shield(reading)


async def requests_of(
    call: Call,
    first: T,
    read: Callable[[], Awaitable[T | None]],
    metrics: Metrics,
    clock: Callable[[], float],
    limit_s: float,
) -> AsyncGenerator[T, None]:
    """The messages of a call. Asking for the next one says that the one before is answered.

    first: the one that has been read. read: reads another, or None at the end. limit_s: seconds for each, unless the
    client's deadline comes first. Raises what `read` raises.
    """
    message: T | None = first
    while message is not None:
        began_s = clock()
        call.limit(call.rpc._replace(deadline_s=min(call.rpc.client_deadline_s, began_s + limit_s)))
        yield message
        report_request(call.rpc, call.record, call.record.error, metrics, began_s, clock())
        call.budget.memory.release()
        call.begin_request()
        call.limit(call.rpc._replace(deadline_s=call.rpc.client_deadline_s))
        with call.ending.between_requests():
            message = await read()
        if message is not None:
            metrics.rpc_received(call.rpc.method)
