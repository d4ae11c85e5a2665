"""What is answered instead of a result: LibreTranslate's `{"error": …}` with an HTTP status.

Beside the message the page gets what a ClientError has: code, reason, fields, and the pause before a retry.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from glossa.client import ClientError

STATUS = {  # by the gRPC status; others are 500. Libraries for LibreTranslate know 403 alone for a bad key
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 403,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class Refused(Exception):
    """A request that this process refuses itself."""

    def __init__(self, message: str, status: int = 400) -> None:
        self.message, self.status = message, status
        super().__init__(message)


@contextlib.contextmanager
def argument_errors() -> Iterator[None]:
    """Refuses what the client does: arguments of a wrong name, type or choice."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise Refused(str(error)) from None


def problem_of(error: Exception, address: str) -> dict[str, Any]:
    """An error as JSON values. address: of the server."""
    if not isinstance(error, ClientError):
        return {"error": str(error)}
    place = "" if error.item is None else f"q[{error.item}]: "
    body: dict[str, Any] = {"error": place + explained(error, address), "code": error.code, "reason": error.reason}
    if error.field_violations:
        body["fields"] = error.field_violations
    if error.retry_after_s is not None:
        body["retry_after_s"] = error.retry_after_s
    return body


def explained(error: ClientError, address: str) -> str:
    """The server's message; of a server that cannot be reached what to start."""
    if error.code != "UNAVAILABLE" or error.reason or error.hint:
        return error.message
    return f"no server at {address}; start one with `glossa serve NAME=BUNDLE`, or name another with --address"


def response_of(error: Exception, address: str) -> Response:
    """The answer to a request that ended with an error."""
    status = STATUS.get(error.code, 500) if isinstance(error, ClientError) else getattr(error, "status", 500)
    body, headers = problem_of(error, address), {"cache-control": "no-store"}
    if "retry_after_s" in body:
        headers["retry-after"] = str(math.ceil(body["retry_after_s"]))
    return JSONResponse(body, status, headers)


async def of_http(request: Request, error: Any) -> Response:
    """The same for an unknown path or method."""
    methods = error.headers.get("Allow") if error.headers else None
    message = f"{request.method} {request.url.path}: {error.detail}" + (f"; use {methods}" if methods else "")
    return JSONResponse({"error": message}, error.status_code, error.headers)
