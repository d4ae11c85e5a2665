"""A translation in the lines of its cues (`arranged`): where a cue ends, and where a line does.

A cue ends where the alignment of words has put its mark. Where that leaves a cue without a word, or with more than
MAX_STRETCH times its share of the characters, the cues get the shares that they have in the source. A line ends at the
border of words that is nearest to its share. A translation has no more lines than its source, and none is blank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from service.text.documents.runs import BREAK
from service.text.words import UNSPACED, is_closing, is_opening, words

MAX_STRETCH = 2.0
_LEAST = 12  # characters that a cue may have whatever its share is
_TAG = re.compile(r"<[^>]*>")
_WHITE_SPACE = re.compile(r"\s*[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]\s*")
_ARROW = re.compile("-+-(?=>|&gt;)")
_UNSPACED = re.compile(f"[{UNSPACED}]")


class Layout(NamedTuple):
    """Where a text is shown. cues: the lengths of the lines of each one, in characters; none: one line. newline: what
    ends a line. has_tags: translations are markup, with a stand-in between two cues."""

    cues: Sequence[Sequence[int]]
    newline: str
    has_tags: bool


class _Border(NamedTuple):
    """Where a line may end. place: in what is seen. start, end: of the blank there, or of nothing. is_inside: of an
    element."""

    place: int
    start: int
    end: int
    is_inside: bool


def arranged(layout: Layout, write: Callable[[str], str], translation: str) -> str:
    """A translation as the document has it. write: its characters, and its marks for their stand-ins."""
    text = _ARROW.sub("-", _WHITE_SPACE.sub(" ", translation))  # an arrow would begin a cue
    pieces, marks = [text], list[str]()
    if len(layout.cues) > 1:
        marks = sorted((mark.strip() for mark in BREAK.findall(text)), key=lambda mark: (len(mark), mark))
        pieces = [piece.strip() for piece in BREAK.split(text)]
        assert len(pieces) == len(layout.cues), "each mark is in the translation once"
        if not _is_balanced(pieces, [sum(lengths) for lengths in layout.cues]):
            pieces = _spread(pieces, [sum(lengths) for lengths in layout.cues])
    lines = [
        _cut(piece, lengths, layout.newline, has_tags=layout.has_tags)
        for piece, lengths in zip(pieces, layout.cues, strict=True)
    ]
    return write("".join(part for pair in zip(lines, [*marks, ""], strict=True) for part in pair))


def _is_balanced(pieces: Sequence[str], shares: Sequence[int]) -> bool:
    """Whether each piece has a word, and about its share of all characters."""
    lengths = [len(_TAG.sub("", piece)) for piece in pieces]
    total, most = sum(lengths), MAX_STRETCH / max(1, sum(shares))
    return all(0 < length <= max(_LEAST, most * share * total) for length, share in zip(lengths, shares, strict=True))


def _spread(pieces: Sequence[str], shares: Sequence[int]) -> list[str]:
    """The pieces of a translation, by the shares of its cues. The last ones are empty if it has too few words."""
    text = ""
    for piece in filter(None, pieces):
        is_unspaced = not text or (_UNSPACED.match(text[-1]) and _UNSPACED.match(piece))
        text += piece if is_unspaced else f" {piece}"
    borders = [border for border in _borders(text, has_tags=True) if not border.is_inside]
    found, start = list[str](), 0
    for border in _chosen(borders, shares, len(_TAG.sub("", text))):
        found.append(text[start : border.start])
        start = border.end
    return [*found, text[start:], *[""] * (len(shares) - len(found) - 1)]


def _cut(text: str, lengths: Sequence[int], newline: str, *, has_tags: bool) -> str:
    """A text in lines."""
    if len(lengths) < 2:
        return text
    made, start = "", 0
    size = len(_TAG.sub("", text) if has_tags else text)
    for border in _chosen(_borders(text, has_tags=has_tags), lengths, size):
        made += text[start : border.start] + newline
        start = border.end
    return made + text[start:]


def _chosen(borders: Sequence[_Border], shares: Sequence[int], size: int) -> list[_Border]:
    """The borders that are nearest to those of shares of a text of `size` characters, all of them different."""
    goals = [size * share / max(1, sum(shares)) for share in accumulate(shares[:-1])][: len(borders)]
    found, first = list[_Border](), 0
    for number, goal in enumerate(goals):
        end = len(borders) - (len(goals) - number) + 1  # each later one needs a border too
        best = min(range(first, end), key=lambda number: abs(borders[number].place - goal))
        found.append(borders[best])
        first = best + 1
    return found


def _borders(text: str, *, has_tags: bool) -> list[_Border]:
    """The borders of words, but for those at the ends of a text."""
    seen, places, depths, depth, place = list[str](), list[int](), list[int](), 0, 0
    for tag in [*(_TAG.finditer(text) if has_tags else ()), None]:
        end = tag.start() if tag else len(text)
        seen.append(text[place:end])
        places += range(place, end)
        depths += [depth] * (end - place)
        if tag:
            place = tag.end()
            depth += -1 if tag[0].startswith("</") else 0 if tag[0].endswith("/>") else 1
    shown, found = "".join(seen), list[_Border]()
    for start, _ in words(shown)[1:]:
        is_unspaced = _UNSPACED.match(shown[start]) or _UNSPACED.match(shown[start - 1])
        if shown[start - 1].isspace():
            found.append(_Border(start - 1, places[start - 1], places[start - 1] + 1, depths[start - 1] > 0))
        elif is_unspaced and not is_closing(shown[start]) and not is_opening(shown, start):
            found.append(_Border(start, places[start], places[start], depths[start] > 0))
    return found
