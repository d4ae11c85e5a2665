"""Text between tags as runs (`Run`) → segments (`sentences_of`), for every format with marks in its texts.

Sentences are found in the characters of all text runs together; a sentence begins and ends in text, so tags around it
are copied. One whose tags are nested is translated with them (`_with_tags`), and the texts inside of marks, such as
attributes, by themselves. Of any other one, each text between two tags is translated by itself, with the white space
around it in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from service.text.inline_markup import MAX_DEPTH
from service.text.mark_scanner import VOID, decoded
from service.text.segmentation import Splitter, sentences
from service.text.segments import Place, Segment, Text, core_of, has_words
from service.text.spans import Span

MAX_TAGS = 64  # of a sentence that is translated with them
MAX_TAGGED_BYTES = 4096  # of such a sentence, with what stands for its tags
_TAG = re.compile(r"<(/?)((?!\d)[\w:][^\s/>.]*)")  # without the classes of WebVTT
BREAK = re.compile(r' ?<br id="glossa-\d+"/> ?')  # stands for white space that is kept
_STAND_IN = re.compile(rf'<(?:(?:g|x) id="glossa-\d+"/?|/g)>|{BREAK.pattern}')
_OPEN, _CLOSE = "\ufdd0\ufdd1"  # noncharacters, between which the number of a value stands
_NUMBERED_VALUE = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_SPACE = re.compile(r"[ \t\n\r\f]+")
_LINE_BREAKS = dict.fromkeys(map(ord, "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), " ")


class Change(NamedTuple):
    """A span of the source inside of a mark, such as the value of a tag's attribute, and the parts of what it
    becomes."""

    span: Span
    parts: tuple[str | Text, ...]


class Run(NamedTuple):
    """A part of the source: text with its characters, or what stays as it is, such as a tag.

    Characters are those of the source, or those of one entity. changes: in what stays but for them, in order. is_open:
    of a tag that begins an element although it ends with a slash. is_whole: a mark that is not half of a pair: an
    element with its content, an end tag that ends nothing, or white space, which is also text.
    """

    start: int
    end: int
    text: str = ""
    changes: tuple[Change, ...] = ()
    is_open: bool = False
    is_whole: bool = False

    @property
    def is_entity(self) -> bool:
        """Whether the characters are not those of the source."""
        return len(self.text) != self.end - self.start


def spaced(text: str) -> str:
    """A text with single spaces for line breaks and runs of spaces."""
    return _SPACE.sub(" ", text)


def sentences_of(
    source: str, runs: Sequence[Run], splitter: Splitter, write: Callable[[str], str] | None = None
) -> Iterator[Segment]:
    """The sentences of a block, which is a paragraph, and the changes of marks between them, in order. write: the
    characters of a text as the format has them; None: as those of markup."""
    if not any(run.text or run.changes for run in runs):
        return
    visible, where = "".join(run.text for run in runs).translate(_LINE_BREAKS), Place.FIRST
    number = place = done = (
        0  # the run that comes next, where its characters begin, and the first that is in no segment
    )
    for sentence in sentences(visible, splitter):
        start, end = core_of(visible, sentence)
        if not has_words(visible[start:end]):
            continue
        while place + len(runs[number].text) <= start:
            place += len(runs[number].text)
            number += 1
        first, inside, begins = number, list[Run](), place == start
        while True:
            run = runs[number]
            inside.append(_within(run, start - place, end - place))
            if place + len(run.text) >= end:
                break
            place += len(run.text)
            number += 1
        before = runs[done:first]
        ends = place + len(runs[number].text) == end
        after = (runs[later] for later in range(number + 1, len(runs) if ends else 0))
        inside = _with_partners(source, before if begins else (), inside, after)
        for run in before:
            if run.end <= inside[0].start:
                yield from _changes(run)
        done = number + 1
        pieces, whole = parts_of(source, inside, write or escaped), _with_tags(source, inside, write)
        span = Span(inside[0].start, inside[-1].end)
        parts = (part for run in inside for change in run.changes for part in change.parts)
        values = tuple(part for part in parts if isinstance(part, Text))
        if whole is None:
            yield Segment(span, pieces, pieces, where)
        else:
            yield Segment(span, (whole, *values), pieces, where, _with_values if values else None)
        where = Place.LATER
    for run in runs[done:]:
        yield from _changes(run)


def _within(run: Run, start: int, end: int) -> Run:
    """The part of a run between two places in its characters; an entity is not cut."""
    if not run.text or run.is_entity or run.is_whole:
        return run
    start, end = max(0, start), min(len(run.text), end)
    return Run(run.start + start, run.start + end, run.text[start:end])


def _changes(run: Run) -> Iterator[Segment]:
    for span, parts in run.changes:
        yield Segment(span, parts)


def escaped(text: str) -> str:
    """A text with the characters that markup reserves as entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def parts_of(source: str, runs: Sequence[Run], written: Callable[[str], str] = escaped) -> tuple[str | Text, ...]:
    """The parts of a segment: each text between two tags, without the white space at its ends, and all else as it
    is."""
    parts, texts = list[str | Text](), list[Run]()
    for run in runs:
        if run.text and not run.is_whole:
            texts.append(run)
            continue
        parts += _text(source, texts, written)
        texts, place = [], run.start
        for change in run.changes:
            parts += [source[place : change.span.start], *change.parts]
            place = change.span.end
        parts.append(source[place : run.end])
    return tuple(filter(None, parts + _text(source, texts, written)))


