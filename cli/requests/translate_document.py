"""`glossa translate --document`: send a file to a running server, and write its translation."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args

import typer

from cli.terminal import UsageError, one_line, print_json
from cli.text_input import read_document

if TYPE_CHECKING:
    from glossa.client import Client

UNCERTAIN_BELOW = 0.5
Format = Literal["text", "html", "xliff", "srt", "vtt", "po"]
SUFFIXES: dict[str, Format] = {
    **{".txt": "text", ".text": "text", ".html": "html", ".htm": "html", ".xliff": "xliff", ".xlf": "xliff"},
    **{".srt": "srt", ".vtt": "vtt", ".po": "po", ".pot": "po"},
}


def format_of(document: str, format: str) -> str:
    """The format of a file: the given one, else that of its suffix. Raises UsageError."""
    if format:
        return format
    suffix = Path(document).suffix.lower()
    if document != "-" and suffix not in SUFFIXES:
        raise UsageError(
            f"--document: the suffix {suffix!r} names no format; give --format {', '.join(get_args(Format))}"
        )
    return SUFFIXES.get(suffix, "text")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` when the block ends without an error; until then an earlier one is there. What is no
    file, such as a pipe, is opened itself. Raises UsageError where no file can be written, before the block."""
    target = path.resolve()  # a link stays one
    is_special = target.exists() and not target.is_file()
    written = target if is_special else target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        file = written.open("wb" if is_special else "xb")
    except OSError as error:
        problem = f"--out {path}: cannot be written: {error.strerror}"
        raise UsageError(f"{problem}; give a file in a folder that is there and that you may write to") from error
    try:
        with file:
            yield file
        if not is_special:
            if target.exists():
                shutil.copymode(target, written)
            written.replace(target)
    finally:
        if not is_special:
            written.unlink(missing_ok=True)


def translate_document(
    client: Client, document: str, out: Path | None, as_json: bool, options: dict[str, Any], **settings: Any
) -> None:
    """Write the translation of a file, or of standard input, to `out` or to standard output as it comes.

    settings: format and context_sentences. Standard error lists segments of which the model is not
    sure, if the options request the confidence, terms without their translation, and errors: a segment that fails is
    copied, and the exit code is then 1. `out` is replaced at the end only. Raises OSError, and
    UsageError, before the call where `out` cannot be written.
    """
    threshold = options.pop("uncertain_below", UNCERTAIN_BELOW)
    settings["format"] = format_of(document, settings["format"])
    text = read_document(document)
    translated: Any = None
    line, place = 1, 0  # of the last error
    with contextlib.nullcontext() if out is None else new_file(out) as file:
        for piece in client.stream_translate_document(text, **settings, **options):
            for segment in piece.segments:
                problem = ""
                if segment.error:
                    problem = f"{segment.error.code}: {segment.error.message}"
                elif segment.confidence is not None and segment.confidence < threshold:
                    problem = f"confidence {segment.confidence:.2f}: {one_line(segment.text)}"
                if problem:
                    line, place = line + text.count("\n", place, segment.source.start), segment.source.start
                    typer.echo(f"{document}:{line}: {problem}", err=True)
                if not as_json and file is None:
                    sys.stdout.buffer.write(segment.text.encode())
            sys.stdout.flush()
            translated = piece.document or translated
        if file is not None:
            file.write(translated.text.encode())
    if as_json:
        print_json(translated)
    if translated.glossary and translated.glossary.unmet:
        typer.echo(f"terms without their translation: {', '.join(translated.glossary.unmet)}", err=True)
    if translated.splitting == "paragraphs" and not options.get("splitter_language"):
        typer.echo(
            "texts were split into paragraphs alone: there are no rules for sentences of this language", err=True
        )
    if translated.is_language_assumed and translated.segments > 1:
        language = translated.splitter_language
        typer.echo(f"sentences were split by the rules of {language}; name others with --splitter-language", err=True)
    if translated.errors:
        typer.echo(f"{len(translated.errors)} of {translated.segments} segments were not translated", err=True)
        raise typer.Exit(1)
