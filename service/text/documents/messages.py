"""Messages of ICU MessageFormat inside a text: `{count, plural, one {# file} other {# files}}` (`with_messages`).

Such an argument stays in its sentence as one mark; the text of each of its branches is translated by itself. Names,
selectors, simple arguments, `#` and what quotation marks protect stay as they are. A category of numbers that the
target's language has and the message lacks gets a branch like `other`, which ICU would select. A text that begins such
an argument and is no well-formed message is refused (`MessageError`). Source: ICU's MessageFormat and MessagePattern,
with apostrophes as by default there (one begins a quotation only before a brace).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from service.text.documents.plural_categories import CATEGORIES, OTHER, lacking
from service.text.documents.runs import Change, Run
from service.text.segments import DocumentError, Segment, Text
from service.text.spans import Span

MAX_ADDED = 200  # branches that a message gets: those in each other multiply
MAX_DEPTH = 8  # of arguments with branches in each other
_MARK = "\ufffc"  # stands for a tag
_SHOWN = 20  # characters before and after a fault in an error
_BEGINNING = re.compile(r"\{\s*+[\w.-]++\s*+,\s*+(?:plural|selectordinal|select)\b")
_ARGUMENT = re.compile(r"\{\s*+[\w.-]++\s*+,\s*+(plural|selectordinal|select)\s*+,\s*+(?:offset:\s*+\d++\s*+)?+")
_SELECTOR = re.compile(r"(?P<before>\s*+)(?P<name>=\d++|[\w.-]++)(?P<after>\s*+)\{")
_BRACE = re.compile("[{}]")
_SIMPLE = re.compile(r"\{[^{}']*+\}")
_QUOTATION = re.compile(r"'(?:[^']|'')*+'?+")
_ARGUMENT_END = re.compile(r"\s*+\}")
_OPENS = re.compile("'(?=[{}#|<]|$)")  # apostrophes that would begin a quotation; < of a tag's stand-in


class _Branch(NamedTuple):
    """A branch's text and the marks in it. selector: of an argument's branch."""

    start: int
    end: int
    marks: list[_Mark]
    selector: re.Match[str] | None = None

    @property
    def name(self) -> str:
        """What selects it."""
        return self.selector["name"] if self.selector else ""


@dataclass(frozen=True)
class _Mark:
    """What is no text in a message. character: that it stands for, if for one. branches: of an argument of a kind,
    such as plural."""

    start: int
    end: int
    character: str = ""
    kind: str = ""
    branches: list[_Branch] = field(default_factory=list)


class MessageError(DocumentError):
    """A text that begins an argument with branches is no well-formed message."""


def with_messages(
    source: str, runs: Sequence[Run], sentences: Callable[[list[Run]], Iterator[Segment]], language: str
) -> tuple[list[Run], Callable[[Segment], Segment]]:
    """Runs with each argument that has branches as one mark, and what writes the segments of these runs.

    source: that the runs are of. sentences: the segments of runs, for a branch. language: that it is translated to, by
    its code; empty if unknown. Raises MessageError.
    """
    text = Characters(runs)
    if not (begins := _BEGINNING.search(text.flat)):
        return list(runs), lambda segment: segment
    if any(run.is_entity and len(run.text) > 1 and _BRACE.search(run.text) for run in runs):
        raise MessageError(f"must have no part of the message {begins[0]!r} in a CDATA section; write it with entities")
    marks, end = _marks(text.flat, 0, 0, in_plural=False)
    assert end == len(text.flat), end
    message = _Message(source, text, sentences, language)
    return message.runs(_Branch(0, end, marks)), message.written


class Characters:
    """The characters of runs, and where they are."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        texts = [run.text if run.text else _MARK for run in runs]
        self._starts, place = list[int](), 0
        for text in texts:
            self._starts.append(place)
            place += len(text)
        self.flat = "".join(texts)

    def place(self, character: int) -> int:
        """Where a character is in the source."""
        number = self._number(character)
        run = self._runs[number]
        return run.start if not run.text or run.is_entity else run.start + character - self._starts[number]

    def _number(self, character: int) -> int:
        return bisect_right(self._starts, character) - 1

    def cut(self, start: int, end: int) -> list[Run]:
        """The runs of some characters. One that is a mark or an entity is not cut."""
        found = list[Run]()
        number = self._number(start)
        while start < end:
            run, begins = self._runs[number], self._starts[number]
            if not run.text or run.is_entity:
                found.append(run)
                start = begins + max(1, len(run.text))
            else:
                stop = min(end, begins + len(run.text))
                text = run.text[start - begins : stop - begins]
                found.append(Run(run.start + start - begins, run.start + stop - begins, text))
                start = stop
            number += 1
        return found


