import grpc
import pytest

from cli.connection import Connection
from glossa.client import AsyncClient, ClientError
from tests.certificates import issue
from tests.clients.python.client.conftest import TEXT


async def test_an_error_has_code_reason_and_fields(client):
    with pytest.raises(ClientError) as caught:
        await client.translate("")
    error = caught.value
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert error.field_violations == {"text": "must not be empty or blank"}
    with pytest.raises(ClientError) as caught:
        _ = [piece async for piece in client.stream_translate(TEXT, model="unknown")]
    assert (caught.value.code, caught.value.reason) == ("NOT_FOUND", "MODEL_NOT_FOUND")


async def test_a_server_that_does_not_answer_is_unavailable():
    async with AsyncClient("127.0.0.1:1", timeout_s=5) as client:
        with pytest.raises(ClientError) as caught:
            await client.translate(TEXT)
    assert (caught.value.code, caught.value.reason, caught.value.hint) == ("UNAVAILABLE", "", "")


def tls_server(server, issued, client_ca=None):
    """The port of a gRPC server with a certificate."""
    credentials = grpc.ssl_server_credentials([(issued.key_pem, issued.pem)], client_ca, client_ca is not None)
    return server.add_secure_port("127.0.0.1:0", credentials)


@pytest.mark.parametrize("case", ["plain client", "plain server", "authority", "name", "expired", "client certificate"])
async def test_a_mistake_with_tls_is_explained(case, tmp_path):
    authority, server = issue("authority"), grpc.aio.server()
    (trusted := tmp_path / "ca.pem").write_bytes(authority.pem)
    (other := tmp_path / "other.pem").write_bytes(issue("other").pem)
    good = issue(by=authority)
    match case:
        case "plain client":
            port, tls, problem = tls_server(server, good), False, "if it speaks TLS, use tls=True or tls=FILE"
        case "plain server":
            port, tls, problem = server.add_insecure_port("127.0.0.1:0"), trusted, "the server speaks no TLS"
        case "authority":
            port, tls, problem = tls_server(server, good), other, "not of an authority that this client trusts"
        case "name":
            issued = issue(by=authority, names=("example.com",))
            port, tls, problem = tls_server(server, issued), trusted, "for other names than the one in the address"
        case "expired":
            port, tls, problem = tls_server(server, issue(by=authority, last=-0.5)), trusted, "has expired; renew it"
        case _:
            port, tls = tls_server(server, good, authority.pem), trusted
            problem = "if it asks for certificates of clients, tls_credentials"
    await server.start()
    address = f"127.0.0.1:{port}"
    async with AsyncClient(address, tls=tls, timeout_s=20, retries=False) as client:
        with pytest.raises(ClientError) as caught:
            await client.list_models()
    assert caught.value.code == "UNAVAILABLE"
    assert problem in caught.value.hint
    assert caught.value.message.startswith(f"{caught.value.hint} (")
    assert Connection(address=address).explain(caught.value) == f"{address}: {caught.value.message}"
    await server.stop(None)
