"""Messages of ICU MessageFormat inside a text: `{count, plural, one {# file} other {# files}}` (`with_messages`).

Such an argument stays in its sentence as one mark; the text of each of its branches is translated by itself. Names,
selectors, simple arguments, `#` and what quotation marks protect stay as they are. A text that is no well-formed
message is a text like any other. Source: ICU's MessageFormat and MessagePattern, with apostrophes as by default there
(one begins a quotation only before a brace).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from service.text.documents.runs import Change, Run
from service.text.segments import Segment, Text

MAX_DEPTH = 8  # of arguments with branches in each other
_MARK = "\ufffc"  # stands for a tag
_ARGUMENT = re.compile(r"\{\s*+[\w.-]++\s*+,\s*+(plural|selectordinal|select)\s*+,\s*+(?:offset:\s*+\d++\s*+)?+")
_SELECTOR = re.compile(r"\s*+(?:=\d++|[\w.-]++)\s*+\{")
_SIMPLE = re.compile(r"\{[^{}']*+\}")
_QUOTATION = re.compile(r"'(?:[^']|'')*+'?+")
_ARGUMENT_END = re.compile(r"\s*+\}")
_OPENS = re.compile("'(?=[{}#|<]|$)")  # apostrophes that would begin a quotation; < of a tag's stand-in


class _Branch(NamedTuple):
    """A branch's text and the marks in it."""

    start: int
    end: int
    marks: list[_Mark]


@dataclass(frozen=True)
class _Mark:
    """What is no text in a message. character: that it stands for, if for one. branches: of an argument."""

    start: int
    end: int
    character: str = ""
    branches: list[_Branch] = field(default_factory=list)


class _NoMessage(ValueError):
    """A text is no message."""


def with_messages(
    runs: Sequence[Run], sentences: Callable[[list[Run]], Iterator[Segment]]
) -> tuple[list[Run], Callable[[Segment], Segment]]:
    """Runs with each argument that has branches as one mark, and what writes the segments of these runs.

    sentences: the segments of runs, for a branch.
    """
    text = _Characters(runs)
    if not _ARGUMENT.search(text.flat):
        return list(runs), lambda segment: segment
    try:
        marks, end = _marks(text.flat, 0, 0, in_plural=False)
    except _NoMessage:
        return list(runs), lambda segment: segment
    assert end == len(text.flat), "a closing brace outside of arguments is text"
    message = _Message(text, sentences, is_doubled="''" in text.flat)
    return message.runs(_Branch(0, end, marks)), message.written


class _Characters:
    """The characters of runs, and where they are."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        texts = [run.text if run.text else _MARK for run in runs]
        self._starts, place = list[int](), 0
        for text in texts:
            self._starts.append(place)
            place += len(text)
        self.flat = "".join(texts)

    def cut(self, start: int, end: int) -> list[Run]:
        """The runs of some characters. One that is a mark or an entity is not cut."""
        found = list[Run]()
        number = bisect_right(self._starts, start) - 1
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
    def __init__(self, text: _Characters, sentences: Callable[[list[Run]], Iterator[Segment]], *, is_doubled: bool):
        self._text, self._sentences, self._is_doubled = text, sentences, is_doubled

    def runs(self, branch: _Branch) -> list[Run]:
        """The runs of a branch."""
        found, place = list[Run](), branch.start
        for mark in branch.marks:
            found += self._text.cut(place, mark.start)
            inside = self._text.cut(mark.start, mark.end)
            changes = tuple(change for one in mark.branches for change in self._changes(one))
            start, end, is_whole = inside[0].start, inside[-1].end, not mark.character
            found.append(Run(start, end, mark.character, changes, is_whole=is_whole))
            place = mark.end
        return found + self._text.cut(place, branch.end)

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
    """The marks of a message from a place on, and where it ends: before its closing brace. Raises _NoMessage."""
    found, end = list[_Mark](), len(flat)
    stops = re.compile("['{}#]" if in_plural else "['{}]")
    while stop := stops.search(flat, place):
        start, following = stop.start(), flat[stop.end() : stop.end() + 1]
        place = stop.end()
        if stop[0] == "}" and depth:
            return found, start
        if stop[0] == "'" and following == "'":
            place += 1
            found.append(_Mark(start, place, "'"))
        elif stop[0] == "'" and (following in ("{", "}") or (in_plural and following == "#")):
            place = _end_of(_QUOTATION, flat, start)
            found.append(_Mark(start, place))
        elif stop[0] == "#":
            found.append(_Mark(start, place))
        elif stop[0] == "{":
            found.append(_argument(flat, start, depth, in_plural=in_plural))
            place = found[-1].end
    if depth:
        raise _NoMessage
    return found, end


def _argument(flat: str, start: int, depth: int, *, in_plural: bool) -> _Mark:
    found = _ARGUMENT.match(flat, start)
    if not found:
        return _Mark(start, _end_of(_SIMPLE, flat, start))
    if depth == MAX_DEPTH:
        raise _NoMessage
    branches, place = list[_Branch](), found.end()
    while selector := _SELECTOR.match(flat, place):
        marks, end = _marks(flat, selector.end(), depth + 1, in_plural=in_plural or found[1] != "select")
        branches.append(_Branch(selector.end(), end, marks))
        place = end + 1
    return _Mark(start, _end_of(_ARGUMENT_END, flat, place), branches=branches)


def _end_of(pattern: re.Pattern[str], flat: str, place: int) -> int:
    if not (found := pattern.match(flat, place)):
        raise _NoMessage
    return found.end()
