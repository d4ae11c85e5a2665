"""TLS, tokens and metadata against a gRPC server with a certificate of its own."""

import asyncio
import contextlib
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from cli.local_server import free_port
from glossa.client import AsyncClient, Client, ClientError
from glossa.client.channel import is_loopback
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as stubs
from tests.certificates import issue, save
from tests.cli.command import run


class Recorder(stubs.TranslationServiceServicer):
    """Answers every call, and keeps its metadata."""

    def __init__(self):
        self.metadata, self.refusals = {}, []

    async def Translate(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        if self.refusals:
            await context.abort(self.refusals.pop(), "later", (("grpc-retry-pushback-ms", "1"),))
        return pb.TranslateResponse(text=request.text.upper())

    async def StreamTranslate(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        yield pb.StreamTranslateResponse(text=request.text.upper(), final=pb.Completion())


class Certificates(NamedTuple):
    """Paths of PEM files."""

    authority: str
    key: str
    certificate: str


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    folder, authority = tmp_path_factory.mktemp("certificates"), issue("authority")
    paths = save(folder, issue(by=authority), client_ca=authority.pem)
    return Certificates(*(str(paths[f"tls_{name}"]) for name in ("client_ca", "key", "certificate")))


@contextlib.asynccontextmanager
async def serving(credentials=None, port=0):
    """A server that records, and its address. port: 0 for a free one."""
    recorder, server = Recorder(), grpc.aio.server()
    stubs.add_TranslationServiceServicer_to_server(recorder, server)
    if credentials is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield recorder, f"localhost:{port}"
    finally:
        await server.stop(None)


@pytest.fixture
async def secure(certificates):
    key, certificate = Path(certificates.key).read_bytes(), Path(certificates.certificate).read_bytes()
    async with serving(grpc.ssl_server_credentials([(key, certificate)])) as (recorder, address):
        yield recorder, address


async def test_a_client_of_another_token_shares_the_connections():
    async with serving() as (recorder, address), AsyncClient(address, token="own", metadata={"x-a": "1"}) as client:
        for caller, token in [(client, "own"), (client.with_token("other"), "other"), (client.with_token(""), "own")]:
            await caller.translate("a")
            assert recorder.metadata["authorization"] == f"Bearer {token}"
            assert recorder.metadata["x-a"] == "1"
    async with AsyncClient("192.0.2.1:1") as remote:
        with pytest.raises(ValueError, match="a token is sent in plaintext only to this machine"):
            remote.with_token("other")


async def test_a_client_does_not_wait_out_the_failures_of_another():
    """Which was there before the server. With a connection in common this fails about every second time."""
    for _ in range(3):
        port = free_port()
        async with AsyncClient(f"localhost:{port}") as other:
            for _ in range(2):
                with pytest.raises(ClientError, match="UNAVAILABLE"):
                    await other.translate("text", timeout_s=5)
            async with serving(port=port) as (_, address), AsyncClient(address) as client:
                assert (await client.translate("text")).text == "TEXT"


async def test_calls_that_no_server_has_begun_to_answer_are_sent_again():
    later = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED]
    async with serving() as (recorder, address), AsyncClient(address) as client:
        recorder.refusals = list(later)
        assert (await client.translate("text")).text == "TEXT"
        recorder.refusals = [grpc.StatusCode.INTERNAL, *later]
        with pytest.raises(ClientError, match="INTERNAL"):
            await client.translate("text")
        assert recorder.refusals == []


async def test_calls_over_tls_carry_token_and_metadata(secure, certificates):
    recorder, address = secure
    metadata = {"X-Tenant": "blue"}
    async with AsyncClient(address, tls=certificates.authority, token="secret", metadata=metadata) as client:
        assert (await client.translate("text")).text == "TEXT"
        assert recorder.metadata["authorization"] == "Bearer secret"
        assert recorder.metadata["x-tenant"] == "blue"
        recorder.metadata = {}
        assert [piece.text async for piece in client.stream_translate("text")] == ["TEXT"]
        assert (recorder.metadata["authorization"], recorder.metadata["x-tenant"]) == ("Bearer secret", "blue")


async def test_the_blocking_client_does_the_same(secure, certificates):
    recorder, address = secure

    def use():
        credentials = grpc.ssl_channel_credentials(Path(certificates.authority).read_bytes())
        with Client(address, tls=credentials, token="secret", metadata={"x-tenant": "blue"}) as client:
            return client.translate("text").text, [piece.text for piece in client.stream_translate("text")]

    assert await asyncio.to_thread(use) == ("TEXT", ["TEXT"])
    assert (recorder.metadata["authorization"], recorder.metadata["x-tenant"]) == ("Bearer secret", "blue")


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "authorities of the system"])
async def test_a_server_that_is_not_trusted_is_not_called(secure, tls):
    recorder, address = secure
    async with AsyncClient(address, tls=tls, timeout_s=5, retries=False) as client:
        with pytest.raises(ClientError) as caught:
            await client.translate("text")
    assert caught.value.code == "UNAVAILABLE"
    assert recorder.metadata == {}


async def test_a_token_in_plaintext_stays_on_this_machine():
    async with serving() as (recorder, address), AsyncClient(address, token="secret") as client:
        await client.translate("text")
        assert recorder.metadata["authorization"] == "Bearer secret"
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=r"to this machine, and example\.org:50051 is another"):
            kind("example.org:50051", token="secret")
    Client("example.org:50051", token="secret", tls=True).close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:1", True),
        ("127.3.2.1:1", True),
        ("[::1]:1", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.1:1", True),
        ("unix:/run/glossa", True),
        ("10.0.0.1:1", False),
        ("[2001:db8::1]:1", False),
        ("localhost.example.org:1", False),
        ("dns://8.8.8.8/example.org:1", False),
        ("example.org", False),
    ],
)
def test_which_addresses_are_this_machine(address, expected):
    assert is_loopback(address) == expected


async def test_the_command_connects_with_the_same_flags_and_variables(secure, certificates, monkeypatch):
    recorder, address = secure
    flags = [
        "--address",
        address,
        "--tls-ca",
        certificates.authority,
        "--token",
        "secret",
        "--metadata",
        "x-tenant=blue",
    ]
    assert await asyncio.to_thread(run, "translate", "text", *flags) == "TEXT\n"
    assert (recorder.metadata["authorization"], recorder.metadata["x-tenant"]) == ("Bearer secret", "blue")
    recorder.metadata = {}
    for name, value in {"ADDRESS": address, "TLS_CA": certificates.authority, "TOKEN": "other"}.items():
        monkeypatch.setenv(f"GLOSSA_{name}", value)
    monkeypatch.setenv("GLOSSA_METADATA", "x-tenant=red x-team=3")
    assert await asyncio.to_thread(run, "translate", "text") == "TEXT\n"
    found = {name: recorder.metadata[name] for name in ("authorization", "x-tenant", "x-team")}
    assert found == {"authorization": "Bearer other", "x-tenant": "red", "x-team": "3"}


def test_the_command_refuses_a_token_in_plaintext_to_another_machine():
    refused = run("translate", "text", "--address", "example.org:1", "--token", "secret", fails=True)
    assert "use tls=True (--tls)" in refused
    assert "must be NAME=VALUE" in run("translate", "text", "--metadata", "blue", fails=True)
