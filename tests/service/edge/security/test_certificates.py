from types import SimpleNamespace

import grpc
import pytest
from cryptography import x509

from service.edge.security import certificates
from service.edge.security.certificates import CertificateFiles, ServerCertificates, read_certificate
from service.errors import StartupError
from tests.certificates import issue, save

AUTHORITY = issue("authority")
SERVER = issue(by=AUTHORITY)
NO_PEM = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def files(folder, issued, client_ca=None):
    saved = save(folder, issued, client_ca=client_ca)
    return CertificateFiles(**{name.removeprefix("tls_"): path for name, path in saved.items()})


def expiry_s(issued):
    return x509.load_pem_x509_certificate(issued.pem).not_valid_after_utc.timestamp()


@pytest.mark.parametrize("issued", [SERVER, issue(), issue(rsa_bits=2048)], ids=["signed", "self-signed", "RSA"])
def test_a_good_certificate_is_read_with_the_time_when_it_expires(tmp_path, issued):
    found = read_certificate(files(tmp_path, issued, AUTHORITY.pem))
    assert (found.chain, found.key, found.client_ca) == (issued.pem, issued.key_pem, AUTHORITY.pem)
    assert found.expires_s == expiry_s(issued)


def test_a_chain_may_follow(tmp_path):
    chained = SERVER._replace(pem=SERVER.pem + AUTHORITY.pem)
    assert read_certificate(files(tmp_path, chained)).chain == chained.pem


@pytest.mark.parametrize(
    ("issued", "problem"),
    [
        (SERVER._replace(key_pem=issue().key_pem), "the key does not belong to the certificate"),
        (issue(first=-3, last=-1), "certificate has expired; fix: get a new certificate, and check the clock"),
        (issue(first=1, last=2), "certificate is not yet valid"),
        (issue(rsa_bits=1024), "its key is too small; at least RSA of 2,048 bits"),
        (issue(password=b"secret"), "the key is encrypted; fix: decrypt it"),
        (SERVER._replace(pem=b"hello"), r"tls_certificate\.pem is no PEM file; fix: give one with -----BEGIN lines"),
        (SERVER._replace(key_pem=b""), r"tls_key: .*tls_key\.pem is no PEM file"),
        (SERVER._replace(pem=NO_PEM), "give a certificate and its key, both as PEM"),
        (SERVER._replace(key_pem=SERVER.pem), "give a certificate and its key, both as PEM"),
        (SERVER._replace(pem=b"-----BEGIN " * 200_000), "is no PEM file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_one_is_refused_with_cause_and_fix(tmp_path, issued, problem):
    with pytest.raises(StartupError, match=problem):
        read_certificate(files(tmp_path, issued))


def test_a_missing_file_is_named(tmp_path):
    good = files(tmp_path, SERVER)
    with pytest.raises(StartupError, match=r"tls_key: .*nowhere\.pem cannot be read: No such file .*; fix: check"):
        read_certificate(good._replace(key=tmp_path / "nowhere.pem"))


def test_authorities_of_clients_must_be_certificates(tmp_path):
    with pytest.raises(StartupError, match=r"tls_client_ca: .* has no certificate that can be read .*; fix: give"):
        read_certificate(files(tmp_path, SERVER, NO_PEM))


def test_a_bad_change_leaves_everything_as_it_was(tmp_path):
    certificates = ServerCertificates(files(tmp_path, SERVER))
    certificates.read()
    before = certificates.expires_s
    save(tmp_path, issue(first=-3, last=-1))
    with pytest.raises(StartupError, match="has expired"):
        certificates.read()
    assert certificates.expires_s == before
    renewed = issue(by=AUTHORITY, last=5)
    save(tmp_path, renewed)
    certificates.read()
    assert certificates.expires_s == expiry_s(renewed) > before


def test_grpc_gets_a_certificate_once_for_each_port_and_after_a_pause(tmp_path, monkeypatch):
    """It dies when another thread uses the one that it exchanges (grpc/grpc#36693)."""
    first, fetches = [], []
    pauses: list[float] = []

    def listen(configuration, fetch, **_):
        first.append(configuration)
        fetches.append(fetch)

    monkeypatch.setattr(certificates, "time", SimpleNamespace(sleep=pauses.append))
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", listen)
    monkeypatch.setattr(grpc, "ssl_server_certificate_configuration", lambda pairs, _: pairs[0][1])
    served = ServerCertificates(files(tmp_path, SERVER))
    served.read()
    for _ in range(2):
        served.credentials()
    assert first == [SERVER.pem] * 2
    assert [fetch() for fetch in fetches] == [None, None]
    assert pauses == []
    other = issue(by=AUTHORITY, last=9)
    save(tmp_path, other)
    served.read()
    assert [(fetch(), fetch()) for fetch in fetches] == [(other.pem, None)] * 2
    assert pauses == [certificates.GRACE_S] * 2
