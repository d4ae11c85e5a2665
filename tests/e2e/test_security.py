"""The whole path with TLS, client certificates and tokens: files made by the commands, a server process, our verbs."""

import pytest

from tests.certificates import issue, save
from tests.cli.command import run
from tests.e2e.process import serving


@pytest.fixture(scope="module")
def authority():
    return issue("authority")


def test_verbs_call_a_protected_server(tiny_translation_bundle, tmp_path, authority):
    tokens = tmp_path / "tokens"
    secret = run("token", "acme", "--file", str(tokens)).strip()
    operator = run("token", "operator", "--admin", "--file", str(tokens)).strip()
    paths = save(tmp_path, issue(by=authority), client_ca=authority.pem)
    client = issue("client", by=authority)
    (tmp_path / "client.pem").write_bytes(client.pem)
    (tmp_path / "client.key").write_bytes(client.key_pem)
    settings = {name: str(path) for name, path in paths.items()}
    with serving(
        models={"en-de": str(tiny_translation_bundle)}, tokens=str(tokens), admin_port=0, **settings
    ) as server:
        connection = ["--address", server.address, "--tls-ca", settings["tls_client_ca"]]
        own = ["--client-cert", str(tmp_path / "client.pem"), "--client-key", str(tmp_path / "client.key")]
        ours = [*connection, *own, "--token", secret]
        assert len(run("translate", "a cat", *ours).strip().splitlines()) == 1
        (tmp_path / "texts").write_text("a cat\nthe house\n")
        load = ("--concurrency", "2", "--duration-s", "0.5", "--warm-up-s", "0")
        assert "UNAUTHENTICATED" not in run("bench", "--input", str(tmp_path / "texts"), *load, *ours)
        assert server.metric("grpc_server_handled_total", grpc_code="OK", grpc_method="StreamTranslate") > 1
        assert "UNAUTHENTICATED" in run("translate", "a cat", *connection, *own, "--token", "wrong", fails=True)
        assert "(--client-cert, --client-key)" in run("translate", "a cat", *connection, "--token", secret, fails=True)
        admin = ["admin", "versions", "--address", server.wait_for("admin")["addresses"][0]]
        trusting = [*admin, "--tls-ca", settings["tls_client_ca"]]
        assert "PERMISSION_DENIED" in run(*trusting, *own, "--token", secret, fails=True)
        assert "serving, default" in run(*trusting, *own, "--token", operator)
        assert "UNAUTHENTICATED" in run(*trusting, *own, fails=True)
        assert "(--client-cert, --client-key)" in run(*trusting, "--token", operator, fails=True), "no certificate"
        assert "(--tls, --tls-ca FILE)" in run(*admin, "--token", operator, fails=True), "without TLS"
        assert run("healthcheck", "--http-port", server.wait_for("serving")["http"].rpartition(":")[2]) == ""
