"""What an operator can set: `ServerSettings`, read once at the entry point, and how many processors it may use.

A value comes from the first of: flag, `GLOSSA_…` environment variable, YAML file (`--config` or `GLOSSA_CONFIG`),
default. Unknown keys are errors in all of them. Nothing here opens a bundle or a port.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from service.errors import StartupError

PREFIX = "GLOSSA_"
OTHERS = tuple(f"GLOSSA_{name}" for name in ("ADDRESS", "TLS", "TLS_CA", "TOKEN", "METADATA"))  # of a client
MAX_SINGLE_ENGINE_THREADS = 8
"""Of a step, unless it is set: a step is short, and more threads wait for each other longer than they compute."""
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]


class ServerSettings(BaseSettings):
    """All that `glossa serve` can be told; a field is a flag --max-queue, a variable GLOSSA_MAX_QUEUE, a YAML key."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, protected_namespaces=()
    )

    config: Path | None = Field(None, description="YAML file with more settings")
    models: Annotated[dict[str, Path], NoDecode] = Field(
        description="what to serve: NAME=BUNDLE, separated by commas in the environment, a mapping in YAML"
    )

    host: str = Field("127.0.0.1", description="address of the gRPC port; 0.0.0.0 listens on all interfaces")
    port: Port = Field(50051, description="gRPC port; 0: any free one, named in the log")
    http_host: str = Field("127.0.0.1", description="address of the ops port: /healthz /readyz /metrics /version")
    http_port: Port = Field(9464, description="ops port; 0: any free one, named in the log")
    reflection: bool = Field(True, description="answer gRPC reflection (grpcurl, buf curl)")

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: CUDA if it works, else CPU; cuda: or refuse"
    )
    precision: Literal["auto", "fp32", "int8", "int4"] = Field(
        "auto",
        description="auto: the first of int8, int4, fp32 that the bundle has on CPU, fp16 on CUDA; else: that one",
    )
    engines: int = Field(0, ge=0, le=256, description="engines per model on CPU; 0: one per usable core")
    single_engine_threads: int = Field(
        0,
        ge=0,
        le=256,
        description="threads of a step while one engine alone has work; 0: all usable, at most 8, and 1 for "
        "a small model or until that has come often enough; more than 1 take the decoder's weights once more",
    )
    huge_pages: bool = Field(True, description="start with large pages of memory where glibc and the kernel have them")
    max_rows: int = Field(64, ge=1, le=4096, description="sequences one engine decodes at once")
    kv_cache_bytes: Positive = Field(1 << 30, description="most bytes of a model's KV cache; requests wait for room")
    max_prefill_tokens: Positive = Field(
        256, description="tokens of sources and prompts read between two tokens of running requests, at most"
    )
    prefix_cache_bytes: int = Field(
        1 << 27, ge=0, description="most bytes of a model's recent prompt beginnings, beside the KV cache; 0: none"
    )
    draft_tokens: int = Field(
        0,
        ge=0,
        le=64,
        description="tokens guessed ahead where text repeats itself, generation only; 0: none; see docs/decoding.md",
    )
    max_queue: Positive = Field(
        256, description="requests of one model that may wait for a row; then RESOURCE_EXHAUSTED"
    )
    max_requests: Positive = Field(
        1024, description="requests in the server at once, all models; then RESOURCE_EXHAUSTED"
    )

    default_deadline_s: PositiveSeconds = Field(60.0, description="seconds for a request whose client set no deadline")
    max_deadline_s: PositiveSeconds = Field(600.0, description="seconds; a client's longer deadline is cut to this")
    stall_timeout_s: PositiveSeconds = Field(
        30.0, description="seconds a stream waits for a client that stopped reading"
    )
    drain_delay_s: Seconds = Field(
        5.0, description="seconds of accepting requests after SIGTERM, while balancers notice"
    )
    drain_timeout_s: Seconds = Field(30.0, description="seconds for running requests to finish after that")

    max_text_bytes: int = Field(16384, ge=1, le=1 << 20, description="bytes of text, checked before tokenising")
    max_stop_strings: int = Field(8, ge=0, le=64, description="stop strings of one request")
    max_stop_bytes: int = Field(64, ge=1, le=4096, description="bytes of one stop string")

    max_message_bytes: int = Field(1 << 20, ge=1024, le=1 << 26, description="bytes of one gRPC message received")
    max_metadata_bytes: int = Field(8192, ge=1024, le=1 << 16, description="bytes of one call's metadata")
    max_concurrent_streams: Positive = Field(256, description="calls at once on one connection")
    handshake_timeout_s: PositiveSeconds = Field(10.0, description="seconds until a silent new connection is closed")
    keepalive_time_s: PositiveSeconds = Field(30.0, description="seconds of silence before a connection is probed")
    keepalive_timeout_s: PositiveSeconds = Field(5.0, description="seconds until an unanswered probe closes it")
    min_ping_interval_s: PositiveSeconds = Field(
        5.0, description="seconds; clients that probe more often are sent away"
    )
    max_connection_age_s: PositiveSeconds = Field(
        1800.0, description="seconds until a connection is asked to reconnect"
    )
    max_connection_age_grace_s: PositiveSeconds = Field(300.0, description="seconds its running calls may go on")

    heartbeat_timeout_s: PositiveSeconds = Field(
        30.0, description="seconds without a turn until an engine is unhealthy"
    )
    commit: str = Field("", description="git commit of this build, for /version and glossa_build_info")
    log_format: Literal["auto", "json", "pretty"] = Field(
        "auto", description="auto: pretty on a terminal, else JSON lines"
    )
    log_text: bool = Field(False, description="write texts of requests and answers into the log")

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: object) -> object:
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if isinstance(value, list | tuple):
            pairs = [str(part).strip().partition("=") for part in value]
            for name, separator, path in pairs:
                if not (separator and path):
                    raise ValueError(f"must be NAME=BUNDLE, got {name!r}")
            names = [name for name, _, _ in pairs]
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"each name once, got {', '.join(sorted(twice))} twice")
            return {name: path for name, _, path in pairs}
        return value

    @field_validator("models")
    @classmethod
    def _check_models(cls, value: dict[str, Path]) -> dict[str, Path]:
        if not value:
            raise ValueError("name at least one model, NAME=BUNDLE")
        for name in value:
            if not MODEL_NAME.fullmatch(name):
                raise ValueError(
                    f"a name is 1..63 letters, digits, '.', '_', '-', a letter or digit first, got {name!r}"
                )
        return value

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
        if path and not Path(path).is_file():
            raise StartupError(f"config: {path} is not a file; give the path of a YAML file")
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=path)


