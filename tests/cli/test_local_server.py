"""Servers on this machine: started, found, and refused with what they logged."""

import os
import socket

import pytest

from cli.local_server import free_port, is_ready, measure_serving, process_at, resident_bytes, samples, serving
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


@pytest.mark.parametrize("processes", [1, 2])
def test_a_measured_server_counts_its_engine_processes(trained_bundle, monkeypatch, processes):
    monkeypatch.setenv("GLOSSA_ENGINES", "2")
    monkeypatch.setenv("GLOSSA_ENGINES_PER_PROCESS", str(2 // processes))
    measured = measure_serving(trained_bundle)
    assert 0 < measured["ready_s"] < 60
    assert measured["processes"] == processes
    assert measured["resident_bytes"] > (1 + processes) * 40e6
