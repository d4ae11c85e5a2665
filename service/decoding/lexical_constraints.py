"""Texts that must appear in the answer, for beam search (lexical constraints).

Each phrase has one or more spellings in tokens; the text of any of them contains the phrase, wherever it stands. How
far a hypothesis has come with each phrase is one node of an automaton over its spellings (Hu et al. 2019 keep a trie).
A token that does not continue a phrase throws it back to the longest beginning that is still there. Phrases may share
tokens ("New York", "York City"), as their texts may; one asked for twice must appear twice, one behind the other. A
phrase stands where a word may: not glued to another one or to a full stop, and without a blank where the answer begins.

Beam search with dynamic beam allocation (Post & Vilar 2018) asks `next_tokens` for continuations that come closer, and
`met` for the bank of a hypothesis; `allocate` divides the beam among banks. As a mask, the phrases keep the end token
away until all have appeared, and leave as many tokens as they still need: what `minimum` says can be met is met.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from unicodedata import category
from weakref import WeakKeyDictionary

import numpy as np

from model.tokenizer import Tokenizer
from service.decoding.aho_corasick import ROOT, AhoCorasick
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest
from service.request import Request

Variants = tuple[tuple[int, ...], ...]
"""The spellings of one phrase: token ids, none of them empty."""


# What stands before a place in the text, as symbols of an automaton beside the tokens.
_START, _CLOSED, _OPEN = -1, -2, -3  # the answer begins here; what a blank follows; what a word may follow at once
_CLOSING = ".,;:!?"


class ConstraintState(NamedTuple):
    """What a hypothesis has of the phrases: for each different one its node, and how often it is still missing.

    context: what its text ends with.
    """

    nodes: tuple[int, ...]
    missing: tuple[int, ...]
    context: int


class _Phrase:
    """One phrase. Its automaton reads each token and then what the text ends with, so a spelling may depend on what
    stands before it: `allowed` has the contexts of each spelling, none where all will do.

    From each node, `needed`: fewest tokens that complete it, when it has begun or begins here; `met`: how many of
    `longest` are there. `later`: tokens that are enough from any place behind some text.
    """

    def __init__(self, variants: Variants, allowed: Sequence[frozenset[int]], contexts: Sequence[int]) -> None:
        assert all(contexts[token] for variant in variants for token in variant), "tokens without text in a phrase"
        patterns: list[list[int]] = []
        for variant, before in zip(variants, allowed, strict=True):
            spelled = [symbol for token in variant for symbol in (token, contexts[token])][:-1]
            patterns += [[context, *spelled] for context in sorted(before)] or [spelled]
        self.automaton = AhoCorasick(patterns)
        self.longest = max(map(len, variants))
        size, never = len(self.automaton), self.longest + 1
        ahead, begun = [never] * size, [False] * size
        for place, pattern in enumerate(patterns):
            count = left = sum(symbol >= 0 for symbol in pattern)
            if pattern[0] >= 0:
                ahead[ROOT] = min(ahead[ROOT], left)
            for symbol, node in zip(pattern, self.automaton.path(place), strict=True):
                left -= symbol >= 0
                ahead[node], begun[node] = min(ahead[node], left), left < count
        chains = [list(self.automaton.chain(node)) for node in range(len(ahead))]
        self.needed = [min(ahead[at] for at in (*chain, ROOT)) for chain in chains]
        self.met = [
            self.longest - min((ahead[at] for at in chain if begun[at]), default=self.longest) for chain in chains
        ]
        self.later = max(self.needed[self.automaton.step(ROOT, context)] for context in (_CLOSED, _OPEN))
        self._continuations: dict[int, frozenset[int]] = {}

    def continuations(self, node: int) -> frozenset[int]:
        """The tokens behind which something of the phrase is there."""
        if node not in self._continuations:
            edges = self.automaton.edges
            symbols = frozenset(edges[ROOT]).union(*(edges[at] for at in self.automaton.chain(node)))
            self._continuations[node] = frozenset(symbol for symbol in symbols if symbol >= 0)
        return self._continuations[node]


class LexicalConstraints:
    """The phrases of one request: a rule, and what beam search must know of them.

    phrases: the spellings of each, as from `phrase_variants`; the same may come more than once. is_ordered: each begins
    behind the end of the one before. max_tokens: of the answer, end token included. vocabulary: with it, phrases stand
    where words stand (see `_allowed`); without, anywhere. before: the text that the answer continues.
    """

    is_mask = True

    def __init__(
        self,
        phrases: Sequence[Variants],
        *,
        eos_ids: Sequence[int],
        ordered: bool,
        max_tokens: int,
        vocabulary: Vocabulary | None = None,
        before: str = "",
    ) -> None:
        assert phrases
        self._eos_ids, self._is_ordered, self._max_tokens = list(eos_ids), ordered, max_tokens
        different = list(phrases) if ordered else list(dict.fromkeys(phrases))
        if vocabulary is None:
            tokens = 1 + max(token for variants in phrases for variant in variants for token in variant)
            self._contexts, allowed = [_OPEN] * tokens, [[frozenset[int]()] * len(item) for item in different]
        else:
            self._contexts, allowed = _contexts_of(vocabulary), [_allowed(item, vocabulary) for item in different]
        self._contexts_V = np.array(self._contexts)
        self._phrases = [
            _Phrase(variants, spellings, self._contexts) for variants, spellings in zip(different, allowed, strict=True)
        ]
        self._missing = (1,) * len(different) if ordered else tuple(map(phrases.count, different))
        self._before = _context(before.encode()) or _START
        self.total = sum(count * phrase.longest for count, phrase in zip(self._missing, self._phrases, strict=True))
        self.minimum = 1 + self.remaining(self.initial_state())  # fewest tokens of an answer, its end token included
        self._next_tokens: dict[ConstraintState, tuple[int, ...]] = {}
        self._fallen: dict[tuple[int, tuple[int, ...]], int] = {}

    def initial_state(self) -> ConstraintState:
        return self._at(self._before, self._missing)

    def next_state(self, progress: ConstraintState, token: int) -> ConstraintState:
        nodes, missing = list(progress.nodes), list(progress.missing)
        context = (self._contexts[token] if token < len(self._contexts) else _OPEN) or progress.context
        for place in self._wanted(progress):
            automaton = self._phrases[place].automaton
            node = automaton.step(nodes[place], token)
            if automaton.ends[node]:
                missing[place] -= 1
                node = ROOT
            nodes[place] = automaton.step(node, context)
            if not missing[place]:
                nodes[place] = ROOT
                if self._is_ordered and place + 1 < len(nodes):  # which comes next
                    nodes[place + 1] = self._phrases[place + 1].automaton.step(ROOT, context)
        return ConstraintState(tuple(nodes), tuple(missing), context)

    def is_done(self, progress: ConstraintState) -> bool:
        return not any(progress.missing)

    def met(self, progress: ConstraintState) -> int:
        """Tokens of phrases that are there, 0..total: of those complete, and of the one that has come furthest.

        Each phrase counts as much as its longest spelling. What has begun of other phrases counts nothing: only one of
        them can be continued.
        """
        complete = self.total - sum(
            count * phrase.longest for count, phrase in zip(progress.missing, self._phrases, strict=True)
        )
        begun = [self._phrases[place].met[progress.nodes[place]] for place in self._wanted(progress)]
        return complete + max(begun, default=0)

    def remaining(self, progress: ConstraintState) -> int:
        """So many tokens are enough to complete all phrases, and some token makes them one fewer.

        First the phrase that gains most by being continued, then the others from their beginnings, behind whatever the
        one before ends with. Shared tokens may make the way shorter; the shortest of all ways is a shortest common
        superstring, which is NP-hard to find.
        """
        whole = sum(count * phrase.later for count, phrase in zip(progress.missing, self._phrases, strict=True))
        gains = [
            self._phrases[place].later - self._phrases[place].needed[progress.nodes[place]]
            for place in self._wanted(progress)
        ]
        least = whole - max(gains, default=0)
        return min(least, whole + 1) if progress.context == _START else least  # any text first, then all behind it

    def next_tokens(self, progress: ConstraintState) -> tuple[int, ...]:
        """The tokens that bring the phrases further, in ascending order: behind them, `met` is more."""
        if progress not in self._next_tokens:
            met, tokens = self.met(progress), self._continuations(progress)
            self._next_tokens[progress] = tuple([t for t in tokens if self.met(self.next_state(progress, t)) > met])
        return self._next_tokens[progress]

    def applies(self, state: ConstraintState, tokens: Sequence[int]) -> bool:
        return not self.is_done(state)

    def apply(self, scores_V: np.ndarray, state: ConstraintState, tokens: Sequence[int]) -> None:
        """No end yet; and no token behind which the phrases would not fit any more."""
        left = self._max_tokens - len(tokens) - 2  # without the token that is chosen now, and the end token
        scores_V[self._eos_ids] = -np.inf
        tight = [context for context in (_CLOSED, _OPEN, state.context) if self._behind(context, state.missing) > left]
        if not tight:
            return
        continuing = self._continuations(state)
        possible = [token for token in continuing if self.remaining(self.next_state(state, token)) <= left]
        kept = scores_V[possible]
        contexts_V = np.full(len(scores_V), _OPEN)
        contexts_V[: len(self._contexts_V)] = np.where(self._contexts_V, self._contexts_V, state.context)[
            : len(scores_V)
        ]
        scores_V[np.isin(contexts_V, tight)] = -np.inf
        scores_V[continuing] = -np.inf
        scores_V[possible] = kept

    def _at(self, context: int, missing: tuple[int, ...]) -> ConstraintState:
        """Where nothing has begun."""
        return ConstraintState(
            tuple([phrase.automaton.step(ROOT, context) for phrase in self._phrases]), missing, context
        )

    def _behind(self, context: int, missing: tuple[int, ...]) -> int:
        """`remaining` behind a token that continues nothing. Any other token leaves at most as many to do."""
        if (context, missing) not in self._fallen:
            self._fallen[context, missing] = self.remaining(self._at(context, missing))
        return self._fallen[context, missing]

    def _wanted(self, progress: ConstraintState) -> Iterable[int]:
        """The phrases that may come next."""
        missing = [place for place, count in enumerate(progress.missing) if count]
        return missing[:1] if self._is_ordered else missing

    def _continuations(self, progress: ConstraintState) -> list[int]:
        found = [self._phrases[place].continuations(progress.nodes[place]) for place in self._wanted(progress)]
        return sorted(frozenset[int]().union(*found))


def _allowed(variants: Variants, vocabulary: Vocabulary) -> list[frozenset[int]]:
    """Behind what each spelling may stand; none: behind anything.

    Of a phrase that is spelled with and without a blank before it, the one with the blank does not begin an answer, and
    the other one, if it is a word, does not follow what a blank follows. So there is one for every place.
    """
    texts = [b"".join(vocabulary.pieces[token] for token in variant) for variant in variants]
    if len({text.startswith(b" ") for text in texts}) == 1:
        return [frozenset()] * len(texts)
    blank, bare = frozenset({_CLOSED, _OPEN}), frozenset({_START, _OPEN})
    return [blank if text.startswith(b" ") else bare if _is_word(text.decode()[0]) else frozenset() for text in texts]


def _is_word(character: str) -> bool:
    """Of a script that puts blanks between words, as far as its letters have upper and lower case."""
    return character.isalnum() and category(character) != "Lo"


_KNOWN: WeakKeyDictionary[Vocabulary, list[int]] = WeakKeyDictionary()  # 3 ms for 8000 tokens


def _contexts_of(vocabulary: Vocabulary) -> list[int]:
    """What each token's text ends with; 0: it writes nothing."""
    if vocabulary not in _KNOWN:
        _KNOWN[vocabulary] = [_context(piece) for piece in vocabulary.pieces]
    return _KNOWN[vocabulary]


