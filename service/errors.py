"""Errors of requests and of starting. `edge/status.py` has the one table from these classes to gRPC status codes.

RequestError                  one request failed; the message is safe to show to its client
├── Unauthenticated           the call proves nobody's identity
├── PermissionDenied          the caller may not do that
├── InvalidRequest            a field has an invalid value
├── ModelNotFound             the server has no such model
├── Unsupported               the model does not support the RPC or an option
├── Unsatisfiable             the request's constraints leave no possible token
├── VersionRefused            a version cannot be loaded, stopped, or made the default; nothing has changed
├── VersionConflict           the model is being changed by another call
├── NoRoomForVersion          both versions do not fit into the memory
├── Overloaded                the queue is full; try again later
├── TenantLimit               a tenant has as many requests as it may while others are present; try again later
├── TokensSpent               a tenant has used its tokens of this minute; try again later
├── MessagesMissing           too many calls wait for their messages; try again later
├── Backlogged                calls wait too long before the server sees them; try again later
├── DeadlineTooSoon           the answer is expected after the deadline; allow more time, or try again later
├── ShuttingDown              the server is draining
├── EngineUnavailable         the engine's process ended, or is being started again; try again
├── DeadlineExceeded          the deadline passed before the answer was complete
├── Cancelled                 the client cancelled the call
└── InternalFailure           a defect of the server; details are in the log under the request id, never in the message
StartupError                  the server cannot start: the message has the cause, the value and the fix
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from typing import Any

from service.progress import Progress


class RequestError(Exception):
    """One request failed. `reason` is stable, for programs; the message is for people.

    What a subclass annotates are its fields: attributes that reach other processes with it. progress: how far the
    request had come, if an engine ended it.
    """

    reason = "REQUEST_FAILED"
    progress: Progress | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the message and the fields: the arguments of a subclass differ from them."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class Unauthenticated(RequestError):
    """The call proves nobody's identity."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(RequestError):
    """The caller may not do that."""

    reason = "PERMISSION_DENIED"


class InvalidRequest(RequestError):
    """A field has an invalid value. problem: what is wrong, the value, the limit."""

    reason = "INVALID_FIELD"
    field: str
    problem: str

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ModelNotFound(RequestError):
    """The server has no model of this name. known: those it has."""

    reason = "MODEL_NOT_FOUND"
    name: str
    known: tuple[str, ...]

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"model {name!r} is not served here; models: {', '.join(known)}")
        self.name = name
        self.known = tuple(known)


class Unsupported(RequestError):
    """The model does not support the RPC or an option."""

    reason = "UNSUPPORTED_BY_MODEL"


class Unsatisfiable(RequestError):
    """The request's constraints leave no possible token."""

    reason = "CONSTRAINTS_UNSATISFIABLE"


class VersionRefused(RequestError):
    """A version of a model cannot be loaded, stopped, or made the default. Nothing has changed."""

    reason = "VERSION_REFUSED"


class VersionConflict(RequestError):
    """Another call is changing the model."""

    reason = "VERSION_CONFLICT"


class NoRoomForVersion(RequestError):
    """One more version may come to need more memory than there is. predicted, limit: bytes."""

    reason = "NO_ROOM_FOR_VERSION"
    predicted: int
    limit: int

    def __init__(self, message: str, *, predicted: int, limit: int) -> None:
        super().__init__(message)
        self.predicted = predicted
        self.limit = limit


class Retryable(Exception):
    """What the errors have in common that tell when to try again, in their texts as well. retry_after_s: seconds until
    then; may be set later on."""

    retry_after_s: float

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.args[0]}; try again in {self.retry_after_s:.2g} s"


class Overloaded(Retryable, RequestError):
    """A queue is full. limit: requests that it holds."""

    reason = "QUEUE_FULL"
    limit: int

    def __init__(self, message: str, *, retry_after_s: float, limit: int) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit


class TenantLimit(Retryable, RequestError):
    """A tenant has as many unfinished requests as it may while others are present. limit: requests of all tenants."""

    reason = "TENANT_LIMIT"
    tenant: str
    limit: int

    def __init__(self, tenant: str, *, retry_after_s: float, limit: int) -> None:
        name = f"tenant {tenant!r}" if tenant else "the anonymous tenant"
        super().__init__(
            f"{name} already has its share of the {limit} requests that may be open here while other tenants are "
            "present",
            retry_after_s=retry_after_s,
        )
        self.tenant = tenant
        self.limit = limit


class TokensSpent(Retryable, RequestError):
    """A tenant has fewer tokens left than the request may use. limit: tokens of a minute."""

    reason = "TENANT_TOKENS"
    tenant: str
    limit: int

    def __init__(self, tenant: str, *, retry_after_s: float, limit: int) -> None:
        super().__init__(
            f"tenant {tenant!r} has fewer of its {limit} tokens a minute left than prompt and answer may have",
            retry_after_s=retry_after_s,
        )
        self.tenant = tenant
        self.limit = limit


class MessagesMissing(Retryable, RequestError):
    """Too many calls wait for their messages, of which this one, or its connection, is to blame."""

    reason = "MESSAGES_MISSING"


class MemoryLimit(Retryable, RequestError):
    """The requests that are open may hold as many bytes as they may, of all tenants or of one. limit: bytes of all."""

    reason = "MEMORY_LIMIT"
    limit: int

    def __init__(self, message: str, *, retry_after_s: float, limit: int) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit


class Backlogged(Retryable, RequestError):
    """Calls wait too long before the server sees them."""

    reason = "BACKLOG"


class DeadlineTooSoon(Retryable, RequestError):
    """The answer is expected after the deadline."""

    reason = "DEADLINE_TOO_SOON"


class ShuttingDown(RequestError):
    """The server is draining."""

    reason = "SHUTTING_DOWN"

    def __init__(self, message: str = "the server is shutting down; send the request to another one") -> None:
        super().__init__(message)


class EngineUnavailable(Retryable, RequestError):
    """The process of the request's engine ended, or no engine of the model runs."""

    reason = "ENGINE_UNAVAILABLE"


class DeadlineExceeded(RequestError):
    """The deadline passed before the answer was complete."""

    reason = "DEADLINE_EXCEEDED"


class Cancelled(RequestError):
    """The client cancelled the call."""

    reason = "CANCELLED"


class InternalFailure(RequestError):
    """A defect of the server. The message has the request id only."""

    reason = "INTERNAL"
    request_id: str

    def __init__(self, request_id: str) -> None:
        super().__init__(f"internal error; the server's log has the details under request id {request_id}")
        self.request_id = request_id


# The errors that reject a request before any work, and those that end an accepted one.
REJECTIONS = (
    *(Unauthenticated, PermissionDenied, InvalidRequest, ModelNotFound, Unsupported, Overloaded, TenantLimit),
    *(TokensSpent, MessagesMissing, MemoryLimit, Backlogged, DeadlineTooSoon, ShuttingDown, EngineUnavailable),
)
ENDS = (Cancelled, DeadlineExceeded, DeadlineTooSoon, Unsatisfiable, ShuttingDown, EngineUnavailable, InternalFailure)
CHANGES = (VersionRefused, VersionConflict, NoRoomForVersion)  # of models, that were refused
_KINDS: tuple[type[RequestError], ...] = (*REJECTIONS, *ENDS, *CHANGES)
ERRORS: Mapping[str, type[RequestError]] = {kind.reason: kind for kind in _KINDS}
"""All errors of requests by their reasons."""


class StartupError(Exception):
    """The server cannot start."""
