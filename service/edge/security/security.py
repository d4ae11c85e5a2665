"""What protects the gRPC port of a server: its certificate, tokens, and the guard of its methods."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from service.edge.observability import logs
from service.edge.observability.metrics import Metrics
from service.edge.security.access import Guard
from service.edge.security.certificates import CertificateFiles, ServerCertificates
from service.edge.security.signing_keys import SigningKeys, check_library
from service.edge.security.tenants import Tenants
from service.edge.security.tokens import Holders, Tokens
from service.edge.security.watched_files import WatchedFiles
from service.edge.security.web_tokens import Identities, WebTokens
from service.errors import StartupError
from service.settings.config import ServerSettings

CERTIFICATE, TOKENS, KEYS = "certificate", "tokens", "jwks"


class Port(NamedTuple):
    """Where a server listens. own_address: where it can reach itself, in plaintext."""

    number: int
    own_address: str


class Security:
    """By the settings of one server. guard: of all methods. tenants: with tokens, at the start."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        """Reads the files. Raises StartupError."""
        self._settings, self._metrics = settings, metrics
        self._certificates: ServerCertificates | None = None
        tokens: Tokens | None = None
        self._files: dict[str, WatchedFiles] = {}
        if settings.tls_certificate is not None and settings.tls_key is not None:
            files = CertificateFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
            self._certificates = ServerCertificates(files)
            paths = [path for path in files if path is not None]
            self._files[CERTIFICATE] = WatchedFiles(CERTIFICATE, paths, self._certificates.read)
            metrics.certificate_read(self._certificates.expires_s)
        if settings.tokens is not None:
            tokens = Tokens(settings.tokens)
            self._files[TOKENS] = WatchedFiles(TOKENS, [settings.tokens], tokens.read)
        self._fetched_keys: SigningKeys | None = None
        holders: Holders | None = Identities(tokens, self._web_tokens()) if settings.oidc_issuer else tokens
        self.guard = Guard(Tenants(settings, holders))
        self.tenants = frozenset[str]() if tokens is None else tokens.tenants

    def _web_tokens(self) -> WebTokens:
        """The tokens of the issuer, whose keys are there. Raises StartupError."""
        check_library(self._settings.oidc_issuer)
        keys = SigningKeys(self._settings.oidc_jwks)
        if keys.is_address:
            keys.read()
            self._fetched_keys = keys
        else:
            self._files[KEYS] = WatchedFiles(KEYS, [Path(keys.source)], keys.read)
        return WebTokens(self._settings, keys)

    @property
    def tls(self) -> str:
        """What a client needs to connect, as the log says it."""
        if self._certificates is None:
            return "off"
        return "on" if self._settings.tls_client_ca is None else "on, with certificates of clients"

    def listen(self, server: grpc.aio.Server, host: str, port: int) -> Port:
        """Adds the port to a server. Raises RuntimeError as gRPC does.

        With TLS the server cannot call itself there: it would have to know by which name clients call it, and have a
        certificate of theirs. So it gets a port of its own, an abstract socket, where the guard refuses everybody.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._certificates is None:
            number = server.add_insecure_port(address)
            return Port(number, own_address(host, number))
        number = server.add_secure_port(address, self._certificates.credentials())
        own = f"unix-abstract:glossa-{secrets.token_hex(16)}"
        server.add_insecure_port(own)
        return Port(number, own)

    def listen_admin(self, server: grpc.aio.Server, host: str, port: int) -> int:
        """Adds the admin port, with the same certificate as the other one. Returns the number of the port. Raises
        StartupError for plaintext to other machines, RuntimeError as gRPC does."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._certificates is not None:
            return server.add_secure_port(address, self._certificates.credentials())
        if not _is_loopback(host):
            raise StartupError(
                f"admin_host: {host} is reached from other machines, and tokens would be sent without TLS; fix: give "
                "--tls-certificate and --tls-key, or listen on 127.0.0.1"
            )
        return server.add_insecure_port(address)

    def watching(self) -> list[Coroutine[Any, Any, None]]:
        """Coroutines that keep what the files contain up to date until they are cancelled."""
        files = [files.watch(partial(self._changed, kind)) for kind, files in self._files.items()]
        keys = self._fetched_keys
        return files if keys is None else [*files, keys.watch(partial(self._changed, KEYS))]

    def _changed(self, kind: str, is_taken: bool) -> None:
        self._metrics.files_changed(kind, is_taken=is_taken)
        if self._certificates is not None:
            self._metrics.certificate_read(self._certificates.expires_s)

    def warn(self, number: int) -> None:
        """Logs once that others on the network can read and change what clients send, if so."""
        host = self._settings.host
        if self._certificates is None and not _is_loopback(host):
            secret = "tokens and texts" if self._settings.has_tokens else "texts"
            logs.event(
                "plaintext",
                {
                    "grpc": f"{host}:{number}",
                    "problem": f"anyone on the network can read and change {secret}, which are sent without TLS",
                    "fix": "give --tls-certificate and --tls-key, or let only a proxy with TLS reach the port",
                },
                level=logs.WARNING,
            )


def own_address(host: str, port: int) -> str:
    """Where a server that listens on `host` can reach itself."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
