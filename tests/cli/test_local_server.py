"""Servers on this machine: started, found, and refused with what they logged."""

import http.client
import os
import signal
import socket
import subprocess
import threading
import urllib.error
from typing import Any

import pytest

from cli.local_server import fetch, free_port, is_ready, measure_serving, process_at, resident_bytes, samples, serving
from cli.terminal import UsageError
from tests.cli.command import run


def test_the_process_that_listens_on_a_port_is_named():
    port = free_port()
    assert process_at(port) == ""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        assert process_at(port) == "", "bound, but not listening"
        taken.listen()
        assert process_at(port).endswith(f"(process {os.getpid()})")
    assert process_at(port) == ""


def test_nothing_is_ready_where_nothing_listens():
    assert not is_ready(f"http://127.0.0.1:{free_port()}")


class _Peer:
    """Accepts connections on a port and answers each with the same bytes."""

    def __init__(self, answer):
        self._answer, self._listener = answer, socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._answer_all)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _answer_all(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(self._answer)


def test_an_answer_that_refuses_is_closed():
    answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 8\r\n\r\nstarting"
    with _Peer(answer) as peer, pytest.raises(urllib.error.HTTPError) as refused:
        fetch(f"http://127.0.0.1:{peer.port}/readyz")
    assert refused.value.closed


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"], ids=ascii
)
def test_a_port_that_does_not_answer_in_http_is_not_ready(answer):
    with _Peer(answer) as peer:
        assert not is_ready(f"http://127.0.0.1:{peer.port}")
        assert "no ready server" in run("healthcheck", "--http-port", peer.port, fails=True)
        assert "no ready server" in run("healthcheck", "--http-port", peer.port, "--wait", 0.2, fails=True)


@pytest.mark.parametrize("error", [TimeoutError("timed out"), ConnectionResetError(), http.client.BadStatusLine("x")])
def test_a_port_that_answers_late_is_waited_for(monkeypatch, error):
    answers = iter([error, error, "ok"])

    def fetch(_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("cli.local_server.fetch", fetch)
    assert run("healthcheck", "--wait", 5) == ""


def test_a_temporary_server_has_no_settings_of_other_servers(monkeypatch, tmp_path):
    started: dict[str, Any] = {}

    def popen(command, *, env, **_):
        started.update(command=command, env=env)
        raise OSError("stopped by the test")

    monkeypatch.setattr("subprocess.Popen", popen)
    for name in ("GLOSSA_CONFIG", "glossa_config", "GLOSSA_TOKENS", "GLOSSA_HOST"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("GLOSSA_ENGINES", "2")
    with pytest.raises(OSError, match="stopped by the test"), serving(tmp_path):
        raise AssertionError("nothing is served")
    assert [name for name in started["env"] if name.upper().startswith("GLOSSA_")] == ["GLOSSA_ENGINES"]
    age = started["command"].index("--max-connection-age-s")
    assert started["command"][age + 1] == "86400"


def test_a_server_that_does_not_start_is_reported_with_the_cause(tmp_path):
    with pytest.raises(UsageError, match=r"^the server did not start: [^{]*has no manifest\.json"), serving(tmp_path):
        raise AssertionError("nothing is served")


def test_a_server_that_does_not_end_is_killed(monkeypatch, tmp_path):
    """As on a starved machine: what it was started for is done."""
    start, servers = subprocess.Popen, []

    def stopped(*_, **__):
        servers.append(start(["sleep", "600"]))
        servers[0].send_signal(signal.SIGSTOP)
        return servers[0]

    monkeypatch.setattr("subprocess.Popen", stopped)
    monkeypatch.setattr("cli.local_server.is_ready", lambda ops: True)
    monkeypatch.setattr("cli.local_server.ENDS_WITHIN_S", 0.05)
    with serving(tmp_path):
        pass
    assert servers[0].returncode < 0


EXPOSITION = """\
# HELP process_resident_memory_bytes Resident memory size in bytes.
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 8e+07
process_resident_memory_bytes_of_others 1.0
# TYPE glossa_engine_process_resident_memory_bytes gauge
glossa_engine_process_resident_memory_bytes{model="a b",process="a b-0"} 9e+07
glossa_engine_process_resident_memory_bytes{model="a b",process="a b-1"} 1e+08
"""


def test_a_servers_memory_is_that_of_all_its_processes():
    assert resident_bytes(EXPOSITION) == 270e6


def test_samples_of_a_metric_are_those_of_all_its_labels_and_of_no_other_metric():
    assert samples(EXPOSITION, "process_resident_memory_bytes") == [8e7]
    assert samples(EXPOSITION, "glossa_engine_process_resident_memory_bytes") == [9e7, 1e8]
    assert samples(EXPOSITION, "process_resident") == []


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_measured_server_counts_its_engine_processes(trained_bundle, monkeypatch, processes):
    monkeypatch.setenv("GLOSSA_ENGINES", "2")
    monkeypatch.setenv("GLOSSA_ENGINES_PER_PROCESS", str(2 // processes))
    measured = measure_serving(trained_bundle)
    assert measured["ready_s"] > 0
    assert measured["processes"] == processes
    assert measured["resident_bytes"] > (1 + processes) * 40e6
