"""Measures the promises of docs/RELIABILITY.md one after another, and rewrites their figures: `make hardness`.

Every promise is a case of its own; `python -m bench CASE --help` describes what it measures. One that fails, or that
takes too long, is a missed promise and does not affect the others. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Flag, case
from bench.measure import machine, verdict_row, versions
from export.bundle.directory import load_manifest

BEGIN, END = "<!-- hardness: begin, rewritten by `make hardness` -->", "<!-- hardness: end -->"
LIMIT_S = 900.0  # of one case


class Promise(NamedTuple):
    """What is promised, and the flags of the case that measures it, in full and in a few seconds."""

    text: str
    command: str
    smoke: str


def promises(bundle: Path) -> list[Promise]:
    """Those that a bundle can show."""
    given = f"--bundle {shlex.quote(str(bundle))}"
    found = [
        Promise(
            "a process that is killed or stopped costs its own requests one UNAVAILABLE each",
            f"process-faults {given} --gap-s 15.5",
            f"process-faults {given} --kills 2 --stops 1 --gap-s 2",
        ),
        Promise(
            "answers are those of engines in one process, bit for bit",
            f"process-answers {given}",
            f"process-answers {given} --requests 200",
        ),
        Promise(
            "SIGTERM costs no accepted call, and no log pipe delays it",
            f"drain {given}",
            f"drain {given} --signals 2",
        ),
        Promise(
            "clients that hold on to the server cost a neighbour little, and are closed in time",
            f"hostile-peers {given}",
            f"hostile-peers {given} --headers 1000 --open-s 1 --resets 5000 --readers 20 --half-open 5 --tarpits 5",
        ),
        Promise(
            "malformed messages get declared statuses",
            f"hostile-messages {given}",
            f"hostile-messages {given} --messages 0",
        ),
        Promise(
            "every hostile bundle is refused before a session exists",
            f"hostile-bundles {given}",
            f"hostile-bundles {given} --mutations 100 --servers 2",
        ),
        Promise(
            "no promise is broken in thousands of simulated servers, with every end a request can have",
            "simulate",
            "simulate --seeds 200",
        ),
        Promise(
            "engines that hang, die, compute NaN or run out of memory are noticed, answered for and started again",
            f"engine-faults {given} --recover",
            f"engine-faults {given} --faults hang die nan exhaust",
        ),
        Promise(
            "cancelled and late requests leave nothing behind",
            f"leaks {given}",
            f"leaks {given} --requests 1000 --cancels 50",
        ),
        Promise(
            "the worst that admission lets in stays within the predicted memory",
            f"memory-promise {given}",
            f"memory-promise {given} --calls 4 --headers 1000",
        ),
        Promise("memory does not grow with requests", f"soak {given}", f"soak {given} --requests 5000"),
        Promise(
            "a file operation that fails costs an export or a training run nothing that was there",
            "io-faults",
            "io-faults --sample 4",
        ),
        Promise("a killed training run resumes bit-identically", "kill-resume --kills 20", "kill-resume --kills 2"),
    ]
    if load_manifest(bundle).task == "translation":
        alone = f"invariance {shlex.quote(str(bundle))}"
        text = "an answer is the same alone and in any batch, to the last bit"
        found.insert(0, Promise(text, alone, f"{alone} --requests 400"))
        load = f"overload {given}"
        abuse, front, smoke = f"abuser {given}", f"{load} --envoy", "--tokens 16 --seconds 3"
        calls = f"long-calls {given} --parts"
        text = "idle batches leave others their calls, and kills cost batches and documents nothing"
        found.insert(1, Promise(text, f"{calls} idle kills", f"{calls} kills --kills 2 --gap-s 5"))
        found[:0] = [
            Promise("answers in time, and refusals in time, beyond capacity", load, f"{load} {smoke}"),
            Promise("the same through Envoy, on the server's processor", front, f"{front} {smoke}"),
            Promise("a tenant that sends too much does not slow down others", abuse, f"{abuse} --seconds 1"),
        ]
    return found


def measure(promise: Promise, *, smoke: bool) -> dict[str, Any]:
    """The verdicts of a case."""
    command = promise.smoke if smoke else promise.command
    is_text = command.startswith("kill-resume")  # which prints no JSON
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench", *shlex.split(command), *([] if is_text else ["--json"])],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return {"command": command, "problem": f"not finished within {LIMIT_S:g} s", "verdicts": []}
    found: dict[str, Any] = {"command": command, "seconds": time.monotonic() - began_s, "verdicts": []}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if is_text and done.stdout.strip():
        met = done.returncode == 0
        verdict = {"measure": done.stdout.strip(), "figure": float(met), "bar": 1.0, "unit": "", "met": met}
        found["verdicts"] = [{**verdict, "is_limit": False}]
    elif lines:
        found |= json.loads(lines[-1])
    else:
        found["problem"] = f"status {done.returncode}: {done.stderr.strip()[-500:]}"
    return found


def section(promised: list[tuple[Promise, dict[str, Any]]]) -> str:
    """The summary in Markdown, markers included: for each promise the measures that met their bar, and the others."""
    where = machine()
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        BEGIN,
        f"Measured on {datetime.date.today().isoformat()} on {where['processors']} processors of {where['model']} "
        f"({where['family']}; {' '.join(where['flags'])}). {packages}.",
        "",
        "| promise | met | missed: measured (bar) |",
        "|---|---|---|",
    ]
    whole = []
    for promise, found in promised:
        verdicts = found["verdicts"]
        if verdicts and not found.get("problem") and all(verdict["met"] for verdict in verdicts):
            whole.append(f"{_title(promise)} ({len(verdicts)}).")
            continue
        missed = [_cells(verdict) for verdict in verdicts if not verdict["met"]]
        result = "; ".join(f"{measure}: {figure} ({bar})" for measure, bar, figure, _ in missed)
        if problem := found.get("problem"):
            result = f"Not measured: {problem}"
        command = _without_folders(found["command"])
        lines.append(
            f"| **{_title(promise)}** (`python -m bench {command}`) | "
            f"{len(verdicts) - len(missed)} of {len(verdicts)} | {result} |"
        )
    if whole:
        lines += ["", f"All measures met: {' '.join(whole)}"]
    return "\n".join([*lines, END])


def measures(promised: list[tuple[Promise, dict[str, Any]]]) -> str:
    """Every measure as a line of tab-separated values, under a line of names."""
    lines = [("promise", "measure", "bar", "measured", "met")]
    for promise, found in promised:
        for verdict in found["verdicts"]:
            measure, bar, figure, _ = _cells(verdict)
            lines.append((_title(promise), measure, bar, figure, "yes" if verdict["met"] else "no"))
    return "".join("\t".join(line) + "\n" for line in lines)


def _title(promise: Promise) -> str:
    return promise.text[0].upper() + promise.text[1:]


def _cells(verdict: dict[str, Any]) -> list[str]:
    """Measure, bar, figure and whether it is met, as the tables of reports show them."""
    return verdict_row(verdict)[2:-2].split(" | ")


def _without_folders(command: str) -> str:
    return shlex.join([Path(word).name if "/" in word else word for word in shlex.split(command)])


def rewrite(page: Path, text: str, figures: str) -> None:
    """Replaces the section between the markers of `page`, and the file beside it that has every measure."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page}: has no section between {BEGIN!r} and {END!r}")
    page.write_text(before + text + after, encoding="utf-8")
    page.with_suffix(".tsv").write_text(figures, encoding="utf-8")


@case(
    bundle=Flag(Path, required=True),
    smoke=Flag(False, "in a few minutes; too short for figures"),
    write=Flag(Path, "page whose section is rewritten, and the .tsv beside it; default: print the section"),
)
def hardness(options: argparse.Namespace) -> None:
    promised = []
    for promise in promises(options.bundle):
        found = measure(promise, smoke=options.smoke)
        promised.append((promise, found))
        print(f"{promise.text}: {found.get('problem') or 'measured'}", file=sys.stderr)
        for verdict in found["verdicts"]:
            met = "met" if verdict["met"] else "MISSED"
            print(f"  {met}: {verdict['measure']}: {verdict['figure']:.3g}", file=sys.stderr)
        if options.write:  # after each case: an hour's figures must not depend on the last one
            rewrite(options.write, section(promised), measures(promised))
    if not options.write:
        print(section(promised))
    sys.exit(any("problem" in found for _, found in promised))
