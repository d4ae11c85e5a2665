"""BPE-dropout (Provilkov et al. 2020): training segments every occurrence of a word with randomly skipped merges.

A word is merged as `tokenizers` does it with a dropout: possible merges wait in a queue, by rank and position; the
first one that is not skipped is carried out, and those skipped before it wait again; the word ends when all are
skipped. The library draws from a generator that cannot be seeded, which would break exact resumption and the equality
of several processes. Here a segmentation is a function of 64 bits: as in arithmetic decoding, every decision divides
the interval that a number in [0, 1) is in. The numbers below (1 - rate) to the power of the decisions skip nothing.

Every occurrence draws 64 bits by (seed, epoch, text, position of the word). If they skip a merge, they select one of
the word's variants, which are drawn by (seed, word, number) when they are first needed: merging a word takes 20 times
as long as finding a variant. A word has about as many variants as occurrences, within LEAST and MOST.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from model.config import ModelConfig, TrainConfig, check
from model.tokenizer import OWN_TARGET, Tokenizer

LEAST, MOST = 16, 256  # variants of a word; equal ones count as often as they are drawn
LONGEST = 256  # symbols of a word; the time of a variant grows with their square, a longer word has none
LEAST_WIDTH = 2.0**-24  # of the interval that a number is in; with less, its 53 bits decide too coarsely

BLANK = "▁"  # before the words of vocabularies as SentencePiece makes them
_FIELD = "bpe_dropout"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a token that is a byte, of a vocabulary with byte fallback
_ALL = 1 << 64  # draws are below
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407  # of the generator MMIX (Knuth), modulo 2^64
_Made = tuple[int, int]  # the rank of a merge, and the token that it makes
_NONE = (0, -1)  # no merge
_Merge = tuple[int, int, int]  # one that waits: its rank, the position of its left symbol, and the token that it makes


class Word:
    """A word of the corpus. symbols: before any merge; plain: with all merges, for draws below `limit`; count: of its
    occurrences; variants: those with a merge skipped, each () until it is needed, all of them [] until the first is."""

    __slots__ = ("count", "limit", "plain", "symbols", "variants")

    def __init__(self, symbols: tuple[int, ...], plain: tuple[int, ...], limit: int) -> None:
        self.symbols, self.plain, self.limit, self.count = symbols, plain, limit, 0
        self.variants: list[tuple[int, ...]] = []


class BPEDropout:
    """Segmentations with merges skipped at a rate of 0..1: 0 is the ordinary segmentation, 1 leaves single symbols."""

    def __init__(self, tokenizer: Tokenizer, rate: float, *, seed: int) -> None:
        """Raises ConfigError for a tokenizer whose words are not segmented by merges."""
        values = json.loads(tokenizer.to_json())
        model = values["model"]
        _check_merges(model, tokenizer)
        self._tokenizer, self._seed, self._rate, self._keep = tokenizer, seed, rate, 1.0 - rate
        self._ids: Mapping[str, int] = model["vocab"]
        self._merges = dict(_merges(model["merges"], self._ids))
        whole = {*tokenizer.special.values(), *(item["id"] for item in values.get("added_tokens") or ())}
        self._symbols = {
            token: self._symbols_of(piece, is_whole=token in whole or piece == model.get("unk_token"))
            for piece, token in self._ids.items()
        }
        is_cut = len(tokenizer.words(["a b c"])[0]) > 1
        self._begins = set[int]() if is_cut else _word_starts(self._ids)
        self._blanks = {token for piece, token in self._ids.items() if not piece.strip(BLANK)}
        self._words: dict[tuple[int, ...], Word] = {}

    def words(self, texts: Sequence[str]) -> list[list[Word]]:
        """The words of each text; equal ones are the same object. To be called for all texts before any `ids`, as the
        number of a word's variants follows from its occurrences."""
        cut = self._tokenizer.words(texts)
        return [[self._word(tuple(ids)) for piece in text for ids in self._cut(piece)] for text in cut]

    def ids(self, words: Sequence[Word], *key: object) -> list[int]:
        """The ids of a text. key: what its draws depend on, beside the seed."""
        drawn = hashlib.shake_128(repr((self._seed, *key)).encode()).digest(8 * len(words))
        ids: list[int] = []
        for word, bits in zip(words, memoryview(drawn).cast("Q"), strict=True):
            if bits < word.limit:
                ids += word.plain
            else:
                if not word.variants:
                    word.variants = [()] * min(max(word.count, LEAST), MOST)
                number = bits % len(word.variants)
                ids += word.variants[number] or self._new_variant(word, number)
        return ids

    def segmented(self, word: Word, bits: int) -> tuple[int, ...]:
        """The segmentation that 64 bits select, of a word of at most LONGEST symbols."""
        rate, keep = self._rate, self._keep
        tokens, starts, queue = list(word.symbols), list(range(len(word.symbols))), self._queue(word.symbols)
        number, width, position = bits / _ALL, 1.0, 0
        while position < len(queue):
            if width < LEAST_WIDTH:
                bits = (bits * _MULTIPLIER + _INCREMENT) % _ALL
                number, width = bits / _ALL, 1.0
            if number < keep:
                number, width = number / keep, width * keep
                self._carry_out(queue.pop(position), tokens, starts, queue)
                position = 0  # those before wait again
            else:
                number, width = (number - keep) / rate, width * rate
                position += 1
        return tuple(tokens)

    def _symbols_of(self, piece: str, *, is_whole: bool) -> tuple[int, ...]:
        """The symbols that a token is merged from; itself, if none are."""
        is_merged = not is_whole and not _BYTE.fullmatch(piece) and all(symbol in self._ids for symbol in piece)
        return tuple(self._ids[symbol] for symbol in piece) if is_merged else (self._ids[piece],)

    def _cut(self, ids: Sequence[int]) -> Iterable[Sequence[int]]:
        """The words of a piece that the tokenizer segments as a whole: no merge crosses their borders."""
        if not self._begins:
            return [ids]
        positions = range(1, len(ids))
        borders = [
            position
            for position in positions
            if ids[position] in self._begins and ids[position - 1] not in self._blanks
        ]
        return [ids[start:end] for start, end in zip([0, *borders], [*borders, len(ids)], strict=True)]

    def _word(self, ids: tuple[int, ...]) -> Word:
        if (word := self._words.get(ids)) is None:
            word = self._words[ids] = self._new_word(ids)
        word.count += 1
        return word

    def _new_word(self, ids: tuple[int, ...]) -> Word:
        symbols = tuple(symbol for token in ids for symbol in self._symbols.get(token, (token,)))
        if len(symbols) > LONGEST or not self._rate:
            return Word(symbols, ids, _ALL)
        tokens, starts, queue, decisions = list(symbols), list(range(len(symbols))), self._queue(symbols), 0
        while queue:
            self._carry_out(queue.pop(0), tokens, starts, queue)
            decisions += 1
        return Word(symbols, ids, int(self._keep**decisions * _ALL))

    def _new_variant(self, word: Word, number: int) -> tuple[int, ...]:
        """One of a word's variants: drawn among the segmentations with a merge skipped."""
        digest = hashlib.shake_128(repr((self._seed, word.plain, number)).encode()).digest(8)
        bits = word.limit + int.from_bytes(digest) * (_ALL - word.limit) // _ALL
        variant = word.variants[number] = self.segmented(word, bits)
        return variant

    def _queue(self, symbols: Sequence[int]) -> list[_Merge]:
        """The merges of a word without any, in order."""
        made = map(self._merges.get, pairwise(symbols))
        return sorted((known[0], position, known[1]) for position, known in enumerate(made) if known is not None)

    def _carry_out(self, merge: _Merge, tokens: list[int], starts: list[int], queue: list[_Merge]) -> None:
        """Merges two tokens, and puts the merges that become possible into the queue; nothing if another merge has
        taken one of them. starts: the positions of the symbols that tokens begin with."""
        _, position, token = merge
        if position not in starts:
            return
        merges, left = self._merges, starts.index(position)
        if left + 1 == len(tokens) or merges.get((tokens[left], tokens[left + 1]), _NONE)[1] != token:
            return
        tokens[left] = token
        del tokens[left + 1], starts[left + 1]
        if left and (known := merges.get((tokens[left - 1], token))) is not None:
            insort(queue, (known[0], starts[left - 1], known[1]))
        if left + 1 < len(tokens) and (known := merges.get((token, tokens[left + 1]))) is not None:
            insort(queue, (known[0], position, known[1]))


