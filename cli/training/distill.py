"""`glossa distill`: what larger models write, for a smaller one to learn from. See
`model.training.data.distillation`."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.connection import Connection, reached, report_call_errors, with_connection
from cli.flag_names import with_flags_named
from cli.flags import MODEL
from cli.options_file import beam, with_options_file
from cli.progress import progress
from cli.terminal import AsJson, UsageError, report_errors, show
from cli.training.rows import PAIRS_FILE, Columns, SkipBadRows, row_rules

BEAM_SIZE = 5  # unless another one is given
ONE_LINE = str.maketrans("\t\r\n", "   ")  # of texts from CSV and JSON lines, which may have several
PROGRESS = 5000  # sources between two lines on stderr


@with_options_file({"beam_size": beam(f"translations of each teacher; default: {BEAM_SIZE}", min=1), **MODEL})
@with_connection("connection", without="address")
def distill(
    teachers: Annotated[list[str], typer.Argument(help="bundles, or HOST:PORT of servers", metavar="TEACHER...")],
    data: Annotated[list[Path], typer.Option(help=f"{PAIRS_FILE}, and be repeated")],
    out: Annotated[Path, typer.Option(help="TSV to write, or .gz: the pairs, and the sources with their translations")],
    keep: Annotated[int, typer.Option(min=1, help="most translations of a source that are kept")] = 3,
    columns: Columns = None,
    skip_bad_rows: SkipBadRows = False,
    as_json: AsJson = False,
    *,
    connection: Connection,
    options: dict[str, Any],
) -> None:
    """Translate a training set with larger models, for a smaller one to learn from.

    Of the translations that the teachers' beams find for a source, those nearest to its reference are kept
    (sequence-level interpolation, Kim and Rush 2016). The file has the given pairs first, then the best translation of
    each source, then the second best of each, and so on.
    """
    from model.checkpoints.atomic_write import write_file
    from model.training.data.distillation import nearest
    from model.training.data.examples import DataError
    from model.training.data.text_files import read_tsv

    with report_errors(DataError):
        if out.exists():
            raise UsageError(f"{out}: exists; choose another name")
        if not os.access(out.parent, os.W_OK):  # found out now, not after hours of translations
            raise UsageError(f"{out}: the directory {out.parent} is not there or not writable; make it")
        pairs = read_tsv(data, rules=row_rules(columns, skips=skip_bad_rows, is_given=True)).pairs
        sources = [source for source, _ in pairs]
        size = options.get("beam_size", BEAM_SIZE)
        asked = {"beam_size": size, "num_hypotheses": size, **options}
        found: list[list[str]] = [[] for _ in pairs]
        failed = 0
        with progress() as tell:
            for place, teacher in enumerate(teachers):
                for number, texts in enumerate(_translations(teacher, sources, asked, connection)):
                    found[number] += texts
                    failed += not texts
                    tell("translating", place * len(pairs) + number + 1, len(teachers) * len(pairs))
                    if (number + 1) % PROGRESS == 0:
                        typer.echo(f"{teacher}: {number + 1:,} of {len(pairs):,} sources", err=True)
        kept = [nearest(texts, reference, keep) for texts, (_, reference) in zip(found, pairs, strict=True)]
        rows = list(pairs)
        for rank in range(keep):
            rows += [(source, texts[rank]) for source, texts in zip(sources, kept, strict=True) if rank < len(texts)]
        if not any(found):
            raise UsageError(f"{', '.join(teachers)}: none of the {len(pairs):,} sources has an answer; see the errors")
        lines = ("\t".join(text.translate(ONE_LINE) for text in row) for row in rows)
        text = "".join(f"{line}\n" for line in lines).encode()
        write_file(out, gzip.compress(text, mtime=0) if out.suffix == ".gz" else text)
    show({"pairs": len(pairs), "translations": len(rows) - len(pairs), "without an answer": failed}, as_json)


def _translations(
    teacher: str, sources: list[str], options: dict[str, Any], connection: Connection
) -> Iterator[list[str]]:
    """What the beam of a teacher found for each source, each in one line; nothing for a source that it refuses."""
    from export.bundle.manifest import MANIFEST
    from glossa.client import ClientError

    is_bundle = (Path(teacher) / MANIFEST).is_file()
    if not is_bundle and (Path(teacher).exists() or ":" not in teacher):
        raise UsageError(f"{teacher}: is neither a bundle nor HOST:PORT; export a checkpoint to use it as a teacher")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(reached(teacher, connection, is_bundle=is_bundle))
        stack.enter_context(report_call_errors(server))
        client = stack.enter_context(server.client())
        for number, answer in enumerate(client.translate_batch(sources, **options).outcomes(), start=1):
            if isinstance(answer, ClientError):
                typer.echo(f"{teacher}: source {number}: {with_flags_named(str(answer))}", err=True)
                yield []
            else:
                yield [" ".join(one.text.split()) for one in answer.hypotheses or (answer,)]
