"""What a call of the client raises: `ClientError`, made of a gRPC status and the details that the server attached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self, cast

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class ClientError(Exception):
    """A call failed. `code` is the gRPC status by name, `reason` the server's UPPER_SNAKE_CASE reason or ""."""

    def __init__(self, error: grpc.RpcError) -> None:
        call = cast(Any, error)
        status = rpc_status.from_call(call)
        self._set(call.code().name, call.details() or "", status.details if status else ())

    @classmethod
    def of_status(cls, status: status_pb2.Status) -> Self:
        """The error of one item of a call with many."""
        error = cls.__new__(cls)
        error._set(CODES.get(status.code, "UNKNOWN"), status.message, status.details)
        return error

    def _set(self, code: str, message: str, details: Iterable[Any]) -> None:
        self.code, self.message, self.reason = code, message, ""
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
