"""Prometheus' own programs: where they are, how tests call them, and a server that scrapes others."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

import yaml

from deploy.monitoring.__main__ import DEPLOY

HOW_TO_GET_IT = "no {name}: install prometheus, with promtool, or set PROMETHEUS to the folder that has both programs"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yaml"))
READY_WITHIN_S = 60.0


def program(name):
    """The path of `prometheus` or `promtool`: in the folder that PROMETHEUS names, or on the path. A test fails without
    it: those that need it are left to `make test-all`."""
    folder = os.environ.get("PROMETHEUS")
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    assert found, HOW_TO_GET_IT.format(name=name)
    return Path(found)


def promtool(*arguments, text=""):
    """Runs promtool and returns what it writes. Fails with that if promtool does."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Series(NamedTuple):
    """A series of an answer: its labels, and its values in the order of time, with their times."""

    labels: dict[str, str]
    values: list[float]
    times: tuple[float, ...] = ()


class Prometheus:
    """The HTTP API of a Prometheus at an address of this machine."""

    def __init__(self, address):
        self.address = address

    def query(self, expression):
        """The series of now."""
        result = self._ask("query", query=expression)["result"]
        return [Series(one["metric"], [float(one["value"][1])]) for one in result]

    def query_range(self, expression, seconds, step_s=1):
        """The series of the last seconds."""
        now_s = time.time()
        times = {"start": now_s - seconds, "end": now_s, "step": step_s}
        result = self._ask("query_range", query=expression, **times)["result"]
        found = [(one["metric"], *zip(*one["values"], strict=True)) for one in result]
        return [Series(labels, [*map(float, values)], times) for labels, times, values in found]

    def exemplars(self, selector, seconds):
        """The exemplars of series within the last seconds."""
        now_s = time.time()
        return self._ask("query_exemplars", query=selector, start=now_s - seconds, end=now_s)

    def _ask(self, page, **fields):
        body = urllib.parse.urlencode(fields).encode()
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{page}", body, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{fields}: {error.read().decode()}") from None


@contextlib.contextmanager
def scraping(target, folder, *, interval_s=1, relabelings=()):
    """A Prometheus that scrapes a target and evaluates the committed rules. relabelings: `metric_relabel_configs`."""
    job = {
        "job_name": "glossa",
        "static_configs": [{"targets": [target]}],
        "metric_relabel_configs": [*relabelings],
    }
    settings = {
        "global": {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": [job],
    }
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(settings))
    process = subprocess.Popen(  # without preexec_fn: gRPC's threads, which callers may have, do not outlive that fork
        [
            program("prometheus"),
            f"--config.file={path}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--enable-feature=exemplar-storage",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    output = process.stderr
    assert output is not None
    log, found, ready = list[str](), list[str](), threading.Event()

    def read():
        for line in output:
            log.append(line)
            found.extend(re.findall(r'msg="Listening on" address=(\S+)', line))
            if "ready to receive web requests" in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert ready.wait(READY_WITHIN_S), "".join(log)
        assert found, "".join(log)
        yield Prometheus(found[0])
    finally:
        process.terminate()
        process.wait(60)
        reader.join()
        output.close()
