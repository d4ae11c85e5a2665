"""Ports with TLS, client certificates and tokens, as clients meet them."""

import asyncio
import ssl

import grpc
import pytest

from glossa.client import AsyncClient, ClientError
from service.edge.security import watched_files
from service.edge.security.security import own_address
from service.edge.security.tokens import Holder, line_of
from service.errors import StartupError
from service.server import Server
from tests.certificates import issue, save
from tests.edge import running, settings

AUTHORITY, OTHER = issue("authority"), issue("another")
SERVER, CLIENT = issue(by=AUTHORITY), issue("client", by=AUTHORITY)


def credentials(root=AUTHORITY, client=None):
    pair = (client.key_pem, client.pem) if client else (None, None)
    return grpc.ssl_channel_credentials(root.pem, *pair)


async def answer(edge, *, tls, token=""):
    """The text of an answer on a connection of its own. Raises ClientError."""
    async with AsyncClient(edge.address, tls=tls, token=token, retries=False) as client:
        return (await client.translate("the small red house", timeout_s=5.0)).text


async def refused(edge, **connection):
    with pytest.raises(ClientError) as caught:
        await answer(edge, **connection)
    return caught.value.code


async def test_a_client_that_trusts_the_authority_is_answered(tmp_path):
    async with running(**save(tmp_path, SERVER)) as edge:
        assert await answer(edge, tls=credentials()) == "zwei rote Häuser"


@pytest.mark.parametrize(
    "tls",
    [False, credentials(OTHER), True],
    ids=["plaintext", "another authority", "authorities of the system"],
)
async def test_a_client_that_does_not_is_not(tmp_path, tls):
    async with running(**save(tmp_path, SERVER)) as edge:
        assert await refused(edge, tls=tls) == "UNAVAILABLE"


async def test_a_client_refuses_a_certificate_for_another_name(tmp_path):
    async with running(**save(tmp_path, issue(by=AUTHORITY, names=("example.org",)))) as edge:
        assert await refused(edge, tls=credentials()) == "UNAVAILABLE"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_versions_of_tls_are_refused(tmp_path, version):
    async with running(**save(tmp_path, SERVER)) as edge:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=AUTHORITY.pem.decode())
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="is deprecated"):
            context.minimum_version = context.maximum_version = version
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection(*edge.address.rsplit(":", 1), ssl=context)


@pytest.mark.parametrize(
    ("client", "is_known"),
    [
        (CLIENT, True),
        (None, False),
        (issue("client", by=OTHER), False),
        (issue("client"), False),
        (issue("client", by=AUTHORITY, first=-3, last=-1), False),
        (issue("client", by=AUTHORITY, first=1, last=2), False),
    ],
    ids=["known", "none", "of another authority", "of nobody", "expired", "not yet valid"],
)
async def test_clients_must_have_certificates_if_their_authority_is_given(tmp_path, client, is_known):
    async with running(**save(tmp_path, SERVER, client_ca=AUTHORITY.pem)) as edge:
        tls = credentials(client=client)
        if is_known:
            assert await answer(edge, tls=tls) == "zwei rote Häuser"
        else:
            assert await refused(edge, tls=tls) == "UNAVAILABLE"


