"""`glossa admin` against a running server without engines; tests/e2e/test_reload.py loads bundles with it."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from tests.cli.command import run
from tests.edge import FakePool, running, served


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


@pytest.fixture
async def two_versions(tmp_path):
    """The admin socket of a server whose model `en-de` has the versions `cdcdcdcdcdcd`, the default, and `v2`."""
    async with running(admin_socket=tmp_path / "admin") as edge:
        edge.server._catalog.add(served("en-de", FakePool(), version="v2"), is_default=False)
        yield f"unix:{tmp_path / 'admin'}"


V1 = "cd" * 6


async def test_traffic_is_split_and_shown(two_versions):
    shown = await command(two_versions, "split", "en-de", f"{V1}=90", "v2=10")
    assert f"en-de@{V1}  serving, default, 90%" in shown
    assert "en-de@v2            serving, 10%" in shown
    shown = await command(two_versions, "split", "en-de", "--shadow", "v2=5")
    assert "serving, shadow 5%" in shown
    assert "must add up to 100, got 90 + 9 = 99" in await command(
        two_versions, "split", "en-de", f"{V1}=90", "v2=9", fails=True
    )
    assert "shadow 5%" in await command(two_versions, "versions"), "what was set stays"
    for wrong, problem in (
        (("v2",), "a share must be VERSION=PERCENT, as v2=10, got 'v2'"),
        (("v2=50", "v2=50"), "each version must be named once"),
        (("v2=ten",), "got 'v2=ten'"),
    ):
        assert problem in await command(two_versions, "split", "en-de", *wrong, fails=True)
    assert "serving, default" in await command(two_versions, "split", "en-de", "v2=100")


async def test_a_canary_is_started_and_its_end_is_shown(two_versions, tmp_path):
    assert await command(two_versions, "canary", "en-de") == ""
    started = await command(two_versions, "canary", "en-de", "v2", "p99=2", "--share", "20", "--for", "90s")
    assert started == "en-de@v2 running, 0 s, 0 requests, 0 failed\n"
    assert "serving, 20%" in await command(two_versions, "versions")
    await command(two_versions, "split", "en-de")
    shown = await command(two_versions, "canary", "en-de")
    assert shown.startswith("en-de@v2 stopped, ")
    assert shown.endswith(" s, 0 requests, 0 failed: the traffic was set by another call\n")
    (canary,) = json.loads(await command(two_versions, "canary", "en-de", "--json"))
    assert (canary["state"], canary["bound"]) == ("stopped", "")
    for wrong, problem in (
        (("p99",), "p99: must be a number, got ''"),
        (("speed=2",), "with one of failed, p99, chrf, disagreement, memory, got 'speed=2'"),
        (("chrf=1",), "bounds.chrf: 1 needs a test set"),
        (("disagreement=0.1",), "shadow_share is 0"),
        (("--for", "10"), "--for: must be a number with a unit, as 90s, 10m or 2h, got '10'"),
        (("--for", "90s", "--patience", "31s"), "patience: must be above 0 and at most a third of duration, 30 s"),
    ):
        assert problem in await command(two_versions, "canary", "en-de", "v2", *wrong, fails=True)
    (tmp_path / "test.tsv").write_text("a black cat\tzwei rote Häuser\n")
    evaluate = ("--evaluate", tmp_path / "test.tsv", "chrf=2", "--unload")
    assert "running" in await command(two_versions, "canary", "en-de", "v2", *evaluate)
