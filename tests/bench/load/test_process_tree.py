"""What the system tells of a process and those that it started."""

import os
import subprocess
import sys

import pytest

from bench.load.process_tree import children, cpu_seconds, memory_mb, peak_bytes, process_state, process_tree

PARENT = """
import subprocess, sys
program = "import sys; held = bytearray(100_000_000); held = bytearray(50_000_000); print(); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def family():
    """The process ids of a program and of one that it started, which has held 150 MB and holds 50 MB."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        yield parent.pid, int(parent.stdout.readline())
        parent.stdin.close()


def test_a_tree_has_a_process_and_all_below_it(family):
    parent, child = family
    assert process_tree(parent) == [parent, child]
    assert process_tree(os.getpid())[0] == os.getpid()
    assert {parent, child} <= set(process_tree(os.getpid()))


def test_memory_is_that_of_the_whole_tree(family):
    parent, child = family
    assert memory_mb(child) > 50
    assert memory_mb(parent) > memory_mb(child)


def test_the_peak_counts_what_was_given_back_and_shared_files_once(family):
    parent, child = family
    peak = peak_bytes(parent)
    assert list(peak.processes) == [parent, child]
    assert peak.processes[child] > 150_000_000 > memory_mb(child) * 1e6
    assert max(peak.processes.values()) < peak.total < sum(peak.processes.values()), "both run the same program"


def test_processor_time_is_that_of_the_whole_tree(family):
    parent, child = family
    assert cpu_seconds(parent) >= cpu_seconds(child) >= 0
    state = process_state(child)
    assert state is not None
    assert state.parent == parent


def test_a_process_that_has_ended_does_not_count_though_nobody_has_asked_how():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert process_state(ended.pid) is None
        assert ended.pid not in children(os.getpid())
        assert memory_mb(ended.pid) == cpu_seconds(ended.pid) == 0
