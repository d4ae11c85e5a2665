"""A document as a sequence of segments (`Segment`): texts to translate, and what is copied around them.

Documents of each format yield segments, in order, whose spans tile the source. What a segment becomes is its parts:
texts as they are, and translations. Nothing here knows a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from service.text.spans import Span

_TAGS = re.compile(r"<(?:[^\"'>]++|\"[^\"]*+\"|'[^']*+')*+>")
COPIED_CHARACTERS = 1 << 14  # of a copied segment, at most: a message has room for several


class DocumentError(ValueError):
    """A document cannot be read: what is wrong with it, and the fix."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text to translate, as the model reads it; or, if `has_tags`, markup with inline tags, whose translation has the
    same tags. written: a translation as the document has it. is_attribute: the value of a tag's attribute, which is in
    no paragraph."""

    text: str
    written: Callable[[str], str] = str
    has_tags: bool = False
    is_attribute: bool = False

    @property
    def plain(self) -> str:
        """The text without tags, as the model reads it."""
        return _TAGS.sub("", self.text) if self.has_tags else self.text


class Place(Enum):
    """Where a segment is in its paragraph. ALONE: in none, as the attribute of a tag."""

    ALONE = "alone"
    FIRST = "first"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a document. span: of the source. parts: of its translation; a copied segment has the source alone.

    pieces: the same parts with each text between two tags by itself, for a text with tags that is too long. joined:
    puts the translated parts together where some are inside another one, as attributes are in a text with tags; None:
    they follow each other. problem: why it cannot be read, and the fix: it fails, and its source stays.
    """

    span: Span
    parts: tuple[str | Text, ...]
    pieces: tuple[str | Text, ...] = ()
    place: Place = Place.ALONE
    joined: Callable[[Sequence[str]], str] | None = None
    problem: str = ""

    @property
    def is_copied(self) -> bool:
        """Whether it has nothing to translate."""
        return not self.problem and not any(isinstance(part, Text) for part in self.parts)


def copied(source: str, start: int, end: int) -> Iterator[Segment]:
    """The text from start to end, unchanged, in segments of at most COPIED_CHARACTERS."""
    for place in range(start, end, COPIED_CHARACTERS):
        span = Span(place, min(end, place + COPIED_CHARACTERS))
        yield Segment(span, (source[span.start : span.end],))


def has_words(text: str) -> bool:
    """Whether a text has a letter: numbers and rulers are copied."""
    return any(map(str.isalpha, text))


def core_of(text: str, span: Span) -> Span:
    """A span without the white space at its ends; an empty one where it has nothing else."""
    inner = text[span.start : span.end]
    start = span.start + len(inner) - len(inner.lstrip())
    return Span(start, max(start, span.end - (len(inner) - len(inner.rstrip()))))
