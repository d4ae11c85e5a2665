"""Servers on this machine: starts one for a bundle, checks readiness, and finds the process that listens on a port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from cli.terminal import UsageError

OPS_PORT = 9464  # as ServerSettings.http_port
OTHERS = frozenset(  # settings of other servers: their file, access, and ports and sockets that one of them may have
    f"GLOSSA_{name}"
    for name in (
        "CONFIG",
        "TLS_CERTIFICATE",
        "TLS_KEY",
        "TLS_CLIENT_CA",
        "TOKENS",
        "ADMIN_PORT",
        "ADMIN_SOCKET",
        "HOST",
        "HTTP_HOST",
        "ADAPTORS",
    )
)
CONNECTION_AGE_S = 24 * 3600  # longer than any work with a temporary server, so that none of its calls is cut
REPORTED_WITHIN_S = 60.0  # engine processes report four times a second
READY_WITHIN_S = 330.0
"""A server that does not open its bundle ends before, and says why: ServerSettings.start_timeout_s."""
ENDS_WITHIN_S = 60.0  # a server without calls, once it is asked to stop


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fetch(url: str) -> str:
    """The body of an HTTP answer on this machine. Raises OSError, and HTTPError for another status than 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            body: str = answer.read().decode()
            return body
    except urllib.error.HTTPError as error:
        error.close()  # it is an open answer; Python 3.14 warns of one that is left to the garbage collector
        raise


def is_ready(ops: str) -> bool:
    """Whether the server with this ops URL reports that it is ready; what does not answer in HTTP is not."""
    try:
        fetch(f"{ops}/readyz")
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return False
    return True


@contextlib.contextmanager
def serving(bundle: Path, *, ready_within_s: float = READY_WITHIN_S) -> Iterator[tuple[str, str]]:
    """A server for one bundle in a process of its own: yields its address and the URL of its ops port. Calls need
    neither TLS nor a token. Its settings are defaults and variables; no settings file of another server counts."""
    port, http_port = free_port(), free_port()
    flags = ["--port", str(port), "--http-port", str(http_port), "--drain-delay-s", "0", "--log-format", "json"]
    flags += ["--max-connection-age-s", str(CONNECTION_AGE_S)]
    command = [sys.executable, "-P", "-m", "cli.main", "serve", f"model={bundle}", *flags]
    own = {name: value for name, value in os.environ.items() if name.upper() not in OTHERS}
    environment = {**own, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the modules of this process
    with tempfile.TemporaryFile("w+") as log:  # a file, as a full pipe without a reader would block the server
        process = subprocess.Popen(command, stderr=log, env=environment)
        ops = f"http://127.0.0.1:{http_port}"
        try:
            deadline = time.monotonic() + ready_within_s
            while not is_ready(ops):
                if process.poll() is not None:
                    log.seek(0)
                    raise UsageError(f"the server did not start: {reason(log.read().strip())}")
                if time.monotonic() > deadline:
                    raise UsageError(f"the server was not ready within {ready_within_s:.0f} s")
                time.sleep(0.02)
            yield f"127.0.0.1:{port}", ops
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:  # on a starved machine; nothing is lost with it
                process.kill()
                process.wait()


def reason(log: str) -> str:
    """Why a server did not start, by the last line of its log; all of a log that does not end with it."""
    with contextlib.suppress(ValueError):  # not JSON
        last = json.loads(log.rpartition("\n")[2])
        if last["event"] == "start_failed":
            return "; fix: ".join(filter(None, (last["cause"], last["fix"])))
    return log


def measure_serving(bundle: Path) -> dict[str, float]:
    """Seconds until a server for this bundle alone is ready, `ready_s`, its engine `processes`, and the memory of them
    and the edge then, `resident_bytes`.

    Raises UsageError if the bundle cannot be served on this machine.
    """
    started = time.monotonic()
    with serving(bundle) as (_, ops):
        ready_s = time.monotonic() - started
        metrics = fetch(f"{ops}/metrics")
        while 0.0 in (ups := samples(metrics, "glossa_engine_process_up")):  # until each has reported
            if time.monotonic() - started > ready_s + REPORTED_WITHIN_S:
                raise UsageError(f"an engine process was not up within {REPORTED_WITHIN_S:.0f} s after the server")
            time.sleep(0.02)
            metrics = fetch(f"{ops}/metrics")
    return {"ready_s": round(ready_s, 2), "processes": len(ups), "resident_bytes": resident_bytes(metrics)}


def samples(exposition: str, name: str) -> list[float]:
    """The values of a metric in the text format of Prometheus, one for each combination of its labels."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", exposition, re.MULTILINE)
    return [float(value) for value in found]


def resident_bytes(exposition: str) -> float:
    """The memory of a server's processes: the edge and all engine processes."""
    names = ("process_resident_memory_bytes", "glossa_engine_process_resident_memory_bytes")
    return sum(value for name in names for value in samples(exposition, name))


def process_at(port: int) -> str:
    """The process that listens on a TCP port of this machine, as `name (process 123)`; empty if nothing listens.

    Where the system does not show the process, `another process`.
    """
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: LISTEN
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in inodes:
                return f"{(link.parents[1] / 'comm').read_text().strip()} (process {link.parents[1].name})"
    return "another process"
