"""Measures the lectures' claims and writes docs/lectures.md.

Measurements are stored as JSON beside the plots, and the page is rendered from them. A claim that is not measured in
this run (--only, --render) uses its stored measurement, and one without any keeps its section of the page. Trained
models are reused unless --anew.

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
from lectures.catalogue import CLAIMS
from lectures.claim import Claim, Measured
from lectures.lab import Lab
from lectures.page import present_sections, write_page
from model.checkpoints.atomic_write import write_file

PAGE, KEPT = Path("docs/lectures.md"), Path("runs/lectures")
MODELS = "models"  # directory of trained models in it
DIGITS = 6  # significant ones of a stored figure
IDLE_LOAD = 0.5  # processes on average, in the minute before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="smoke test in a temporary directory, below two minutes")
    parser.add_argument("--anew", action="store_true", help="delete the trained models first")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="measure this claim")
    parser.add_argument("--render", action="store_true", help="only render the page from stored measurements")
    parser.add_argument("--keep", type=Path, help=f"directory of the trained models ({KEPT})")
    parser.add_argument("--page", type=Path, help=f"page to write; its folder has plots and measurements ({PAGE})")
    options = parser.parse_args()
    known = [claim.name for claim in CLAIMS]
    unknown = sorted(set(options.only) - set(known))
    if unknown:
        parser.error(f"--only: there is no claim {', '.join(unknown)}; there are {', '.join(known)}")
    scratch = Path(tempfile.mkdtemp(prefix="lectures-")) if options.fast else None
    models = (options.keep or scratch or KEPT) / MODELS
    page = options.page or (scratch / PAGE.name if scratch else PAGE)
    if options.anew and (options.only or options.render):
        parser.error("--anew deletes the models of all claims; leave out --only and --render")
    chosen = [] if options.render else [claim for claim in CLAIMS if claim.name in options.only or not options.only]
    if options.anew:
        shutil.rmtree(models, ignore_errors=True)
    if chosen:
        measure(chosen, page.with_suffix(""), models, is_fast=options.fast)
    measured = stored(page.with_suffix(""))
    kept = [claim.name for claim in CLAIMS if claim.name not in measured]
    missing = sorted(set(kept) - set(present_sections(page, CLAIMS)))
    if missing:
        sys.exit(f"no page yet: {', '.join(missing)} not measured, or without conditions")
    write_page(page, CLAIMS, measured)
    print(f"written: {page}" + f" (without a measurement, sections kept: {', '.join(kept)})" * bool(kept))


def measure(claims: Sequence[Claim], figures: Path, models: Path, *, is_fast: bool) -> None:
    """Measures each claim and stores its figures immediately, so an interrupted run loses at most one claim.

    figures, models: the directories of the measurements and of the trained models, which are made.
    """
    for directory in (figures, models):
        directory.mkdir(parents=True, exist_ok=True)
    lab = Lab(directory=models, is_fast=is_fast, workers=1 if is_fast else 2)  # processes take longer to start
    current = conditions()
    try:
        for claim in claims:
            began_s = time.monotonic()
            found = claim.measure(lab)
            seconds = round(time.monotonic() - began_s, 1)
            text = json.dumps(rounded({**found, "seconds": seconds, "conditions": current}), indent=1) + "\n"
            write_file(figures / f"{claim.name}.json", text.encode())
            finding = claim.judge(json.loads(text))
            print(f"{claim.name}: {finding.verdict} ({seconds:.0f} s)", flush=True)
    finally:
        lab.close()


def rounded(value: Any) -> Any:
    """JSON values with floats of DIGITS significant digits: a third of the bytes, and enough for every table."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: rounded(inner) for key, inner in value.items()}
        case list() | tuple():
            return [rounded(inner) for inner in value]
    return value


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


def stored(figures: Path) -> dict[str, Measured]:
    """The stored measurements with their conditions, by claim."""
    files = {claim.name: figures / f"{claim.name}.json" for claim in CLAIMS}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    return {name: measured for name, measured in found.items() if "conditions" in measured}


if __name__ == "__main__":
    main()
