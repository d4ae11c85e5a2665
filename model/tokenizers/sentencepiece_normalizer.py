"""SentencePiece's normalisation: replaces characters and marks spaces (`Normalizer`).

The replacements are the "precompiled charsmap" of a SentencePiece model: a trie of character sequences. From left to
right, the longest sequence that begins at a position is replaced (Kudo & Richardson 2018, section 3.3). The
`Precompiled` normaliser of Hugging Face `tokenizers` works on user-perceived characters instead and finds other
replacements where a letter has several marks. Standard library only: the service normalises with this module.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Sequence

BLANK = "▁"  # stands for a blank
REMOVABLE = " "
KEPT_STEPS = 100_000  # cached transitions by a character: enough for all common scripts; clients may send more

Span = tuple[int, int]


class Normalizer:
    """Normalises text for the segmentation of a SentencePiece model. Caches lookups; threads may share an instance.

    charsmap: as stored in the model; b"": no replacements. add_dummy_prefix: adds a blank before every text.
    remove_extra_whitespaces: keeps one of several consecutive blanks, and none at either end. symbols: texts that are
    never changed. Raises ValueError for an invalid charsmap.
    """

    def __init__(
        self,
        *,
        charsmap: bytes,
        add_dummy_prefix: bool,
        remove_extra_whitespaces: bool,
        symbols: Sequence[str] = (),
    ) -> None:
        self._trie = _Trie(charsmap) if charsmap else None
        self._adds_blank, self._removes = add_dummy_prefix, remove_extra_whitespaces
        self._symbols: dict[str, list[str]] = {}  # by their first characters, longest first
        for symbol in sorted(symbols, key=len, reverse=True):
            self._symbols.setdefault(symbol[0], []).append(symbol)

    def __call__(self, text: str) -> str:
        return self.traced(text)[0]

    def traced(self, text: str) -> tuple[str, list[Span]]:
        """The normalised text and, for each of its characters, the characters [start, end) of the original text that it
        comes from: an empty range for an added blank."""
        parts, spans = list[str](), list[Span]()
        place = self._leading(text) if self._removes else 0
        if place == len(text):
            return "", []
        if self._adds_blank:
            parts.append(BLANK)
            spans.append((place, place))
        after_blank = self._removes
        while place < len(text):
            part, used = self._next(text, place)
            if after_blank:
                part = part.lstrip(REMOVABLE)
            if part:
                after_blank = self._removes and part.endswith(REMOVABLE)
                parts.append(part)
                spans += [(place, place + used)] * len(part)
            place += used
        result = "".join(parts).replace(" ", BLANK)
        if self._removes:
            result = result.rstrip(BLANK)
            del spans[len(result) :]
        return result, spans

    def _leading(self, text: str) -> int:
        """The number of leading blanks, in characters."""
        place = 0
        while place < len(text):
            part, used = self._next(text, place)
            if part != REMOVABLE:
                break
            place += used
        return place

    def _next(self, text: str, place: int) -> tuple[str, int]:
        """The replacement of the characters at a position, and the number of characters replaced."""
        for symbol in self._symbols.get(text[place], ()):
            if text.startswith(symbol, place):
                return symbol, len(symbol)
        found = self._trie.longest(text, place) if self._trie else None
        return found or (text[place], 1)


class _Trie:
    """A double array (Aoe 1989) over UTF-8 bytes, as darts-clone writes it, and the texts that its values refer to."""

    def __init__(self, charsmap: bytes) -> None:
        if len(charsmap) < 4:
            raise ValueError(f"charsmap: must begin with a size, got {len(charsmap)} bytes")
        (size,) = struct.unpack_from("<I", charsmap)
        if size % 4 or not 4 <= size <= len(charsmap) - 4:
            raise ValueError(f"charsmap: the size of its trie is {size}, of {len(charsmap)} bytes")
        self._units = array.array("I", charsmap[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._texts = charsmap[4 + size :]
        self._steps: dict[tuple[int, str], tuple[int, str | None] | None] = {}

    def longest(self, text: str, place: int) -> tuple[str, int] | None:
        """The replacement of the longest sequence that begins at a position, and the length of that sequence."""
        node, best = 0, None
        for end in range(place, len(text)):
            key = node, text[end]
            step = self._steps.get(key)
            if step is None and key not in self._steps:
                step = self._step(*key)
                if len(self._steps) < KEPT_STEPS:
                    self._steps[key] = step
            if step is None:
                break
            node, found = step
            if found is not None:
                best = found, end + 1 - place
        return best

    def _step(self, node: int, character: str) -> tuple[int, str | None] | None:
        """The node after a character, and the replacement of the sequence that ends there."""
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
