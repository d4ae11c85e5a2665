"""The settings as flags, and what a server that cannot start prints."""

import socket
import subprocess
import sys

import pytest

from cli.local_server import free_port
from service.errors import StartupError
from tests.cli.command import run


def refusal_to_serve(*arguments):
    """What `glossa serve` prints when it does not start; in its own process, as it takes over signals and stderr."""
    command = [sys.executable, "-m", "cli.main", "serve", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


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

    monkeypatch.setattr("service.settings.config.load_settings", load)
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