def _text(source: str, runs: list[Run], written: Callable[[str], str]) -> list[str | Text]:
    """A text of adjacent runs, and the white space around it."""
    characters = "".join(run.text for run in runs)
    if not has_words(characters):
        return [source[runs[0].start : runs[-1].end]] if runs else []
    before = characters[: len(characters) - len(characters.lstrip())]
    after = characters[len(characters.rstrip()) :]
    return [written(before), Text(spaced(characters.strip()), written), written(after)]


def _tag(source: str, run: Run) -> tuple[str, str]:
    """The kind of a run without text, opening, closing or other, and the name of its tag."""
    found = None if run.text or run.is_whole else _TAG.match(source, run.start, run.end)
    if not found or (source[run.end - 2] == "/" and not run.is_open):
        return "other", ""
    name = found[2].lower()
    if found[1]:
        return "closing", name
    return ("other" if name in VOID else "opening"), name


def unpaired(source: str, runs: Iterable[Run]) -> tuple[list[str], list[str]]:
    """The names of closing tags without an opening one among some runs, and of opening ones without a closing one."""
    closed, opened = list[str](), list[str]()
    for run in runs:
        kind, name = _tag(source, run)
        if kind == "opening":
            opened.append(name)
        elif kind == "closing" and opened and opened[-1] == name:
            opened.pop()
        elif kind == "closing":
            closed.append(name)
    return closed, opened


def _with_partners(source: str, before: Sequence[Run], runs: list[Run], after: Iterable[Run]) -> list[Run]:
    """Some runs with the tags directly before and after them that are the partners of tags among them."""
    closed, opened = unpaired(source, runs)
    found, blanks = list(runs), list[Run]()
    for run in reversed(before):
        if closed and run.text.isspace():
            blanks.insert(0, run)
            continue
        if not closed or _tag(source, run) != ("opening", closed[0]):
            break
        closed.pop(0)
        found, blanks = [run, *blanks, *found], []
    blanks = []
    for run in after:
        if opened and run.text.isspace():
            blanks.append(run)
            continue
        if not opened or _tag(source, run) != ("closing", opened[-1]):
            break
        opened.pop()
        found += [*blanks, run]
        blanks = []
    return found


