"""A text that is to be translated sentence by sentence, and answered as one (`split`): split as a plain-text document
is, marks inside it aside.

What stands between two sentences is copied: white space, what has no letters, and the marks there. A text with one
sentence and nothing else is not split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from service.text.cuts import parts_that_fit
from service.text.documents import plain
from service.text.edits import Edit
from service.text.mark_scanner import BREAKS, Kinds, characters, scan
from service.text.segmentation import WINDOW, Splitter
from service.text.spans import Span

# A character that may end a sentence or a line. Without one before its last character a text is one sentence: to split
# it takes 30 microseconds, a hundredth of a short translation.
_MAY_END = re.compile(r"[^\w ,'’-]")
_BREAK = re.compile(r"[ \t]*(?:\r\n|\n|\r)[ \t]*")
NO_MARKS = Kinds()
_MARK = "_"  # stands for each character of a placeholder, URL or number: part of a word, and no letter


class Sentence(NamedTuple):
    """A sentence of a text. before: what stands before it and after the one before; plain_before: without marks.
    original: the sentence as the text has it; text: as the model reads it, without line breaks if it has no marks."""

    before: str
    plain_before: str
    original: str
    text: str

    @property
    def edits(self) -> list[Edit]:
        """What makes `text` the original."""
        found, shift = list[Edit](), 0
        if self.text != self.original:
            for gap in _BREAK.finditer(self.original):
                place = gap.start() - shift
                found.append(Edit(place, place + 1, gap[0]))
                shift += len(gap[0]) - 1
        return found


class SplitText(NamedTuple):
    """A text as its sentences, and what stands after the last one, also without marks."""

    sentences: list[Sentence]
    after: str
    plain_after: str


def unsplit(text: str) -> SplitText:
    """A text as one sentence."""
    return SplitText([Sentence("", "", text, text)], "", "")


def may_have_several(text: str) -> bool:
    """Whether a text may have more than one sentence. Quick, for a short one."""
    return len(text) > WINDOW or _MAY_END.search(text, 0, len(text.rstrip()) - 1) is not None


def split(
    text: str, splitter: Splitter, kinds: Kinds = NO_MARKS, fits: Callable[[str], bool] = lambda _: True
) -> SplitText | None:
    """The sentences of a text that have letters, if there are several, or something else beside one; otherwise None.

    kinds: of marks, which are in no sentence's way. fits: whether a sentence is short enough for the model; one that is
    not is cut into parts, each of which counts as a sentence, unless it has a word that is too long.
    """
    if not may_have_several(text):
        return None
    seen = _Visible(text, kinds)
    found, has_others = list[Span](), False
    for segment in plain.segments(seen.text, splitter):
        start, end = segment.span
        if not segment.is_copied:
            found.append(segment.span)
        elif not seen.text[start:end].isspace():
            has_others = True
    if len(found) + has_others < 2 or not found:
        return None
    sentences, done = list[Sentence](), 0
    for span in found if any(kinds) else _cut(text, found, fits):
        original = seen.raw(span)
        flat = original if any(kinds) else _BREAK.sub(" ", original)
        sentences.append(Sentence(*seen.between(done, span.start), original, flat))
        done = span.end
    return SplitText(sentences, *seen.between(done, len(seen.text)))


def _cut(text: str, spans: list[Span], fits: Callable[[str], bool]) -> Iterator[Span]:
    for start, end in spans:
        sentence = text[start:end]
        parts = None if fits(sentence) else parts_that_fit(sentence, fits)
        yield from [Span(start + one.start, start + one.end) for one in parts or [Span(0, end - start)]]


class _Visible:
    """What a reader sees of a text, and where each character of that is in it: without tags, entities as characters,
    and in the place of other marks characters that end no sentence."""

    def __init__(self, raw: str, kinds: Kinds) -> None:
        self._raw, self.text = raw, raw
        self._places: list[Span] | None = None
        self._are_marks: list[bool] = []
        if not any(kinds):
            return
        seen, self._places, done = list[str](), [], 0
        for mark in scan(raw, kinds):
            self._add(seen, done, mark.start, has_entities=kinds.tags)
            done = mark.end
            if raw[mark.start] != "<" or not kinds.tags:
                self._add_mark(seen, _MARK * (mark.end - mark.start), mark.start)
            elif mark.name.lower() in BREAKS:
                self._add_mark(seen, " ", mark.start)
        self._add(seen, done, len(raw), has_entities=kinds.tags)
        self.text = "".join(seen)

    def _add(self, seen: list[str], start: int, end: int, *, has_entities: bool) -> None:
        assert self._places is not None
        for character, span in characters(self._raw, Span(start, end), has_entities=has_entities):
            seen.append(character)
            self._places += [span] * len(character)
            self._are_marks += [False] * len(character)

    def _add_mark(self, seen: list[str], shown: str, start: int) -> None:
        assert self._places is not None
        seen.append(shown)
        self._places += [Span(start + index, start + index + 1) for index in range(len(shown))]
        self._are_marks += [True] * len(shown)

    def raw(self, span: Span) -> str:
        """The text that is seen in a span, at least one character, with the marks inside it."""
        if self._places is None:
            return self._raw[span.start : span.end]
        return self._raw[self._places[span.start].start : self._places[span.end - 1].end]

    def between(self, start: int, end: int) -> tuple[str, str]:
        """The text between two sentences, or at an end: with the marks there, and without."""
        if self._places is None:
            return self._raw[start:end], self._raw[start:end]
        first = self._places[start - 1].end if start else 0
        last = self._places[end].start if end < len(self._places) else len(self._raw)
        seen = zip(self.text[start:end], self._are_marks[start:end], strict=True)
        return self._raw[first:last], "".join(character for character, is_mark in seen if not is_mark)
