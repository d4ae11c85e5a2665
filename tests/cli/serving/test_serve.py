"""The settings as flags, and what a server that cannot start prints."""

import json
import shutil
import socket
import subprocess
import sys

import pytest

from cli.local_server import free_port
from cli.serving.serve import ops_address
from service.errors import StartupError
from tests.cli.command import run


def refusal_to_serve(*arguments):
    """What `glossa serve` prints when it does not start; in its own process, as it takes over signals and stderr."""
    command = [sys.executable, "-m", "cli.main", "serve", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_failed_start_is_reported_with_its_cause(trained_bundle, tmp_path):
    anywhere = ("--port", 0, "--http-port", 0)
    assert "--port" in run("serve", f"m={trained_bundle}", "--prt", "1", fails=2)
    assert "manifest.json" in refusal_to_serve(f"m={tmp_path}", *anywhere)
    assert "cuda" in refusal_to_serve(f"m={trained_bundle}", *anywhere, "--device", "cuda")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refusal_to_serve(f"m={trained_bundle}", "--port", port, "--http-port", 0)


def test_every_setting_is_listed():
    listed = run("serve", "--help")
    assert "--kv-cache-bytes" in listed
    assert "--drain-delay-s" in listed


@pytest.fixture
def settings(monkeypatch):
    """What `glossa serve` passes to the settings, by name."""
    given = {}

    def load(flags):
        given.update(flags)
        raise StartupError("stopped by the test")

    monkeypatch.setattr("service.settings.loading.load_settings", load)
    return given


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a=b"], {"models": ["a=b"]}),
        (["a=b", "--port", "1", "c=d"], {"models": ["a=b", "c=d"], "port": "1"}),
        (["--max-queue=7"], {"max_queue": "7"}),
        (["--no-reflection", "--log-text"], {"reflection": False, "log_text": True}),
        (
            ["--no-reflection", "a=b", "--log-text", "c=d"],
            {"models": ["a=b", "c=d"], "reflection": False, "log_text": True},
        ),
    ],
)
def test_flags_become_settings(settings, arguments, expected):
    assert "stopped by the test" in run("serve", *arguments, fails=True)
    assert settings == expected


@pytest.mark.parametrize(
    ("bundle", "name"),
    [
        ("runs/en-de.bundle", "en-de"),
        ("runs/demo/bundle", "demo"),
        ("runs/demo/bundle/", "demo"),
        ("./my bundle", "my-bundle"),
    ],
)
def test_a_name_is_proposed_for_a_bundle_without_one(bundle, name):
    assert f"{name}={bundle}" in run("serve", bundle, fails=True)


def test_healthcheck_of_an_unused_port():
    assert "no ready server" in run("healthcheck", "--http-port", free_port(), fails=True)


@pytest.mark.parametrize(
    ("given", "file", "address"),
    [
        ({}, "", "127.0.0.1:9464"),
        ({"http_port": 81, "http_host": "10.1.2.3"}, "", "10.1.2.3:81"),
        ({"http_host": "0.0.0.0"}, "", "127.0.0.1:9464"),
        ({"http_host": "::"}, "", "[::1]:9464"),
        ({}, "http_host: 10.1.2.3\nhttp_port: 82\n", "10.1.2.3:82"),
        ({"http_port": 81}, "http_host: 10.1.2.3\nhttp_port: 82\n", "10.1.2.3:81"),
    ],
)
def test_healthcheck_asks_where_the_settings_say(given, file, address, tmp_path, monkeypatch):
    if file:
        (tmp_path / "settings.yaml").write_text(file)
        monkeypatch.setenv("GLOSSA_CONFIG", str(tmp_path / "settings.yaml"))
    assert ops_address({"http_host": None, "http_port": None, **given}) == address


def test_healthcheck_reads_the_variables(monkeypatch):
    port = free_port()
    monkeypatch.setenv("GLOSSA_HTTP_PORT", str(port))
    monkeypatch.setenv("GLOSSA_HTTP_HOST", "::1")
    assert f"[::1]:{port}" in run("healthcheck", fails=True)
    monkeypatch.delenv("GLOSSA_HTTP_PORT")
    monkeypatch.setenv("GLOSSA_CONFIG", "/nowhere.yaml")
    assert "no such file: /nowhere.yaml" in run("healthcheck", fails=True)


def test_names_are_whole_and_defaults_shown_in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for verb in ("serve", "translate", "generate"):
        listed = run(verb, "--help")
        assert "…" not in listed, verb
        assert "default: " in listed, verb
    page = run("serve", "--help")
    assert "--max-connection-age-grace-s " in page
    assert "--no-huge-pages turns it off" in " ".join(page.replace("│", " ").split())


def test_a_refused_bundle_is_one_line_with_cause_and_fix(trained_bundle, tmp_path):
    bundle = tmp_path / "bundle"
    shutil.copytree(trained_bundle, bundle)
    graph = next(bundle.rglob("*.onnx"))
    graph.write_bytes(graph.read_bytes() + b"x")
    command = [sys.executable, "-m", "cli.main", "serve", f"m={bundle}", "--port", "0", "--http-port", "0"]
    result = subprocess.run([*command, "--engines", "2"], capture_output=True, text=True, timeout=60)
    *before, last = map(json.loads, result.stderr.splitlines())
    assert result.returncode == 1
    assert (last["event"], last["level"]) == ("start_failed", "error")
    assert graph.name in last["cause"]
    assert "export the bundle again" in last["fix"]
    assert {line["event"] for line in before} <= {"loading_model", "starting_engines", "stopped"}, before
