"""Token ids → text as it becomes certain: whole UTF-8 characters, and nothing of a stop string, not even its start.

The pieces returned, concatenated, are the answer. Where the text is cut does not depend on how it was cut into tokens:
the answer ends where, read character by character, the first stop string is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Incremental(Protocol):
    """Ids → text, one by one: `model.tokenizer.IncrementalDecoder`."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


class Detokenizer:
    """The text of one answer. `is_stopped`: a stop string appeared, and nothing more will come."""

    def __init__(self, decoder: Incremental, stop: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stop = tuple(text for text in stop if text)
        self._held = ""  # may be the beginning of a stop string
        self.is_stopped = False

    def push(self, token: int) -> str:
        """The text that is certain now, often "". After a stop string always ""."""
        if self.is_stopped:
            return ""
        text = self._decoder.push(token)
        return self._release(text) if self._stop else text

    def flush(self) -> str:
        """The rest, at the end of the answer."""
        if self.is_stopped:
            return ""
        text = self._decoder.flush()
        if not self._stop:
            return text
        text = self._release(text)
        if not self.is_stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        self._held += text
        # (end, start) of each stop string's first appearance: the one complete first counts, of these the longest.
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            certain, self._held = self._held[: min(found)[1]], ""
            return certain
        keep = max(_overlap(self._held, stop) for stop in self._stop)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
