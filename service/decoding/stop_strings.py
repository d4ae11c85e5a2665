"""Detection of stop strings in the tokens of one hypothesis (`StopMatcher`), so that each beam hypothesis can stop.

`service.engine.detokenizer` cuts the text, and agrees: both use the characters that the tokens determine, including
U+FFFD for invalid bytes. A stop string is complete with the token that contributes its last byte.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from service.decoding.vocabulary import Vocabulary


class StopState(NamedTuple):
    """The text of a hypothesis, as far as the completion of a stop string depends on it."""

    tail: str = ""  # its end
    rest: bytes = b""  # of an incomplete character
    is_stopped: bool = False  # a stop string is complete
    has_text: bool = False  # some token had text


class StopMatcher:
    """The stop strings of one request. States are immutable values, so forking a hypothesis copies a reference."""

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str]) -> None:
        self._pieces, self._strips_leading_space = vocabulary.pieces, vocabulary.strips_leading_space
        self._stops = tuple(text for text in stop if text)
        self._kept = max(map(len, self._stops), default=1) - 1

    def next_state(self, state: StopState, token: int) -> StopState:
        """The state after `token`."""
        piece = self._pieces[token]
        if not piece or state.is_stopped:
            return state
        if self._strips_leading_space and not state.has_text:
            piece = piece.removeprefix(b" ")
        text, used = codecs.utf_8_decode(state.rest + piece, "replace", False)
        rest = (state.rest + piece)[used:]
        text = state.tail + text
        is_stopped = any(stop in text for stop in self._stops)
        return StopState(text[max(0, len(text) - self._kept) :], rest, is_stopped, True)
