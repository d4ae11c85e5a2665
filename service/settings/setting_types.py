"""The types of settings whose values are lists, pairs or bounded numbers, and how text becomes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

MAX_KEPT_BYTES = 1 << 22
"""Of one answer in the answer cache: a response has 3 MiB at most. Larger ones, with all attention weights of which a
response has a selection, are not kept."""
TENANT_NAME = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_NAME = "a name must be 1..63 letters, digits, '.', '_', '-', a letter or digit first"
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def proposed_name(bundle: str) -> str:
    """A name for a bundle by its directory: en-de of runs/en-de.bundle, demo of runs/demo/bundle."""
    parts = [re.sub(r"[^A-Za-z0-9._-]", "-", part).strip("._-") for part in Path(bundle).resolve().parts]
    names = [part.removesuffix(".bundle") for part in parts if part not in ("", "bundle")]
    return names[-1][:63] if names else "model"


def _check_devices(value: str) -> str:
    devices = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() for part in devices) or len(set(devices)) < len(devices):
        raise ValueError(f"must be different numbers of devices, such as 0,1, got {value!r}")
    return ",".join(devices)


def _check_endpoint(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/")):
        raise ValueError(f"must be http://HOST:PORT, or https://HOST:PORT for TLS, got {value!r}")
    return value


def _parse_models(value: object) -> object:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple):
        pairs = [str(part).strip().partition("=") for part in value]
        for name, separator, path in pairs:
            if not (name and separator and path):
                bundle = path or name or "BUNDLE"
                problem = f"must be NAME=BUNDLE, such as {proposed_name(bundle)}={bundle}"
                raise ValueError(f"{problem}, got {name + separator + path!r}")
        names = [name for name, _, _ in pairs]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"must have each name once, got {', '.join(sorted(twice))} twice; rename one")
        return {name: path for name, _, path in pairs}
    return value


def _check_models(value: dict[str, Path]) -> dict[str, Path]:
    if not value:
        raise ValueError("must name at least one model: NAME=BUNDLE")
    return _check_names(value)


def _parse_files(value: object) -> object:
    if isinstance(value, str):
        pairs = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        names = [name for name, _, _ in pairs]
        if len(set(names)) < len(names) or not all(name and path for name, _, path in pairs):
            raise ValueError(f"must be NAME=FILE, each name once, got {value!r}")
        value = {name: path for name, _, path in pairs}
    return value


def _check_names(value: dict[str, Path]) -> dict[str, Path]:
    for name in value:
        if not MODEL_NAME.fullmatch(name):
            raise ValueError(f"{_NAME}, got {name!r}")
    return value


def _parse_tenants(value: object) -> object:
    if isinstance(value, str):
        pairs = [part.strip().rpartition("=") for part in value.split(",") if part.strip()]
        names = [name for name, _, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError(f"must have each name once, got {value!r}")
        value = {name: number for name, _, number in pairs}
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str) or not TENANT_NAME.fullmatch(name):
                problem = "must be NAME=NUMBER with names of 1..128 letters, digits and . _ : / + = @ -"
                raise ValueError(f"{problem}, got {name!r}")
    return value


def _parse_names(value: object) -> object:
    if isinstance(value, str):
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple) and len(set(value)) < len(value):
        raise ValueError(f"must have each name once, got {','.join(map(str, value))}")
    return value


def _check_cache(value: int) -> int:
    if value and value < MAX_KEPT_BYTES:
        raise ValueError(f"must be 0, or at least {MAX_KEPT_BYTES}: one answer may take so much, got {value}")
    return value


def _check_keys(value: str) -> str:
    parts = urlsplit(value)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if "://" in value and (not parts.hostname or parts.scheme not in (("https", "http") if is_local else ("https",))):
        raise ValueError(f"must be a file or https://…, http:// only on this machine, got {value!r}")
    return value


def _parse_claims(value: object) -> object:
    if isinstance(value, str):
        value = dict(part.strip().partition("=")[::2] for part in value.split(",") if part.strip())
    if isinstance(value, Mapping) and not (set(value) <= set(CLAIMS) and all(value.values())):
        raise ValueError(f"must be {','.join(f'{name}=CLAIM' for name in CLAIMS)}, or one of them, got {value!r}")
    return value


CacheBytes = Annotated[int, Field(ge=0), AfterValidator(_check_cache)]
CLAIMS = {"tenant": "tenant", "rights": "glossa_rights"}  # of a token, by what they say
Claims = Annotated[dict[str, str], NoDecode, BeforeValidator(_parse_claims)]
KeySource = Annotated[str, AfterValidator(_check_keys)]
CudaDevices = Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(_check_devices)]
Endpoint = Annotated[str, AfterValidator(_check_endpoint)]
Port = Annotated[int, Field(ge=0, le=65535)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
Models = Annotated[dict[str, Path], NoDecode, BeforeValidator(_parse_models), AfterValidator(_check_models)]
Files = Annotated[dict[str, Path], NoDecode, BeforeValidator(_parse_files), AfterValidator(_check_names)]
_Adaptor = Literal["open-inference", "vllm", "riva", "google-translation"]
Adaptors = Annotated[tuple[_Adaptor, ...], NoDecode, BeforeValidator(_parse_names)]
Weights = Annotated[dict[str, Weight], NoDecode, BeforeValidator(_parse_tenants)]
TokensPerMinute = Annotated[dict[str, Positive], NoDecode, BeforeValidator(_parse_tenants)]