def _with_tags(source: str, runs: Sequence[Run], write: Callable[[str], str] | None) -> Text | None:
    """Some runs as one text with its tags; None if it has none, or too many, or if they are not nested.

    Markup that any parser accepts stands for them: `<g id="glossa-1">…</g>` for a pair, `<x id="glossa-2"/>` for any
    other run, `<br id="glossa-3"/>` for white space that is kept. A page has tags that are no XML, such as `<B>x</b>`,
    `<a href=?q=1>` or `<![endif]>`, and `written` copies their characters as they are, but for a stand-in for each
    text inside of a mark, which `_with_values` replaces.

    An element that goes on after the text is a pair up to its end, one that began before it a pair from its start; of
    both kinds in one text, the one's end could come behind the other's start.
    """
    if not 0 < sum(not run.text or run.is_whole for run in runs) <= MAX_TAGS:
        return None
    if any(run.changes for run in runs) and _OPEN in source[runs[0].start : runs[-1].end]:
        return None
    tags, values = _Tags(), 0
    for run in runs:
        raw, (kind, name) = source[run.start : run.end], _tag(source, run)
        if run.changes:
            raw, values = _with_stand_ins(source, run, values)
        if run.text and not run.is_whole:
            tags.parts.append(escaped(spaced(run.text)))
        elif kind == "opening":
            tags.open(name, raw)
        elif kind == "other":
            tags.parts.append(tags.stand_in("br" if run.text else "x", raw, "/"))
        elif not tags.close(name, raw):
            return None
    return tags.text(str if write is None else lambda markup: write(decoded(markup)))


class _Tags:
    """A text with stand-ins for its tags, as it grows. kept: what each stands for. closings: by the opening one's."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._kept: dict[str, str] = {}
        self._closings: dict[str, str] = {}
        self._opened: list[tuple[str, str]] = []  # names and stand-ins
        self._before: list[str] = []  # of elements that began before the text
        self._depth = 0  # the largest

    def stand_in(self, name: str, raw: str, end: str = "") -> str:
        """A new one."""
        made = f'<{name} id="glossa-{len(self._kept)}"{end}>'
        self._kept[made] = raw
        return made

    def open(self, name: str, raw: str) -> None:
        """Begins an element."""
        self.parts.append(self.stand_in("g", raw))
        self._opened.append((name, self.parts[-1]))
        self._depth = max(self._depth, len(self._opened))

    def close(self, name: str, raw: str) -> bool:
        """Ends an element; whether it is the innermost one, or began before the text."""
        if not self._opened:
            self._before.append(self.stand_in("g", ""))
            self._closings[self._before[-1]] = raw
        elif self._opened[-1][0] == name:
            self._closings[self._opened.pop()[1]] = raw
        else:
            return False
        self.parts.append("</g>")
        return True

    def text(self, write: Callable[[str], str]) -> Text | None:
        """The whole text; None if it is too long, or too deep, or has elements of both kinds that it has a part of.
        write: the markup between two tags as the format has it."""
        if (self._opened and self._before) or self._depth + len(self._before) > MAX_DEPTH:
            return None
        self._closings |= {made: "" for _, made in self._opened}
        text = "".join((*reversed(self._before), *self.parts, *("</g>" for _ in self._opened)))
        if len(text.encode()) > MAX_TAGGED_BYTES:
            return None
        return Text(text, partial(_restored, self._kept, self._closings, write), has_tags=True)


def _with_stand_ins(source: str, run: Run, number: int) -> tuple[str, int]:
    """A mark as it becomes, with a stand-in for each text inside, numbered from `number` on, and the next number."""
    made, place = "", run.start
    for span, parts in run.changes:
        made += source[place : span.start]
        for part in parts:
            made += part if isinstance(part, str) else f"{_OPEN}{number}{_CLOSE}"
            number += isinstance(part, Text)
        place = span.end
    return made + source[place : run.end], number


def _with_values(texts: Sequence[str]) -> str:
    """A translation with the translations of the texts inside of its marks, which follow it, in their places."""
    whole, *values = texts
    return _NUMBERED_VALUE.sub(lambda found: values[int(found[1])], whole)


def _restored(
    kept: Mapping[str, str], closings: Mapping[str, str], write: Callable[[str], str], translation: str
) -> str:
    """A translation with the characters of its source for what stands for them, each opening tag with its closing
    one."""
    opened, made, place = list[str](), list[str](), 0
    for found in _STAND_IN.finditer(translation):
        made.append(write(translation[place : found.start()]))
        place = found.end()
        if found[0] == "</g>":
            made.append(closings[opened.pop()])
            continue
        if found[0] in closings:
            opened.append(found[0])
        made.append(kept[found[0].strip(" ")])
    return "".join((*made, write(translation[place:])))