def load_settings(flags: Mapping[str, Any]) -> ServerSettings:
    """Settings from flags (those the user gave, by field name), the environment and the YAML file.

    Raises StartupError naming the setting, the value's problem and where it came from.
    """
    known = set(ServerSettings.model_fields)
    for variable in os.environ:
        if variable in OTHERS or not variable.upper().startswith(PREFIX):
            continue
        if variable[len(PREFIX) :].lower() not in known:
            shown = {PREFIX + field.upper() for field in known}
            raise StartupError(f"{variable}: {_unknown(variable, shown)}")
    try:
        return ServerSettings(**flags)
    except ValidationError as error:
        raise StartupError("\n".join(_explain(problem, flags) for problem in error.errors())) from None
    except yaml.YAMLError as error:
        raise StartupError(f"config: not readable as YAML: {' '.join(str(error).split())}") from None


def _explain(problem: Any, flags: Mapping[str, Any]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else "settings"
    if name in flags:
        origin = "--" + name.replace("_", "-")
    elif PREFIX + name.upper() in os.environ:
        origin = PREFIX + name.upper()
    else:
        origin = name
    if problem["type"] == "extra_forbidden":
        return f"{origin}: {_unknown(name, ServerSettings.model_fields)}"
    if problem["type"] == "missing":
        return f"{origin}: not set; name at least one model, NAME=BUNDLE"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{origin}: {message}" + ("" if "got" in message else f", got {problem['input']!r}")


def _unknown(key: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return "unknown setting; " + (f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}")


@dataclass(frozen=True)
class Processors:
    """What there is to compute with. A container's quota shows in neither os.cpu_count() nor the affinity mask."""

    allowed: int  # by the affinity mask; hyperthreads count one each
    cores: int  # that these are threads of: two threads of a core share the units that multiply
    quota: float | None  # processors' worth of time that cgroups (v1 or v2) allow

    @property
    def usable(self) -> int:
        """How many can be kept busy, at least 1. A quota of 2.5 counts as 2: half a one would stall a step."""
        return max(1, min(self.cores, int(self.quota) if self.quota is not None else self.cores))


def processors(root: Path = Path("/")) -> Processors:
    """Those this process may use. `root`: where /proc and /sys are found."""
    allowed = os.sched_getaffinity(0)
    cores = {_read_siblings(root, number) or str(number) for number in allowed}
    return Processors(len(allowed), len(cores), min(_cpu_quotas(root), default=None))


def effective_cpus(root: Path = Path("/")) -> int:
    return processors(root).usable


def _read_siblings(root: Path, number: int) -> str:
    """The processors that are threads of the same core as this one; empty when the system does not say."""
    topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the newer name first
        with contextlib.suppress(OSError):
            return (topology / name).read_text().strip()
    return ""


def _cpu_quotas(root: Path) -> list[float]:
    """CPU limits of this process's cgroup and of every cgroup above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup/cpu"]
        else:
            continue
        group = Path(path.lstrip("/"))
        for mount in mounts:
            # Inside a container the path may be the host's: the mount's own root then carries the limit.
            quotas += [quota for part in [group, *group.parents] if (quota := _quota_of(mount / part)) is not None]
    return quotas


def _quota_of(group: Path) -> float | None:
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        limit = float(quota) / float(period)
    except (OSError, ValueError):  # no limit file here, or "max"
        return None
    return limit if limit > 0 else None
