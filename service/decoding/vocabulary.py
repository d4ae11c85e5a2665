"""The texts of a model's tokens (`Vocabulary`), for constraints that hold for any tokenization of a text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from model.tokenizer import Tokenizer

T = TypeVar("T")


class Vocabulary:
    """The texts of all tokens, with indices that are built on first use; one instance per model, shared by threads.

    pieces: the bytes of each id, empty for special tokens. eos_ids: the tokens that end an answer, at least one.
    strips_leading_space: the text of an answer excludes the space before its first word.
    """

    def __init__(self, pieces: Sequence[bytes], *, eos_ids: Sequence[int], strips_leading_space: bool) -> None:
        self.pieces, self.eos_ids, self.strips_leading_space = pieces, tuple(eos_ids), strips_leading_space
        self.longest = max(map(len, pieces))  # bytes
        self._derived: dict[Callable[[Vocabulary], Any], Any] = {}

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, eos_ids: Sequence[int]) -> Vocabulary:
        """The vocabulary of a tokenizer."""
        return cls(tokenizer.pieces, eos_ids=eos_ids, strips_leading_space=tokenizer.strips_leading_space)

    def __len__(self) -> int:
        return len(self.pieces)

    def derived(self, build: Callable[[Vocabulary], T]) -> T:
        """The result of `build(self)`, which is computed once per function and kept as long as the vocabulary."""
        if build not in self._derived:
            self._derived[build] = build(self)
        result: T = self._derived[build]
        return result

    def first(self, token: int) -> bytes:
        """The bytes of a token that is the first one with text."""
        return self.pieces[token].removeprefix(b" ") if self.strips_leading_space else self.pieces[token]

    def beginning_with(self, text: bytes) -> np.ndarray:
        """Ids of the pieces that begin with `text`: not empty, UTF-8 or a part of it."""
        ids, pieces = self._sorted
        successor = text[:-1] + bytes([text[-1] + 1])  # UTF-8 has no byte 0xFF
        return ids[bisect_left(pieces, text) : bisect_left(pieces, successor)]

    def containing(self, text: bytes) -> np.ndarray:
        """Ascending ids of the pieces that contain `text`: not empty, UTF-8."""
        whole, starts = self._joined
        found, at = [], whole.find(text)
        while at >= 0:
            found.append(at)
            at = whole.find(text, at + 1)
        return np.unique(np.searchsorted(starts, np.array(found, np.int64), side="right") - 1)

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, list[bytes]]:
        """All ids ordered by their pieces, and the pieces in that order."""
        ids = sorted(range(len(self.pieces)), key=self.pieces.__getitem__)
        return np.array(ids, np.int64), [self.pieces[token] for token in ids]

    @cached_property
    def _joined(self) -> tuple[bytes, np.ndarray]:
        """All pieces joined by a byte that no text has, and the position of each."""
        lengths = np.fromiter(map(len, self.pieces), np.int64, len(self.pieces))
        return b"\xff".join(self.pieces), np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
