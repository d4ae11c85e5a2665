"""A measurement as a function with its flags: what `python -m bench CASE` runs.

A module declares its case with `@case`, and the runner derives the command line from it. Nothing here measures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Run = Callable[[argparse.Namespace], None]


@dataclass(frozen=True)
class Flag:
    """An argument that needs more than a default. positional: without `--`; required: without a default."""

    default: Any = None
    help: str = ""
    type: Callable[[str], Any] | None = None
    choices: Sequence[Any] | None = None
    positional: bool = False
    required: bool = False


def case(*paths: str, **flags: Any) -> Callable[[Run], Run]:
    """Declares the arguments of a measurement.

    paths: positional paths; a trailing "?" makes one optional. flags: `name=default`, where the default determines
    what is accepted: False a switch, the class Path a path or nothing, a list several values of its elements' type.
    """

    def declare(run: Run) -> Run:
        run.paths, run.flags = paths, flags  # type: ignore[attr-defined]
        return run

    return declare


def parser_of(name: str, run: Run, description: str) -> argparse.ArgumentParser:
    """The command line of a case; every case has --json."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for path in run.paths:  # type: ignore[attr-defined]
        parser.add_argument(path.rstrip("?"), type=Path, nargs="?" if path.endswith("?") else None)
    for flag, value in run.flags.items():  # type: ignore[attr-defined]
        _add(parser, flag, value if isinstance(value, Flag) else Flag(value))
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


def _add(parser: argparse.ArgumentParser, name: str, flag: Flag) -> None:
    default, kind = flag.default, flag.type
    options: dict[str, Any] = {"help": flag.help or None}
    if default is False:
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", **options)
        return
    if isinstance(default, list):
        options["nargs"] = "+"
        kind = kind or (type(default[0]) if default else None)
    elif default is Path:
        kind, default = Path, None
    elif default is not None:
        kind = kind or type(default)
    options |= {"type": kind, "choices": flag.choices}
    if flag.positional:
        parser.add_argument(name, **options, **({"default": default} if default is not None else {}))
    else:
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, required=flag.required, **options)
