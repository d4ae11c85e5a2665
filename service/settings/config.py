"""The server's settings (`ServerSettings`), each field with its flag, its variable, its YAML key and its default.

Nothing here opens a bundle or a port.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from service.memory.engine_limits import EngineLimits, setting_fields
from service.settings.engine_settings import Precision
from service.settings.setting_types import (
    Adaptors,
    CacheBytes,
    Claims,
    CudaDevices,
    Endpoint,
    Files,
    KeySource,
    Models,
    NotNegative,
    Port,
    Positive,
    PositiveSeconds,
    Ratio,
    Seconds,
    TokensPerMinute,
    Weights,
)
from service.settings.settings_file import settings_of

PREFIX = "GLOSSA_"
MIN_PROCESS_BYTES = 1 << 28  # of an engine process with a small model


if TYPE_CHECKING:

    class _LimitSettings(BaseSettings, EngineLimits): ...  # type: ignore[misc]  # frozen, as settings are

else:  # a setting for each limit of engines that is one
    _LimitSettings = create_model(
        "_LimitSettings",
        __base__=BaseSettings,
        **{
            limit.name: (
                type(limit.default),
                Field(limit.default, **{name: limit.metadata[name] for name in ("description", "ge", "le")}),
            )
            for limit in setting_fields()
        },
    )


class ServerSettings(_LimitSettings):  # type: ignore[misc]
    """The settings of `glossa serve`; each field is a flag --max-queue, a variable GLOSSA_MAX_QUEUE and a YAML key."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, protected_namespaces=()
    )

    config: Path | None = Field(None, description="YAML file with more settings")
    models: Models = Field(
        description="models to serve: NAME=BUNDLE; comma-separated in the environment, a mapping in YAML"
    )

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
    oidc_issuer: str = Field(
        "", description="issuer (iss) whose JSON Web Tokens are taken as well; needs oidc_audience and oidc_jwks"
    )
    oidc_audience: str = Field("", description="audience (aud) that these tokens must name")
    oidc_jwks: KeySource = Field(
        "",
        description="keys of the issuer: a JWKS file, reloaded when it changes, or an https:// address, asked every 5 "
        "minutes and for a key that is new",
    )
    oidc_claims: Claims = Field(
        {},
        description="claims of tenant and rights, by default tenant=tenant and rights=glossa_rights; a.b: b within a",
    )
    oidc_leeway_s: Seconds = Field(30.0, description="seconds that clocks of issuer and server may differ by")
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

    glossaries: Files = Field(
        {},
        description="glossaries that requests may name: NAME=FILE, comma-separated or a mapping in YAML; read anew "
        "when they change; see docs/markup.md",
    )

    adaptors: Adaptors = Field(
        (),
        description="other protocols on the gRPC port, comma-separated: open-inference (KServe, clients of Triton), "
        "vllm (gateways to engines of vLLM, for one generation model), riva and google-translation (their clients' "
        "translation)",
    )

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: CUDA if available, else CPU; cuda: fail without CUDA"
    )
    cuda_devices: CudaDevices = Field(
        "0", description="CUDA devices, such as 0,1, of those that CUDA sees; a model has an engine process for each"
    )
    precision: Precision = Field(
        "auto",
        description="precision of the graphs; auto: the first of int8, int4, fp32 (CPU) or of fp16, w4a16 (CUDA)",
    )
    engines: int = Field(0, ge=0, le=256, description="engines per model on CPU; 0: one per usable core")
    engines_per_process: int = Field(
        0,
        ge=0,
        le=256,
        description="engines that share a process and its weights; 0: 1 for small models, all of them for large ones",
    )
    engine_niceness: int = Field(
        10, ge=0, le=19, description="how much engines give way to the event loop and to other programs: nice(2)"
    )
    pin_processes: bool = Field(False, description="give each engine process processors of its own")
    process_memory_bytes: int | None = Field(
        None,
        ge=0,
        description="limit of what an engine process may allocate; requests beyond it fail; 0: none; by default far "
        "above the prediction",
    )
    process_start_timeout_s: PositiveSeconds = Field(
        120.0, description="seconds until an engine process must have opened its bundle"
    )
    start_timeout_s: PositiveSeconds = Field(
        300.0, description="seconds until all models must be open; then the server ends"
    )
    single_engine_threads: int = Field(
        0,
        ge=0,
        le=256,
        description="intra-op threads while only one engine is busy; 0: automatic (all usable cores, at most 8; 1 for "
        "small models and until it has happened often enough); above 1 the decoder's weights are held twice",
    )
    huge_pages: bool = Field(
        True, description="huge pages for engine processes where glibc and the kernel support them"
    )
    cuda_memory_bytes: NotNegative = Field(
        0, description="limit in bytes of a model on a CUDA device, weights included; 0: nine tenths of what is free"
    )
    max_queue: Positive = Field(256, description="waiting requests per model; above it RESOURCE_EXHAUSTED")
    max_requests: Positive = Field(1024, description="concurrent requests of all models; above it RESOURCE_EXHAUSTED")
    request_memory_bytes: int = Field(
        1 << 28,
        ge=1 << 24,
        description="limit in bytes of what all requests and their answers may take beside caches; above it "
        "RESOURCE_EXHAUSTED",
    )

    tenant_weights: Weights = Field(
        {},
        description="shares of tenants, NAME=WEIGHT, comma-separated or a mapping in YAML; others have 1; those named "
        "may claim the priority high",
    )
    unknown_tenants: Literal["separate", "shared"] = Field(
        "separate", description="tenants without a weight: each has a share of its own, or all share that of one"
    )
    unknown_tenant_priority: Literal["high", "normal", "low"] = Field(
        "normal", description="highest priority of tenants without a weight, anonymous ones included"
    )
    tenant_share: float = Field(
        0.8,
        gt=0,
        lt=1,
        description="share of max_requests and of a queue that one tenant may fill while others are present",
    )

    tenant_tokens_per_minute: TokensPerMinute = Field(
        {},
        description="tokens that tenants may use in a minute, prompts and answers, NAME=TOKENS, comma-separated or a "
        "mapping in YAML; a minute's at once; above it RESOURCE_EXHAUSTED; others: no limit",
    )

    answer_cache_bytes: CacheBytes = Field(
        0,
        description="limit in bytes of answers that are kept for equal requests; at least 4 MiB, which one may take; "
        "0: none; see docs/answer-cache.md",
    )
    answer_cache_shared: bool = Field(
        False, description="tenants get each other's kept answers, and may learn from the time what others asked"
    )

    max_backlog_age_s: PositiveSeconds = Field(
        1.0, description="seconds that calls may wait before the server sees them; above it health is NOT_SERVING"
    )
    default_deadline_s: PositiveSeconds = Field(60.0, description="deadline in seconds of requests without one")
    max_deadline_s: PositiveSeconds = Field(600.0, description="limit in seconds of a client's deadline")
    message_timeout_s: PositiveSeconds = Field(
        10.0, description="seconds until a call whose message has not come is ended"
    )
    stall_timeout_s: PositiveSeconds = Field(
        30.0, description="seconds until a stream whose client reads nothing is ended"
    )
    load_reports: Literal["none", "asked", "all"] = Field(
        "asked",
        description="load reports for balancers (ORCA): asked: on streams, and in the trailing metadata of calls with "
        "the header endpoint-load-metrics-format; all: of all calls; none: nowhere",
    )
    min_load_report_interval_s: float = Field(
        1.0, ge=0.1, le=3600, description="seconds between two reports of such a stream, at least, whatever it asks for"
    )
    drain_delay_s: Seconds = Field(
        5.0, description="seconds of accepting requests after SIGTERM, until load balancers notice"
    )
    drain_timeout_s: Seconds = Field(30.0, description="seconds after that for running requests to finish")

    max_text_bytes: int = Field(
        0,
        ge=0,
        le=1 << 20,
        description="limit of a text in bytes, checked before tokenization; "
        "0: 8 for each token of the model's context, at least 16,384, at most max_message_bytes and 1 MiB",
    )
    max_document_bytes: int = Field(
        1 << 22,
        ge=1,
        le=1 << 26,
        description="limit of a document in bytes; one above max_message_bytes comes in several messages",
    )
    max_stop_strings: int = Field(8, ge=0, le=64, description="limit of stop strings per request")
    max_stop_bytes: int = Field(64, ge=1, le=4096, description="limit of a stop string in bytes")

    heartbeat_timeout_s: PositiveSeconds = Field(
        30.0, description="seconds without progress until an engine counts as unhealthy"
    )
    otlp_endpoint: Endpoint = Field("", description="collector of traces, http://HOST:PORT (OTLP, gRPC); empty: none")
    trace_sample_ratio: Ratio = Field(1.0, description="share of traced calls, where no traceparent decides")
    commit: str = Field("", description="git commit of this build, for /version and glossa_build_info")
    log_format: Literal["auto", "json", "pretty"] = Field(
        "auto", description="auto: pretty on a terminal, else JSON lines"
    )
    log_text: bool = Field(False, description="log the texts of requests and answers")

    @model_validator(mode="after")
    def _check_security(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = ("tls_certificate", "tls_key") if self.tls_key is None else ("tls_key", "tls_certificate")
            raise ValueError(f"{missing} must be given with {given}")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        issuer = {name: getattr(self, name) for name in ("oidc_issuer", "oidc_audience", "oidc_jwks")}
        if (any(issuer.values()) or self.oidc_claims) and not all(issuer.values()):
            lacking = next(name for name, value in issuer.items() if not value)
            raise ValueError(f"{lacking} must be given: tokens of an issuer need {', '.join(issuer)}")
        if self.admin_port is not None and not self.has_tokens:
            raise ValueError(
                "admin_port needs tokens or oidc_issuer, or anyone who reaches it could exchange models; or use "
                "admin_socket"
            )
        return self

    @property
    def has_tokens(self) -> bool:
        """Whether calls need a token."""
        return self.tokens is not None or bool(self.oidc_issuer)

    @property
    def has_admin(self) -> bool:
        """Whether models can be exchanged while the server runs."""
        return self.admin_port is not None or self.admin_socket is not None

    @model_validator(mode="after")
    def _check_processes(self) -> Self:
        engines, each, threads = self.engines, self.engines_per_process, self.single_engine_threads
        if engines and each and engines % each:
            raise ValueError(f"engines_per_process must divide engines, {engines}, got {each}")
        if self.pin_processes and each and threads > each:
            raise ValueError(
                f"single_engine_threads must be at most engines_per_process, {each}, with pin_processes, got {threads}"
            )
        if 0 < (self.process_memory_bytes or 0) < MIN_PROCESS_BYTES:
            raise ValueError(
                f"process_memory_bytes must be 0 or at least {MIN_PROCESS_BYTES}, got {self.process_memory_bytes}"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = init_settings().get("config") or os.environ.get(PREFIX + "CONFIG")
        return init_settings, env_settings, InitSettingsSource(settings_cls, settings_of(Path(path)) if path else {})


def shown_default(field: FieldInfo) -> str:
    """The default of a setting as help pages show it."""
    value = field.default
    if value in (None, "", {}, ()):
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value}"
