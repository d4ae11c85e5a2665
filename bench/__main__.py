"""Every measurement of the project by name.

python -m bench --list            the measurements, one line each
python -m bench CASE --help       its flags
python -m bench CASE [flags]      measure

Each case is a module of a room with a function of its name: `io-faults` is `bench.promises.io_faults.io_faults`.
Figures of different runs cannot be compared; BENCHMARKS.md names the command and the machine of each of its figures.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

from bench.case import parser_of

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "speed": (
        "speed",
        "speed-models",
        "compare-speed-ctranslate2",
        "compare-speed-transformers",
        "compare-goodput",
        "compare-checkouts",
        "grpc-overhead",
    ),
    "answers": (
        "compare-answers",
        "compare-reference",
        "invariance",
        "markup",
        "pivots",
        "process-answers",
        "processor-answers",
        "round-trips",
        "same-request",
    ),
    "gpu": ("gpu-check",),
    "simulation": ("simulate", "fleet"),
    "promises": (
        "overload",
        "abuser",
        "answer-cache",
        "drain",
        "reloads",
        "canaries",
        "long-calls",
        "balance",
        "replicas",
        "process-faults",
        "engine-faults",
        "io-faults",
        "kill-resume",
        "memory-promise",
        "soak",
        "leaks",
        "web-neighbours",
        "hardness",
    ),
    "real": ("real-models",),
    "hostile": ("hostile-peers", "hostile-messages", "hostile-bundles"),
}
CASES = {name: f"bench.{room}.{name.replace('-', '_')}" for room, names in ROOMS.items() for name in names}


def docstring(name: str) -> str:
    """Of a case's module, read without importing it: peers' libraries take seconds to import."""
    source = ROOT / f"{CASES[name].replace('.', '/')}.py"
    return ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""


def main() -> None:
    asked = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if asked in ("--list", "--help", "-h"):
        print(__doc__ if asked != "--list" else "", end="")
        for room, names in ROOMS.items():
            print(f"\n{room}")
            for name in names:
                print(f"  {name:28}{' '.join(docstring(name).partition(chr(10) * 2)[0].split())}")
        return
    if asked not in CASES:
        raise SystemExit(f"unknown case {asked!r}; python -m bench --list shows all of them")
    run = getattr(importlib.import_module(CASES[asked]), asked.replace("-", "_"))
    run(parser_of(asked, run, docstring(asked)).parse_args(sys.argv[2:]))


if __name__ == "__main__":
    main()
