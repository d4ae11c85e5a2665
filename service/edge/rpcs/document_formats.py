"""The formats of documents (`format_of`), and the marks that their texts have by default (`markup_of`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from glossa.v1 import glossa_pb2 as pb
from service.errors import InvalidRequest
from service.text.documents import html, plain, po, subtitles, xliff
from service.text.languages import Languages
from service.text.segmentation import Splitter
from service.text.segments import Segment


class Format(NamedTuple):
    """How documents are read. check: the language that one names, empty if none, by its text and the language that it
    is translated to; raises DocumentError. has_placeholders: texts of programs, in which they are marks."""

    check: Callable[[str, str], str]
    segments: Callable[[str, Splitter, Languages], Iterator[Segment]]
    has_placeholders: bool = False


TEXT = Format(plain.check, plain.segments)
FORMATS: dict[int, Format] = {
    pb.DOCUMENT_FORMAT_UNSPECIFIED: TEXT,
    pb.DOCUMENT_FORMAT_TEXT: TEXT,
    pb.DOCUMENT_FORMAT_HTML: Format(html.check, html.segments),
    pb.DOCUMENT_FORMAT_XLIFF: Format(xliff.check, xliff.segments, has_placeholders=True),
    pb.DOCUMENT_FORMAT_SRT: Format(subtitles.check_subrip, subtitles.subrip_segments),
    pb.DOCUMENT_FORMAT_VTT: Format(subtitles.check_webvtt, subtitles.webvtt_segments),
    pb.DOCUMENT_FORMAT_PO: Format(po.check, po.segments, has_placeholders=True),
}


def format_of(number: int) -> Format:
    """The format of a number. Raises InvalidRequest."""
    if number not in FORMATS:
        known = ", ".join(pb.DocumentFormat.keys()[1:])
        raise InvalidRequest("format", f"must be one of {known}, got {number}")
    return FORMATS[number]


def markup_of(first: Any) -> pb.Markup | None:
    """The marks of every text: placeholders in texts of programs, unless the request says others."""
    if first.HasField("markup"):
        return first.markup  # type: ignore[no-any-return]
    return pb.Markup(placeholders=True) if format_of(first.format).has_placeholders else None
