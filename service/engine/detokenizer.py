"""Detokenization of a growing answer: whole UTF-8 characters, and no part of a stop string, not even its beginning.

The pieces returned, concatenated, are the answer. It ends where, character by character, the first stop string is
complete, however the text is split into tokens. Which tokens are generated is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.tokenizer import IncrementalDecoder


class Detokenizer:
    """The text of one answer. trims: blanks at both of its ends are left out. is_stopped: a stop string appeared; no
    more text follows."""

    def __init__(self, decoder: IncrementalDecoder, stop: Sequence[str] = (), *, trims: bool = False) -> None:
        self._decoder, self._trims = decoder, trims
        self._blanks, self._has_text = "", False  # blanks that are held back, and whether a text was before them
        self._stop = tuple(text for text in stop if text)
        self._held = ""  # text that may begin a stop string
        self.is_stopped = False

    def push(self, token: int) -> str:
        """Appends a token; returns the text that is certain now, often "". After a stop string always ""."""
        if self.is_stopped:
            return ""
        text = self._decoder.push(token)
        if self._stop:
            text = self._release(text)
        return self._trimmed(text) if self._trims else text

    def flush(self) -> str:
        """Returns the rest, at the end of the answer."""
        if self.is_stopped:
            return ""
        text = self._decoder.flush()
        if self._stop:
            text = self._release(text)
            text, self._held = text + self._held, ""
        return self._trimmed(text) if self._trims else text

    def _trimmed(self, text: str) -> str:
        text = self._blanks + text
        if not self._has_text:
            text = text.lstrip()
        certain = text.rstrip()
        self._blanks, self._has_text = text[len(certain) :], self._has_text or bool(certain)
        return certain

    def _release(self, text: str) -> str:
        self._held += text
        # (end, start) of the first occurrence of each stop string: the first complete one counts, of these the longest.
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            certain, self._held = self._held[: min(found)[1]], ""
        else:
            end = len(self._held) - max(_overlap(self._held, stop) for stop in self._stop)
            certain, self._held = self._held[:end], self._held[end:]
        return certain


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
