"""What can go wrong with a request. `servicer.py` holds the one table from these classes to gRPC status codes.

RequestError                  one request failed; the message is safe to show to its client
├── InvalidRequest            a field has a value that cannot be used
├── ModelNotFound             no such model here
├── Unsupported               the model cannot do what the RPC asks of it
├── Unsatisfiable             the request's constraints leave no way to go on
├── Overloaded                the queue is full; try again later
├── ShuttingDown              the server is draining
├── DeadlineExceeded          the deadline passed before the answer was complete
├── Cancelled                 the client went away
└── InternalFailure           our fault; details are in the log under the request id, never in the message
StartupError                  the server cannot start: the message says what, the value seen and the fix
"""

from __future__ import annotations

from collections.abc import Sequence


class RequestError(Exception):
    """One request failed. `reason` is UPPER_SNAKE_CASE, stable, for programs; the message is for people."""

    reason = "REQUEST_FAILED"


class InvalidRequest(RequestError):
    reason = "INVALID_FIELD"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ModelNotFound(RequestError):
    reason = "MODEL_NOT_FOUND"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"model {name!r} is not served here; models: {', '.join(known)}")
        self.name = name
        self.known = tuple(known)


class Unsupported(RequestError):
    reason = "UNSUPPORTED_BY_MODEL"


class Unsatisfiable(RequestError):
    reason = "CONSTRAINTS_UNSATISFIABLE"


class Overloaded(RequestError):
    reason = "QUEUE_FULL"

    def __init__(self, message: str, *, retry_after_s: float, limit: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.limit = limit


class ShuttingDown(RequestError):
    reason = "SHUTTING_DOWN"

    def __init__(self, message: str = "the server is shutting down; send the request to another one") -> None:
        super().__init__(message)


class DeadlineExceeded(RequestError):
    reason = "DEADLINE_EXCEEDED"


class Cancelled(RequestError):
    reason = "CANCELLED"


class InternalFailure(RequestError):
    reason = "INTERNAL"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"internal error; the server's log has the details under request id {request_id}")
        self.request_id = request_id


class StartupError(Exception):
    """The server cannot start."""
