"""`glossa corpus`: sentence pairs, or scenes with labelled spans, of the embedded grammar as a file, to try the other
verbs with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.terminal import report_errors


def corpus(
    out: Annotated[Path, typer.Argument(help="TSV to write: English, German")],
    count: Annotated[int, typer.Option(help="number of pairs", min=1)] = 1000,
    split: Annotated[Literal["train", "test"], typer.Option(help="test: unseen combinations of words")] = "train",
    spans: Annotated[
        bool, typer.Option("--spans", help="write scenes and the spans of their people, animals, places instead")
    ] = False,
    seed: Annotated[int, typer.Option(help="seed of the random choice")] = 1,
) -> None:
    """Write sentence pairs of the corpus that the demo trains on, or scenes to train a tagger on."""
    from model.corpus.corpus import pairs
    from model.corpus.entities import entities

    lines = [f"{source}\t{target}\n" for source, target in (entities if spans else pairs)(seed, count, split)]
    with report_errors():
        out.write_text("".join(lines), encoding="utf-8")
    typer.echo(f"{out}: {len(lines)} pairs")
