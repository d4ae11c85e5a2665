import subprocess
import sys

from tests.packages import ROOT

DYING = """
import os, signal

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_it():
    pass
"""
OTHER = """
import os
from pathlib import Path

import pytest

@pytest.fixture(scope="session")
def kept(directory_of_the_run):
    yield
    (directory_of_the_run / "torn_down").touch()

def test_prints(kept, tmp_path):
    print("shown in its report")
    assert tmp_path == 1

def test_passes(kept):
    pass
"""


def run(folder, *options):
    (folder / "test_dying.py").write_text(DYING)
    (folder / "test_other.py").write_text(OTHER)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.workers",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        folder,
    )
    return subprocess.run(
        [*map(str, (*command, "--basetemp", folder / "run", *options)), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_process_that_dies_fails_its_test_alone(tmp_path):
    ended = run(tmp_path, "--workers", "2")
    assert ended.returncode == 1, ended.stderr
    assert "2 failed, 2 passed" in ended.stdout
    assert "the process that ran this test ended with status -9" in ended.stdout
    assert "shown in its report" in ended.stdout
    assert (tmp_path / "run" / "torn_down").exists()


def test_a_first_failure_can_end_the_run(tmp_path):
    ended = run(tmp_path, "--workers", "2", "-x")
    assert ended.returncode == 1, ended.stderr
    assert "stopping after" in ended.stdout
