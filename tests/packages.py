"""Wheels of the project, and fresh environments that have them; nothing is fetched."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "requirements", "cli", "clients", "export", "model", "service")


def build_wheel(project, directory):
    """The wheel of `.` or `clients/python`, built from a copy, as building writes beside the sources."""
    copy = directory / "source"
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
        else:
            copy.mkdir(exist_ok=True)
            shutil.copy(source, copy / name)
    pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", directory / "wheels", copy / project)
    (wheel,) = (directory / "wheels").iterdir()
    return wheel


def make_environment(directory, wheel):
    """The interpreter of a new environment with one wheel; its dependencies are those of the running environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin/python"
    pip("--python", python, "install", "--no-index", "--no-deps", wheel)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # without what is editable there
    return python


def own_environment():
    """The variables of this process without those that would show a command other modules or settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GLOSSA_"))}


def run_alone(*command, directory):
    """Run a command where only its own environment can be imported from."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env=own_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
