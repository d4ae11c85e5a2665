"""The log of admin calls (`AdminCalls`): each one is a line `admin_call`, also if it was refused or ended unheard.

It says who called, what with, how it ended and how long it took. A token is named by its digest, as its line of the
file is, or by the subject that its issuer gave it to; on the admin socket a user is named, by the kernel. Texts of test
sets are counted, not logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from service.edge.admission.connections import users_of
from service.edge.observability import logs
from service.edge.observability.status import shown
from service.edge.security.access import LOCAL, Guard
from service.edge.security.tokens import bearer_token, digest_of
from service.errors import Unauthenticated

COUNTED = frozenset({"examples"})  # fields with texts of users
MAX_BYTES, MAX_LISTED, DIGEST_DIGITS = 256, 20, 12


class AdminCalls(grpc.aio.ServerInterceptor):
    """Logs the calls of a server all of whose methods are unary. Event-loop thread only."""

    def __init__(self, guard: Guard, admin_socket: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """admin_socket: that the server listens on. clock: seconds."""
        self._guard, self._socket, self._clock = guard, admin_socket, clock

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The handler of a call, with its line of the log. None: there is no such method."""
        handler = await continuation(details)
        if handler is None:
            return None
        assert handler.unary_unary is not None, details.method
        method = details.method.rpartition("/")[2]

        async def logged(message: Message | None, context: Any) -> Any:
            began_s, cancelled, caller = self._clock(), False, self._caller(context)  # who may be gone at the end
            try:
                return await handler.unary_unary(message, context)
            except asyncio.CancelledError:
                cancelled = True
                raise
            finally:
                self._log(method, message, context, caller, self._clock() - began_s, cancelled=cancelled)

        return grpc.unary_unary_rpc_method_handler(logged, handler.request_deserializer, handler.response_serializer)

    @staticmethod
    def _log(
        method: str, message: Message | None, context: Any, caller: dict[str, Any], seconds: float, *, cancelled: bool
    ) -> None:
        code = grpc.StatusCode.CANCELLED if cancelled else _status(context.code())
        fields = {
            "method": method,
            **caller,
            "arguments": arguments(message) if message is not None else None,
            "code": code.name,
            **({"reason": shown(_text(context.details()))} if context.details() and not cancelled else {}),
            "total_s": round(seconds, 6),
        }
        logs.event("admin_call", fields, level=logs.INFO if code is grpc.StatusCode.OK else logs.WARNING)

    def _caller(self, context: Any) -> dict[str, Any]:
        """Who calls: a user of this machine, the holder of a token, or nobody that is known."""
        if context.peer().startswith(LOCAL):
            assert self._socket is not None
            return {"by": "socket", "users": users_of(str(self._socket))}
        metadata = tuple(context.invocation_metadata() or ())
        found: dict[str, Any] = {"by": "nobody", "peer": context.peer()}
        with contextlib.suppress(Unauthenticated):
            found |= {"token_sha256": digest_of(bearer_token(metadata)).hex()[:DIGEST_DIGITS]}
        if (holder := self._guard.holder(metadata)) is not None:
            found |= {"by": "token", "tenant": holder.tenant}
            if holder.subject:
                found |= {"subject": holder.subject}
        return found


def arguments(message: Message) -> dict[str, Any]:
    """The fields of a message that are set, with long texts cut, and of texts of users only how many there are."""
    return {field.name: _argument(field.name, value) for field, value in message.ListFields()}


def _argument(name: str, value: Any) -> Any:
    if name in COUNTED:
        return len(value)
    if isinstance(value, Message):
        return arguments(value)
    if isinstance(value, str):
        return shown(value, MAX_BYTES)
    if isinstance(value, Mapping):
        return {shown(str(key), MAX_BYTES): _argument("", value[key]) for key in sorted(value)[:MAX_LISTED]}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_argument("", one) for one in value[:MAX_LISTED]]
    return value if isinstance(value, bool | int | float) else len(value)


def _status(code: Any) -> grpc.StatusCode:
    """A code as a context has it: an enumeration, its number, or None while nothing was set."""
    if code is None:
        return grpc.StatusCode.OK
    if isinstance(code, grpc.StatusCode):
        return code
    return next(one for one in grpc.StatusCode if one.value[0] == code)


def _text(details: Any) -> str:
    return details.decode(errors="replace") if isinstance(details, bytes) else str(details)
