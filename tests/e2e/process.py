"""A server in a process of its own, as end-to-end tests start it."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from bench.load.process_tree import memory_mb

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0  # for what another process does, on any machine: only a hang takes longer
UNHURRIED = {"engine_niceness": 0, "process_start_timeout_s": PATIENCE_S, "start_timeout_s": PATIENCE_S}
SERVE = """
import json, sys
from service.settings.loading import load_settings
from service.edge.observability.logs import silence_grpc
from service.errors import StartupError
try:
    silence_grpc()
    from service.server import serve
    serve(load_settings(json.loads(sys.argv[1])))
except StartupError as error:
    sys.exit(f"error: {error}")
"""


def engine_pids(server):
    """Process ids of a server's engine processes, also of those that outlive it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            words = path.read_bytes().split(b"\0")
            if b"service.engine_process" in words and words[-2] == str(server).encode():
                found.append(int(path.parent.name))
    return sorted(found)


class Process:
    """A server in a process of its own; its log is read as it comes. program: what Python runs, with the settings."""

    def __init__(self, program=SERVE, **settings):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GLOSSA_")}
        settings = {"port": 0, "http_port": 0, "drain_delay_s": 0, "log_format": "json", **UNHURRIED, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(settings)],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events, self.other = [], []
        self._seen = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._seen:
                if line.startswith("{") and line.endswith("\n"):  # a server that was killed may leave a part of a line
                    self.events.append(json.loads(line))
                else:
                    self.other.append(line)
                self._seen.notify_all()
        with self._seen:
            self._seen.notify_all()

    def wait_for(self, event):
        """The first log line of that name."""

        def found():
            return next((line for line in self.events if line["event"] == event), None)

        with self._seen:
            self._seen.wait_for(lambda: found() or self.process.poll() is not None, PATIENCE_S)
            assert found(), (event, self.events, self.other)
            return found()

    def wait(self):
        """The exit code, once the log is read to its end."""
        code = self.process.wait(60)
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    @property
    def address(self):
        return self.wait_for("serving")["grpc"]

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.wait_for('serving')['http']}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def samples(self, name):
        """Each sample of that name: its labels and its value."""
        found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", self.metrics(), re.MULTILINE)
        return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in found]

    def metric(self, name, **labels):
        """The sum of all samples of that name with these labels."""
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())

    def wait_for_beats(self):
        """Returns when every engine process has reported what is true now. Fails after some thousand looks."""

        def cpu_s():
            return [value for _, value in self.samples("glossa_engine_process_cpu_seconds_total")]

        for _ in range(2):  # the next report may have been on its way
            before = cpu_s()
            for _ in range(5000):
                if all(now > then for now, then in zip(cpu_s(), before, strict=True)):  # a report takes time itself
                    break
            else:
                pytest.fail(self.metrics())

    def memory_bytes(self):
        """Of the edge and its engine processes."""
        return memory_mb(self.process.pid) * 1e6

    def engine_pids(self):
        """See `engine_pids`."""
        return engine_pids(self.process.pid)

    def settle(self):
        """Returns when nothing is left of a request in an engine or a handler. Fails after some thousand looks."""
        names = ["glossa_requests_in_flight", "glossa_requests_running", "glossa_requests_queued"]
        names += ["glossa_kv_cache_usage_ratio"]  # an engine frees rows in its next turn, which its next beat reports
        for _ in range(2000):
            if not any(self.metric(name) for name in names):
                return
        pytest.fail(self.metrics())


@contextlib.contextmanager
def serving(program=SERVE, **settings):
    server = Process(program, **settings)
    try:
        server.wait_for("serving")
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.wait()
