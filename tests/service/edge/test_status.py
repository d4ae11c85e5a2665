import grpc
import pytest
from google.rpc import error_details_pb2

from service import errors
from service.edge.status import STATUS, abort, error_details, status_code

EXAMPLES = {
    errors.Unauthenticated: errors.Unauthenticated("the call has no token"),
    errors.PermissionDenied: errors.PermissionDenied("not yours"),
    errors.InvalidRequest: errors.InvalidRequest("text", "must not be empty"),
    errors.ModelNotFound: errors.ModelNotFound("de-en", ["en-de"]),
    errors.Unsupported: errors.Unsupported("cannot"),
    errors.Unsatisfiable: errors.Unsatisfiable("no way on"),
    errors.VersionRefused: errors.VersionRefused("no bundle"),
    errors.VersionConflict: errors.VersionConflict("busy"),
    errors.NoRoomForVersion: errors.NoRoomForVersion("full", predicted=3, limit=2),
    errors.Overloaded: errors.Overloaded("full", retry_after_s=1.5, limit=3),
    errors.MemoryLimit: errors.MemoryLimit("full", retry_after_s=0.5, limit=1 << 24),
    errors.TenantLimit: errors.TenantLimit("acme", retry_after_s=0.5, limit=64),
    errors.MessagesMissing: errors.MessagesMissing("calls wait for messages", retry_after_s=0.5),
    errors.Backlogged: errors.Backlogged("calls wait", retry_after_s=0.5),
    errors.DeadlineTooSoon: errors.DeadlineTooSoon("too late", retry_after_s=0.5),
    errors.ShuttingDown: errors.ShuttingDown(),
    errors.EngineUnavailable: errors.EngineUnavailable("its process ended", retry_after_s=0.25),
    errors.DeadlineExceeded: errors.DeadlineExceeded("late"),
    errors.Cancelled: errors.Cancelled("gone"),
    errors.InternalFailure: errors.InternalFailure("r-1"),
}


def subclasses(kind):
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


ALL = sorted(subclasses(errors.RequestError), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_a_row_in_the_status_table(kind):
    assert kind in STATUS
    assert status_code(EXAMPLES[kind]) == STATUS[kind]
    assert STATUS[kind] is not grpc.StatusCode.OK


@pytest.mark.parametrize("kind", ALL)
def test_every_error_carries_an_error_info_first(kind):
    info, *_ = error_details(EXAMPLES[kind])
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == (kind.reason, "glossa")
    assert info.reason == info.reason.upper()
    assert len(info.reason) <= 63


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        (errors.InvalidRequest, error_details_pb2.BadRequest),
        (errors.ModelNotFound, error_details_pb2.ResourceInfo),
        (errors.Unsupported, error_details_pb2.PreconditionFailure),
        (errors.Unsatisfiable, error_details_pb2.PreconditionFailure),
        (errors.VersionRefused, error_details_pb2.PreconditionFailure),
        (errors.NoRoomForVersion, error_details_pb2.QuotaFailure),
        (errors.Overloaded, error_details_pb2.QuotaFailure),
        (errors.Overloaded, error_details_pb2.RetryInfo),
        (errors.TenantLimit, error_details_pb2.QuotaFailure),
        (errors.MemoryLimit, error_details_pb2.QuotaFailure),
        (errors.MemoryLimit, error_details_pb2.RetryInfo),
        (errors.TenantLimit, error_details_pb2.RetryInfo),
        (errors.DeadlineTooSoon, error_details_pb2.RetryInfo),
        (errors.MessagesMissing, error_details_pb2.RetryInfo),
        (errors.Backlogged, error_details_pb2.RetryInfo),
        (errors.ShuttingDown, error_details_pb2.RetryInfo),
        (errors.EngineUnavailable, error_details_pb2.RetryInfo),
        (errors.InternalFailure, error_details_pb2.RequestInfo),
    ],
)
def test_details_that_clients_of_google_rpc_expect(kind, detail):
    assert detail in [type(found) for found in error_details(EXAMPLES[kind])]


class Context:
    """What `abort` needs of an RPC's context."""

    async def abort(self, code, details, trailing_metadata):
        self.code, self.details, self.trailers = code, details, trailing_metadata


@pytest.mark.parametrize(
    ("kind", "pushback"),
    [
        (errors.Overloaded, "1500"),
        (errors.TenantLimit, "500"),
        (errors.MemoryLimit, "500"),
        (errors.DeadlineTooSoon, "500"),
        (errors.MessagesMissing, "500"),
        (errors.Backlogged, "500"),
        (errors.EngineUnavailable, "250"),
    ],
)
async def test_a_client_is_told_when_a_retry_makes_sense(kind, pushback):
    context = Context()
    await abort(context, EXAMPLES[kind], (("x-request-id", "r-1"),))
    assert context.code is STATUS[kind]
    assert context.details == str(EXAMPLES[kind])
    assert context.trailers[0] == ("x-request-id", "r-1")
    assert dict(context.trailers)["grpc-retry-pushback-ms"] == pushback
    (delay,) = [
        info.retry_delay for info in error_details(EXAMPLES[kind]) if isinstance(info, error_details_pb2.RetryInfo)
    ]
    assert delay.ToMilliseconds() == int(pushback)


async def test_other_errors_leave_the_time_of_a_retry_to_the_client():
    for kind in [kind for kind in STATUS if not issubclass(kind, errors.Retryable)]:
        context = Context()
        await abort(context, EXAMPLES[kind], ())
        assert "grpc-retry-pushback-ms" not in dict(context.trailers), kind


def test_a_lost_engine_is_unavailable_so_that_clients_try_again():
    assert status_code(EXAMPLES[errors.EngineUnavailable]) is grpc.StatusCode.UNAVAILABLE


def test_a_subclass_of_an_error_has_the_status_of_its_parent():
    special = type("Special", (errors.InvalidRequest,), {})("text", "is odd")
    assert status_code(special) is grpc.StatusCode.INVALID_ARGUMENT
