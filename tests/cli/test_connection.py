"""How a verb reaches a server, and what it prints when it cannot."""

import os
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.connection import Connection
from cli.local_server import free_port
from cli.terminal import UsageError
from tests.cli.command import run


def test_a_server_that_cannot_be_reached_is_explained():
    port = free_port()
    refused = run("translate", "a cat", "--address", f"127.0.0.1:{port}", fails=True)
    assert f"no server at 127.0.0.1:{port}: nothing listens on that port; start one with `glossa serve NAME" in refused
    assert refused.count("\n") == 1
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            address = f"127.0.0.1:{other.server_port}"
            refused = run("translate", "a cat", "--address", address, fails=True)
        finally:
            other.shutdown()
            thread.join()
    assert f"(process {os.getpid()}) listens there, but does not answer as a Glossa server" in refused


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {"tls": False, "token": "", "metadata": {}}),
        ({"tls": True, "token": "secret"}, {"tls": True, "token": "secret", "metadata": {}}),
        ({"tls_ca": Path("ca.pem")}, {"tls": Path("ca.pem"), "token": "", "metadata": {}}),
        ({"metadata": ["a=", "c=d=e"]}, {"tls": False, "token": "", "metadata": {"a": "", "c": "d=e"}}),
    ],
)
def test_flags_become_settings_of_the_client(flags, expected):
    assert Connection(**flags).settings == expected


@pytest.mark.parametrize(
    "connection", [Connection(client_cert=Path("one.pem")), Connection(client_key=Path("one.pem"))]
)
def test_half_of_a_client_certificate_is_rejected(connection):
    with pytest.raises(UsageError, match="--client-cert and --client-key: must be given together"):
        _ = connection.settings


@pytest.mark.parametrize("pair", ["name", "=value"])
def test_metadata_without_a_name_and_a_separator_is_rejected(pair):
    with pytest.raises(UsageError, match=f"--metadata: must be NAME=VALUE, got {re.escape(repr(pair))}"):
        _ = Connection(metadata=[pair]).settings


@dataclass
class Failed:
    """What a ClientError holds of a call."""

    code: str
    reason: str = ""
    hint: str = ""

    def __str__(self):
        return f"{self.code}: failed"


def test_only_a_missing_server_on_this_machine_is_looked_for():
    lost, other = Failed("UNAVAILABLE"), Failed("NOT_FOUND")
    assert "check the address and the network" in Connection(address="example.com:50051").explain(lost)
    assert "nothing listens" in Connection(address=f"localhost:{free_port()}").explain(lost)
    assert Connection().explain(other) == "NOT_FOUND: failed"
    assert Connection().explain(Failed("UNAVAILABLE", "SERVER_STOPPING")) == "UNAVAILABLE: failed"


@pytest.mark.parametrize("verb", [("translate",), ("score", "a cat"), ("embed",)])
def test_an_argument_that_is_no_utf_8_is_explained(verb):
    """Before the call: nothing listens there. A byte that is no UTF-8 comes as a surrogate."""
    refused = run(*verb, "the house\udcff", "--address", f"127.0.0.1:{free_port()}", fails=True)
    assert (
        refused == "error: arguments: must be UTF-8, got the byte 0xff after 'the house'; convert it, e.g. with iconv\n"
    )
