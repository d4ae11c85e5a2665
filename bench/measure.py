"""Speed measurement: interleaved repetitions, medians with their spread, and the machine and versions.

Figures of different runs are not comparable: clocks and neighbours change. So all compared jobs run interleaved in one
process tree (`interleaved`), and ratios are ratios of medians. This module knows no engine.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "avx512_fp16", "amx_bf16", "amx_int8", "amx_tile")
"""CPU flags that decide the speed of matrix products, as lscpu names them."""
PART_LABELS = {"alone": "single stream", "offline": "throughput", "beam": "beam search"}
"""The parts of the speed comparisons as reports name them."""
PACKAGES = (
    "onnxruntime",
    "ctranslate2",
    "transformers",
    "torch",
    "onnxruntime-genai",
    "optimum-onnx",
    "numpy",
    "grpcio",
)


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of repeated measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, figures: list[float]) -> Spread:
        return cls(statistics.median(figures), min(figures), max(figures), len(figures))

    def __str__(self) -> str:
        return f"{self.median:.4g} [{self.low:.4g} … {self.high:.4g}]"


@dataclass(frozen=True)
class Verdict:
    """A measurement and its bar: a minimum, or a maximum if `is_limit`."""

    measure: str
    figure: float
    bar: float
    unit: str = "×"
    aim: str = ""
    is_limit: bool = False
    note: str = ""

    @property
    def met(self) -> bool:
        return self.figure <= self.bar if self.is_limit else self.figure >= self.bar

    def __str__(self) -> str:
        sign = "≤" if self.is_limit else "≥"
        note = f"  ({self.note})" if self.note else ""
        return (
            f"{'met ' if self.met else 'MISS'} {self.measure}: {self.figure:.3g} {self.unit} "
            f"(bar {sign} {self.bar:g}){note}"
        )


def verdict_row(verdict: Mapping[str, Any]) -> str:
    """A verdict of a report as a row of a Markdown table: measure, bar, figure, and whether it is met."""
    sign, unit = "≤" if verdict["is_limit"] else "≥", f" {verdict['unit']}".rstrip()
    return (
        f"| {verdict['measure']} | {sign} {verdict['bar']:g}{unit} | {verdict['figure']:.3g}{unit} | "
        f"{'yes' if verdict['met'] else '**no**'} |"
    )


def interleaved(jobs: Mapping[str, Callable[[], float]], repetitions: int = 5) -> dict[str, Spread]:
    """Runs all jobs in rounds: one warm-up round, then `repetitions`. Each job returns its figure."""
    figures: dict[str, list[float]] = {name: [] for name in jobs}
    for repetition in range(repetitions + 1):
        for name, job in jobs.items():
            figure = job()
            if repetition:
                figures[name].append(figure)
    return {name: Spread.of(found) for name, found in figures.items()}


def seconds(job: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    job()
    return time.perf_counter() - began_s


@functools.cache
def machine() -> dict[str, Any]:
    """The processor as lscpu describes it, with the relevant flags."""
    fields = {}
    for line in subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    there = set(fields.get("Flags", "").split())
    return {
        "model": fields.get("Model name", platform.machine()),
        "family": f"{fields.get('Vendor ID', '?')} {fields.get('CPU family', '?')}/{fields.get('Model', '?')}",
        "processors": int(fields.get("CPU(s)", "0")),
        "caches": {name: fields[name] for name in ("L2 cache", "L3 cache") if name in fields},
        "flags": [flag for flag in FLAGS if flag in there],
        "kernel": platform.release(),
    }


def widest_isa() -> str:
    """The widest instruction set of this processor, as CTranslate2 names it."""
    return "AVX512" if "avx512f" in machine()["flags"] else "AVX2"


def versions() -> dict[str, str]:
    """Versions of Python and of the installed PACKAGES."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def report(
    figures: Mapping[str, Any], verdicts: list[Verdict], *, as_json: bool, skipped: Mapping[str, str] | None = None
) -> None:
    """Prints the results of a case as text, or as one JSON object for `speed`.

    skipped: reasons by figure that was not measured.
    """
    if as_json:
        result = {
            "machine": machine(),
            "versions": versions(),
            "figures": {name: asdict(value) if isinstance(value, Spread) else value for name, value in figures.items()},
            "verdicts": [{**asdict(verdict), "met": verdict.met} for verdict in verdicts],
            "skipped": dict(skipped or {}),
        }
        print(json.dumps(result, ensure_ascii=False))
        return
    where = machine()
    print(f"{where['model']} ({where['family']}), {where['processors']} processors: {' '.join(where['flags'])}")
    width = max(map(len, figures), default=0)
    for name, value in figures.items():
        print(f"  {name:{width}}  {value}")
    for name, reason in (skipped or {}).items():
        print(f"  not measured: {name}: {reason}")
    for verdict in verdicts:
        print(verdict)
