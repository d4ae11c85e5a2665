"""That broken promises are found, and the measurement in its smallest form."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.promises.file_faults import Ended, Fault, is_supported
from bench.promises.io_faults import Job, Trial, bad_message
from tests.packages import ROOT

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux on x86-64")


def start(folder):
    (folder / "file").write_bytes(b"old")


def overwrite(folder, again):
    """Saves without a temporary file."""
    try:
        (folder / "file").write_bytes(b"new")
    except OSError as error:
        os.write(2, f"error: {folder}: {error.strerror}\n".encode())
        return 1
    return 0


def is_broken(folder, status):
    found = (folder / "file").read_bytes()
    return [f"it is {found!r}"] * (found not in (b"old", b"new"))


def test_a_file_that_is_overwritten_in_place_breaks_its_promise(tmp_path):
    job = Job("overwriting", start, overwrite, is_broken)
    trial = Trial(job, tmp_path / "folder")
    opened = trial(Fault(1, errno.EIO))
    assert (opened.broken, opened.continued) == ([], True)
    written = trial(Fault(2, errno.EIO))
    assert written.broken == ["overwriting, operation 2, write file, EIO: it is b''"]
    assert trial(Fault(1, errno.ENOSPC)) == (False, False, []), "what it left has been continued before"


@pytest.mark.parametrize(
    ("output", "is_bad"),
    [
        ("reading\nerror: /a/b: cannot be written: Input/output error; check it\n", False),
        ("error: /a/b: cannot be written\n", True),
        ("error: [Errno 5] Input/output error\n", True),
        ("Traceback\nerror: /a/b: Input/output error\n", True),
        ("", True),
    ],
)
def test_a_message_names_path_and_cause(output, is_bad):
    assert bool(bad_message(Path("/a"), Ended(1, output, []), Fault(1, errno.EIO))) == is_bad


@pytest.mark.slow
def test_a_training_run_survives_faults():
    command = [sys.executable, "-m", "bench", "io-faults", "--only", "training", "--sample", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met  training: promises broken in" in done.stdout
