"""Servers on this machine: started, found, and refused with what they logged."""

import os
import socket

import pytest

from cli.local_server import free_port, is_ready, process_at, serving
from cli.terminal import UsageError


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


def test_a_server_that_does_not_start_is_reported_with_its_log(tmp_path):
    with pytest.raises(UsageError, match=r"^the server did not start: (.|\n)*has no manifest\.json"), serving(tmp_path):
        raise AssertionError("nothing is served")
