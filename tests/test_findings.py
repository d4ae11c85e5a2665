"""The scripts of `findings/`: each is in the index, pins what it installs, and leaves nothing. They run outside CI."""

import re
import subprocess
from pathlib import Path

import pytest

FINDINGS = Path(__file__).parents[1] / "findings"
PIP, NPM = r"\S+/bin/pip\" install --quiet --disable-pip-version-check", "npm install --silent --no-audit --no-fund"
SCRIPTS = sorted(FINDINGS.glob("*.sh"))


def test_the_index_has_every_script_and_no_other():
    rows = re.findall(r"^\| \[(.+?)\]\((.+?)\)", (FINDINGS / "README.md").read_text(), re.MULTILINE)
    assert rows == [(script.name, script.name) for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_whole(script):
    text = script.read_text()
    subprocess.run(["bash", "-n", script], check=True)
    for program in re.findall(r"<<'PYTHON'\n(.*?)^PYTHON$", text, re.MULTILINE | re.DOTALL):
        compile(program, script.name, "exec")
    (packages,) = re.findall(rf"^(?:{PIP}|{NPM}) (.+?)(?: >/dev/null)?$", text, re.MULTILINE)
    assert all(re.fullmatch(r"(?:[a-z0-9-]+==|@?[a-z0-9/-]+@)[0-9.]+", package) for package in packages.split())
    assert re.search(r"^trap 'rm -rf \"\$folder\"' EXIT$", text, re.MULTILINE)
    assert {"# Expected: ", "# Source: "} <= set(re.findall(r"^# \w+: ", text, re.MULTILINE))
