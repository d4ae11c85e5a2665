"""Segments a text into the most likely pieces of a unigram model (Kudo 2018), exactly as SentencePiece (`Unigram`).

`tokenizers` finds the same pieces, except where two segmentations have nearly equal scores, such as in a run of one
letter: it adds scores in double precision, SentencePiece in single precision, and then the last bit decides. A model
was trained on one of the two results. Standard library only, and slower than the library.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

UNKNOWN_PENALTY = 10.0  # below the score of the worst piece


class Cut(NamedTuple):
    """A piece's id and its range in the text, [start, end)."""

    token: int
    start: int
    end: int


class Unigram:
    """The segmenter of a unigram model. Immutable after construction, so threads may share an instance.

    scores: of each piece, by its text. symbols: pieces that are never split. ids: of all pieces and symbols. unknown:
    the id of text that no piece covers. by_byte: the ids of the 256 bytes into which unknown text is split instead;
    empty: it is not split.
    """

    def __init__(
        self,
        scores: Mapping[str, float],
        symbols: Sequence[str],
        ids: Mapping[str, int],
        *,
        unknown: int,
        by_byte: Sequence[int] = (),
    ) -> None:
        self._unknown, self._bytes = unknown, tuple(by_byte)
        rounded = array("f", scores.values())
        self._unknown_score = _single(min(rounded, default=0.0) - UNKNOWN_PENALTY)
        # Every prefix of a piece, with the piece if the prefix is one: a dictionary costs less than a trie.
        self._begun: dict[str, tuple[float, int] | None] = {}
        for text in (*scores, *symbols):
            for end in range(1, len(text)):
                self._begun.setdefault(text[:end], None)
        self._begun |= {text: (score, ids[text]) for text, score in zip(scores, rounded, strict=True)}
        self._begun |= {text: (SYMBOL_SCORE, ids[text]) for text in symbols}

    def cut(self, text: str) -> list[Cut]:
        """The pieces from left to right. Consecutive unknown characters form one piece, or one piece per byte."""
        cuts: list[Cut] = []
        for cut in self._best(text):
            if cut.token != self._unknown:
                cuts.append(cut)
            elif self._bytes:
                data = text[cut.start : cut.end].encode("utf-8", "replace")
                cuts += [Cut(self._bytes[byte], cut.start, cut.end) for byte in data]
            elif cuts and cuts[-1].token == self._unknown:
                cuts[-1] = Cut(self._unknown, cuts[-1].start, cut.end)
            else:
                cuts.append(cut)
        return cuts

    def _best(self, text: str) -> list[Cut]:
        """The segmentation with the highest score (Viterbi 1967); ties go to the longest last piece."""
        size, begun = len(text), self._begun
        sums, one = array("f", bytes(4 * (size + 1))), array("f", [0.0])  # stored values are rounded to float32
        starts, tokens = [-1] * (size + 1), [self._unknown] * (size + 1)
        for start in range(size):
            here, has_one = sums[start], False
            for end in range(start + 1, size + 1):
                part = text[start:end]
                if part not in begun:
                    break
                found = begun[part]
                if found is None:
                    continue
                one[0] = here + found[0]
                if starts[end] < 0 or one[0] > sums[end]:
                    sums[end], starts[end], tokens[end] = one[0], start, found[1]
                has_one = has_one or end == start + 1
            end, one[0] = start + 1, here + self._unknown_score
            if not has_one and (starts[end] < 0 or one[0] > sums[end]):
                sums[end], starts[end], tokens[end] = one[0], start, self._unknown
        cuts = []
        while size > 0:
            cuts.append(Cut(tokens[size], starts[size], size))
            size = starts[size]
        return cuts[::-1]


SYMBOL_SCORE = -0.1  # SentencePiece's: better than any piece, whose scores are log-probabilities


def _single(value: float) -> float:
    """Rounds to single precision."""
    return array("f", [value])[0]


def unigram_of(
    model: Mapping[str, Any], ids: Mapping[str, int], added: Sequence[Mapping[str, Any]], unmatched: set[int]
) -> Unigram:
    """The segmenter of a tokenizer.json that was converted from SentencePiece. unmatched: ids that no text matches."""
    symbols = [item["content"] for item in added if not item["special"]]
    by_byte = [ids[f"<0x{byte:02X}>"] for byte in range(256)] if model["byte_fallback"] else []
    left_out = {*unmatched, *by_byte, *(ids[symbol] for symbol in symbols)}
    scores = {text: score for token, (text, score) in enumerate(model["vocab"]) if token not in left_out and text}
    return Unigram(scores, symbols, ids, unknown=model["unk_id"], by_byte=by_byte)