class _Message:
    def __init__(
        self, source: str, text: Characters, sentences: Callable[[list[Run]], Iterator[Segment]], language: str
    ) -> None:
        self._source, self._text, self._sentences, self._language = source, text, sentences, language
        self._is_doubled = "''" in text.flat
        self._added = 0

    def runs(self, branch: _Branch) -> list[Run]:
        """The runs of a branch."""
        found, place = list[Run](), branch.start
        for mark in branch.marks:
            found += self._text.cut(place, mark.start)
            inside = self._text.cut(mark.start, mark.end)
            changes = tuple(self._changes_of(mark))
            start, end, is_whole = inside[0].start, inside[-1].end, not mark.character
            found.append(Run(start, end, mark.character, changes, is_whole=is_whole))
            place = mark.end
        return found + self._text.cut(place, branch.end)

    def _changes_of(self, argument: _Mark) -> Iterator[Change]:
        """The translations of an argument's branches, and the branches that it lacks, each before the next category."""
        branches = {branch.name: branch for branch in argument.branches}
        lacks = lacking(argument.kind, self._language, branches) if OTHER in branches else []
        for branch in argument.branches:
            after = CATEGORIES.index(branch.name) if branch.name in CATEGORIES else 0
            while lacks and CATEGORIES.index(lacks[0]) < after:
                yield self._copy(lacks.pop(0), branch, branches[OTHER])
            yield from self._changes(branch)

    def _copy(self, category: str, before: _Branch, other: _Branch) -> Change:
        """A branch that is written as `other` is, before another one."""
        assert before.selector
        assert other.selector
        self._added += 1
        if self._added > MAX_ADDED:
            problem = f"must lack at most {MAX_ADDED} branches of the target's language in its message, got more"
            raise MessageError(f"{problem}; split it")
        place, end = before.selector.start("name"), self._text.place(other.end)
        parts, done = list[str | Text](), self._text.place(other.start)
        for span, some in self._changes(other):
            parts += [self._source[done : span.start], *some]
            done = span.end
        opening = f"{category}{other.selector['after']}{{"
        closing = f"{self._source[done:end]}}}{before.selector['before'] or ' '}"
        point = self._text.place(place)
        return Change(Span(point, point), tuple(filter(None, (opening, *parts, closing))))

    def _changes(self, branch: _Branch) -> Iterator[Change]:
        for segment in map(self.written, self._sentences(self.runs(branch))):
            parts = segment.parts if segment.joined is None else segment.pieces
            alone = (part if isinstance(part, str) else replace(part, is_attribute=True) for part in parts)
            yield Change(segment.span, tuple(alone))

    def written(self, segment: Segment) -> Segment:
        """A segment whose texts are written as those of a message."""
        parts, pieces = (
            tuple(self._written(part) if isinstance(part, Text) and not part.is_attribute else part for part in some)
            for some in (segment.parts, segment.pieces)
        )
        return replace(segment, parts=parts, pieces=pieces)

    def _written(self, text: Text) -> Text:
        write, is_doubled = text.written, self._is_doubled
        return replace(
            text, written=lambda answer: write(answer.replace("'", "''") if is_doubled else _OPENS.sub("''", answer))
        )


def _marks(flat: str, place: int, depth: int, *, in_plural: bool) -> tuple[list[_Mark], int]:
    """The marks of a message from a place on, and where it ends: before its closing brace. Raises MessageError."""
    found, begins, end = list[_Mark](), place, len(flat)
    stops = re.compile("['{}#]" if in_plural else "['{}]")
    while stop := stops.search(flat, place):
        start, following = stop.start(), flat[stop.end() : stop.end() + 1]
        place = stop.end()
        if stop[0] == "}" and depth:
            return found, start
        if stop[0] == "}":
            raise _malformed(flat, start)
        if stop[0] == "'" and following == "'":
            place += 1
            found.append(_Mark(start, place, "'"))
        elif stop[0] == "'" and (following in ("{", "}") or (in_plural and following == "#")):
            place = _end_of(_QUOTATION, flat, start, start)
            found.append(_Mark(start, place))
        elif stop[0] == "#":
            found.append(_Mark(start, place))
        elif stop[0] == "{":
            found.append(_argument(flat, start, depth, in_plural=in_plural))
            place = found[-1].end
    if depth:
        raise _malformed(flat, begins - 1)
    return found, end


def _argument(flat: str, start: int, depth: int, *, in_plural: bool) -> _Mark:
    found = _ARGUMENT.match(flat, start)
    if not found:
        return _Mark(start, _end_of(_SIMPLE, flat, start, start))
    if depth == MAX_DEPTH:
        raise MessageError(f"must be a message of ICU with at most {MAX_DEPTH} arguments in each other; split it")
    branches, place = list[_Branch](), found.end()
    while selector := _SELECTOR.match(flat, place):
        marks, end = _marks(flat, selector.end(), depth + 1, in_plural=in_plural or found[1] != "select")
        branches.append(_Branch(selector.end(), end, marks, selector))
        place = end + 1
    return _Mark(start, _end_of(_ARGUMENT_END, flat, place, start), kind=found[1], branches=branches)


def _end_of(pattern: re.Pattern[str], flat: str, place: int, begins: int) -> int:
    """Where a pattern ends. begins: what it is a part of, in an error."""
    if not (found := pattern.match(flat, place)):
        raise _malformed(flat, begins)
    return found.end()


def _malformed(flat: str, place: int) -> MessageError:
    shown = flat[max(0, place - _SHOWN) : place + _SHOWN].replace(_MARK, "…")
    return MessageError(f"must be a well-formed message of ICU, but its braces do not match near {shown!r}; mend it")
