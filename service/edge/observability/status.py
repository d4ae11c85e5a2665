"""Errors as gRPC statuses: the one table from error classes to codes, and the google.rpc details of each class.

Texts of errors repeat what clients sent. Here, and here alone, they are cut (`shown`): gRPC clients take 8 KiB of
metadata, and fail a call with more of it with a status of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from service.errors import (
    Backlogged,
    Cancelled,
    DeadlineExceeded,
    DeadlineTooSoon,
    EngineUnavailable,
    InternalFailure,
    InvalidRequest,
    MemoryLimit,
    MessagesMissing,
    ModelNotFound,
    NoRoomForVersion,
    Overloaded,
    PermissionDenied,
    RequestError,
    Retryable,
    ShuttingDown,
    TenantLimit,
    TokensSpent,
    Unauthenticated,
    Unsatisfiable,
    Unsupported,
    VersionConflict,
    VersionRefused,
)

STATUS: dict[type[RequestError], grpc.StatusCode] = {
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    Unsatisfiable: grpc.StatusCode.FAILED_PRECONDITION,
    VersionRefused: grpc.StatusCode.FAILED_PRECONDITION,
    VersionConflict: grpc.StatusCode.ABORTED,
    NoRoomForVersion: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TenantLimit: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TokensSpent: grpc.StatusCode.RESOURCE_EXHAUSTED,
    MessagesMissing: grpc.StatusCode.RESOURCE_EXHAUSTED,
    MemoryLimit: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Backlogged: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineTooSoon: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ShuttingDown: grpc.StatusCode.UNAVAILABLE,
    EngineUnavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cancelled: grpc.StatusCode.CANCELLED,
    InternalFailure: grpc.StatusCode.INTERNAL,
}

DOMAIN = "glossa"
MAX_BYTES = 1024  # of an error's message, which its details repeat
MAX_NAME_BYTES = 256  # of each other text: fields, names of models and tenants
CUT = " … "
RETRY_ELSEWHERE_S = 1.0  # for clients of a server that drains


def status_code(error: RequestError) -> grpc.StatusCode:
    """The code of an error's class, or of its nearest base class in the table."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def shown(text: str, limit: int = MAX_BYTES) -> str:
    """A text without its middle, if it has more bytes than `limit`: what an error is about comes first, the fix
    last."""
    data = text.encode(errors="replace") if len(text) > limit or not text.isascii() else b""
    if len(data) <= limit:
        return text
    rest = limit - len(CUT.encode())
    last = rest // 4
    return data[: rest - last].decode(errors="ignore") + CUT + data[-last:].decode(errors="ignore")


def _shown_fields(error: RequestError) -> dict[str, Any]:
    """The fields of an error, cut."""
    return {name: _shown_field(name, value) for name, value in vars(error).items()}


def _shown_field(name: str, value: Any) -> Any:
    """One field. Of several names, those that have room."""
    if isinstance(value, str):
        return shown(value, MAX_BYTES if name == "problem" else MAX_NAME_BYTES)
    if isinstance(value, tuple) and all(isinstance(one, str) for one in value):
        sizes = itertools.accumulate(len(one.encode()) + 1 for one in value)
        return tuple(one for one, size in zip(value, sizes, strict=True) if size <= MAX_BYTES)
    return value


def _restored(kind: type[RequestError], arguments: Iterable[str], fields: Mapping[str, Any]) -> RequestError:
    """An error of these arguments and fields."""
    error = kind.__new__(kind, *arguments)
    vars(error).update(fields)
    return error


