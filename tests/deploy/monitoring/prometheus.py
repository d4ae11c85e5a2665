"""Prometheus' own programs: where they are, and how tests call them."""

import os
import shutil
import subprocess
from pathlib import Path

HOW_TO_GET_IT = "no {name}: install prometheus, with promtool, or set PROMETHEUS to the folder that has both programs"


def program(name):
    """The path of `prometheus` or `promtool`: in the folder that PROMETHEUS names, or on the path. A test fails without
    it: those that need it are left to `make test-all`."""
    folder = os.environ.get("PROMETHEUS")
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    assert found, HOW_TO_GET_IT.format(name=name)
    return Path(found)


def promtool(*arguments, text=""):
    """Runs promtool and returns what it writes. Fails with that if promtool does."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