def dropout_of(train: TrainConfig, model: ModelConfig, tokenizer: Tokenizer) -> BPEDropout | None:
    """The BPE-dropout of a run, None without. Raises ConfigError where it has none to offer."""
    if not train.bpe_dropout:
        return None
    check_dropout(train, model, trains_tokenizer=False)
    return BPEDropout(tokenizer, train.bpe_dropout, seed=train.seed)


def check_dropout(train: TrainConfig, model: ModelConfig, *, trains_tokenizer: bool) -> None:
    """Raises ConfigError, before any text is read, for a model that has no BPE-dropout, and for a tokenizer to be
    trained that will have none."""
    if train.bpe_dropout:
        check(model.has_decoder, _FIELD, "is for models that generate text; leave it out for an encoder")
        problem = f"needs tokenizer: bpe, got {train.tokenizer}; set that, or leave bpe_dropout out"
        check(train.tokenizer == "bpe" or not trains_tokenizer, _FIELD, problem)


def _check_merges(model: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Raises ConfigError unless the tokenizer segments by merges alone."""
    kind = model.get("type", "BPE" if "merges" in model else "none")
    check(kind == "BPE", _FIELD, f"needs a tokenizer of type BPE, got {kind}; leave bpe_dropout out")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        check(not model.get(name), _FIELD, f"does not know a tokenizer with a {name}, got {model.get(name)!r}")
    is_separate = OWN_TARGET in model or tokenizer.has_own_vocabulary
    check(not is_separate, _FIELD, "does not know a tokenizer with a vocabulary beside its pieces; leave it out")


def _merges(listed: Sequence[str | Sequence[str]], ids: Mapping[str, int]) -> Iterable[tuple[tuple[int, int], _Made]]:
    """The rank of each pair of tokens, and the token that it becomes."""
    for rank, merge in enumerate(listed):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield (ids[left], ids[right]), (rank, ids[left + right])


def _word_starts(ids: Mapping[str, int]) -> set[int]:
    """The tokens before which a text may be cut: those with a blank, if no token has one after another character.
    Raises ConfigError for other vocabularies, whose merges may cross every border."""
    starts = {token for piece, token in ids.items() if piece.startswith(BLANK)}
    is_marked = bool(starts) and all(BLANK not in piece.lstrip(BLANK) for piece in ids)
    check(is_marked, _FIELD, "needs a tokenizer that cuts a text into words; this one merges across them")
    return starts
