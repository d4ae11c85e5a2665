"""`glossa web` in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.load.peer_server import ending_with_parent

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def web_process(address: str, *flags: str) -> Iterator[str]:
    """The address of the page in front of a server."""
    command = [sys.executable, "-m", "cli.main", "web", "--port", "0", "--address", address, *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLOSSA_")}
    process = subprocess.Popen(
        ending_with_parent(command), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"{' '.join(command)} has ended"
            yield line.split()[0]
        finally:
            process.terminate()
    assert process.returncode == 0, process.returncode
