"""Glossa's commands and peers' processes, as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.speed.pipe import Pipe


def command(*words: str | Path) -> None:
    """`glossa` with these words. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "cli.main", *map(str, words)], check=True)


def exported(model: Path, folder: Path, *flags: str | Path) -> Path:
    """The bundle of a published model, which is imported and exported with these flags if it has not been yet."""
    checkpoint, bundle = folder / "checkpoint", folder / "bundle"
    if not checkpoint.exists():
        command("import", model, checkpoint)
    if not bundle.exists():
        command("export", checkpoint, bundle, *flags)
    return bundle


def peer(kind: str, model: Path, threads: int) -> Pipe:
    """A `bench.real.peer_worker`."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return Pipe(kind, [sys.executable, "-m", "bench.real.peer_worker", kind, str(model), str(threads)], environment)
