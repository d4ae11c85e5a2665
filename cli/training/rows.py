"""How the verbs read rows of text files: the flags `--columns` and `--skip-bad-rows`. `model.training.data.text_files`
is the reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.terminal import UsageError

if TYPE_CHECKING:
    from model.training.data.text_files import RowRules

PAIRS_FILE = "TSV, CSV (.csv), JSON lines (.jsonl) or TMX (.tmx) of sources and references; may be .gz"

Columns = Annotated[
    str | None,
    typer.Option(help="names of the two columns, keys or languages of --data, such as en,de"),
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="leave out rows that cannot be used, and count them, instead of ending")
]


def row_rules(columns: str | None, *, skips: bool, count: int = 2, files: str = "--data", is_given: bool) -> RowRules:
    """The rules that the flags describe. count: of the columns that are needed. files: flags of files that have
    columns. is_given: whether one of them is given. Raises UsageError."""
    from model.training.data.text_files import RowRules

    names = tuple(name.strip() for name in columns.split(",")) if columns is not None else ()
    if names and (len(names) != count or not all(names) or len(set(names)) < len(names)):
        wanted = "2 different columns, such as --columns en,de" if count == 2 else "1 column, such as --columns text"
        raise UsageError(f"--columns: must name {wanted}, got {columns!r}")
    if names and not is_given:
        raise UsageError(f"--columns: is for {files}; give it, or leave --columns out")
    return RowRules(names, skips=skips, tell=lambda text: typer.echo(f"warning: {text}", err=True))
