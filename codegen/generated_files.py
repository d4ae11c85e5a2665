"""What the generators of this package have in common: a part of a file that is replaced, and `--check`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def between(path: Path, begin: str, end: str, content: str) -> str:
    """The text of a file whose part between two lines is replaced by `content`."""
    head, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, mark, tail = rest.partition(end)
    assert mark, f"{path.name} lacks the lines {begin.strip()} and {end.strip()}"
    return f"{head}{begin}{content}{end}{tail}"


def update(
    files: Mapping[Path, str | bytes], arguments: Sequence[str] | None, *, target: str, description: str
) -> None:
    """Rewrites the files that are out of date, or with --check among the arguments fails if there is one.

    arguments: None for those of the command line. target: of the Makefile, which runs the generator.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="fail if a file is out of date, and change nothing")
    check = parser.parse_args(arguments).check
    for path, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        if path.exists() and path.read_bytes() == data:
            continue
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        if check:
            raise SystemExit(f"{shown} is out of date; run: make {target}")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        print(f"wrote {shown}")
