"""Plain text → segments: a sentence each. White space between them, blank lines and lines without letters are copied.

A line break ends a paragraph, unless it only wraps a line: in text that was wrapped at a width, that is one where the
next line's first word had no room (`wrap_width`). A sentence over several lines is translated as one line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from service.text.languages import NO_LANGUAGES, Languages
from service.text.segmentation import Splitter, sentences
from service.text.segments import Place, Segment, Text, copied, core_of, has_words
from service.text.spans import Span

MIN_WIDTH, MAX_WIDTH = 40, 120  # of wrapped text: shorter lines are verses or lists, longer ones paragraphs
_LINE = re.compile(r"([^\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]*)(\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]|\Z)")
_BREAK = re.compile(r"(?:(?<![ \t])[ \t]++)?+(?:\r\n|\n|\r)[ \t]*+")  # in the time of one reading


def check(source: str, target_language: str = "") -> str:
    """An empty language: a plain text names none, and cannot be wrong."""
    return ""


def segments(source: str, splitter: Splitter, languages: Languages = NO_LANGUAGES) -> Iterator[Segment]:
    """The segments of a plain text. Their spans tile it."""
    done = 0
    for paragraph in paragraphs(source):
        text = source[paragraph.start : paragraph.end]
        flat, place = text.replace("\r", " ").replace("\n", " "), Place.FIRST
        for sentence in sentences(flat, splitter):
            start, end = core_of(flat, sentence)
            if not has_words(flat[start:end]):
                continue
            span = Span(paragraph.start + start, paragraph.start + end)
            yield from copied(source, done, span.start)
            yield Segment(span, (Text(_BREAK.sub(" ", source[span.start : span.end])),), place=place)
            done, place = span.end, Place.LATER
    yield from copied(source, done, len(source))


def paragraphs(source: str) -> Iterator[Span]:
    """The paragraphs of a text: runs of lines that were wrapped, without their last line breaks. Blank lines are in
    none."""
    width = wrap_width(source)
    start: int | None = None
    end, length = 0, 0  # of the paragraph so far, and the length of its last line
    for line in _LINE.finditer(source):
        text = line[1].rstrip()
        if start is not None and not (text and _is_wrapped(length, text, width)):
            yield Span(start, end)
            start = None
        if text:
            start = line.start() if start is None else start
            end, length = line.end(1), len(text)
        if start is not None and line[2] not in ("\n", "\r\n", "\r"):
            yield Span(start, end)
            start = None


def wrap_width(source: str) -> int:
    """The width at which the lines of a text were wrapped; 0: they were not. At least two line breaks, and half of
    those after longer lines, must be where the next word had no room: else its longest lines are so by chance."""
    lines = [line[1].rstrip() for line in _LINE.finditer(source)]
    longest = max(map(len, lines), default=0)
    if not MIN_WIDTH <= longest <= MAX_WIDTH:
        return 0
    followed = [(len(line), after) for line, after in itertools.pairwise(lines) if after and 2 * len(line) > longest]
    wrapped = sum(_is_wrapped(length, after, longest) for length, after in followed)
    return longest if wrapped >= 2 and 2 * wrapped >= len(followed) else 0


def _is_wrapped(length: int, following: str, width: int) -> bool:
    """Whether a line of `length` was ended because the first word of the following one had no room. Indented lines
    begin a paragraph."""
    if not width or following[0].isspace():
        return False
    return length + 1 + len(following.split(maxsplit=1)[0]) > width
