"""Texts that verbs read from files and standard input: UTF-8, with or without a byte order mark; documents also in the
encoding that they declare."""

from __future__ import annotations

import codecs
import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cli.terminal import UsageError

STANDARD_INPUT = "-"
DECLARED_WITHIN = 1024  # bytes of a document, as the HTML standard asks
HEADER_WITHIN = 1 << 14  # bytes of a catalog of gettext, whose header follows a comment
_DECLARED = re.compile(
    rb"""
    \A\s*<\?xml[^>]*?\sencoding\s*=\s*["'](?P<xml>[\w.:-]+) | <meta\s[^>]*?charset\s*=\s*["']?(?P<html>[\w.:-]+)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_DECLARED_BY_CATALOG = re.compile(rb'\n"Content-Type:[^"\n]*?charset=(?!CHARSET\b)([\w.:-]+)')


def read_text(file: Path | str) -> str:
    """The text of a file, or of standard input for `-`, with its line breaks. Raises UsageError, OSError."""
    return decoded(_bytes_of(file), str(file))


def read_document(file: Path | str) -> str:
    """`read_text` of a document, which may declare another encoding: by a byte order mark, as XML, HTML or gettext."""
    data = _bytes_of(file)
    is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    declared = _DECLARED.search(data, 0, DECLARED_WITHIN)
    catalog = _DECLARED_BY_CATALOG.search(data, 0, HEADER_WITHIN)
    name = (declared["xml"] or declared["html"]) if declared else catalog[1] if catalog else b"utf-8"
    encoding = "utf-16" if is_wide else name.decode()
    if not is_wide and encoding.lower().startswith("utf"):  # a declaration that can be read is in no wider encoding
        return decoded(data, str(file))
    try:
        return data.decode(encoding)
    except (LookupError, UnicodeDecodeError) as error:
        problem = f"{file}: cannot be read in the encoding {encoding!r} that it declares: {error}"
        raise UsageError(f"{problem}; convert it to UTF-8, e.g. with iconv") from None


def _bytes_of(file: Path | str) -> bytes:
    return sys.stdin.buffer.read() if str(file) == STANDARD_INPUT else Path(file).read_bytes()


def lines_of(file: Path | str = STANDARD_INPUT) -> Iterator[str]:
    """The lines of a file, or of standard input as they come, without their line breaks. The file is opened at the
    call. Raises UsageError for a line that is no UTF-8, with its number; OSError."""
    name = str(file)
    return _decoded_lines(sys.stdin.buffer if name == STANDARD_INPUT else Path(file).open("rb"), name)


def _decoded_lines(lines: BinaryIO, name: str) -> Iterator[str]:
    with contextlib.nullcontext() if name == STANDARD_INPUT else lines:
        for number, line in enumerate(lines, start=1):
            yield decoded(line, name, number).rstrip("\r\n")


def decoded(data: bytes, name: str, line: int = 0) -> str:
    """UTF-8 as text, without a byte order mark at the start of the first line. name: of the file in errors. line: its
    number, if `data` is one. Raises UsageError."""
    source = "standard input" if name == STANDARD_INPUT else name
    text = data.removeprefix(codecs.BOM_UTF8) if line <= 1 else data
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise UsageError(f"{source}: must be text, but has zero bytes; give a file of UTF-8 text") from None
        place = len(data) - len(text) + error.start
        where = f"{source}:{line}: must be UTF-8, is not at byte {place} of the line" if line else ""
        problem = where or f"{source}: must be UTF-8, is not at byte {place}"
        raise UsageError(f"{problem}; convert it, e.g. with iconv") from None
