"""Which characters of a text each of its tokens covers. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]


def whole_spans(spans: Sequence[Span], text: str) -> list[Span]:
    """The spans of the tokens of `text`, which omit only blanks and never decrease. (-1, -1): an unknown span."""
    limits, limit = list[int](), len(text)  # from the last span on: where the next known one starts
    for start, _ in reversed(spans):
        limits.append(limit)
        limit = start if start >= 0 else limit
    whole: list[Span] = []
    for (start, end), limit in zip(spans, reversed(limits), strict=True):
        before = whole[-1] if whole else (0, 0)
        start, end = max(start, before[0]), max(end, before[1])
        while end < limit and not text[end].isspace():  # merged with the character before it, or removed
            end += 1
        while start > before[1] and not text[start - 1].isspace():
            start -= 1
        whole.append((min(start, end), end))
    return whole
