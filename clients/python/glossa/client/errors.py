"""The error of the client's calls, `ClientError`, made of a gRPC status and the details that the server attached."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, Self, cast

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

STATUS_S = 1.0  # until the status of a call that has ended must be here
_SENDING_FAILED = "Internal error from Core"
_TLS_HINTS = {  # by what gRPC says of a connection that it could not make
    "WRONG_VERSION_NUMBER": "the server speaks no TLS; leave out tls (--tls, --tls-ca), or use its port with TLS",
    "has expired": "the server's certificate has expired; renew it",
    "not yet valid": "the server's certificate is not yet valid; check the clocks",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of an authority that this client trusts; name that "
    "of the server with tls=FILE (--tls-ca FILE)",
    "Hostname Verification Check failed": "the server's certificate is for other names than the one in the address; "
    "use one of its names, or give the server a certificate for this one",
    "Socket closed": "the server closed the connection; if it speaks TLS, use tls=True or tls=FILE (--tls, --tls-ca "
    "FILE); if it asks for certificates of clients, tls_credentials (--client-cert, --client-key)",
}
CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class ClientError(Exception):
    """A call failed. `code` is the gRPC status by name, `reason` the server's UPPER_SNAKE_CASE reason or "". `item`: of
    an item of a call with many, its place from 0. `hint`: what is wrong with TLS, if that kept the client from
    connecting, or ""; `message` begins with it."""

    def __init__(self, error: grpc.RpcError, item: int | None = None) -> None:
        call = cast(Any, error)
        status = rpc_status.from_call(call)
        self._set(call.code().name, call.details() or "", status.details if status else (), item)

    @classmethod
    def of_status(cls, status: status_pb2.Status, item: int | None = None) -> Self:
        """The error of one item of a call with many."""
        error = cls.__new__(cls)
        error._set(CODES.get(status.code, "UNKNOWN"), status.message, status.details, item)
        return error

    def placed(self) -> Self:
        """This error, after its text got the place of its item."""
        self.args = (f"item {self.item} (from 0): {self.code}: {self.message}",)
        return self

    def _set(self, code: str, message: str, details: Iterable[Any], item: int | None) -> None:
        is_connecting = code == "UNAVAILABLE" and "last error: " in message
        hints = (hint for sign, hint in _TLS_HINTS.items() if is_connecting and sign in message)
        self.hint = next(hints, "")
        message = f"{self.hint} ({message})" if self.hint else message
        self.code, self.message, self.reason, self.item = code, message, "", item
        self.field_violations: dict[str, str] = {}  # field → what is wrong with it
        self.retry_after_s: float | None = None
        super().__init__(f"{code}: {message}")
        for detail in details:
            self._take(detail)

    def _take(self, detail: Any) -> None:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            self.reason = info.reason
        elif detail.Unpack(bad):
            self.field_violations |= {violation.field: violation.description for violation in bad.field_violations}
        elif detail.Unpack(retry):
            self.retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()


class ServerStatus:
    """The status with which a server ends a call of grpc.aio with a stream of requests.

    If the call ends while a request is being sent, that fails, and grpc.aio (1.85) replaces the status by INTERNAL
    without details or metadata.
    """

    def __init__(self, call: Any) -> None:
        self._error: grpc.RpcError | None = None
        self._is_here = asyncio.Event()
        call.add_done_callback(self._note)

    async def of(self, error: grpc.RpcError) -> grpc.RpcError:
        """The error of the server instead of one that it raised."""
        if cast(Any, error).details() == _SENDING_FAILED:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_here.wait(), STATUS_S)
        return self._error or error

    def _note(self, call: Any) -> None:
        """Called with each status, while it is that of the call."""
        code, details, trailing = (_done(part()) for part in (call.code, call.details, call.trailing_metadata))
        if self._error is None and details != _SENDING_FAILED and code is not grpc.StatusCode.OK:
            self._error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=details)
            self._is_here.set()


def _done(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the status of the call is here")
