"""The server's certificate: read, proven, and exchanged while it serves.

A certificate is proven by a handshake in memory, with a client that trusts nothing but it. That refuses what a client
would refuse later: a key of another certificate, a time outside of the validity, weak keys and signatures.
"""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from service.errors import StartupError

CIPHERS = "DEFAULT:@SECLEVEL=2"  # RSA of 2,048 bits, elliptic curves of 224, no SHA-1: as OpenSSL counts since 3.0
MAX_FILE_BYTES = 1 << 20
GRACE_S = 0.05  # 8,420 exchanges went well after 0.001, the process died within 260 after none
CAUSES = {  # of OpenSSL's reasons
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "EE_KEY_TOO_SMALL": "its key is too small; at least RSA of 2,048 bits or an elliptic curve of 224",
    "CA_MD_TOO_WEAK": "it is signed with a weak digest, such as SHA-1",
}


class CertificateFiles(NamedTuple):
    """PEM files. certificate: the server's, followed by those of intermediate authorities. client_ca: of the
    authorities whose certificates clients must have; None: clients need none."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class Certificate:
    """What the files contain, as bytes of PEM. expires_s: seconds since 1970."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    expires_s: float


class ServerCertificates:
    """The certificate in use. `read` may be called from any thread, and gRPC asks from its own."""

    def __init__(self, files: CertificateFiles) -> None:
        self.files = files
        self._current: Certificate | None = None

    @property
    def expires_s(self) -> float:
        """When the certificate in use expires, in seconds since 1970."""
        return self._in_use.expires_s

    @property
    def _in_use(self) -> Certificate:
        assert self._current is not None
        return self._current

    def read(self) -> None:
        """Takes the files for new connections; those that are open keep theirs. Raises StartupError, and then nothing
        has changed."""
        self._current = read_certificate(self.files)

    def credentials(self) -> grpc.ServerCredentials:
        """For one port of gRPC: every handshake gets the certificate in use.

        gRPC asks at each handshake, one thread after another. When it exchanges what it has built of a certificate,
        another thread may still be about to use that, and the process dies (grpc/grpc#36693). So it gets an answer only
        when the certificate has changed, and GRACE_S late: meanwhile nobody else can ask, and who asked before is done.
        """
        given = self._in_use

        def fetch() -> Any:
            nonlocal given
            current = self._in_use
            if current is given:
                return None
            time.sleep(GRACE_S)
            given = current
            return _configuration(current)

        has_client_ca = self.files.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(
            _configuration(given), fetch, require_client_authentication=has_client_ca
        )


def _configuration(certificate: Certificate) -> Any:
    return grpc.ssl_server_certificate_configuration([(certificate.key, certificate.chain)], certificate.client_ca)


def read_certificate(files: CertificateFiles) -> Certificate:
    """Reads and proves a certificate. Raises StartupError."""
    chain = _read("tls_certificate", files.certificate)
    key = _read("tls_key", files.key)
    client_ca = None if files.client_ca is None else _read("tls_client_ca", files.client_ca)
    if files.client_ca is not None and client_ca is not None:
        _check_authorities(files.client_ca, client_ca)
    return Certificate(chain, key, client_ca, _expires_s(files, chain, key))


def _read(setting: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise StartupError(f"{setting}: {problem}; fix: check the path and its rights") from None
    if len(data) > MAX_FILE_BYTES or b"-----BEGIN " not in data:
        raise StartupError(f"{setting}: {path} is no PEM file; fix: give one with -----BEGIN lines")
    return data


def _check_authorities(path: Path, data: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise StartupError(
            f"tls_client_ca: {path} has no certificate that can be read ({_cause(error)}); fix: give the certificates "
            "of the authorities that sign your clients'"
        ) from None


def _expires_s(files: CertificateFiles, chain: bytes, key: bytes) -> float:
    """When a certificate expires, which a client that trusts it accepts."""

    def refused(problem: str, fix: str) -> StartupError:
        return StartupError(f"tls_certificate: {files.certificate} with {files.key}: {problem}; fix: {fix}")

    try:
        return _proven(chain, key)
    except _EncryptedKeyError:
        raise refused("the key is encrypted", "decrypt it, and protect the file instead") from None
    except ssl.SSLCertVerificationError as error:
        raise refused(error.verify_message, "get a new certificate, and check the clock of this machine") from None
    except ssl.SSLError as error:
        raise refused(_cause(error), "give a certificate and its key, both as PEM") from None


class _EncryptedKeyError(Exception):
    """OpenSSL asks for the password of a key."""


def _proven(chain: bytes, key: bytes) -> float:
    """When the certificate expires. Raises SSLError and _EncryptedKeyError."""

    def no_password() -> bytes:
        raise _EncryptedKeyError

    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.set_ciphers(CIPHERS)
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)  # OpenSSL reads what was read, not what is there by now
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(chain + b"\n" + key)
        server_side.load_cert_chain(f"/proc/self/fd/{file}", password=no_password)
    finally:
        os.close(file)
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.set_ciphers(CIPHERS)
    client_side.check_hostname = False
    client_side.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted
    client_side.load_verify_locations(cadata=chain.decode("ascii", "replace"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = client.getpeercert()
    assert found is not None
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))


def _cause(error: ssl.SSLError) -> str:
    return CAUSES.get(error.reason or "", (error.reason or str(error)).replace("_", " ").lower())
