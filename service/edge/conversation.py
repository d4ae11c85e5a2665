"""The requests of a stream of requests (`requests_of`): one after the other, each with a deadline and a log line of its
own.

They are answered in turn, so that such a stream is one request to the server at any time, as any other call is.
Nothing here knows gRPC.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from service.edge.call import Call, report_request
from service.edge.metrics import Metrics

T = TypeVar("T")


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
        call.deadline_s = min(call.client_deadline_s, began_s + limit_s)
        yield message
        report_request(call, call.error, metrics, began_s, clock())
        call.memory.release()
        call.begin_request()
        call.deadline_s, call.is_between_requests = call.client_deadline_s, True
        try:
            message = await read()
        finally:
            call.is_between_requests = False
        if message is not None:
            metrics.rpc_received(call.rpc)