def error_details(error: RequestError) -> Iterator[Message]:
    """The google.rpc details of an error, ErrorInfo first."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if isinstance(error, ModelNotFound):
        info.metadata["models"] = ",".join(error.known)
    yield info
    match error:
        case InvalidRequest():
            violation = {"field": error.field, "description": error.problem, "reason": error.reason}
            yield error_details_pb2.BadRequest(field_violations=[violation])
        case ModelNotFound():
            yield error_details_pb2.ResourceInfo(
                resource_type="glossa.v1.Model", resource_name=error.name, description=str(error)
            )
        case Unsupported() | Unsatisfiable() | VersionRefused():
            subject = {Unsupported: "model", Unsatisfiable: "options"}.get(type(error), "version")
            violation = {"type": error.reason, "subject": subject, "description": str(error)}
            yield error_details_pb2.PreconditionFailure(violations=[violation])
        case Overloaded():
            yield error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=error.retry_after_s))
            violation = {"subject": "requests", "description": f"at most {error.limit} concurrent requests"}
            yield error_details_pb2.QuotaFailure(violations=[violation])
        case TenantLimit():
            yield error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=error.retry_after_s))
            violation = {"subject": f"tenant:{error.tenant}", "description": f"a share of {error.limit} requests"}
            yield error_details_pb2.QuotaFailure(violations=[violation])
        case TokensSpent():
            yield error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=error.retry_after_s))
            violation = {"subject": f"tenant:{error.tenant}", "description": f"{error.limit} tokens a minute"}
            yield error_details_pb2.QuotaFailure(violations=[violation])
        case MemoryLimit():
            yield error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=error.retry_after_s))
            violation = {"subject": "memory", "description": f"at most {error.limit} bytes of concurrent requests"}
            yield error_details_pb2.QuotaFailure(violations=[violation])
        case NoRoomForVersion():
            description = f"{error.predicted} bytes predicted, {error.limit} bytes allowed"
            yield error_details_pb2.QuotaFailure(violations=[{"subject": "memory", "description": description}])
        case EngineUnavailable() | DeadlineTooSoon() | Backlogged() | MessagesMissing():
            yield error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=error.retry_after_s))
        case ShuttingDown():
            yield error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=RETRY_ELSEWHERE_S))
        case InternalFailure():
            yield error_details_pb2.RequestInfo(request_id=error.request_id)


def rich_status(error: RequestError) -> status_pb2.Status:
    """The code, the message and the details of an error, cut."""
    error = _restored(type(error), map(shown, error.args), _shown_fields(error))
    status = status_pb2.Status(code=status_code(error).value[0], message=str(error))
    for detail in error_details(error):
        status.details.add().Pack(detail)
    return status


@functools.lru_cache(maxsize=1024)
def _rich_status(kind: type[RequestError], message: str, fields: tuple[tuple[str, Any], ...]) -> Any:
    """The code, the details and the trailing metadata of an error. Cached: under overload few are sent many times."""
    error = _restored(kind, (message,), dict(fields))
    rich = rpc_status.to_status(rich_status(error))
    pushback = (
        [("grpc-retry-pushback-ms", str(round(error.retry_after_s * 1000)))] if isinstance(error, Retryable) else []
    )
    return rich.code, rich.details, (*rich.trailing_metadata, *pushback)


def check_time(client_deadline_s: float, now_s: float) -> None:
    """Call it before the end of an RPC is sent. Raises CancelledError after the client's deadline: then it has its
    status, gRPC has ended the call or is about to, and what is sent is lost. It would cost a kilobyte for ever, because
    grpc.aio frees what an operation holds only if it succeeds."""
    if now_s >= client_deadline_s:
        raise asyncio.CancelledError


@contextlib.contextmanager
def client_may_leave() -> Iterator[None]:
    """Around what writes to a client. Raises CancelledError if the client has left: grpc.aio tells a handler by
    cancelling it, but what it was writing fails first."""
    try:
        yield
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


async def abort(context: Any, error: RequestError, trailers: tuple[tuple[str, str | bytes], ...]) -> None:
    """Ends the RPC with the status and details of `error`, cut. Raises, as grpc requires."""
    fields: tuple[tuple[str, Any], ...] = tuple(_shown_fields(error).items())
    code, details, metadata = _rich_status(type(error), shown(error.args[0]), fields)  # type: ignore[arg-type]
    with client_may_leave():
        await context.abort(code, details, (*trailers, *metadata))
