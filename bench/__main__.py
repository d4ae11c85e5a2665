"""Every measurement of the project by name.

python -m bench --list            the measurements, one line each
python -m bench CASE --help       its flags
python -m bench CASE [flags]      measure

Each case is a module of this package with a function of its name: `io-faults` is `bench.io_faults.io_faults`. Figures
of different runs cannot be compared; BENCHMARKS.md names the command and the machine of each of its figures.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

from bench.case import parser_of

TOPICS = {
    "speed against peers": (
        "speed",
        "speed-models",
        "compare-speed-ctranslate2",
        "compare-speed-transformers",
        "compare-goodput",
    ),
    "two checkouts": ("compare-checkouts", "compare-answers"),
    "answers": ("compare-reference", "constraints", "markup"),
    "a GPU": ("gpu-check",),
    "promises": (
        "simulate",
        "round-trips",
        "invariance",
        "soak",
        "leaks",
        "kill-resume",
        "io-faults",
        "process-answers",
        "process-faults",
        "engine-faults",
        "overload",
        "abuser",
        "drain",
        "reloads",
        "replicas",
        "hostile-peers",
        "hostile-messages",
        "hostile-bundles",
        "memory-promise",
        "hardness",
    ),
}
CASES = {name: f"bench.{name.replace('-', '_')}" for names in TOPICS.values() for name in names}


def docstring(name: str) -> str:
    """Of a case's module, read without importing it: peers' libraries take seconds to import."""
    source = Path(__file__).with_name(f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def main() -> None:
    asked = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if asked in ("--list", "--help", "-h"):
        print(__doc__ if asked != "--list" else "", end="")
        for topic, names in TOPICS.items():
            print(f"\n{topic}")
            for name in names:
                print(f"  {name:28}{' '.join(docstring(name).partition(chr(10) * 2)[0].split())}")
        return
    if asked not in CASES:
        raise SystemExit(f"unknown case {asked!r}; python -m bench --list shows all of them")
    run = getattr(importlib.import_module(CASES[asked]), asked.replace("-", "_"))
    run(parser_of(asked, run, docstring(asked)).parse_args(sys.argv[2:]))


if __name__ == "__main__":
    main()
