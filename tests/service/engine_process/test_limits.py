"""Each limit is set in a process of its own."""

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from service.engine_process import limits

TIMEOUT_S = 60
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
HEAD = "import json, os, resource, signal, subprocess, sys\nfrom service.engine_process import limits\n"


def run(code):
    """What a program says on standard output."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code], env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_allocations_beyond_the_limit_fail_and_smaller_ones_do_not():
    code = """
limits.limit_memory(1 << 28)
small = bytearray(1 << 26)
try:
    bytearray(1 << 28)
except MemoryError:
    print("refused")
"""
    assert run(code) == "refused\n"


def test_without_a_limit_of_memory_nothing_changes():
    code = """
before = resource.getrlimit(resource.RLIMIT_DATA)
limits.limit_memory(0)
print(resource.getrlimit(resource.RLIMIT_DATA) == before, len(bytearray(1 << 28)))
"""
    assert run(code) == f"True {1 << 28}\n"


def test_memory_for_opening_is_limited_within_the_block_only():
    code = """
try:
    with limits.opening_memory(1 << 28):
        bytearray(1 << 28)
except MemoryError:
    print("refused")
with limits.opening_memory(0):
    print(len(bytearray(1 << 28)))
limits.limit_memory(1 << 29)
with limits.opening_memory(1 << 40):
    print(resource.getrlimit(resource.RLIMIT_DATA)[0] == 1 << 29)
print(len(bytearray(1 << 28)))
"""
    assert run(code) == f"refused\n{1 << 28}\nTrue\n{1 << 28}\n"


def test_a_pinned_process_runs_on_its_processors_only():
    chosen = max(os.sched_getaffinity(0))
    assert run(f"limits.pin_to(({chosen},))\nprint(os.sched_getaffinity(0))") == f"{{{chosen}}}\n"


def test_an_unpinned_process_keeps_its_processors():
    before = sorted(os.sched_getaffinity(0))
    assert json.loads(run("limits.pin_to(())\nprint(sorted(os.sched_getaffinity(0)))")) == before


def test_the_kernel_prefers_the_process_when_memory_runs_out():
    code = """
limits.prefer_for_oom_kill()
with open("/proc/self/oom_score_adj") as file:
    print(int(file.read()))
"""
    assert int(run(code)) == limits.OOM_SCORE > 0


def test_signals_that_ask_for_the_end_are_left_to_the_edge():
    code = """
limits.leave_signals_to_parent()
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
print("alive")
"""
    assert run(code) == "alive\n"


def test_a_process_whose_parent_has_ended_before_ends_at_once():
    assert run("limits.end_with(os.getppid() + 1)\nprint('alive')") == ""
    assert run("limits.end_with(os.getppid())\nprint('alive')") == "alive\n"


CHILD = HEAD + "limits.end_with(os.getppid())\nprint(os.getpid(), flush=True)\nsys.stdin.read()"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}])"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_process_ends_when_its_parent_is_killed(is_stopped):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        child = os.pidfd_open(pid)
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        assert not select.select([child], [], [], 0)[0]
        parent.kill()
        assert select.select([child], [], [], TIMEOUT_S)[0], "it lives on"
        os.close(child)


def test_engines_give_way():
    assert run("limits.give_way(3)\nprint(os.nice(0))") == f"{min(19, os.nice(0) + 3)}\n"


@pytest.mark.parametrize(("device", "seen"), [("2", "2"), ("", "5,6")])
def test_cuda_shows_a_process_its_own_device_only(monkeypatch, device, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    limits.see_device(device)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
