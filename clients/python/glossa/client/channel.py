"""How a client connects: retries, keepalive, TLS, and the metadata that every call carries.

Retrying is gRPC's own (service config): calls that no server has begun to answer, after UNAVAILABLE, or after
RESOURCE_EXHAUSTED with the pause that the server names.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from pathlib import Path

import grpc

TIMEOUT_S = 60.0
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ],
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
}
HEALTH_CHECKED = {**SERVICE_CONFIG, "healthCheckConfig": {"serviceName": ""}}
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""Otherwise all channels of a process to one address share a connection, and a new one waits out, and reports, the
failures of others that were there before the server."""
OPTIONS = (
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    OWN_CONNECTION,
    ("grpc.max_reconnect_backoff_ms", 5_000),  # 2 minutes by default: as long a server that is back would get no calls
    ("grpc.keepalive_time_ms", 20_000),  # above the 5 s that the server takes as too often
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 4 << 20),
)
REPLICAS = (
    ("grpc.service_config", json.dumps(HEALTH_CHECKED)),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),  # 30 s by default: as long a new replica would get no calls
    *OPTIONS[1:],
)
"""For an address of several servers, among which the client spreads its calls: each is watched, and one that drains or
is not ready gets none. Not for a single server: its callers do better to wait in its queue."""
NO_RETRIES = ("grpc.enable_retries", 0)
BLOCKING_STREAMS = ("SingleThreadedUnaryStream", 1)
"""For blocking channels: streams are read by the thread that iterates them. Otherwise a stream whose server refuses it
and ends before the retry waits forever, past its deadline (grpcio 1.81 to 1.85)."""

Tls = bool | str | Path | grpc.ChannelCredentials
"""False: plaintext. True: TLS with the certificate authorities that gRPC trusts. A path: a PEM file of the authorities
to trust instead. Credentials: for everything else, such as those of `tls_credentials`."""


def tls_credentials(
    *, authority: str | Path | None = None, certificate: str | Path, key: str | Path
) -> grpc.ChannelCredentials:
    """TLS with a certificate of the client, for a server that asks for one.

    All are PEM files. authority: those to trust; None: those that gRPC trusts. Raises OSError.
    """
    root = None if authority is None else Path(authority).read_bytes()
    return grpc.ssl_channel_credentials(root, Path(key).read_bytes(), Path(certificate).read_bytes())


def authenticate(
    address: str, *, tls: Tls, token: str, metadata: Mapping[str, str] | None
) -> tuple[grpc.ChannelCredentials | None, tuple[tuple[str, str], ...]]:
    """The credentials of a channel, None for plaintext, and the metadata of every call.

    Raises ValueError for a token that would be sent in plaintext to another machine, OSError for the PEM file.
    """
    pairs = tuple((name.lower(), value) for name, value in (metadata or {}).items())
    if tls is False:
        check_plaintext(address, token)
        return None, with_bearer(pairs, token)
    if isinstance(tls, grpc.ChannelCredentials):
        credentials = tls
    else:
        credentials = grpc.ssl_channel_credentials(None if tls is True else Path(tls).read_bytes())
    return credentials, with_bearer(pairs, token)


def with_bearer(pairs: tuple[tuple[str, str], ...], token: str) -> tuple[tuple[str, str], ...]:
    """Metadata with that token in the place of another one; without any if it is empty."""
    others = tuple(pair for pair in pairs if not (token and pair[0] == "authorization"))
    return (*others, ("authorization", f"Bearer {token}")) if token else others


def check_plaintext(address: str, token: str) -> None:
    """Raises ValueError for a token that would be sent in plaintext to another machine."""
    if token and not is_loopback(address):
        raise ValueError(
            f"a token is sent in plaintext only to this machine, and {address} is another one; use tls=True "
            "(--tls), or tls=FILE with the server's certificate authority (--tls-ca FILE)"
        )


def channel_options(address: str) -> tuple[tuple[str, str | int], ...]:
    """REPLICAS for `dns:` names, which may have several addresses, and for lists of addresses; OPTIONS for others."""
    scheme, _, rest = address.partition(":")
    is_list = scheme in ("ipv4", "ipv6") and "," in rest
    return REPLICAS if is_list or (scheme == "dns" and rest.startswith("/")) else OPTIONS


def is_loopback(address: str) -> bool:
    """Whether an address, in any form that gRPC knows, is on this machine."""
    scheme, separator, rest = address.partition(":")
    if scheme in ("unix", "unix-abstract") and separator:
        return True
    if scheme in ("dns", "ipv4", "ipv6") and separator:
        address = rest.rpartition("/")[2]
    host = address.rpartition(":")[0] if address.count(":") == 1 or address.startswith("[") else address
    host = host.strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False
