import json
import socket
import urllib.error
import urllib.request

import pytest

from service.edge.observability.ops import MAX_CONNECTIONS, OpsServer
from service.errors import StartupError


class Probes:
    def __init__(self):
        self.found, self.reasons = [], []

    def problems(self):
        return self.found

    def not_ready(self):
        return self.reasons

    def exposition(self, accept):
        return b"glossa_up 1\n", accept or "text/plain; version=0.0.4; charset=utf-8"

    def version(self):
        return {"version": "1.2.3"}


@pytest.fixture
def probes():
    return Probes()


@pytest.fixture
def server(probes):
    server = OpsServer("127.0.0.1", 0, probes)
    yield server
    server.close()


def get(server, path):
    """Status, content type and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def test_liveness_and_readiness_are_separate(server, probes):
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/readyz") == (200, "application/json", b'{"ready": true, "reasons": []}\n')
    probes.reasons = ["draining"]
    assert get(server, "/healthz")[0] == 200
    status, _, body = get(server, "/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, "reasons": ["draining"]})
    probes.found = ["an engine has not turned for 31.0 s"]
    status, _, body = get(server, "/healthz")
    assert (status, json.loads(body)["problems"]) == (503, probes.found)


def test_metrics_and_version(server):
    assert get(server, "/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", b"glossa_up 1\n")
    assert json.loads(get(server, "/version?x=1")[2]) == {"version": "1.2.3"}


def test_unknown_page_lists_the_known_ones(server):
    status, _, body = get(server, "/")
    assert status == 404
    assert "/readyz" in json.loads(body)["pages"]


def test_responses_do_not_name_the_http_library(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/version", timeout=60) as answer:
        assert answer.headers["Server"] == "glossa"


def test_port_in_use_names_port_and_fix(server, probes):
    message = rf"http_port: port {server.port} on 127.0.0.1 is in use; .* --http-port"
    with pytest.raises(StartupError, match=message):
        OpsServer("127.0.0.1", server.port, probes)


def test_an_address_of_another_machine_is_reported(probes):
    with pytest.raises(StartupError, match=r"http_port: cannot listen on 192\.0\.2\.1:0"):
        OpsServer("192.0.2.1", 0, probes)


def test_silent_connections_cannot_lock_out_a_probe(server):
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(3 * MAX_CONNECTIONS)]
    try:
        assert get(server, "/healthz")[0] == 200
        for connection in silent[:-MAX_CONNECTIONS]:  # the oldest were closed, which ends their threads
            assert connection.recv(1) == b""
        assert server.open_connections <= MAX_CONNECTIONS
    finally:
        for connection in silent:
            connection.close()


def test_a_silent_connection_is_closed_after_a_timeout(probes):
    server = OpsServer("127.0.0.1", 0, probes, read_timeout_s=0.05)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET /heal")
        assert connection.recv(1) == b""
    server.close()


def test_garbage_is_answered_and_harmless(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert connection.recv(4096)
    assert get(server, "/healthz")[0] == 200