async def test_tls_and_tokens_go_together(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(line_of("one", Holder("acme")))
    async with running(**save(tmp_path, SERVER), tokens=tokens) as edge:
        assert await answer(edge, tls=credentials(), token="one") == "zwei rote Häuser"
        assert edge.pool.requests[0].caller.tenant == "acme"
        assert await refused(edge, tls=credentials(), token="two") == "UNAUTHENTICATED"


async def test_certificates_are_exchanged_while_calls_run(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_files, "CHECK_S", 0.01)
    async with running(**save(tmp_path, SERVER)) as edge:
        for number in range(20):
            save(tmp_path, issue(by=AUTHORITY, last=3 + number))
            calls = [asyncio.create_task(answer(edge, tls=credentials())) for _ in range(5)]
            assert set(await asyncio.gather(*calls)) == {"zwei rote Häuser"}
        save(tmp_path, issue(by=OTHER))
        async with asyncio.timeout(10):
            while await served_by(edge, AUTHORITY):
                await asyncio.sleep(0.01)
        assert await answer(edge, tls=credentials(OTHER)) == "zwei rote Häuser"
        text = edge.server.metrics.render().decode()
        assert 'glossa_file_reloads_total{kind="certificate",outcome="refused"} 0.0' in text


async def served_by(edge, authority):
    """Whether the server shows a certificate of this authority to new connections."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection(*edge.address.rsplit(":", 1), ssl=context)
    except ssl.SSLCertVerificationError:
        return False
    writer.close()
    return True


async def test_a_bad_certificate_is_refused_and_the_old_one_stays(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(watched_files, "CHECK_S", 0.01)
    async with running(**save(tmp_path, SERVER)) as edge:
        save(tmp_path, issue(by=AUTHORITY, first=-3, last=-1))
        refused = 'glossa_file_reloads_total{kind="certificate",outcome="refused"} 1.0'
        async with asyncio.timeout(10):
            while refused not in edge.server.metrics.render().decode():
                await asyncio.sleep(0.01)
        assert await answer(edge, tls=credentials()) == "zwei rote Häuser"
        (line,) = [record for record in caplog.records if record.getMessage() == "refused_files"]
        assert "certificate has expired" in line.fields["reason"]


async def test_tokens_are_exchanged_while_it_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_files, "CHECK_S", 0.01)
    tokens = tmp_path / "tokens"
    tokens.write_text(line_of("one", Holder("acme")))
    async with running(tokens=tokens) as edge:
        assert await answer(edge, tls=False, token="one")
        tokens.write_text(f"{line_of('two', Holder('acme'))}\n")
        async with asyncio.timeout(10):
            while 'kind="tokens",outcome="taken"} 1.0' not in edge.server.metrics.render().decode():
                await asyncio.sleep(0.01)
        assert await answer(edge, tls=False, token="two")
        assert await refused(edge, tls=False, token="one") == "UNAUTHENTICATED"


async def test_the_time_of_expiry_is_a_metric(tmp_path):
    async with running(**save(tmp_path, SERVER)) as edge:
        expires_s = SERVER.certificate.not_valid_after_utc.timestamp()
        text = edge.server.metrics.render().decode()
        (line,) = [line for line in text.splitlines() if line.startswith("glossa_certificate_expiry")]
        assert float(line.split()[1]) == expires_s
    async with running() as edge:
        assert "glossa_certificate_expiry_timestamp_seconds +Inf" in edge.server.metrics.render().decode()


@pytest.mark.parametrize(
    ("changes", "warns"),
    [({"host": "0.0.0.0"}, True), ({"host": "::"}, True), ({}, False), ({"host": "localhost"}, False)],
)
async def test_plaintext_for_the_network_warns_once(caplog, changes, warns):
    async with running(**changes):
        found = [record.fields for record in caplog.records if record.getMessage() == "plaintext"]
    assert len(found) == warns
    if found:
        assert "can read and change texts, which are sent without TLS" in found[0]["problem"]
        assert "--tls-certificate" in found[0]["fix"]


async def test_no_warning_with_tls(tmp_path, caplog):
    async with running(host="0.0.0.0", **save(tmp_path, SERVER)):
        assert not [record for record in caplog.records if record.getMessage() == "plaintext"]


async def test_the_backlog_is_measured_around_tls(tmp_path):
    async with running(**save(tmp_path, SERVER, client_ca=AUTHORITY.pem)) as edge:
        backlog = edge.server.calls.admission.backlog
        await answer(edge, tls=credentials(client=CLIENT))
        async with asyncio.timeout(10):
            while backlog._last_s <= 0:
                await asyncio.sleep(0.01)


def test_a_server_with_a_bad_certificate_does_not_start(tmp_path):
    with pytest.raises(StartupError, match=r"tls_certificate: .* certificate has expired; fix:"):
        Server(settings(**save(tmp_path, issue(first=-3, last=-1))))


def test_own_addresses():
    assert [own_address(host, 1) for host in ("0.0.0.0", "::", "10.0.0.1")] == ["127.0.0.1:1", "[::1]:1", "10.0.0.1:1"]
