import grpc
import pytest
from google.rpc import error_details_pb2

from glossa.v1 import glossa_pb2 as pb
from service import errors
from service.edge.observability.status import (
    MAX_BYTES,
    MAX_NAME_BYTES,
    STATUS,
    abort,
    error_details,
    rich_status,
    shown,
    status_code,
)
from tests.edge import failure, method, running

METADATA_BYTES = 8192  # that clients of gRPC take by default

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
    errors.TokensSpent: errors.TokensSpent("acme", retry_after_s=0.5, limit=64),
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
        (errors.TokensSpent, error_details_pb2.QuotaFailure),
        (errors.MemoryLimit, error_details_pb2.QuotaFailure),
        (errors.MemoryLimit, error_details_pb2.RetryInfo),
        (errors.TenantLimit, error_details_pb2.RetryInfo),
        (errors.TokensSpent, error_details_pb2.RetryInfo),
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
        (errors.TokensSpent, "500"),
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


LONG = "ä" * 50_000
LONG_ERRORS: dict[type[errors.RequestError], errors.RequestError] = {
    **{kind: kind(LONG) for kind in (errors.Unauthenticated, errors.Unsupported, errors.VersionRefused)},
    errors.InvalidRequest: errors.InvalidRequest(LONG, LONG),
    errors.ModelNotFound: errors.ModelNotFound(LONG, ["model-name"] * 5000),
    errors.TenantLimit: errors.TenantLimit(LONG, retry_after_s=0.5, limit=64),
    errors.TokensSpent: errors.TokensSpent(LONG, retry_after_s=0.5, limit=64),
    errors.Overloaded: errors.Overloaded(LONG, retry_after_s=0.5, limit=3),
}


@pytest.mark.parametrize("kind", LONG_ERRORS)
async def test_what_clients_sent_is_cut_so_that_they_can_read_the_status(kind):
    context = Context()
    await abort(context, LONG_ERRORS[kind], ())
    encoded, room = 3 * len(context.details.encode()), METADATA_BYTES - 400  # as %C3; and room for other trailers
    assert len(context.details.encode()) <= MAX_BYTES + len("; try again in 0.50 s")
    assert encoded + sum(4 / 3 * len(value) for _, value in context.trailers) < room
    assert rich_status(LONG_ERRORS[kind]).message == context.details


def test_a_text_loses_its_middle_and_only_if_it_is_too_long():
    assert shown("a" * MAX_BYTES) == "a" * MAX_BYTES
    assert shown("ä" * (MAX_BYTES // 2)) == "ä" * (MAX_BYTES // 2)
    cut = shown("ä" * MAX_BYTES + "; fix: shorten it")
    assert cut.startswith("ää")
    assert cut.endswith("ä; fix: shorten it")
    assert " … " in cut
    assert MAX_BYTES - 4 <= len(cut.encode()) <= MAX_BYTES
    assert shown(cut) == cut


def test_the_details_of_an_error_have_whole_names_and_a_short_field():
    status = rich_status(errors.ModelNotFound("x", [f"model-{number}" for number in range(5000)]))
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    names = info.metadata["models"].split(",")
    assert names == [f"model-{number}" for number in range(len(names))]
    assert 900 <= len(info.metadata["models"]) <= MAX_BYTES
    bad = error_details_pb2.BadRequest()
    rich_status(errors.InvalidRequest("a" * 5000, "is odd")).details[1].Unpack(bad)
    assert len(bad.field_violations[0].field.encode()) == MAX_NAME_BYTES
    assert bad.field_violations[0].description == "is odd"


async def test_a_client_that_sent_a_long_text_gets_the_error_of_that_text():
    forms = [["ä" * 100 + str(number * count) for number in range(16)] for count in (1, 2)]
    glossary = pb.Glossary(terms=[pb.GlossaryTerm(source="a", targets=targets) for targets in forms])
    async with running() as edge, grpc.aio.insecure_channel(edge.address) as channel:
        error, details = await failure(method(channel, "Translate")(text="a cat", glossary=glossary))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == "glossary.terms[1].source"
    assert error.details().endswith("give each source once, with all forms")
