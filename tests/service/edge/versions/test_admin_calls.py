import asyncio
import getpass
import logging
from typing import Any

import grpc
import pytest

from glossa.client import ClientError
from glossa.client.admin import AdminClient
from glossa.v1 import admin_pb2 as pb
from service.edge.admission.connections import users_of
from service.edge.security.tokens import ADMIN, Holder, digest_of, line_of
from service.edge.versions.admin_calls import arguments
from tests.edge import running
from tests.issuer import AUDIENCE, ISSUER, SignatureKey, jwks

ROOT, ACME = Holder("operator", frozenset({ADMIN})), Holder("acme")


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("\n".join((line_of("root-token", ROOT), line_of("acme-token", ACME))))
    return path


@pytest.fixture(autouse=True)
def _with_information(caplog):
    caplog.set_level(logging.INFO, logger="glossa")


def logged(caplog):
    """The admin calls of the log, the time of each left out."""
    found = [record.fields for record in caplog.records if record.getMessage() == "admin_call"]
    assert all(0 <= one["total_s"] < 5 for one in found)
    return [{name: value for name, value in one.items() if name not in ("total_s", "peer")} for one in found]


async def call(address, token, do):
    """Calls the admin service. Returns the code of the end."""
    with AdminClient(address, token=token) as client:
        try:
            await asyncio.to_thread(do, client)
        except ClientError as error:
            return error.code
    return "OK"


async def test_each_call_is_logged_with_its_caller_also_if_it_is_refused(tokens, caplog):
    async with running(tokens=tokens, admin_port=0) as edge:
        address = f"127.0.0.1:{edge.server.admin_port}"
        for token in ("root-token", "acme-token", "stranger", ""):
            await call(address, token, lambda client: client.versions("en"))
        assert await call(address, "root-token", lambda client: client.unload("en", "x" * 300)) == "NOT_FOUND"
    known, refused, stranger, nobody, unload = logged(caplog)
    list_versions = {"method": "ListVersions", "arguments": {"model": "en"}}
    digest = {name: digest_of(name).hex()[:12] for name in ("root-token", "acme-token", "stranger")}
    root = {"by": "token", "tenant": "operator", "token_sha256": digest["root-token"]}
    assert known == {**list_versions, **root, "code": "OK"}
    assert (refused["by"], refused["tenant"], refused["code"]) == ("token", "acme", "PERMISSION_DENIED")
    assert "has not the right admin" in refused["reason"]
    assert {**stranger, "reason": ""} == {
        **list_versions,
        **{"by": "nobody", "token_sha256": digest["stranger"], "code": "UNAUTHENTICATED", "reason": ""},
    }
    assert "token_sha256" not in nobody
    assert (nobody["by"], nobody["code"]) == ("nobody", "UNAUTHENTICATED")
    assert {**unload, **root, "method": "UnloadVersion", "code": "NOT_FOUND"} == unload
    assert len(unload["arguments"]["version"].encode()) == 256
    levels = [record.levelname for record in caplog.records if record.getMessage() == "admin_call"]
    assert levels == ["INFO", *["WARNING"] * 4]
    assert "stranger" not in caplog.text
    assert "root-token" not in str([record.__dict__ for record in caplog.records])


async def test_the_admin_socket_names_its_user(tmp_path, caplog):
    async with running(admin_socket=tmp_path / "admin"):
        assert users_of(str(tmp_path / "admin")) == [], "it listens, and nobody is connected"
        code = await call(f"unix:{tmp_path / 'admin'}", "", lambda client: client.roll_back("en"))
    (found,) = logged(caplog)
    assert found.pop("reason")
    assert found == {
        **{"method": "RollBack", "arguments": {"model": "en"}, "code": "FAILED_PRECONDITION"},
        **{"by": "socket", "users": [getpass.getuser()]},
    }
    assert code == "FAILED_PRECONDITION"


async def test_a_token_of_an_issuer_is_named_by_its_subject(tmp_path, caplog):
    key = SignatureKey()
    (tmp_path / "keys").write_bytes(jwks(key))
    issuer = {"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, "oidc_jwks": str(tmp_path / "keys")}
    async with running(**issuer, admin_port=0) as edge:
        token = key.token(glossa_rights="admin")
        assert await call(f"127.0.0.1:{edge.server.admin_port}", token, lambda client: client.versions()) == "OK"
    (found,) = logged(caplog)
    assert (found["by"], found["tenant"], found["subject"], found["code"]) == ("token", "acme", "service-7", "OK")


async def test_calls_that_break_are_malformed_or_cancelled_are_logged(tmp_path, caplog, monkeypatch):
    address = f"unix:{tmp_path / 'admin'}"
    async with running(admin_socket=tmp_path / "admin") as edge, grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.unary_unary("/glossa.v1.AdminService/ListVersions")
        with pytest.raises(grpc.aio.AioRpcError):
            await method(b"\x0a\xff")
        monkeypatch.setattr(edge.server._reloader, "statuses", lambda _: 1 / 0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"")
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        began, held = asyncio.Event(), asyncio.Event()

        async def hold(*_, **__):
            began.set()
            await held.wait()

        monkeypatch.setattr(edge.server._reloader, "roll_back", hold)
        roll_back: Any = channel.unary_unary("/glossa.v1.AdminService/RollBack")
        waiting = roll_back(b"")
        await began.wait()
        waiting.cancel()
        async with asyncio.timeout(5):
            while len(logged(caplog)) < 3:
                await asyncio.sleep(0.01)
    malformed, broken, cancelled = logged(caplog)
    assert (malformed["code"], malformed["arguments"]) == ("INVALID_ARGUMENT", None)
    assert (broken["code"], broken["arguments"]) == ("INTERNAL", {})
    assert (cancelled["method"], cancelled["code"]) == ("RollBack", "CANCELLED")


def test_texts_of_users_are_counted_not_logged():
    example = pb.EvaluationExample(text="my secret", reference="mein Geheimnis")
    evaluation = pb.Evaluation(examples=[example] * 3, source_language="en", max_loss=0.5)
    request = pb.LoadVersionRequest(model="m", path="/b", keep_default=True, evaluation=evaluation)
    assert arguments(request) == {
        **{"model": "m", "path": "/b", "keep_default": True},
        "evaluation": {"examples": 3, "source_language": "en", "max_loss": 0.5},
    }


def test_lists_are_bounded():
    versions = pb.ListVersionsResponse(versions=[pb.Version(model="m", calls=2)] * 30)
    assert arguments(versions) == {"versions": [{"model": "m", "calls": 2}] * 20}
