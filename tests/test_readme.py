"""The blocks of README.md and docs/quick-start.md, run as pasted, in order, in a fresh copy of the project."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.local_server import free_port
from tests.packages import ROOT, own_environment, pip, run_alone

LIMIT_S = 4 * 3600  # twenty minutes on two idle cores; beside other work many times as long
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Language and text of every block that a reader can run."""
    pages = (ROOT / "README.md", ROOT / "docs/quick-start.md")
    return [block for page in pages for block in BLOCK.findall(page.read_text(encoding="utf-8"))]


def script(ports):
    """One bash script of all blocks. ports: those of the README and the ones to use instead."""
    parts = ["set -eu"]
    for language, text in blocks():
        for documented, free in ports.items():
            text = text.replace(documented, free)
        parts.append(text if language == "sh" else f"python - <<'END'\n{text}END\n")
    return "\n".join([*parts, "kill %1", "wait"])


def fresh_copy(folder):
    """Makes `folder` what a fresh clone would be, with an environment that `make setup` takes as up to date."""
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, files.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, capture_output=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--editable")
    pip("--python", environment / "bin/python", "install", *options, folder)
    (environment / ".installed").touch()


@pytest.fixture
def copy(tmp_path):
    fresh_copy(tmp_path)
    return tmp_path


def test_every_verb_of_the_readme_exists():
    verbs = {match for _, text in blocks() for match in re.findall(r"^glossa ([a-z-]+)", text, re.MULTILINE)}
    assert verbs >= {"train", "export", "serve", "translate", "attend", "bench"}
    shown = run_alone(sys.executable, "-m", "cli.main", "--help", directory=ROOT).stdout
    assert [verb for verb in sorted(verbs) if f" {verb} " not in shown] == []


@pytest.mark.slow
def test_the_blocks_run_as_pasted(copy):
    ports = {"50051": str(free_port()), "9464": str(free_port())}
    variables = {
        "GLOSSA_PORT": ports["50051"],
        "GLOSSA_HTTP_PORT": ports["9464"],
        "GLOSSA_ADDRESS": f"127.0.0.1:{ports['50051']}",
    }
    command = ["bash", "-c", script(ports)]
    with (copy / "log").open("w") as log:
        done = subprocess.run(
            command, cwd=copy, env=own_environment() | variables, stdout=log, stderr=log, timeout=LIMIT_S, check=False
        )
    assert done.returncode == 0, (copy / "log").read_text()[-3000:]
