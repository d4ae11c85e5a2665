"""Measures the lectures' claims and writes docs/lectures.md.

Measurements are stored as JSON beside the trained models, and the page is rendered from them. Claims that are not
measured in this run (--only, --render) use the stored measurements. Trained models are reused unless --anew.

usage: python -m lectures [--fast | --anew] [--only NAME]... [--render] [--keep DIR] [--page FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import machine, versions
from lectures.claim import Claim, Measured
from lectures.claims import CLAIMS
from lectures.lab import Lab
from lectures.page import write_page

PAGE, KEPT = Path("docs/lectures.md"), Path("runs/lectures")
MODELS = "models"  # directory of trained models in it
IDLE_LOAD = 0.5  # processes on average, in the minute before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="smoke test in a temporary directory, below two minutes")
    parser.add_argument("--anew", action="store_true", help="delete the trained models first")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="measure this claim")
    parser.add_argument("--render", action="store_true", help="only render the page from stored measurements")
    parser.add_argument("--keep", type=Path, help=f"directory of models and measurements ({KEPT})")
    parser.add_argument("--page", type=Path, help=f"page to write ({PAGE})")
    options = parser.parse_args()
    known = [claim.name for claim in CLAIMS]
    unknown = sorted(set(options.only) - set(known))
    if unknown:
        parser.error(f"--only: there is no claim {', '.join(unknown)}; there are {', '.join(known)}")
    scratch = Path(tempfile.mkdtemp(prefix="lectures-")) if options.fast else None
    keep = options.keep or scratch or KEPT
    page = options.page or (scratch / PAGE.name if scratch else PAGE)
    chosen = [] if options.render else [claim for claim in CLAIMS if claim.name in options.only or not options.only]
    if options.anew:
        shutil.rmtree(keep / MODELS, ignore_errors=True)
    measure(chosen, keep, is_fast=options.fast)
    measured = kept(keep)
    missing = [claim.name for claim in CLAIMS if claim.name not in measured]
    if missing:
        print(f"no page yet: {', '.join(missing)} not measured, or without conditions", file=sys.stderr)
        return
    page.parent.mkdir(parents=True, exist_ok=True)
    write_page(page, CLAIMS, measured)
    print(f"written: {page}")


def measure(claims: Sequence[Claim], keep: Path, *, is_fast: bool) -> None:
    """Measures each claim and stores its figures immediately, so an interrupted run loses at most one claim."""
    keep.mkdir(parents=True, exist_ok=True)
    lab = Lab(directory=keep / MODELS, is_fast=is_fast, workers=1 if is_fast else 2)  # processes take longer to start
    lab.directory.mkdir(exist_ok=True)
    current = conditions()
    try:
        for claim in claims:
            began_s = time.monotonic()
            figures = claim.measure(lab)
            seconds = round(time.monotonic() - began_s, 1)
            text = json.dumps({**figures, "seconds": seconds, "conditions": current}, indent=1)
            (keep / f"{claim.name}.json").write_text(text, encoding="utf-8")
            finding = claim.judge(json.loads(text))
            print(f"{claim.name}: {finding.verdict} ({seconds:.0f} s)", flush=True)
    finally:
        lab.close()


def conditions() -> dict[str, Any]:
    """Machine, versions, and whether the machine is idle, asked before the first measurement: the load of the lectures
    themselves does not count."""
    where = machine()
    return {
        "machine": where["model"],
        "processors": where["processors"],
        "is_idle": os.getloadavg()[0] < IDLE_LOAD,
        "versions": versions(),
    }


def kept(keep: Path) -> dict[str, Measured]:
    """The stored measurements with their conditions, by claim."""
    files = {claim.name: keep / f"{claim.name}.json" for claim in CLAIMS}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    return {name: measured for name, measured in found.items() if "conditions" in measured}


if __name__ == "__main__":
    main()
