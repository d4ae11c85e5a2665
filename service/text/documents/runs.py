"""Text between tags as runs (`Run`) → segments (`sentences_of`), for HTML and XLIFF alike.

Sentences are found in the characters of all text runs together; a sentence begins and ends in text, so tags at its ends
are copied. A text between two tags is translated by itself, with the white space around it in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from service.text.segmentation import Splitter, sentences
from service.text.segments import Segment, Text, core_of, has_words
from service.text.spans import Span

_SPACE = re.compile(r"[ \t\n\r\f]+")
_LINE_BREAKS = dict.fromkeys(map(ord, "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), " ")


class Run(NamedTuple):
    """A part of the source: text with its characters, a translated attribute, or what stays as it is (neither).

    Characters are those of the source, or those of one entity.
    """

    start: int
    end: int
    text: str = ""
    attribute: Text | None = None

    @property
    def is_entity(self) -> bool:
        """Whether the characters are not those of the source."""
        return len(self.text) != self.end - self.start


def spaced(text: str) -> str:
    """A text with single spaces for line breaks and runs of spaces."""
    return _SPACE.sub(" ", text)


def sentences_of(source: str, runs: Sequence[Run], splitter: Splitter) -> Iterator[Segment]:
    """The sentences of a block, and the attributes of tags between them, in order."""
    if not any(run.text or run.attribute for run in runs):
        return
    visible = "".join(run.text for run in runs).translate(_LINE_BREAKS)
    number = place = 0  # the run that comes next, and where its characters begin
    for sentence in sentences(visible, splitter):
        start, end = core_of(visible, sentence)
        if not has_words(visible[start:end]):
            continue
        while place + len(runs[number].text) <= start:
            yield from _attribute(runs[number])
            place += len(runs[number].text)
            number += 1
        inside = list[Run]()
        while True:
            run = runs[number]
            inside.append(_within(run, start - place, end - place))
            if place + len(run.text) >= end:
                break
            place += len(run.text)
            number += 1
        yield Segment(Span(inside[0].start, inside[-1].end), parts_of(source, inside))
    for run in runs[number:]:
        yield from _attribute(run)


def _within(run: Run, start: int, end: int) -> Run:
    """The part of a run between two places in its characters; an entity is not cut."""
    if not run.text or run.is_entity:
        return run
    start, end = max(0, start), min(len(run.text), end)
    return Run(run.start + start, run.start + end, run.text[start:end])


def _attribute(run: Run) -> Iterator[Segment]:
    if run.attribute is not None:
        yield Segment(Span(run.start, run.end), (run.attribute,))


def escaped(text: str) -> str:
    """A text with the characters that markup reserves as entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def parts_of(source: str, runs: Sequence[Run], written: Callable[[str], str] = escaped) -> tuple[str | Text, ...]:
    """The parts of a segment: each text between two tags, without the white space at its ends, and all else as it
    is."""
    parts, texts = list[str | Text](), list[Run]()
    for run in runs:
        if run.text:
            texts.append(run)
            continue
        parts += _text(source, texts, written)
        texts = []
        parts.append(run.attribute or source[run.start : run.end])
    return tuple(filter(None, parts + _text(source, texts, written)))


def _text(source: str, runs: list[Run], written: Callable[[str], str]) -> list[str | Text]:
    """A text of adjacent runs, and the white space around it."""
    characters = "".join(run.text for run in runs)
    if not has_words(characters):
        return [source[runs[0].start : runs[-1].end]] if runs else []
    before = characters[: len(characters) - len(characters.lstrip())]
    after = characters[len(characters.rstrip()) :]
    return [written(before), Text(spaced(characters.strip()), written), written(after)]
