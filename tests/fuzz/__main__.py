"""Fuzzes readers of bytes from outside, guided by the branches that inputs reach.

usage: python -m tests.fuzz [READER ...] [--minutes 30] [--folder build/fuzz]

Without a reader: each of them, one after another. A line is a reader with its executions, the branches that its inputs
reach, and its findings: errors of another class than the reader's own, properties that do not hold, inputs that take
more than a second of processor time or 64 MiB, crashes. FOLDER/READER/findings has the inputs of findings; the corpus
beside it is that with which the next run begins. The exit status is 1 if something was found. Needs atheris
(`make fuzz`).
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.readers import NAMES

ROOT = Path(__file__).resolve().parents[2]
STARTED = re.compile(r"INITED cov: (\d+)")
REACHED = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+)")
MAX_STARTS = 50  # of a reader: a crash ends its process


class Run(NamedTuple):
    """What a reader has done. started: branches that its corpus reached at the start."""

    executions: int
    started: int
    reached: int
    minutes: float
    processor_minutes: float
    findings: int


def fuzz(name: str, folder: Path, minutes: float) -> Run:
    """Runs a reader in processes, each until it crashes."""
    for one in ("corpus", "findings"):
        (folder / one).mkdir(parents=True, exist_ok=True)
    began_s, used_s = time.monotonic(), _used_s()
    executions = started = reached = 0
    with (folder / "log").open("w+", encoding="utf-8", errors="replace") as log:
        for _ in range(MAX_STARTS):
            left_s = round(60 * minutes - (time.monotonic() - began_s))
            if left_s < 1:
                break
            place = log.seek(0, os.SEEK_END)
            command = [sys.executable, "-m", "tests.fuzz.worker", name, str(folder), str(left_s)]
            done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
            log.seek(place)
            output = log.read()
            steps = REACHED.findall(output)
            if not steps:
                raise SystemExit(f"{name}: did not start (status {done.returncode}): {output[-2000:]}")
            executions += int(steps[-1][0])
            reached = max(reached, *(int(cov) for _, cov in steps))
            started = started or int(found[1] if (found := STARTED.search(output)) else steps[0][1])
    findings = sum(1 for file in (folder / "findings").iterdir() if file.suffix != ".txt")
    taken_s, used_s = time.monotonic() - began_s, _used_s() - used_s
    return Run(executions, started, reached, taken_s / 60, used_s / 60, findings)


def _used_s() -> float:
    """Processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("readers", nargs="*", default=[*NAMES], metavar="READER", help=", ".join(NAMES))
    parser.add_argument("--minutes", type=float, default=30.0, help="for each reader")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    args = parser.parse_args()
    if unknown := sorted({*args.readers} - {*NAMES}):
        parser.error(f"no reader {', '.join(unknown)}; readers: {', '.join(NAMES)}")
    found = 0
    for name in args.readers:
        run = fuzz(name, args.folder.resolve() / name, args.minutes)
        figures = f"{run.executions:,} executions, {run.started:,} to {run.reached:,} branches"
        time_taken = f"{run.minutes:.1f} minutes, {run.processor_minutes:.1f} of a processor"
        print(f"{name}: {figures}, {time_taken}, {run.findings} findings", flush=True)
        found += run.findings
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
