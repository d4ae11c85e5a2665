"""Prometheus with the flags of deploy/compose.yaml, on this machine, beside a real server."""

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse

import pytest

from cli.local_server import fetch, free_port
from deploy.monitoring.rules import ALERTS, OBJECTIVE_ALERTS
from tests.deploy.monitoring.prometheus import program, promtool
from tests.deploy.test_compose import DEPLOY, prometheus_flags
from tests.e2e.process import Process

WITHIN_S = 60.0


def until(found):
    """What `found` returns once that is not empty."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if result := found():
                return result
        time.sleep(0.1)
    raise AssertionError(f"nothing within {WITHIN_S:.0f} s")


@pytest.mark.slow
def test_the_settings_are_valid():
    assert "valid prometheus config" in promtool("check", "config", DEPLOY / "prometheus.yaml")


@pytest.mark.slow
def test_it_scrapes_the_server_and_loads_the_rules(tiny_translation_bundle, tmp_path):
    server = Process(models={"demo": str(tiny_translation_bundle)})
    try:
        ops = server.wait_for("serving")["http"].rpartition(":")[2]
        text = (DEPLOY / "prometheus.yaml").read_text()
        assert text.count("glossa:9464") == 1
        text = text.replace("glossa:9464", f"127.0.0.1:{ops}").replace("_interval: 10s", "_interval: 1s")
        (tmp_path / "prometheus.yaml").write_text(text)
        (tmp_path / "prometheus").symlink_to(DEPLOY / "prometheus")  # beside it, as in the container
        address = f"http://127.0.0.1:{(port := free_port())}"
        flags = prometheus_flags(tmp_path / "data", tmp_path / "prometheus.yaml")
        with (tmp_path / "log").open("w") as log:
            command = [program("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"]
            prometheus = subprocess.Popen(command, cwd=tmp_path, stderr=log)
        try:

            def value(expression):
                query = urllib.parse.urlencode({"query": expression})
                return json.loads(fetch(f"{address}/api/v1/query?{query}"))["data"]["result"]

            (found,) = until(lambda: value('up{job="glossa"} == 1'))
            assert found["metric"]["instance"] == f"127.0.0.1:{ops}"
            until(lambda: value("glossa_ready == 1"))
            alerts = {rule["name"] for rule in rules(address) if rule["type"] == "alerting"}
            assert alerts == {alert.name for alert in (*ALERTS, *OBJECTIVE_ALERTS)}
            until(lambda: all(rule["health"] == "ok" for rule in rules(address)))
        finally:
            prometheus.terminate()
            assert prometheus.wait(30) == 0, (tmp_path / "log").read_text()[-2000:]
    finally:
        server.process.terminate()
        assert server.wait() == 0


def rules(address):
    """Every rule with its state."""
    groups = json.loads(fetch(f"{address}/api/v1/rules"))["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]
