"""Run all speed measurements and rewrite their section of BENCHMARKS.md: `make bench`.

Every part is a separate script that prints JSON. This module runs them one after another on an otherwise idle machine
within a time budget, stores their output, and writes the section between two markers of the page. A part that fails,
or whose peer is not installed, is reported as such and does not affect the other parts.

"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.measure import machine, verdict_row, versions
from bench.speed.speed_models import CACHE
from export.bundle.directory import load_bundle

BEGIN, END = "<!-- speed: begin, rewritten by `make bench` -->", "<!-- speed: end -->"
LONG = 400.0  # limit of each part, seconds


@dataclass(frozen=True)
class Part:
    """A command whose last line of output is JSON. needs: required packages."""

    name: str
    command: str
    title: str
    needs: tuple[str, ...] = ()


def parts(options: argparse.Namespace) -> list[Part]:
    peer, faces = ("ctranslate2",), ("transformers",)
    speed, face = "compare-speed-ctranslate2", "compare-speed-transformers"
    scheme = f"--scheme {options.scheme}"
    schemes = f"w8-block64 {options.scheme} w4-block32 w4-block128 fp32"
    goodput = f"compare-goodput {scheme} --quick"
    found = [
        Part(
            "models",
            f"speed-models --scheme fp32 {options.scheme} w8-block64 w4-block32 w4-block128",
            "models",
        ),
        Part("alone", f"{speed} alone --count 6 --schemes {schemes}", "Single stream", peer),
        Part("offline", f"{speed} offline --quick --schemes {options.scheme} --count 512", "Throughput", peer),
        Part("offline-fp32", f"{speed} offline --quick --schemes fp32 --count 96", "Throughput, fp32", peer),
        Part("beam", f"{speed} beam --quick --schemes {options.scheme} --count 128", "Beams of 4", peer),
        Part("transformers-alone", f"{face} alone --scheme w8-block64", "Hugging Face, single stream", faces),
        Part("transformers-offline", f"{face} offline {scheme}", "Hugging Face, throughput", faces),
        Part("goodput", f"{goodput} --rate 40 --within-s 45", "Goodput under Poisson arrivals", peer),
    ]
    if options.checkpoint:
        real = f"--checkpoint {shlex.quote(str(options.checkpoint))}"
        real += f" --data {shlex.quote(str(options.data))}" if options.data else ""
        chosen = f"--schemes {options.scheme} {real} --quick --count"
        found += [
            Part("real-alone", f"{speed} alone {chosen} 32", "Real sentences, single stream", peer),
            Part("real-offline", f"{speed} offline {chosen} 1000", "Real sentences, throughput", peer),
            Part("real-beam", f"{speed} beam {chosen} 1000", "Real sentences, beams of 4", peer),
            Part("real-goodput", f"{goodput} {real} --rate 160 --within-s 50", "Goodput, real sentences", peer),
        ]
    if options.bundle:
        data = f" {shlex.quote(str(options.data))}" if options.data else ""
        command = f"invariance {shlex.quote(str(options.bundle))}{data} --requests 200 --mixes 5"
        found.append(Part("invariance", command, "Batch invariance, bit for bit"))
    return [part for part in found if not options.only or part.name in options.only]


def run(part: Part, within_s: float, cache: Path) -> dict[str, Any]:
    """The output of a part, or {"skipped": reason}."""
    for package in part.needs:
        if importlib.util.find_spec(package) is None:
            return {"skipped": f"{package} is not installed; pip install -r requirements/bench.in"}
    if within_s <= 0:
        return {"skipped": "the time budget was used up"}
    words = shlex.split(part.command)
    flags = [] if part.name == "models" or "--json" in words else ["--json"]
    place = ["--cache", str(cache)] if words[0] != "invariance" else []
    command = [sys.executable, "-m", "bench", *words, *place, *flags]
    began_s = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=min(LONG, within_s))
    except subprocess.TimeoutExpired:
        return {"skipped": f"not finished within {min(LONG, within_s):.0f} s"}
    took = {
        "seconds": round(time.monotonic() - began_s, 1),
        "command": f"python -m bench {_without_folders(part)}",
    }
    if part.name == "models":
        return took if done.returncode == 0 else {"skipped": done.stderr.strip()[-500:]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {**took, "skipped": f"status {done.returncode}: {done.stderr.strip()[-500:]}"}
    return {**json.loads(lines[-1]), **took}


def _without_folders(part: Part) -> str:
    """The command of a part, with file names instead of absolute paths."""
    return shlex.join([Path(word).name if word.startswith("/") else word for word in shlex.split(part.command)])


def quality(bundle: Path) -> Iterator[dict[str, Any]]:
    """Verdicts on the accuracy that the exporter measured and stored in the manifest."""
    for variant in load_bundle(bundle).variants:
        for figures in variant.comparison:
            if figures.chosen and figures.bleu_loss is not None:
                yield {
                    "measure": f"BLEU lost by {variant.precision} ({figures.scheme}), "
                    f"{figures.evaluation_samples} sentences",
                    "figure": round(figures.bleu_loss, 3),
                    "bar": 0.3,
                    "unit": "BLEU",
                    "aim": "0.1",
                    "is_limit": True,
                    "met": figures.bleu_loss <= 0.3,
                    "note": "measured by the exporter",
                }


def section(results: dict[str, Any], *, details: bool) -> str:
    """The section in Markdown, markers included. details: with goals, notes and the figures of each part."""
    where, there = results["machine"], results["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in there.items())
    flags = " ".join(where["flags"]) or "none of the relevant flags"
    lines = [
        BEGIN,
        f"Taken on {results['date']} by `make bench` in {results['seconds'] / 60:.0f} minutes on {where['processors']} "
        f"processors of {where['model']} ({where['family']}; {flags}). {packages}. Unless noted otherwise: a "
        "6+6-layer model of d_model 512 with a vocabulary of 32,000, random weights, 20 source and 30 target tokens; "
        "interleaved runs, medians of 5 rounds after a warm-up round. CTranslate2 is the fastest of its settings in "
        "the same run.",
        "",
        "| measure | bar | measured | met |" + (" goal | note |" if details else ""),
        "|---|---|---|---|" + ("---|---|" if details else ""),
    ]
    for verdict in [*_verdicts(results), *results.get("quality", [])]:
        lines.append(verdict_row(verdict) + (f" {verdict['aim']} | {verdict['note']} |" if details else ""))
    for name, part in results["parts"].items():
        if name != "models" and (details or isinstance(part.get("skipped"), str)):
            lines += ["", *_details(part)]
    return "\n".join([*lines, END])


def _verdicts(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in results["parts"].values():
        yield from part.get("verdicts", [])


def _details(part: dict[str, Any]) -> list[str]:
    """The figures of a part, as Markdown lines."""
    command = f" (`{part['command']}`)" if "command" in part else ""
    if "skipped" in part and isinstance(part["skipped"], str):
        return [f"**{part['title']}**{command}: not measured: {part['skipped']}"]
    lines = [f"**{part['title']}**{command}, {part.get('seconds', 0):.0f} s:", ""]
    figures = dict(part.get("figures", part))
    unit = figures.pop("unit", "")
    measured = {name: value for name, value in figures.items() if isinstance(value, dict) and "median" in value}
    if measured:
        lines += [f"| {unit} | median | min | max |", "|---|---|---|---|"]
        lines += [f"| {name} | {s['median']:.4g} | {s['low']:.4g} | {s['high']:.4g} |" for name, s in measured.items()]
    result = {name: value for name, value in figures.items() if isinstance(value, int | float | str)}
    result = {name: value for name, value in result.items() if name not in ("part", "seconds", "command", "title")}
    for name, value in figures.items():
        if isinstance(value, dict) and name not in measured and name not in ("loads", "machine", "versions"):
            result[name] = ", ".join(f"{key} {found}" for key, found in value.items())
    if result:
        lines += ["", *(f"- {name}: {value}" for name, value in result.items())]
    return lines


def rewrite(page: Path, text: str) -> None:
    """Replaces the section between its markers, or appends it with them."""
    old = page.read_text(encoding="utf-8")
    if (BEGIN in old) != (END in old):
        raise SystemExit(f"{page}: has one of the markers {BEGIN!r} and {END!r}, must have both or none")
    if BEGIN in old:
        before, _, rest = old.partition(BEGIN)
        new = before + text + rest.partition(END)[2]
    else:
        new = f"{old.rstrip()}\n\n## Speed\n\n{text}\n"
    page.write_text(new, encoding="utf-8")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    began_s = time.monotonic()
    kept = json.loads(options.keep.read_text()) if options.keep.exists() and options.only else {}
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "parts": kept.get("parts", {}),
    }
    for part in parts(options):
        left_s = options.budget_s - (time.monotonic() - began_s)
        results["parts"][part.name] = {"title": part.title, **run(part, left_s, options.cache)}
        result = results["parts"][part.name]
        print(f"{part.name}: {result.get('skipped') or 'measured'} ({result.get('seconds', 0):.0f} s)", file=sys.stderr)
        for verdict in result.get("verdicts", []):
            met = "met" if verdict["met"] else "MISSED"
            print(f"  {met}: {verdict['measure']}: {verdict['figure']:.3g}", file=sys.stderr)
        results["seconds"] = sum(one.get("seconds", 0.0) for one in results["parts"].values())
        options.keep.parent.mkdir(parents=True, exist_ok=True)
        options.keep.write_text(json.dumps(results, ensure_ascii=False, indent=1))
    if options.bundle:
        results["quality"] = list(quality(options.bundle))
        options.keep.write_text(json.dumps(results, ensure_ascii=False, indent=1))
    return results


@case(
    only=Flag([], "parts by name; the others keep their stored results", type=str),
    cache=CACHE,
    checkpoint=Flag(Path, "trained model, for real sentences"),
    data=Flag(Path, "TSV of sentence pairs for it"),
    bundle=Flag(Path, "its bundle as exported, for quality and invariance"),
    scheme=Flag("w8a8-static-kv8", "of int8"),
    budget_s=1200.0,
    keep=Flag(CACHE / "speed.json", "JSON file of the results"),
    stored=Flag(Path, "measure nothing, use these stored results"),
    write=Flag(Path, "page whose section is rewritten; default: print it, with the figures of each part"),
)
def speed(options: argparse.Namespace) -> None:
    results = json.loads(options.stored.read_text()) if options.stored else measure(options)
    if options.write:
        rewrite(options.write, section(results, details=False))
    else:
        print(section(results, details=True))
