"""`glossa doctor`: prints the findings of `cli.serving.machine_checks`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.terminal import AsJson, print_json


def doctor(
    bundles: Annotated[list[Path] | None, typer.Argument(help="bundles to check as well")] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: what it has, what is missing, how to fix it. Exit code 1 if serving would fail."""
    from cli.serving.machine_checks import examine

    findings = examine(bundles or [])
    if as_json:
        print_json([{"name": name, **finding._asdict()} for name, finding in findings.items()])
    else:
        width = max(map(len, findings)) + 2
        for name, finding in findings.items():
            typer.echo(f"{finding.status:6}{name:{width}}{finding.value}")
            if finding.fix:
                typer.echo(f"{'':{6 + width}}fix: {finding.fix}")
    if any(finding.status == "fail" for finding in findings.values()):
        raise typer.Exit(1)
