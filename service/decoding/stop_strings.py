"""When is a stop string complete? Seen from the tokens of one hypothesis, so that beams can be stopped one by one.

It agrees with `service.engine.detokenizer`, which cuts the text: both look at the characters that the tokens so far
have made
certain, U+FFFD for bytes that are none included. A stop string is complete with the token that brings its last byte.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple


class StopState(NamedTuple):
    """The end of a hypothesis's text, long enough for a stop string to be completed, and whether one was.

    rest: the bytes of a character that is not complete yet. has_text: some token has written something.
    """

    tail: str = ""
    rest: bytes = b""
    is_stopped: bool = False
    has_text: bool = False


class StopMatcher:
    """The stop strings of one request. States are values: a hypothesis forks by copying a reference.

    pieces: the bytes of each token id, none for special tokens. strips_leading_space: the first word's
    leading space is not part of the text.
    """

    def __init__(self, pieces: Sequence[bytes], stop: Sequence[str], *, strips_leading_space: bool) -> None:
        self._pieces, self._drops_first_blank = pieces, strips_leading_space
        self._stops = tuple(text for text in stop if text)
        self._kept = max(map(len, self._stops), default=1) - 1

    def initial_state(self) -> StopState:
        return StopState()

    def next_state(self, state: StopState, token: int) -> StopState:
        piece = self._pieces[token]
        if not piece or state.is_stopped:
            return state
        if self._drops_first_blank and not state.has_text:
            piece = piece.removeprefix(b" ")
        text, used = codecs.utf_8_decode(state.rest + piece, "replace", False)
        rest = (state.rest + piece)[used:]
        text = state.tail + text
        is_stopped = any(stop in text for stop in self._stops)
        return StopState(text[max(0, len(text) - self._kept) :], rest, is_stopped, True)

    def is_stopped(self, state: StopState) -> bool:
        return state.is_stopped