def _context(text: bytes) -> int:
    """What a text ends with; 0: it is empty. A part of a character counts as a letter, as most such characters are."""
    if not text:
        return 0
    start = len(text) - 1
    while start > 0 and text[start] & 0xC0 == 0x80:
        start -= 1
    try:
        last = text[start:].decode()
    except UnicodeDecodeError:
        return _CLOSED
    return _CLOSED if _is_word(last) or last in _CLOSING else _OPEN


def constraints_of(request: Request) -> LexicalConstraints | None:
    """The lexical constraints among a request's logits processors: at most one object, for all of its phrases."""
    return next((one for one in request.logits_processors if isinstance(one, LexicalConstraints)), None)


def allocate(candidates: Sequence[tuple[float, int]], beam_size: int) -> list[int]:
    """Which candidates (score, bank) get one of the beam's places, as their places in `candidates`; the best first.

    Banks 0 up to the highest that a candidate is in get equal shares of the beam, the highest one the rest too. What a
    bank cannot fill goes to the next lower one, and what is left over in the end to the higher ones again. So
    min(beam_size, len(candidates)) get a place. Of equal candidates the earlier comes first.

    The paper shares among all banks, also those that no candidate has come to yet; all their places would go to the
    highest bank that is there, and phrases would be forced into the answer's first words.
    """
    order = sorted(range(len(candidates)), key=lambda place: -candidates[place][0])
    banks: list[list[int]] = [[] for _ in range(max((bank for _, bank in candidates), default=-1) + 1)]
    for place in order:
        banks[candidates[place][1]].append(place)
    share, rest = divmod(beam_size, max(1, len(banks)))
    sizes, spare = [0] * len(banks), rest
    for bank in reversed(range(len(banks))):
        spare += share
        sizes[bank] = min(len(banks[bank]), spare)
        spare -= sizes[bank]
    for bank, places in enumerate(banks):
        more = min(len(places) - sizes[bank], spare)
        sizes[bank] += more
        spare -= more
    chosen = {place for places, size in zip(banks, sizes, strict=True) for place in places[:size]}
    return [place for place in order if place in chosen]


