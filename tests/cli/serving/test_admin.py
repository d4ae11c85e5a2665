"""`glossa admin` against a running server without engines; tests/e2e/test_reload.py loads bundles with it."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from tests.cli.command import run
from tests.edge import running


@pytest.fixture
async def address(tmp_path):
    """Of the admin socket of a server with the models `en` and `en-de`."""
    async with running(admin_socket=tmp_path / "admin"):
        yield f"unix:{tmp_path / 'admin'}"


async def command(address, *arguments, fails=False):
    return await asyncio.to_thread(run, "admin", *arguments, "--address", address, fails=fails)


async def test_versions_are_listed_as_a_table_and_as_json(address):
    header, *rows = (await command(address, "versions")).splitlines()
    assert header.split() == ["VERSION", "STATE", "CALLS", "BUNDLE", "PATH"]
    digest = "cd" * 32
    assert [row.split() for row in rows] == [
        [f"{name}@{digest[:12]}", "serving,", "default", "0", digest[:12], "/none"] for name in ("en", "en-de")
    ]
    (version,) = json.loads(await command(address, "versions", "en", "--json"))
    assert version == {
        "model": "en",
        "version": digest[:12],
        "state": "serving",
        "is_default": True,
        "bundle_sha256": digest,
        "path": "/none",
        "calls": 0,
        "engine_processes": 1,
        "weight": 100,
        "shadow_share": 0,
    }


async def test_refusals_of_the_server_are_told(address, tmp_path):
    assert "FAILED_PRECONDITION" in await command(address, "load", "en-de", tmp_path / "none", fails=True)
    assert "NOT_FOUND: model 'de' is not served here; models: en, en-de" in await command(
        address, "load", "de", fails=True
    )
    assert "no other default" in await command(address, "rollback", "en", fails=True)
    assert "NOT_FOUND: model 'en@x' is not served here" in await command(address, "default", "en", "x", fails=True)
    assert "is the default of model en" in await command(address, "unload", "en", "cd" * 6, fails=True)


async def test_a_relative_path_is_from_where_the_command_runs(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path / 'bundle'}" in await command(address, "load", "en-de", "bundle", fails=True)


async def test_a_test_set_is_a_table_of_texts_and_references(address, tmp_path):
    (tmp_path / "test.tsv").write_text("a\tb\nc\n")
    message = await command(address, "load", "en", "--evaluate", tmp_path / "test.tsv", fails=True)
    assert "test.tsv: line 2 is not a text, a tab and a reference" in message


async def test_the_address_may_stand_before_the_verb(address, monkeypatch):
    monkeypatch.setenv("GLOSSA_ADMIN_ADDRESS", "unix:none")
    assert await asyncio.to_thread(run, "--address", address, "admin", "versions") == await command(address, "versions")


def test_an_address_is_needed(tmp_path):
    assert "--address: not set; give unix:PATH" in run("admin", "versions", fails=True)
    message = run("admin", "versions", "--address", f"unix:{tmp_path / 'none'}", fails=True)
    assert f"no admin service at unix:{tmp_path / 'none'}: start the server with --admin-socket" in message


async def test_malformed_messages_and_methods_of_other_services_are_refused(address):
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/glossa.v1.AdminService/LoadVersion")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff")
        error: grpc.aio.AioRpcError = caught.value
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        other: Any = channel.unary_unary("/glossa.v1.ModelService/ListModels")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await other(b"")
        error = caught.value
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
