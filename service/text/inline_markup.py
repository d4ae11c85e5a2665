"""Marks inside a text: they are taken out before it is translated (`extract`), and put back into the translation
(`MarkedText.restored`).

A mark is a tag, a placeholder, a URL or a number (`mark_scanner`). The text without its marks (`MarkedText.plain`) is
what is translated. It reads as if the marks had never been there: where one is taken out between two blanks, after an
opening bracket, before a comma, or at an end of the text, one blank (U+0020) goes with it.

A pair of tags around some text is an `Element`. Everything else is a `Point`: a placeholder, an empty element, a
comment, and a pair of tags without text of its own, such as <b>{name}</b>, which stays in one piece.

Nothing here knows models or requests. A text of n characters takes time in O(n).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from service.text.mark_placement import Links, placed
from service.text.mark_rendering import rendered
from service.text.mark_scanner import BREAKS, VOID, Kinds, Mark, decoded, encoded, scan
from service.text.mark_tree import Element, Node, Point
from service.text.words import is_closing, is_opening, is_spaced

MAX_MARKS = 256  # per text: each takes up to 60 microseconds to place, in each hypothesis
MAX_DEPTH = 32  # of elements in each other
SHOWN = 40  # characters of a tag in an error


class MarkupError(ValueError):
    """The marks of a text cannot be read: what is wrong, where, and the fix."""


@dataclass(frozen=True)
class MarkedText:
    """A text and its marks. plain: without them. nodes: the marks outside all elements, in order. is_markup: it has
    tags and entities."""

    plain: str
    nodes: tuple[Node, ...]
    is_markup: bool

    def restored(self, translation: str, links: Links | None = None) -> str:
        """The translation of `plain` with every mark exactly once.

        links: which words belong together; None: marks are placed in proportion to the lengths. The marks of the result
        are nested as in the source. Taking them out again (`extract`) returns `translation`.
        """
        if not self.nodes:
            return encoded(translation) if self.is_markup else translation
        return rendered(translation, placed(self.nodes, self.plain, translation, links), is_markup=self.is_markup)


def extract(
    raw: str, kinds: Kinds, *, lenient: bool = False, max_marks: int = MAX_MARKS, max_depth: int = MAX_DEPTH
) -> MarkedText:
    """Takes the marks of `kinds` out of a raw text.

    lenient: for fragments, such as a sentence of a paragraph. An opening tag without its partner is an element up to
    the end, a closing one an element from the start, and one that contradicts the nesting stays where it is, as a
    point. Otherwise these raise MarkupError, as do too many marks and too deep ones.
    """
    marks: list[Mark] = []
    for mark in scan(raw, kinds):
        if len(marks) == max_marks:
            raise MarkupError(f"must have at most {max_marks} tags and other marks, got more; split it")
        marks.append(mark)
    marks, partners = _paired(raw, _without_void(marks), lenient=lenient, max_depth=max_depth)
    pieces = _merged(raw, marks, partners) if marks else [raw]
    if kinds.tags:
        pieces = [decoded(piece) if isinstance(piece, str) else piece for piece in pieces]
    text = _PlainText()
    for piece in pieces:
        text.add(piece)
    plain = text.finished()
    return MarkedText(plain, _tree(plain, text.marks), is_markup=kinds.tags)


@dataclass
class _Piece:
    """One mark, or a pair of tags without text, on its way into the tree. place: in the plain text."""

    kind: str  # as of Mark
    raw: str
    is_open: bool = False  # an element up to the end or from the start, in a fragment
    separates: bool = False  # words would run together without it
    place: int = 0
    is_glued_left: bool = False
    is_glued_right: bool = False
    is_joined: bool = False


def _without_void(marks: Sequence[Mark]) -> list[Mark]:
    """Marks with <br> and the like as empty elements, unless the text closes them."""
    closed = {mark.name for mark in marks if mark.kind == "closing"}
    return [
        mark._replace(kind="empty")
        if mark.kind == "opening" and mark.name.lower() in VOID and mark.name not in closed
        else mark
        for mark in marks
    ]


def _paired(raw: str, marks: list[Mark], *, lenient: bool, max_depth: int) -> tuple[list[Mark], dict[int, int]]:
    """Marks, and of each tag with a partner the partner's place among them, both ways."""
    partners: dict[int, int] = {}
    open_tags: list[int] = []
    for number, mark in enumerate(marks):
        if mark.kind == "opening":
            open_tags.append(number)
            if len(open_tags) > max_depth:
                problem = f"must have at most {max_depth} elements in each other, {_shown(raw, mark)} is one more"
                raise MarkupError(f"{problem}; flatten it")
        elif mark.kind == "closing":
            if open_tags and marks[open_tags[-1]].name == mark.name:
                partners[number] = open_tags.pop()
                partners[partners[number]] = number
            elif not lenient:
                opened = f" closes {_shown(raw, marks[open_tags[-1]])}" if open_tags else " has no opening tag"
                raise MarkupError(f"{_shown(raw, mark)}{opened}; write tags in pairs, nested in each other")
            elif open_tags:
                marks[number] = mark._replace(kind="point")
    if open_tags and not lenient:
        raise MarkupError(f"{_shown(raw, marks[open_tags[-1]])} is not closed; write tags in pairs, or as <x/>")
    return marks, partners


