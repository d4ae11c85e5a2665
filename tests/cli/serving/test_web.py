"""`glossa web` that does not start. What it serves is tested in tests/clients/python/web and tests/e2e/test_web.py."""

import socket
import sys

from tests.cli.command import run


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "glossa.web.server", raising=False)
    expected = "error: needs uvicorn, which is not installed; fix: pip install 'glossa[web]'\n"
    assert run("web", "--port", 0, fails=True) == expected


def test_an_address_that_cannot_be_used_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in run("web", "--port", port, fails=True)


def test_a_token_goes_in_plaintext_to_this_machine_alone():
    refused = run("web", "--port", 0, "--address", "192.0.2.1:50051", "--token", "secret", fails=True)
    assert "a token is sent in plaintext only to this machine" in refused
