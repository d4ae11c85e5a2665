"""Places in a text: spans in code points, and counts of both code points and bytes that move on with it."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """The code points start .. end of a text, end excluded."""

    start: int
    end: int


class Range(NamedTuple):
    """A part of a text, in code points and in bytes of UTF-8, ends excluded."""

    start: int
    end: int
    start_byte: int
    end_byte: int


class Cursor:
    """How far a text has been read or written."""

    def __init__(self) -> None:
        self.position = self.byte = 0

    def move(self, text: str) -> Range:
        """The place of `text`, which comes next."""
        start, start_byte = self.position, self.byte
        self.position += len(text)
        self.byte += len(text) if text.isascii() else len(text.encode())
        return Range(start, self.position, start_byte, self.byte)