def _shown(raw: str, mark: Mark) -> str:
    tag = raw[mark.start : mark.end]
    return f"{tag if len(tag) <= SHOWN else tag[: SHOWN - 1] + '…'} at character {mark.start + 1}"


def _merged(raw: str, marks: Sequence[Mark], partners: dict[int, int]) -> list[str | _Piece]:
    """The texts between marks and the marks, in turn: text, mark, text, … Pairs without text are one mark."""
    pieces: list[str | _Piece] = []
    gaps = [raw[before.end : after.start] for before, after in itertools.pairwise(marks)]
    texts = [0]  # before each mark, how many gaps have text
    for gap in gaps:
        texts.append(texts[-1] + (not gap.isspace() and gap != ""))
    number = end = 0
    while number < len(marks):
        mark, last = marks[number], number
        if mark.kind == "opening" and number in partners and texts[partners[number]] == texts[number]:
            last = partners[number]
        pieces.append(raw[end : mark.start])
        end = marks[last].end
        inside = marks[number : last + 1]
        has_blank = any(gaps[place] for place in range(number, last))
        separates = has_blank or any(one.name.lower() in BREAKS for one in inside)
        kind = mark.kind if last == number and mark.kind in ("opening", "closing") else "point"
        is_open = kind != "point" and number not in partners
        pieces.append(_Piece(kind, raw[mark.start : end], is_open, separates and kind == "point"))
        number = last + 1
    pieces.append(raw[end:])
    return pieces


class _PlainText:
    """The text between marks, as it grows. A junction is the marks between two characters."""

    def __init__(self) -> None:
        self.characters: list[str] = []
        self.marks: list[_Piece] = []
        self._junction: list[_Piece] = []  # after the last character
        self._before = " "  # the raw character before it

    def add(self, piece: str | _Piece) -> None:
        """Appends a text or a mark."""
        if isinstance(piece, _Piece):
            piece.place = len(self.characters)
            self.marks.append(piece)
            self._junction.append(piece)
        elif piece:
            skipped = self._joined(piece[0])
            self.characters += piece[skipped:]
            self._before = piece[-1]

    def finished(self) -> str:
        """The whole text."""
        self._joined("")
        return "".join(self.characters)

    def _joined(self, after: str) -> bool:
        """Ends the junction before the character `after`, "" at the end, and returns whether this one goes with it."""
        marks, self._junction, text = self._junction, [], self.characters
        if not marks:
            return False
        before = text[-1] if text else ""
        points = [mark for mark in marks if mark.kind == "point"]
        opens, closes = bool(text) and is_opening(text, len(text)), bool(after) and is_closing(after)
        for point in points[1:]:
            point.is_joined = True
        if points:
            points[0].is_glued_left = not (self._before.isspace() or opens)
            points[-1].is_glued_right = not (not after or after.isspace() or closes)
        starts = not before or before.isspace() or (bool(points) and opens)
        ends = not after or after.isspace() or (bool(points) and closes)
        if after == " " and starts:
            return True
        if before == " " and ends:
            text.pop()
            for mark in marks:
                mark.place = len(text)
        elif before and after and is_spaced(before) and is_spaced(after) and any(mark.separates for mark in marks):
            text.append(" ")
        return False


def _tree(plain: str, marks: Sequence[_Piece]) -> tuple[Node, ...]:
    """The marks, those within an element as its children."""
    nodes: list[Node] = []  # of the innermost open element
    outer: list[tuple[_Piece, list[Node]]] = []

    def close(closing: str, end: int) -> None:
        nonlocal nodes
        opening, around = outer.pop()
        around.append(_element(plain, opening.raw, closing, opening.place, end, nodes))
        nodes = around

    for mark in marks:
        if mark.kind == "opening":
            outer.append((mark, nodes))
            nodes = []
        elif mark.kind == "closing" and mark.is_open:
            nodes = [_element(plain, "", mark.raw, 0, mark.place, nodes)]
        elif mark.kind == "closing":
            close(mark.raw, mark.place)
        else:
            nodes.append(Point(mark.raw, mark.place, mark.is_glued_left, mark.is_glued_right, mark.is_joined))
    while outer:
        close("", len(plain))
    return tuple(nodes)


def _element(plain: str, opening: str, closing: str, start: int, end: int, nodes: Sequence[Node]) -> Element:
    """An element, the blanks at its ends left outside."""
    text = plain[start:end]
    start += len(text) - len(text.lstrip())
    return Element(opening, closing, start, max(start, start + len(text.strip())), tuple(nodes))
