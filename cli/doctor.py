"""`glossa doctor`: prints the findings of `cli.machine_checks`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cli.terminal import AsJson, print_json


def doctor(
    bundles: Annotated[list[Path] | None, typer.Argument(help="bundles to check as well")] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: what it has, what is missing, how to fix it. Exit code 1 if serving would fail."""
    from cli.machine_checks import examine

    checks = examine(bundles or [])
    if as_json:
        print_json([dataclasses.asdict(check) for check in checks])
    else:
        width = max(len(check.name) for check in checks) + 2
        for check in checks:
            typer.echo(f"{check.status:6}{check.name:{width}}{check.value}")
            if check.fix:
                typer.echo(f"{'':{6 + width}}fix: {check.fix}")
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)