def phrase_variants(tokenizer: Tokenizer, text: str, *, field: str = "options.phrases") -> Variants:
    """The spellings of a phrase: as it stands behind a blank, and as it stands at the start or behind a mark.

    The text of each contains `text`, wherever it stands. Raises InvalidRequest naming `field`.
    """
    if behind := _behind_a_word(tokenizer, text):
        return (behind,)
    if unknown := tokenizer.unknown_words(text):
        raise InvalidRequest(field, f"the model's closed vocabulary does not know {', '.join(unknown)}")
    starts = ("",) if text.startswith(" ") else (" ", "")
    spellings = dict.fromkeys(tuple(tokenizer.encode(start + text)) for start in starts)
    wanted = text.encode()
    variants = tuple(tokens for tokens in spellings if tokens and wanted in _text(tokenizer, tokens))
    if not variants:
        raise InvalidRequest(field, f"no tokens of the model have the text {text!r}; use other blanks or characters")
    return variants


def _behind_a_word(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The spelling of a text that begins with a mark, in a closed vocabulary that has the mark only behind words."""
    first = text[:1]
    if not tokenizer.strips_leading_space or not first or first.isalnum() or first not in tokenizer.unknown_words(text):
        return ()
    word = next(
        (piece.decode()[1:] for piece in tokenizer.pieces if piece.startswith(b" ") and piece[1:].isalnum()), ""
    )
    if not word or tokenizer.unknown_words(word + text):
        return ()
    tokens = tuple(tokenizer.encode(word + text)[1:])
    return tokens if b"".join(tokenizer.pieces[token] for token in tokens) == text.encode() else ()


def _text(tokenizer: Tokenizer, tokens: Iterable[int]) -> bytes:
    """The least that the tokens add to a text: where they begin it, a first blank may be no part of it."""
    text = b"".join(tokenizer.pieces[token] for token in tokens)
    return text.removeprefix(b" ") if tokenizer.strips_leading_space else text
