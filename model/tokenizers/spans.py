"""Which characters of a text each of its tokens covers, and where words begin. Standard library only."""

from __future__ import annotations

import unicodedata
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


def word_starts(text: str, spans: Sequence[Span], marked: Sequence[bool]) -> list[bool]:
    """For each token of `text` whether a word begins with it (`Tokenizer.word_starts`). marked: tokens that begin with
    the mark of a blank."""
    starts, last = list[bool](), 0
    for index, ((start, end), is_marked) in enumerate(zip(spans, marked, strict=True)):
        first = end - len(text[start:end].lstrip())
        is_new = first < end and first >= last  # not a blank, nor another byte of a character
        inside = first > 0 and is_new and _is_of_word(text[first - 1]) and _is_of_word(text[first])
        begins = is_new and (is_marked or not inside)
        if begins and index and first == start == spans[index - 1][1] and not text[slice(*spans[index - 1])].strip():
            starts[-1], begins = spans[index - 1][0] < start, spans[index - 1][0] == start
        starts.append(begins)
        last = end if first < end else last
    return starts


def _is_of_word(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LNM"
