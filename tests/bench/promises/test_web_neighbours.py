"""Tabs and neighbours in their smallest form: nothing fails, and everything is counted."""

import json
import subprocess
import sys

import pytest

from tests.tiny import TEXTS


@pytest.mark.slow
def test_web_neighbours_of_a_tiny_bundle(tiny_translation_bundle):
    flags = ["--text", TEXTS[0], "--tabs", "3", "--neighbours", "1", "--seconds", "1", "--rounds", "1"]
    command = [sys.executable, "-m", "bench", "web-neighbours", "--bundle", str(tiny_translation_bundle), *flags]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert [found["figures"][f"{kind}: tabs"] for kind in ("gRPC", "page")] == [3, 3]
    assert all(found["figures"][f"{kind}: calls"] > 1 for kind in ("none", "gRPC", "page"))
    assert len(found["verdicts"]) == 1
