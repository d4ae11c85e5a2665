"""The settings of a server's ports, of TLS and of the connections to them (`ConnectionSettings`)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings

from service.settings.setting_types import Port, Positive, PositiveSeconds


class ConnectionSettings(BaseSettings):
    """Who may connect to a server, where, and for how long."""

    host: str = Field("127.0.0.1", description="address of the gRPC port; 0.0.0.0 listens on all interfaces")
    port: Port = Field(50051, description="gRPC port; 0: any free port, reported in the log")
    http_host: str = Field("127.0.0.1", description="address of the ops port: /healthz /readyz /metrics /version")
    http_port: Port = Field(9464, description="ops port; 0: any free port, reported in the log")
    tls_certificate: Path | None = Field(
        None,
        description="PEM file of the server's certificate and intermediate ones; reloaded when it changes",
    )
    tls_key: Path | None = Field(None, description="PEM file of its key")
    tls_client_ca: Path | None = Field(
        None, description="PEM file of the authorities whose certificates clients must have; none: clients need none"
    )
    tokens: Path | None = Field(
        None, description="file of bearer tokens, as `glossa token` writes it; reloaded when it changes"
    )
    admin_socket: Path | None = Field(
        None, description="Unix socket of the admin service, for this user alone; none: no socket"
    )
    admin_port: Port | None = Field(
        None,
        description="port of the admin service, for tokens with the right admin; 0: any free port; none: no port",
    )
    admin_host: str = Field("127.0.0.1", description="address of the admin port; TLS is needed for all but loopback")
    reflection: bool = Field(True, description="enable gRPC reflection (grpcurl, buf curl)")

    max_message_bytes: int = Field(
        1 << 18, ge=1024, le=1 << 26, description="limit of a received gRPC message in bytes"
    )
    max_metadata_bytes: int = Field(8192, ge=1024, le=1 << 16, description="limit of a call's metadata in bytes")
    max_concurrent_streams: Positive = Field(256, description="concurrent calls per connection")
    max_resets_per_s: int = Field(
        200,
        ge=0,
        description="calls that a client may reset, or leave without a message, per second; with more, and more than "
        "it got answers, its connection is closed; 0: no limit",
    )
    handshake_timeout_s: PositiveSeconds = Field(
        10.0, description="seconds until a new connection without a handshake is closed"
    )
    keepalive_time_s: PositiveSeconds = Field(30.0, description="seconds of inactivity until a keepalive ping")
    keepalive_timeout_s: PositiveSeconds = Field(
        5.0, description="seconds until an unanswered keepalive ping closes the connection"
    )
    min_ping_interval_s: PositiveSeconds = Field(
        5.0, description="minimum seconds between a client's pings; more frequent ones close its connection"
    )
    max_connection_age_s: PositiveSeconds = Field(1800.0, description="seconds until a client has to reconnect")
    max_connection_age_grace_s: PositiveSeconds = Field(
        300.0, description="seconds after that for the connection's running calls"
    )

    @model_validator(mode="after")
    def _check_security(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = ("tls_certificate", "tls_key") if self.tls_key is None else ("tls_key", "tls_certificate")
            raise ValueError(f"{missing} must be given with {given}")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        if self.admin_port is not None and self.tokens is None:
            raise ValueError(
                "admin_port needs tokens, or anyone who reaches it could exchange models; or use admin_socket"
            )
        return self

    @property
    def has_admin(self) -> bool:
        """Whether models can be exchanged while the server runs."""
        return self.admin_port is not None or self.admin_socket is not None
