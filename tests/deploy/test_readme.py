"""The blocks of deploy/README.md that need nothing but this machine, run as pasted, in order, in a fresh clone.

`make demo` is README.md's. Here a model of the same preset is trained for a few steps, so that it knows the words of
the page. The image gets a name of its own, and ports are free ones.
"""

import os
import re
import shutil
import subprocess

import pytest

from cli.local_server import free_port
from tests.deploy.monitoring.prometheus import program
from tests.packages import ROOT, own_environment, run_alone
from tests.test_readme import fresh_copy

README = ROOT / "deploy" / "README.md"
LIMIT_S = 3600
MARKS = {"demo", "docker", "gpu", "cluster"}
BLOCK = re.compile(r"^```sh ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IMAGE = "glossa-readme-test"
PROGRAMS = {
    "buildah": "buildah and mmdebstrap",
    "podman": "podman and runc",
    "jq": "jq",
    "curl": "curl",
    "openssl": "openssl",
}


def blocks():
    """Mark and text of every block."""
    return BLOCK.findall(README.read_text(encoding="utf-8"))


def test_every_block_runs_here_or_names_what_it_needs():
    marks = [mark for mark, _ in blocks()]
    assert set(marks) == MARKS | {""}
    assert len(marks) == README.read_text(encoding="utf-8").count("```") // 2


def test_every_folder_and_file_that_it_names_exists():
    text = README.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    named = re.findall(r"(?<![\w/])(?:deploy|requirements)/[\w./-]*\w", text)
    paths = [*(README.parent / link for link in links), *(ROOT / name for name in named)]
    missing = {os.path.relpath(path, ROOT) for path in paths if not path.exists()}
    assert missing == set()


def missing_programs():
    return [how for name, how in PROGRAMS.items() if not shutil.which(name)]


def make_demo(folder):
    """Leaves what `make demo` leaves, after a few steps of training."""
    train = ("train", "demo", "--steps", "20", "--out", "runs/demo/checkpoint")
    export = ("export", "runs/demo/checkpoint", "runs/demo/bundle", "--precision", "fp32")
    for command in (train, export):
        done = run_alone(folder / ".venv/bin/glossa", *command, directory=folder)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_blocks_run_as_pasted(tmp_path):
    assert not missing_programs(), f"install {', '.join(missing_programs())}"
    folder = tmp_path / "clone"
    folder.mkdir()
    fresh_copy(folder)
    make_demo(folder)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "All")):
        subprocess.run([*git, *command], cwd=folder, check=True, capture_output=True)
    ports = {port: str(free_port()) for port in ("50051", "9464", "9090")}
    script = "\n".join(
        ["set -eu", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *(text for mark, text in blocks() if not mark)]
    )
    for documented, free in ports.items():
        script = script.replace(documented, free)
    variables = {
        "IMAGE": IMAGE,
        "GLOSSA_PORT": ports["50051"],
        "GLOSSA_HTTP_PORT": ports["9464"],
        "GLOSSA_ADDRESS": f"localhost:{ports['50051']}",
        "PATH": f"{program('prometheus').parent}:{program('promtool').parent}:{os.environ['PATH']}",
    }
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            ["bash", "-xc", script],
            cwd=folder,
            env=own_environment() | variables,
            stdout=log,
            stderr=log,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, (tmp_path / "log").read_text()[-3000:]
