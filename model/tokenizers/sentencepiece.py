"""Segments texts exactly as SentencePiece: `Normalizer` replaces characters and marks spaces, `Unigram` finds the most
likely pieces. Standard library only, because the service uses both.

The replacements are the "precompiled charsmap" of a SentencePiece model: a trie of character sequences. From left to
right, the longest sequence that begins at a position is replaced (Kudo & Richardson 2018, section 3.3). The
`Precompiled` normalizer of Hugging Face `tokenizers` works on user-perceived characters instead and finds other
replacements where a letter has several marks.

The pieces are those of a unigram model (Kudo 2018). `tokenizers` finds the same, except where two segmentations have
nearly equal scores, such as in a run of one letter: it adds scores in double precision, SentencePiece in single
precision, and then the last bit decides. A model was trained on one of the two results.
"""

from __future__ import annotations

import base64
import functools
import math
import re
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

BLANK = "▁"  # stands for a blank
REMOVABLE = " "
SETTINGS = "sentencepiece"  # the settings of `Normalizer`, in the normalizer of a tokenizer.json
KEPT_STEPS = 100_000  # cached transitions by a character: enough for all common scripts; clients may send more
KEPT_WORDS, KEPT_CHARACTERS = 10_000, 32  # cached words, of so many characters at most
MARGIN, LARGEST_SUM = 1.0, 1 << 18
"""Single precision rounds a sum below LARGEST_SUM by at most 1/128: the sums of two segmentations of a cached word, of
at most 32 pieces each, by half of MARGIN together. One that is worse by more is never found."""

UNKNOWN_PENALTY = 10.0  # below the score of the worst piece
SYMBOL_SCORE = -0.1  # SentencePiece's: better than any piece, whose scores are log-probabilities

Span = tuple[int, int]

_NOTHING = -math.inf, 0, 0
_WORD = re.compile(f"{BLANK}[^{BLANK}]*|[^{BLANK}]+")


class Normalizer:
    """Normalises text for the segmentation of a SentencePiece model. Caches lookups; threads may share an instance.

    charsmap: as stored in the model; b"": no replacements. add_dummy_prefix: adds a blank before every text.
    remove_extra_whitespaces: keeps one of several consecutive blanks, and none at either end. symbols: texts that are
    never changed. Raises ValueError for an invalid charsmap.
    """

    def __init__(
        self, *, charsmap: bytes, add_dummy_prefix: bool, remove_extra_whitespaces: bool, symbols: Sequence[str] = ()
    ) -> None:
        self._trie = _Trie(charsmap) if charsmap else None
        self._adds_blank, self._removes = add_dummy_prefix, remove_extra_whitespaces
        self._symbols: dict[str, list[str]] = {}  # by their first characters, longest first
        for symbol in sorted(symbols, key=len, reverse=True):
            self._symbols.setdefault(symbol[0], []).append(symbol)
        self._alone: dict[str, str | None] = {}  # by a character and the next one; see `_look_up`

    def __call__(self, text: str) -> str:
        known, pairs = self._alone, [text[at : at + 2] for at in range(len(text))]
        parts = [known[pair] if pair in known else self._look_up(pair) for pair in pairs]
        if not text or None in parts:
            return self.traced(text)[0]
        result = "".join(parts)  # type: ignore[arg-type]
        if self._removes:
            while "  " in result:
                result = result.replace("  ", " ")
            result = result.lstrip(REMOVABLE)
        result = (BLANK * self._adds_blank + result).replace(" ", BLANK)
        return result.rstrip(BLANK) if self._removes else result

    def _look_up(self, pair: str) -> str | None:
        """The replacement of a character before another one, or at the end, if it does not depend on what follows these
        two and has no blanks side by side."""
        part = None if pair[0] in self._symbols else pair[0]
        if part and self._trie and (found := self._trie.step(0, part)):
            node, replacement = found
            part = part if replacement is None else replacement
            if "  " in part or (len(pair) > 1 and self._trie.step(node, pair[1])):
                part = None
        if len(self._alone) < KEPT_STEPS:
            self._alone[pair] = part
        return part

    def traced(self, text: str) -> tuple[str, list[Span]]:
        """The normalised text and, for each of its characters, the characters [start, end) of the original text that it
        comes from: an empty range for an added blank."""
        parts, spans = list[str](), list[Span]()
        position = self._leading(text) if self._removes else 0
        if position == len(text):
            return "", []
        if self._adds_blank:
            parts.append(BLANK)
            spans.append((position, position))
        after_blank = self._removes
        while position < len(text):
            part, used = self._next(text, position)
            if after_blank:
                part = part.lstrip(REMOVABLE)
            if part:
                after_blank = self._removes and part.endswith(REMOVABLE)
                parts.append(part)
                spans += [(position, position + used)] * len(part)
            position += used
        result = "".join(parts).replace(" ", BLANK)
        if self._removes:
            result = result.rstrip(BLANK)
            del spans[len(result) :]
        return result, spans

    def _leading(self, text: str) -> int:
        """The number of leading blanks, in characters."""
        position = 0
        while position < len(text):
            part, used = self._next(text, position)
            if part != REMOVABLE:
                break
            position += used
        return position

    def _next(self, text: str, position: int) -> tuple[str, int]:
        """The replacement of the characters at a position, and the number of characters replaced."""
        for symbol in self._symbols.get(text[position], ()):
            if text.startswith(symbol, position):
                return symbol, len(symbol)
        found = self._trie.longest(text, position) if self._trie else None
        return found or (text[position], 1)


