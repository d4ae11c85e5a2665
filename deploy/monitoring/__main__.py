"""Writes what is made from the tables of this folder: `make monitoring`, or `python -m deploy.monitoring`.

With --check it changes nothing, and fails if a file is out of date. --runbooks gives alerts and panels the
address under which the runbooks can be read, for a copy of one's own (--out).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.monitoring.grafana import dashboard
from deploy.monitoring.rules import RUNBOOKS, rule_files
from deploy.monitoring.scaling import adapter_rules, scaling_query

DEPLOY = Path(__file__).resolve().parent.parent
_HEADER = "# Made by `make monitoring` from deploy/monitoring/rules.py.\n"
_SCALING_HEADER = "# Made by `make monitoring` from deploy/monitoring/scaling.py. Values of prometheus-adapter.\n"


_CHART = "helm/glossa/files"


def made(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """The text of every file that is made, by its path within deploy/. The chart puts its own address of runbooks and
    its own release into its copies."""
    return {
        "grafana/glossa.json": _grafana(runbooks),
        **{f"prometheus/rules/{name}": text for name, text in _rules(runbooks).items()},
        **{f"{_CHART}/rules/{name}": text for name, text in _rules(RUNBOOKS).items()},
        f"{_CHART}/dashboard.json": _grafana(RUNBOOKS),
        f"{_CHART}/scaling.promql": scaling_query("MATCHERS") + "\n",
        "kubernetes/prometheus-adapter.yaml": _SCALING_HEADER + _yaml(adapter_rules()),
    }


def _grafana(runbooks: str) -> str:
    return json.dumps(dashboard(runbooks), indent=1, ensure_ascii=False) + "\n"


def _rules(runbooks: str) -> dict[str, str]:
    return {name: _HEADER + _yaml(content) for name, content in rule_files(runbooks).items()}


def _yaml(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=1000, allow_unicode=True)


def outdated(folder: Path = DEPLOY) -> list[str]:
    """The files in a folder that are missing or not as they would be made now."""
    files = {name: folder / name for name in made()}
    return [
        name
        for name, text in made().items()
        if not files[name].is_file() or files[name].read_text(encoding="utf-8") != text
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the files, or checks them."""
    parser = argparse.ArgumentParser(prog="python -m deploy.monitoring", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only fail if a file is out of date")
    parser.add_argument("--out", type=Path, default=DEPLOY, help="folder to write to (deploy/)")
    parser.add_argument("--runbooks", default=RUNBOOKS, help="address of the folder of runbooks, for links")
    options = parser.parse_args(arguments)
    if options.check:
        if stale := outdated(options.out):
            sys.exit(f"out of date: {', '.join(stale)}; run: make monitoring")
        return
    for name, text in made(options.runbooks).items():
        path = options.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
