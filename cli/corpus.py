"""`glossa corpus`: sentence pairs of the embedded grammar as a file, to try the other verbs with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.terminal import report_errors


def corpus(
    out: Annotated[Path, typer.Argument(help="TSV to write: English, German")],
    count: Annotated[int, typer.Option(help="number of pairs", min=1)] = 1000,
    split: Annotated[Literal["train", "test"], typer.Option(help="test: unseen combinations of words")] = "train",
    seed: Annotated[int, typer.Option(help="seed of the random choice")] = 1,
) -> None:
    """Write sentence pairs of the corpus that the demo trains on."""
    from model.corpus.corpus import pairs

    lines = [f"{source}\t{target}\n" for source, target in pairs(seed=seed, count=count, split=split)]
    with report_errors():
        out.write_text("".join(lines), encoding="utf-8")
    typer.echo(f"{out}: {len(lines)} pairs")