class _Trie:
    """A double array (Aoe 1989) over UTF-8 bytes, as darts-clone writes it, and the texts that its values refer to."""

    def __init__(self, charsmap: bytes) -> None:
        if len(charsmap) < 4:
            raise ValueError(f"charsmap: must begin with a size, got {len(charsmap)} bytes")
        (size,) = struct.unpack_from("<I", charsmap)
        if size % 4 or not 4 <= size <= len(charsmap) - 4:
            raise ValueError(f"charsmap: the size of its trie is {size}, of {len(charsmap)} bytes")
        self._units = array("I", charsmap[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._texts = charsmap[4 + size :]
        self._steps: dict[tuple[int, str], tuple[int, str | None] | None] = {}

    def longest(self, text: str, position: int) -> tuple[str, int] | None:
        """The replacement of the longest sequence that begins at a position, and the length of that sequence."""
        node, best = 0, None
        for end in range(position, len(text)):
            step = self.step(node, text[end])
            if step is None:
                break
            node, found = step
            if found is not None:
                best = found, end + 1 - position
        return best

    def step(self, node: int, character: str) -> tuple[int, str | None] | None:
        """The node after a character, and the replacement of the sequence that ends there, from the cache."""
        key = node, character
        if key in self._steps:
            return self._steps[key]
        step = self._step(node, character)
        if len(self._steps) < KEPT_STEPS:
            self._steps[key] = step
        return step

    def _step(self, node: int, character: str) -> tuple[int, str | None] | None:
        units = self._units
        for byte in character.encode("utf-8", "replace"):
            node ^= _offset(units[node]) ^ byte
            if node >= len(units) or units[node] & 0x800000FF != byte:
                return None
        unit = units[node]
        if not unit >> 8 & 1:
            return node, None
        leaf = node ^ _offset(unit)
        start = units[leaf] & 0x7FFFFFFF if leaf < len(units) else len(self._texts)
        return node, self._texts[start : self._texts.find(b"\0", start)].decode("utf-8", "replace")


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


class Cut(NamedTuple):
    """A piece's id and its range in the text, [start, end)."""

    token: int
    start: int
    end: int


class _Piece(NamedTuple):
    """A piece that a word may have, and its range there, [start, end)."""

    start: int
    end: int
    score: float
    token: int


class Unigram:
    """The segmenter of a unigram model. Caches the pieces of words; threads may share an instance.

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
        self._unknown_score = array("f", [min(rounded, default=0.0) - UNKNOWN_PENALTY])[0]  # in single precision
        self._known = {text: (score, ids[text]) for text, score in zip(scores, rounded, strict=True)}
        self._known |= {text: (SYMBOL_SCORE, ids[text]) for text in symbols}
        # Longer texts are one word: their sums are so large that rounding may exceed MARGIN. So is any text if a piece
        # may be of several words.
        largest = max(1.0, -self._unknown_score, *map(abs, rounded))
        self._longest = 0 if any(BLANK in text[1:] for text in self._known) else int(LARGEST_SUM / largest)
        self._words: dict[str, list[_Piece]] = {}

    @functools.cached_property
    def _begun(self) -> dict[str, tuple[float, int] | None]:
        """Every prefix of a piece, with the piece if the prefix is one: a dictionary costs less than a trie. Of 32,000
        pieces it takes 6 MB and 0.15 s, which a process that only decodes need not spend."""
        prefixes = (text[:end] for text in self._known for end in range(1, len(text)))
        return {**dict.fromkeys(prefixes), **self._known}

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
        one = array("f", [0.0])  # what is stored in it is rounded to float32
        size, place = len(text), 0
        best = [_NOTHING] * (size + 1)  # the score up to each character, the start of the last piece, and its id
        best[0] = 0.0, 0, 0
        for pieces in self._words_of(text):
            for first, after, score, token in pieces:
                start, end = place + first, place + after
                one[0] = best[start][0] + score
                if (total := one[0]) > best[end][0]:
                    best[end] = total, start, token
            place = end
        cuts = []
        while size > 0:
            _, start, token = best[size]
            cuts.append(Cut(token, start, size))
            size = start
        return cuts[::-1]

    def _words_of(self, text: str) -> list[list[_Piece]]:
        """The pieces of each word of a text, or of the text as a whole."""
        words = _WORD.findall(text) if len(text) <= self._longest else [text]
        known = self._words
        return [known[word] if word in known else self._pieces(word) for word in words]

    def _pieces(self, word: str) -> list[_Piece]:
        """The pieces of a word that may be of the best segmentation, from left to right."""
        pieces = [piece for start in range(len(word)) for piece in self._beginning(word, start)]
        if len(word) <= KEPT_CHARACTERS and self._longest:
            pieces = _likely(pieces, len(word))
            if len(self._words) < KEPT_WORDS:
                self._words[word] = pieces
        return pieces

    def _beginning(self, word: str, start: int) -> list[_Piece]:
        pieces = []
        for end in range(start + 1, len(word) + 1):
            part = word[start:end]
            if part not in self._begun:
                break
            if (found := self._begun[part]) is not None:
                pieces.append(_Piece(start, end, *found))
        if not pieces or pieces[0].end > start + 1:
            pieces.append(_Piece(start, start + 1, self._unknown_score, self._unknown))
        return pieces


def _likely(pieces: Sequence[_Piece], size: int) -> list[_Piece]:
    """Those of a segmentation whose score is at most MARGIN below that of the best one."""
    before, after = [0.0] + [-math.inf] * size, [-math.inf] * size + [0.0]  # the best scores up to and from a character
    for start, end, score, _ in pieces:
        before[end] = max(before[end], before[start] + score)
    for start, end, score, _ in reversed(pieces):
        after[start] = max(after[start], score + after[end])
    least = after[0] - MARGIN
    return [piece for piece in pieces if before[piece.start] + piece.score + after[piece.end] >= least]


def unigram_of(
    model: Mapping[str, Any], ids: Mapping[str, int], added: Sequence[Mapping[str, Any]], unmatched: set[int]
) -> Unigram:
    """The segmenter of a tokenizer.json that was converted from SentencePiece. unmatched: ids that no text matches."""
    symbols = [item["content"] for item in added if not item["special"]]
    by_byte = [ids[f"<0x{byte:02X}>"] for byte in range(256)] if model["byte_fallback"] else []
    left_out = {*unmatched, *by_byte, *(ids[symbol] for symbol in symbols)}
    scores = {text: score for token, (text, score) in enumerate(model["vocab"]) if token not in left_out and text}
    return Unigram(scores, symbols, ids, unknown=model["unk_id"], by_byte=by_byte)


def normalizer_of(normalizer: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> Normalizer:
    """The normalizer of such a tokenizer.json. The library's normalizers in it are an approximation for others.

    Raises ValueError for an invalid charsmap.
    """
    charsmaps = [step["precompiled_charsmap"] for step in normalizer["normalizers"] if step["type"] == "Precompiled"]
    try:
        return Normalizer(
            charsmap=base64.b64decode(charsmaps[0], validate=True) if charsmaps else b"",
            add_dummy_prefix=normalizer[SETTINGS]["add_dummy_prefix"],
            remove_extra_whitespaces=normalizer[SETTINGS]["remove_extra_whitespaces"],
            symbols=[item["content"] for item in added if not item["special"]],
        )
    except ValueError as error:
        raise ValueError(f"normalizer: {error}") from error
