"""A translation with its marks, as text (`rendered`): tags stand next to words, points with the blanks they need.

A blank is inserted only where `inline_markup.extract` takes it out again with the point: beside another blank, at an
end of the text, after an opening bracket, before a comma. Each case below follows from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from service.text.mark_scanner import encoded
from service.text.mark_tree import Placed, Point
from service.text.words import is_closing, is_opening, is_spaced, words


class _Event(NamedTuple):
    """A tag or a point at one border. is_around: the tag is of an element that has words."""

    kind: Literal["opening", "closing", "point"]
    raw: str
    border: int
    is_around: bool = False
    point: Point | None = None


def rendered(translation: str, placed: Sequence[Placed], *, is_markup: bool) -> str:
    """The translation with every mark. is_markup: its own characters are written as entities where they must be."""
    spans, written = words(translation), encoded if is_markup else str
    by_border: list[list[_Event]] = [[] for _ in range(len(spans) + 1)]
    for event in _events(placed):
        by_border[event.border].append(event)
    parts: list[str] = []
    for border, events in enumerate(by_border):
        start = spans[border - 1][1] if border else 0
        end = spans[border][0] if border < len(spans) else len(translation)
        gap = written(translation[start:end])
        parts += _Border(translation, start, end, gap, events).parts() if events else [gap]
        if border < len(spans):
            parts.append(written(translation[slice(*spans[border])]))
    return "".join(parts)


def _events(placed: Sequence[Placed]) -> Iterator[_Event]:
    for one in placed:
        if isinstance(one.node, Point):
            yield _Event("point", one.node.raw, one.start, point=one.node)
            continue
        inside = list(_events(one.nodes))
        if one.start == one.end and not any(event.point for event in inside):  # no word is left for it
            raw = "".join((one.node.opening, *(event.raw for event in inside), one.node.closing))
            yield _Event("point", raw, one.start, point=Point(raw, 0, is_glued_left=True, is_glued_right=True))
            continue
        yield _Event("opening", one.node.opening, one.start, one.start < one.end)
        yield from inside
        yield _Event("closing", one.node.closing, one.end, one.start < one.end)


@dataclass
class _Border:
    """The events between two words. start, end: of the white space there, which is `gap`."""

    translation: str
    start: int
    end: int
    gap: str
    events: list[_Event]

    def parts(self) -> list[str]:
        """The texts of the events, the gap and the inserted blanks."""
        place = self._gap_place()
        points = [number for number, event in enumerate(self.events) if event.point]
        blanks = self._blanks(points, place)
        parts: list[str] = []
        is_due = False  # a blank, after the closing tags that follow
        for number, event in enumerate([*self.events, None]):
            if number == place:
                parts.append(self.gap)
            if event is None:
                break
            if is_due and event.kind != "closing":
                parts.append(" ")
                is_due = False
            if event.point and number == points[0] and blanks[0]:
                self._insert_blank(parts, number)
            parts.append(event.raw)
            if event.point:
                is_due = blanks[points.index(number) + 1]
        return [*parts, " "] if is_due else parts

    def _insert_blank(self, parts: list[str], number: int) -> None:
        """Before the first point, outside the tags that open directly before it."""
        before = len(parts)
        while number and self.events[number - 1].kind == "opening":
            number, before = number - 1, before - 1
        parts.insert(before, " ")

    def _gap_place(self) -> int:
        """Before which event the gap stands: after the elements that end here and what is glued to their last word."""
        events = self.events
        if not self.start:
            return 0
        if self.end == len(self.translation):
            return len(events)
        closings = [number for number, event in enumerate(events) if event.kind == "closing" and event.is_around]
        place = closings[-1] + 1 if closings else 0
        while place < len(events) and (point := events[place].point) and point.is_glued_left:
            place += 1
        return place

    def _blanks(self, points: Sequence[int], place: int) -> list[bool]:
        """Whether a blank is inserted before each point, and after the last one."""
        if not points:
            return [False]
        found: list[Point] = [point for number in points if (point := self.events[number].point)]
        is_first, is_last = not self.start, self.end == len(self.translation)
        runs_on = not is_first and found[0].raw[:1] not in "<{" and is_spaced(self.translation[self.start - 1])
        goes_on = not is_last and found[-1].raw[-1:] not in ">}" and is_spaced(self.translation[self.end])
        blanks = [  # a number or a URL is never glued to a letter
            runs_on or not found[0].is_glued_left,
            *(not point.is_joined for point in found[1:]),
            goes_on or not found[-1].is_glued_right,
        ]
        if is_first and not (self.gap and is_last):
            blanks[0] = False
        if is_last:
            blanks[-1] = False
        opens = not is_first and is_opening(self.translation, self.start)
        closes = not is_last and is_closing(self.translation[self.end])
        if self.gap:
            in_front = sum(number < place for number in points)
            if in_front and opens:
                blanks[0] = True
            if in_front < len(points) and closes:
                blanks[-1] = True
            blanks[in_front] = False  # the gap is there
        elif not (is_first or is_last):
            blanks[0] &= closes and not opens
            blanks[-1] &= opens and not closes
            if not (closes or opens):
                blanks = [False] * len(blanks)
        return blanks
