"""Writes glossa.yaml, the chart as plain YAML: `make kubernetes`, or `python -m deploy.kubernetes`. Needs helm.

With --check it changes nothing, and fails if the file is not what the chart gives now. The file names the digest of the
chart that it was made from, so that without helm, too, a change of the chart is noticed (`digest`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CHART = FOLDER.parent / "helm" / "glossa"
FILE = FOLDER / "glossa.yaml"
KUBERNETES = "1.31.0"  # Helm 3.6 takes itself for that of its own time, 1.20, which the chart refuses
HELM_IS_MISSING = "no helm: install Helm 3.6 or newer, or name its binary with HELM=…"
_NOTES = ("README.md", ".helmignore", "NOTES.txt", "dashboard.json")  # of the chart, of which no object here is made
_HEADER = """\
# Made by `make kubernetes` from deploy/helm/glossa {digest}.
# For Kubernetes 1.30 or newer. A claim called glossa-models must have the folder of the bundle, demo.
# Change image and resources to yours.
"""


def digest(chart: Path = CHART) -> str:
    """Of all files of the chart that these objects are made from."""
    found = hashlib.sha256()
    for path in sorted(path for path in chart.rglob("*") if path.is_file() and path.name not in _NOTES):
        content = path.read_bytes()
        found.update(f"{path.relative_to(chart).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def helm() -> str:
    """The binary that HELM names, or that on the path. Ends the program without one."""
    return shutil.which(os.environ.get("HELM", "helm")) or sys.exit(HELM_IS_MISSING)


def rendered() -> str:
    """The text of the file. Labels that name Helm are left out: Helm does not manage these objects."""
    command = [helm(), "template", "glossa", str(CHART), "--namespace", "default", "--kube-version", KUBERNETES]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    text = re.sub(r"^\s*(?:app\.kubernetes\.io/managed-by|helm\.sh/chart):.*\n|^# Source: .*\n", "", text, flags=re.M)
    return _HEADER.format(digest=digest()) + text


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the file, or checks it."""
    parser = argparse.ArgumentParser(prog="python -m deploy.kubernetes", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only fail if the file is out of date")
    options = parser.parse_args(arguments)
    if not options.check:
        FILE.write_text(rendered(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != rendered():
        sys.exit("out of date: deploy/kubernetes/glossa.yaml; run: make kubernetes")


if __name__ == "__main__":
    main()
