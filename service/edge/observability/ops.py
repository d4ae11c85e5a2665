"""The ops port: /healthz, /readyz, /metrics, /version over HTTP, from threads of its own.

It answers while the event loop is blocked, which a liveness probe must detect. Connections are bounded in number and in
time; at the limit the oldest connection is closed for the new one, so that slow or silent clients cannot lock a probe
out. It deliberately has no TLS and no password: bind it to loopback or a pod.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from service.errors import StartupError

MAX_CONNECTIONS = 16
READ_TIMEOUT_S = 5.0


class Probes(Protocol):
    """The source of the port's answers. Called from several threads."""

    def problems(self) -> list[str]:
        """Reasons to restart the process; [] if it is alive."""

    def not_ready(self) -> list[str]:
        """Reasons not to send requests now; [] if it is ready."""

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics and their content type. accept: the header of the request."""

    def version(self) -> dict[str, Any]:
        """The running version, as a JSON object."""


class OpsServer:
    """Listens from construction until `close`. Port 0 binds any free port; `port` is the one in use."""

    def __init__(self, host: str, port: int, probes: Probes, *, read_timeout_s: float = READ_TIMEOUT_S) -> None:
        try:
            self._server = _Server((host, port), probes, read_timeout_s)
        except OSError as error:
            raise StartupError(explain_bind(host, port, "http_port", error)) from None
        self.host, self.port = host, self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="ops", daemon=True)
        self._thread.start()

    @property
    def open_connections(self) -> int:
        """Connections being served, at most MAX_CONNECTIONS."""
        return len(self._server.connections)

    def close(self) -> None:
        """Stops listening. Blocks until the thread has ended."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def check_bind(host: str, port: int, setting: str) -> None:
    """Raises StartupError for an address that cannot be bound. port 0: any that is free."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port:
                probe.bind((host, port))
    except OSError as error:
        raise StartupError(explain_bind(host, port, setting, error)) from None


def explain_bind(host: str, port: int, setting: str, error: OSError) -> str:
    """Why an address cannot be bound, and the fix."""
    flag = "--" + setting.replace("_", "-")
    if error.errno == errno.EADDRINUSE:
        return f"{setting}: port {port} on {host} is in use; fix: stop its process or choose another port with {flag}"
    if error.errno == errno.EACCES:
        return f"{setting}: port {port} needs root; fix: choose one of 1024..65535 with {flag}"
    return (
        f"{setting}: cannot listen on {host}:{port}: {error.strerror or error}; fix: choose an address of this machine"
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], probes: Probes, read_timeout_s: float) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.probes, self.read_timeout_s = probes, read_timeout_s
        self.connections: dict[Any, None] = {}  # oldest first
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own method looks the host up in DNS

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self.connections) >= MAX_CONNECTIONS:
                oldest = next(iter(self.connections))
                del self.connections[oldest]
                with contextlib.suppress(OSError):  # already closed
                    oldest.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it, which closes it
            self.connections[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self.connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Not logged: clients may disconnect at any time."""


class _Handler(BaseHTTPRequestHandler):
    """One request per connection (HTTP/1.0)."""

    server: _Server

    def setup(self) -> None:
        self.request.settimeout(self.server.read_timeout_s)
        super().setup()

    def do_GET(self) -> None:
        probes, status, content_type = self.server.probes, 200, "application/json"
        body: bytes | dict[str, Any]
        match self.path.partition("?")[0]:
            case "/healthz":
                problems = probes.problems()
                status, body = 503 if problems else 200, {"alive": not problems, "problems": problems}
            case "/readyz":
                reasons = probes.not_ready()
                status, body = 503 if reasons else 200, {"ready": not reasons, "reasons": reasons}
            case "/metrics":
                body, content_type = probes.exposition(self.headers.get("Accept", ""))
            case "/version":
                body = probes.version()
            case _:
                status, body = 404, {"error": "not found", "pages": ["/healthz", "/readyz", "/metrics", "/version"]}
        body = body if isinstance(body, bytes) else json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        return "glossa"  # without the version of Python

    def log_message(self, format: str, *args: Any) -> None:
        """Not logged: probes come every few seconds."""
