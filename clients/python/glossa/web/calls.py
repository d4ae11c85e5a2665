"""The life of a call: it ends with the browser that made it. A closed tab cancels its call in the server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Send

from glossa.client import ClientError
from glossa.web.refusals import Refused, problem_of

Reply = TypeVar("Reply")


class Gone(Exception):
    """Nobody waits for the answer any more."""


async def while_present(request: Request, reply: Awaitable[Reply]) -> Reply:
    """What is awaited, unless the client goes away: then it is cancelled. The body must have been read.

    Raises Gone.
    """
    call, gone = asyncio.ensure_future(reply), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
        if call.done():
            return call.result()
        raise Gone
    finally:
        for task in (call, gone):
            task.cancel()
        await asyncio.wait({call, gone})


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Lines(StreamingResponse):
    """Values as lines of JSON, sent as they come. Its generator is closed when the client goes away."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # the latter for nginx
        super().__init__(lines, headers=headers)
        self._lines = lines

    async def stream_response(self, send: Send) -> None:
        async with contextlib.aclosing(self._lines):
            await super().stream_response(send)


async def streamed(request: Request, pieces: AsyncGenerator[Any, None], address: str) -> Lines:
    """The pieces of an answer. An error before the first of them is raised; a later one is the last line."""
    try:
        first = await while_present(request, anext(pieces))
    except BaseException:
        await pieces.aclose()
        raise
    return Lines(_lines(first, pieces, address))


async def _lines(first: Any, pieces: AsyncGenerator[Any, None], address: str) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(pieces):
        yield _line(first)
        try:
            async for piece in pieces:
                yield _line(piece)
        except ClientError as error:
            yield _line(problem_of(error, address))


def _line(value: Any) -> bytes:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def answer(value: Any) -> JSONResponse:
    """A result as JSON."""
    return JSONResponse(plain(value), headers={"cache-control": "no-store"})


def plain(value: Any) -> Any:
    """A result as JSON values: objects for dataclasses, null for numbers that are not finite."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


async def json_object(request: Request) -> dict[str, Any]:
    """The body, an object of JSON. Raises Refused."""
    try:
        value = json.loads(await request.body())
    except ValueError as error:
        raise Refused(f"the body must be JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise Refused(f"the body must be an object of JSON, got {type(value).__name__}")
    return value
