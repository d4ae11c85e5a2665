"""Replaced parts of a text (`edited`), and spans of the text before as spans of the text after (`moved`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from service.text.words import Span


class Edit(NamedTuple):
    """text[start:end] is replaced by `text`. Edits do not overlap."""

    start: int
    end: int
    text: str

    @property
    def growth(self) -> int:
        """By how many characters the text grows."""
        return len(self.text) - (self.end - self.start)


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text after the edits."""
    parts, done = [], 0
    for edit in sorted(edits):
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:]])


def moved(spans: Iterable[Span], edits: Sequence[Edit]) -> list[Span]:
    """Spans after the edits. One that an edit touches covers what it was replaced by."""
    found = []
    for start, end in spans:
        before = sum(edit.growth for edit in edits if edit.end <= start)
        touched = [edit for edit in edits if edit.start < end and start < edit.end]
        if touched:
            start = min(start, *(edit.start for edit in touched), start)
            end = max(end, *(edit.end for edit in touched), end)
        found.append((start + before, end + before + sum(edit.growth for edit in touched)))
    return found
