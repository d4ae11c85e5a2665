"""A text that is too long for a model → parts that fit (`parts_that_fit`), cut where a reader would pause.

A cut is at the end of a sentence, else of a clause, else after a comma, else between words, the one nearest to the
middle: parts of similar length lose the least context. A word is never cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from service.text.spans import Span

# What ends a part, kept with it, and the white space after it.
_CUTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"[.!?…][\"'»”’)\]]*(\s+)|[。！？]+(\s*)",
        r"[;:](\s+)|\s[–—-](\s+)|[；：](\s*)",
        r",(\s+)|[，、](\s*)",
        r"(\s+)",
    )
)
_MIDDLE = 4  # a cut leaves one in this many characters on each side, unless there is none but a lesser one
_NEAR = 4096  # characters from the middle that are searched, so that long texts take linear time


def parts_that_fit(text: str, fits: Callable[[str], bool]) -> list[Span] | None:
    """Parts of a text, in order, that each fit; between them is white space alone. None if a word is too long.

    fits: must be quick for a text that is far too long. text: without white space at its ends.
    """
    parts, todo = [], [Span(0, len(text))]
    while todo:
        part = todo.pop()
        if fits(text[part.start : part.end]):
            parts.append(part)
            continue
        gap = _gap(text, part)
        if gap is None:
            return None
        todo += [Span(gap.end, part.end), Span(part.start, gap.start)]
    return parts


def _gap(text: str, part: Span) -> Span | None:
    """The white space, perhaps none, at which a part is best cut in two; None if it is one word."""
    length = part.end - part.start
    middle, margin = part.start + length // 2, max(length // _MIDDLE, length // 2 - _NEAR)
    for cut in _CUTS:
        if gap := _nearest(cut, text, Span(part.start + margin, part.end - margin), middle):
            return gap
    return _nearest(_CUTS[-1], text, part, middle)


def _nearest(cut: re.Pattern[str], text: str, within: Span, middle: int) -> Span | None:
    """The cut nearest to the middle that leaves something on both sides."""
    best: Span | None = None
    for found in cut.finditer(text, within.start, within.end):
        gap = Span(*found.span(found.lastindex or 0))
        if within.start < gap.start and gap.end < within.end:
            if best is not None and abs(gap.start - middle) >= abs(best.start - middle):
                break  # they only move away from here on
            best = gap
    return best
