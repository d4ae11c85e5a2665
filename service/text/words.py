"""The words of a text, between which marks may stand, and the character classes that decide about blanks.

A word is a run without white space; punctuation before and after it stands alone, and so does each character of a
script that is written without blanks. Combining characters stay with the one before. No border lies in a grapheme.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence

Span = tuple[int, int]
"""[start, end) in code points."""

_RUNS = re.compile(r"\S+")
# Kana, Bopomofo, Han and their extensions, Thai, Lao, Myanmar, Khmer
UNSPACED = (  # as part of a class of characters
    r"\u3040-\u30ff\u3100-\u312f\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_JOINERS = "\u200c\u200d"


def words(text: str) -> list[Span]:
    """The spans of a text's words, in order. They do not overlap, and contain all but white space."""
    found: list[Span] = []
    for run in _RUNS.finditer(text):
        if run[0].isalnum() and not _UNSPACED.search(run[0]):  # most of them
            found.append(run.span())
        else:
            found += _words_of_run(text, run.start(), run.end())
    return found


def is_opening(text: Sequence[str], end: int) -> bool:
    """Whether the character before `end` opens something: a bracket, or a quotation mark or ¿ that follows a blank."""
    category = _category(text[end - 1])
    if category in ("Pi", "Pf", "Po"):
        return end == 1 or text[end - 2].isspace() or _category(text[end - 2]) == "Ps"
    return category == "Ps"


def is_closing(character: str) -> bool:
    """Whether a character follows a word without a blank: a closing bracket, a quotation mark, a comma and the like."""
    return _category(character) in ("Pe", "Pi", "Pf", "Po")


def is_spaced(character: str) -> bool:
    """Whether a character belongs to a word that blanks separate from others."""
    return character.isalnum() and not _UNSPACED.match(character)


def is_punctuation(character: str) -> bool:
    """Whether a character is a word of its own at an end of another: a mark of punctuation."""
    return _category(character).startswith("P")


def _words_of_run(text: str, start: int, end: int) -> list[Span]:
    units = _units(text, start, end)
    first, last = 0, len(units)
    while first < last and is_punctuation(text[units[first][0]]):
        first += 1
    while last > first and is_punctuation(text[units[last - 1][0]]):
        last -= 1
    found, word = units[:first], units[first:first]
    for unit in units[first:last]:
        if _UNSPACED.match(text[unit[0]]):
            found += [*_joined(word), unit]
            word = []
        else:
            word = [*_joined(word), unit]
    return [*found, *_joined(word), *units[last:]]


def _joined(units: list[Span]) -> list[Span]:
    return [(units[0][0], units[-1][1])] if units else []


def _units(text: str, start: int, end: int) -> list[Span]:
    """Characters with what combines with them."""
    starts = [start]
    for place in range(start + 1, end):
        is_joined = text[place - 1] == "\u200d"
        if not is_joined and text[place] not in _JOINERS and not _category(text[place]).startswith("M"):
            starts.append(place)
    return list(zip(starts, [*starts[1:], end], strict=True))


@functools.lru_cache(4096)
def _category(character: str) -> str:
    return unicodedata.category(character)
