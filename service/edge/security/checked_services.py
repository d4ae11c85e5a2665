"""The services of other packages, health and reflection: guarded as our own are, and made to answer malformed messages
with INVALID_ARGUMENT.

With their own deserializers an exception of the parser would reach the client as INTERNAL, and the log as a traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from service.edge.observability.status import abort
from service.edge.security.access import POLICY, Access, Guard
from service.errors import RequestError

PROBLEM = "the request is not a message of this method"


class CheckedServices:
    """Takes the place of a `grpc.aio.Server` in the functions that add generated services to one."""

    def __init__(self, server: Any, guard: Guard, name: str = "", *, is_urgent: bool = False) -> None:
        """name: under which to add services; empty: their own. is_urgent: their calls do not wait in one queue with all
        others; every urgent method makes each call that the server accepts some 5 us dearer."""
        self._server, self._guard, self._name, self._is_urgent = server, guard, name, is_urgent

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: generated code adds the same methods a second time, with the function below."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Adds the methods of a service that are in POLICY."""
        name = self._name or service
        checked = {
            method: _checked(handler, _Admission(self._guard, POLICY[path]))
            for method, handler in handlers.items()
            if (path := f"/{name}/{method}") in POLICY
        }
        if self._is_urgent:
            self._server.add_registered_method_handlers(name, checked)
        else:
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, checked),))


class _Admission:
    """What comes before a method."""

    def __init__(self, guard: Guard, access: Access) -> None:
        self._guard, self._access = guard, access

    async def check(self, context: Any) -> None:
        """Ends a call that may not be made. Raises, then."""
        try:
            self._guard.check(self._access, context.invocation_metadata() or (), context.peer())
        except RequestError as error:
            await abort(context, error, ())


def _checked(handler: Any, admission: _Admission) -> Any:
    """A method handler that gets no malformed message, and no call that may not be made."""
    parse: Callable[[bytes], Any] = handler.request_deserializer

    def parse_or_none(data: bytes) -> Any:
        with contextlib.suppress(DecodeError):
            return parse(data)
        return None

    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(
            _with_checked_stream(handler.stream_stream, admission), parse_or_none, handler.response_serializer
        )
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _with_checked_message(handler.unary_stream, admission), parse_or_none, handler.response_serializer
        )
    answer = handler.unary_unary

    async def unary(message: Any, context: Any) -> Any:
        await admission.check(context)
        if message is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, PROBLEM)
        return await answer(message, context)

    return grpc.unary_unary_rpc_method_handler(unary, parse_or_none, handler.response_serializer)


def _with_checked_message(
    behaviour: Callable[[Any, Any], AsyncIterator[Any]], admission: _Admission
) -> Callable[[Any, Any], Any]:
    async def stream(message: Any, context: Any) -> AsyncIterator[Any]:
        await admission.check(context)
        if message is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, PROBLEM)
        async for response in behaviour(message, context):
            yield response

    return stream


def _with_checked_stream(
    behaviour: Callable[[Any, Any], AsyncIterator[Any]], admission: _Admission
) -> Callable[[Any, Any], Any]:
    async def stream(messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        await admission.check(context)

        async def checked() -> AsyncIterator[Any]:
            async for message in messages:
                if message is None:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, PROBLEM)
                yield message

        async for response in behaviour(checked(), context):
            yield response

    return stream
