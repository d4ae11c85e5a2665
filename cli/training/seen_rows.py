"""How much of a test set was in the training data of a checkpoint, as `glossa eval` reports it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

SOURCES, PAIRS = "sources in training data", "pairs in training data"
REASON = "only checkpoints record their training rows, and not those that were imported or are older"


def overlap_figures(subject: str, pairs: Sequence[tuple[str, str]], *, quiet: bool) -> dict[str, int | None]:
    """The counts, None where they are unknown: also where no row was seen, but a part of the training records none.
    Prints a sentence on stderr, with the first rows that were seen.

    subject: a checkpoint that was loaded without an error, or anything else, of which nothing is known. quiet: prints
    nothing unless there are such rows or unknown parts. Raises CheckpointError.
    """
    from model.checkpoints.training_rows import read_training_rows

    rows = read_training_rows(Path(subject))
    if rows is None:
        if not quiet:
            typer.echo(f"{subject}: whether test rows were in the training data is unknown: {REASON}", err=True)
        return {SOURCES: None, PAIRS: None}
    overlap = rows.overlap(pairs)
    if overlap.sources or overlap.unknown or not quiet:
        typer.echo(overlap.describe("test"), err=True)
    counts = {SOURCES: len(overlap.sources), PAIRS: len(overlap.pairs)}
    return {name: None if overlap.unknown and not count else count for name, count in counts.items()}
