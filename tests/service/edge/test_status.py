import grpc
import pytest
from google.rpc import error_details_pb2

from service import errors
from service.edge.status import STATUS, error_details, status_code

EXAMPLES = {
    errors.InvalidRequest: errors.InvalidRequest("text", "must not be empty"),
    errors.ModelNotFound: errors.ModelNotFound("de-en", ["en-de"]),
    errors.Unsupported: errors.Unsupported("cannot"),
    errors.Unsatisfiable: errors.Unsatisfiable("no way on"),
    errors.Overloaded: errors.Overloaded("full", retry_after_s=1.5, limit=3),
    errors.ShuttingDown: errors.ShuttingDown(),
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
        (errors.Overloaded, error_details_pb2.QuotaFailure),
        (errors.Overloaded, error_details_pb2.RetryInfo),
        (errors.ShuttingDown, error_details_pb2.RetryInfo),
        (errors.InternalFailure, error_details_pb2.RequestInfo),
    ],
)
def test_details_that_clients_of_google_rpc_expect(kind, detail):
    assert detail in [type(found) for found in error_details(EXAMPLES[kind])]


def test_a_subclass_of_an_error_has_the_status_of_its_parent():
    special = type("Special", (errors.InvalidRequest,), {})("text", "is odd")
    assert status_code(special) is grpc.StatusCode.INVALID_ARGUMENT
