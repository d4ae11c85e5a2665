"""What a call of the client raises: `ClientError`, made of a gRPC status and the details that the server attached."""

from __future__ import annotations

from typing import Any, cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status


class ClientError(Exception):
    """A call failed. `code` is the gRPC status by name, `reason` the server's UPPER_SNAKE_CASE reason or ""."""

    def __init__(self, error: grpc.RpcError) -> None:
        call = cast(Any, error)
        self.code: str = call.code().name
        self.message: str = call.details() or ""
        self.reason = ""
        self.field_violations: dict[str, str] = {}  # field → what is wrong with it
        self.retry_after_s: float | None = None
        super().__init__(f"{self.code}: {self.message}")
        status = rpc_status.from_call(call)
        for detail in status.details if status else ():
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
