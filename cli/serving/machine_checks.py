"""Checks of this machine for `glossa doctor`: installed packages, hardware, limits and bundles, each with a fix.

`examine` has no lasting effect: it creates no ONNX session and starts no server; it binds each port briefly. It runs
without torch and onnx, which serving does not need, and reports them as missing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cli.local_server import process_at
from export.bundle.directory import BundleError, load_bundle
from export.bundle.manifest import Manifest
from service.machine.execution_choice import CUDA
from service.machine.huge_pages import SINCE, SWITCH, TUNABLE, VARIABLE, has_huge_pages, obstacle_to_huge_pages
from service.machine.processors import MAX_SINGLE_ENGINE_THREADS, processors

if TYPE_CHECKING:  # they import pydantic, which may be missing
    from service.edge.models.process_plan import ProcessPlan
    from service.settings.config import ServerSettings

Status = Literal["ok", "warn", "fail"]

SERVING = ("onnxruntime", "grpcio", "protobuf", "tokenizers", "numpy", "prometheus-client", "pydantic-settings")
TRAINING = ("torch", "onnx", "onnxscript", "safetensors", "sacrebleu")
INSTALL = "pip install glossa, or make setup"
TRAIN = "to train or export: pip install 'glossa[train]', or make setup"
ONE_OF = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu")}  # two distributions of one library

FAST_INT8 = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})  # features with one instruction for an int8 dot product
CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "asimd", "i8mm")


class Finding(NamedTuple):
    """The result of one check. warn: slower or incomplete; fail: serving does not work. Both set `fix`."""

    status: Status
    value: str
    fix: str = ""


class _Plan(NamedTuple):
    """The engine processes of one bundle. settings: of a server that serves it. weights: bytes of the graphs of a
    process."""

    settings: ServerSettings
    manifest: Manifest
    processes: ProcessPlan
    weights: int


def examine(
    bundles: Sequence[Path] = (),
    *,
    addresses: Sequence[tuple[str, int]] | None = None,
    root: Path = Path("/"),
) -> dict[str, Finding]:
    """All findings by the names of their checks, in the order of the report.

    addresses: hosts and ports that must be free; None: those of a server with the settings of this environment. root:
    directory that contains proc, sys and dev.
    """
    manifests = {path: _load(path) for path in bundles}
    plans = {path: _plan(path, item, root) for path, item in manifests.items() if isinstance(item, Manifest)}
    return {
        "python": Finding("ok", f"{platform.python_version()} ({sys.executable})"),
        **{name: _package(name, "fail", "not installed", INSTALL) for name in SERVING},
        **{name: _package(name, "warn", "not installed; serving does not need it", TRAIN) for name in TRAINING},
        "execution providers": _providers(root),
        "processor": _processor(root),
        "cores": _cores(root),
        "huge pages": _huge_pages(root),
        "memory": _memory(root, [plan for plan in plans.values() if isinstance(plan, _Plan)]),
        **_ports(addresses),
        **_issuer(),
        **{f"bundle {path}": _bundle(item) for path, item in manifests.items()},
        **{f"engines {path}": _engines(plan) for path, plan in plans.items()},
    }


def _package(name: str, *missing: Any) -> Finding:
    for distribution in ONE_OF.get(name, (name,)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return Finding("ok", metadata.version(distribution))
    return Finding(*missing)


def _providers(root: Path) -> Finding:
    try:
        from service.runtime.sessions import available_providers  # imports onnxruntime, which may be missing

        providers = available_providers()
    except ImportError as error:
        return Finding("fail", f"none: {error}", INSTALL)
    value = ", ".join(providers)
    if CUDA in providers:
        return _cuda(value)
    if (root / "proc/driver/nvidia/version").exists():
        value += "; an NVIDIA driver is installed, but this ONNX Runtime cannot use it"
        return Finding("warn", value, "pip uninstall onnxruntime, then pip install -r requirements/gpu.in")
    return Finding("ok", value)


def _cuda(value: str) -> Finding:
    """Whether a server could use CUDA, which its device `auto` does without."""
    from service.errors import StartupError
    from service.runtime.sessions import check_cuda_of_machine

    try:
        check_cuda_of_machine(0)
    except StartupError as error:
        cause, _, fix = str(error).partition("; fix: ")
        return Finding("warn", f"{value}; {cause}", fix)
    return Finding("ok", value)


def _processor(root: Path) -> Finding:
    text = _read(root / "proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    features = [name for name in CPU_FEATURES if name in known]
    value = f"{model[1] if model else platform.machine()}: {' '.join(features) or 'no vector extensions known'}"
    if platform.machine() in ("x86_64", "AMD64") and "avx2" not in known:
        fix = "serve on a processor with AVX2; without it matrix products are several times slower"
        return Finding("warn", value, fix)
    if platform.machine() in ("x86_64", "AMD64") and not known & FAST_INT8:
        fix = "serve on a processor with VNNI or AMX, where int8 is faster; the results are the same"
        return Finding("warn", f"{value}, no VNNI: int8 is slow", fix)
    return Finding("ok", value)


def _cores(root: Path) -> Finding:
    found = processors(root)
    usable, present = found.usable, os.cpu_count() or 1
    limits = []
    if found.allowed < present:
        limits.append(f"the affinity mask allows {found.allowed}")
    if found.cores < found.allowed:
        limits.append(f"they are hyperthreads of {found.cores} cores, and sharing a core does not speed up GEMM")
    if found.quota is not None and found.quota < found.cores:
        limits.append(f"cgroups allow the time of {found.quota:g}")
    value = f"{usable} usable of {present}" + (f" ({'; '.join(limits)})" if limits else "")
    value += f", so {usable} engine{'s' if usable > 1 else ''} of one thread per model by default"
    if usable > 1:
        value += f"; a single busy engine uses {min(usable, MAX_SINGLE_ENGINE_THREADS)}"
    return Finding("ok", value)


def _huge_pages(root: Path) -> Finding:
    is_enabled = has_huge_pages(os.environ)
    obstacle = obstacle_to_huge_pages({} if is_enabled else os.environ, root)
    if obstacle is None and is_enabled:
        return Finding("ok", f"{TUNABLE} is set: packed weights are in huge pages")
    if obstacle is None:
        return Finding("ok", "engine processes start with huge pages")
    libc = "glibc " + ".".join(map(str, SINCE))
    fix = f"start with {VARIABLE}={TUNABLE}, on {libc} or newer and a kernel with [madvise] in /{SWITCH}"
    return Finding("warn", f"none: {obstacle}; steps are 5-10 % slower", fix)


def _memory(root: Path, plans: Sequence[_Plan]) -> Finding:
    available = min(_available_bytes(root), default=None)
    value = "unknown" if available is None else f"{_mb(available)} available"
    more = "stop other processes, raise the container's memory limit"
    if not plans:
        return Finding("warn", value, "mount /proc") if available is None else Finding("ok", value)
    from service.edge.versions.memory_plan import advice, predict_memory

    served = [(plan.manifest, plan.processes) for plan in plans]
    prediction = predict_memory(plans[0].settings, served, processors(root))
    value += f", {_mb(prediction.start)} needed to start, at most {_mb(prediction.total)} under load"
    if available is None:
        return Finding("warn", value, f"make sure that {_mb(prediction.total)} are free")
    if available < prediction.start:
        return Finding("fail", value, f"{more}, or serve fewer bundles or engines")
    if available < prediction.total:
        return Finding("warn", value, f"{more}, or lower {advice(prediction)}")
    return Finding("ok", value)


def _available_bytes(root: Path) -> Iterator[int]:
    """Available memory of the machine and of each cgroup (version 2) that contains this process."""
    if free := re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE):
        yield int(free[1]) << 10
    own = re.search(r"^0::(/.*)$", _read(root / "proc/self/cgroup"), re.MULTILINE)
    group = (root / "sys/fs/cgroup").joinpath(own[1].lstrip("/") if own else "")
    while group != root / "sys/fs":
        limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
        cached = re.search(r"^inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
        if limit.isdigit() and used.isdigit():
            yield int(limit) - int(used) + (int(cached[1]) if cached else 0)  # the kernel reclaims cached files
        group = group.parent


def _ports(addresses: Sequence[tuple[str, int]] | None) -> dict[str, Finding]:
    if addresses is None:
        settings = _settings(Path())
        if isinstance(settings, Finding):
            return {"settings": settings}
        admin = [(settings.admin_host, settings.admin_port)] if settings.admin_port is not None else []
        addresses = [(settings.host, settings.port), (settings.http_host, settings.http_port), *admin]
    return {f"port {port}": _port(host, port) for host, port in addresses if port}  # 0: any that is free


def _issuer() -> dict[str, Finding]:
    """Whether tokens of the issuer that the settings of this environment name could be verified."""
    settings = _settings(Path())
    if isinstance(settings, Finding) or not settings.oidc_issuer:
        return {}
    from service.edge.security.signing_keys import SigningKeys, check_library
    from service.errors import StartupError

    keys = SigningKeys(settings.oidc_jwks)
    try:
        check_library(settings.oidc_issuer)
        keys.read()
    except StartupError as error:
        cause, _, fix = str(error).partition("; fix: ")
        return {"issuer": Finding("fail", cause, fix)}
    return {"issuer": Finding("ok", f"{settings.oidc_issuer} signs with {', '.join(sorted(keys.current))}")}


def _port(host: str, port: int) -> Finding:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free for a server
            probe.bind((host, port))
    except OSError as error:
        fix = "stop the process that listens there, or choose other ports with --port and --http-port"
        process = process_at(port)
        return Finding("fail", f"{host}: {error.strerror}" + (f" by {process}" if process else ""), fix)
    return Finding("ok", f"free on {host}")


def _load(path: Path) -> Manifest | BundleError | OSError:
    try:
        return load_bundle(path)
    except (BundleError, OSError) as error:
        return error


def _bundle(loaded: Manifest | BundleError | OSError) -> Finding:
    if isinstance(loaded, Manifest):
        precisions = "+".join(variant.precision for variant in loaded.variants)
        value = f"{loaded.architecture} for {loaded.task}, {precisions}, {_mb(_bytes(loaded))}, digests match"
        return Finding("ok", value)
    fix = loaded.fix if isinstance(loaded, BundleError) else "give the directory that `glossa export` wrote"
    return Finding("fail", str(loaded).partition("; fix:")[0], fix)


def _settings(path: Path) -> ServerSettings | Finding:
    """The settings of this environment, of a server for one bundle, or why there is none."""
    try:
        from service.errors import StartupError
        from service.settings.loading import load_settings  # imports pydantic, which may be missing
    except ImportError as error:
        return Finding("fail", str(error), INSTALL)
    try:
        return load_settings({"models": {"model": path}})
    except StartupError as error:
        return Finding("fail", str(error), "correct the variable or the file")


def _plan(path: Path, manifest: Manifest, root: Path) -> _Plan | Finding:
    """What a server with the settings of this environment would start for a bundle, or why it would not."""
    settings = _settings(path)
    if isinstance(settings, Finding):
        return settings
    from service.edge.models.process_plan import plan_processes, weight_bytes

    plan = plan_processes(settings, manifest, processors(root))
    return _Plan(settings, manifest, plan, weight_bytes(manifest, settings.precision))


def _engines(plan: _Plan | Finding) -> Finding:
    if isinstance(plan, Finding):
        return plan
    from service.edge.models.process_plan import MAX_SMALL_BYTES

    kind = "at most" if plan.weights <= MAX_SMALL_BYTES else "more than"
    return Finding(
        "ok",
        f"{_count(plan.processes.engines, 'engine')} in {_count(plan.processes.processes, 'process')}; the weights are "
        f"{_mb(plan.weights)}, {kind} the {_mb(MAX_SMALL_BYTES)} up to which engines have a process each; "
        "--engines-per-process changes it",
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "es" if what.endswith("s") else "s")


def _bytes(manifest: Manifest) -> int:
    return sum(digest.bytes for digest in manifest.files.values())


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count < 1e8 else f"{count / 1e6:,.0f} MB"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
