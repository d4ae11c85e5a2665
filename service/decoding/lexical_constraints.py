"""Lexical constraints: phrases that must appear in the answer of a beam search (`LexicalConstraints`).

Each phrase has one or more tokenizations; the text of each contains the phrase, wherever it occurs. The progress of a
hypothesis with a phrase is one node of an Aho-Corasick automaton over its tokenizations (Hu et al. 2019 use a trie). A
token that does not continue a phrase moves the node to the longest matching suffix. Phrases may share tokens ("New
York", "York City"), as their texts may; a phrase given twice must appear twice without overlap. A phrase may occur
where a word may: not joined to another word or to a full stop, and without a blank at the beginning of the answer.

Beam search with dynamic beam allocation (Post & Vilar 2018) uses `next_tokens` for the continuations that make progress
and `num_met` for the bank of a hypothesis; `allocate` divides the beam among banks. As a mask, the constraints exclude
the end token until all phrases have appeared, and reserve as many tokens as are still needed: constraints are met whose
`remaining` tokens and the end token fit into max_tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from unicodedata import category

import numpy as np

from service.decoding.aho_corasick import ROOT, AhoCorasick
from service.decoding.vocabulary import Vocabulary
from service.phrase_variants import Variants

# The context before a position of the text, as symbols of the automaton besides tokens.
_START, _CLOSED, _OPEN = -1, -2, -3  # the beginning of the answer; a blank must follow; a word may follow directly
_CLOSING = ".,;:!?"


class ConstraintState(NamedTuple):
    """The progress of a hypothesis: for each distinct phrase its node and how many occurrences are missing.

    context: the end of its text.
    """

    nodes: tuple[int, ...]
    missing: tuple[int, ...]
    context: int


class _Phrase:
    """One phrase. Its automaton reads each token and then the context after it, so a tokenization may depend on the
    text before it: `allowed` holds the contexts of each tokenization; an empty set allows all.

    By node, needed: fewest tokens that complete the phrase; num_met: tokens of it that are present, of `longest`.
    later: tokens that suffice from any position after some text.
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
        for index, pattern in enumerate(patterns):
            count = left = sum(symbol >= 0 for symbol in pattern)
            if pattern[0] >= 0:
                ahead[ROOT] = min(ahead[ROOT], left)
            for symbol, node in zip(pattern, self.automaton.path(index), strict=True):
                left -= symbol >= 0
                ahead[node], begun[node] = min(ahead[node], left), left < count
        chains = [list(self.automaton.chain(node)) for node in range(len(ahead))]
        self.needed = [min(ahead[at] for at in (*chain, ROOT)) for chain in chains]
        self.num_met = [
            self.longest - min((ahead[at] for at in chain if begun[at]), default=self.longest) for chain in chains
        ]
        self.later = max(self.needed[self.automaton.step(ROOT, context)] for context in (_CLOSED, _OPEN))
        self._continuations: dict[int, frozenset[int]] = {}

    def continuations(self, node: int) -> frozenset[int]:
        """The tokens after which a part of the phrase is present."""
        if node not in self._continuations:
            edges = self.automaton.edges
            symbols = frozenset(edges[ROOT]).union(*(edges[at] for at in self.automaton.chain(node)))
            self._continuations[node] = frozenset(symbol for symbol in symbols if symbol >= 0)
        return self._continuations[node]


class LexicalConstraints:
    """The phrases of one request: a logits processor with additional methods for beam search.

    phrases: the tokenizations of each, from `phrase_variants`; duplicates count. ordered: each phrase begins after the
    end of the previous one. max_tokens: of the answer, end token included. before: the text that the answer continues.
    """

    is_mask = True

    def __init__(
        self,
        phrases: Sequence[Variants],
        vocabulary: Vocabulary,
        *,
        ordered: bool,
        max_tokens: int,
        before: str = "",
    ) -> None:
        assert phrases
        self._eos_ids, self._is_ordered, self.max_tokens = list(vocabulary.eos_ids), ordered, max_tokens
        different = list(phrases) if ordered else list(dict.fromkeys(phrases))
        self._contexts = vocabulary.derived(_contexts)
        self._contexts_V = np.array(self._contexts)
        self._phrases = [_Phrase(item, _allowed(item, vocabulary), self._contexts) for item in different]
        self._missing = (1,) * len(different) if ordered else tuple(map(phrases.count, different))
        self._before = _context(before.encode()) or _START
        self.total = sum(count * phrase.longest for count, phrase in zip(self._missing, self._phrases, strict=True))
        self._next_tokens: dict[ConstraintState, tuple[int, ...]] = {}
        self._remaining: dict[tuple[int, tuple[int, ...]], int] = {}

    def initial_state(self) -> ConstraintState:
        """The state before the first new token."""
        return self._at(self._before, self._missing)

    def next_state(self, progress: ConstraintState, token: int) -> ConstraintState:
        """The state after `token`."""
        nodes, missing = list(progress.nodes), list(progress.missing)
        context = self._contexts[token] or progress.context
        for index in self._wanted(progress):
            automaton = self._phrases[index].automaton
            node = automaton.step(nodes[index], token)
            if automaton.ends[node]:
                missing[index] -= 1
                node = ROOT
            nodes[index] = automaton.step(node, context)
            if not missing[index]:
                nodes[index] = ROOT
                if self._is_ordered and index + 1 < len(nodes):  # the phrase that comes next
                    nodes[index + 1] = self._phrases[index + 1].automaton.step(ROOT, context)
        return ConstraintState(tuple(nodes), tuple(missing), context)

    def is_done(self, progress: ConstraintState) -> bool:
        """Whether all phrases have appeared."""
        return not any(progress.missing)

    def num_met(self, progress: ConstraintState) -> int:
        """Tokens of phrases that are present, 0..total: of the complete phrases, and of the most advanced other one.

        A complete phrase counts as its longest tokenization. The beginnings of further phrases do not count, because
        only one of them can be continued.
        """
        complete = self.total - sum(
            count * phrase.longest for count, phrase in zip(progress.missing, self._phrases, strict=True)
        )
        begun = [self._phrases[index].num_met[progress.nodes[index]] for index in self._wanted(progress)]
        return complete + max(begun, default=0)

    def remaining(self, progress: ConstraintState) -> int:
        """A number of tokens that suffices to complete all phrases; some token reduces it by one.

        First the phrase that gains most by continuation, then the others from their beginnings, after whatever the
        previous one ends with. Shared tokens may allow fewer: the minimum is a shortest common superstring, which is
        NP-hard to find.
        """
        whole = sum(count * phrase.later for count, phrase in zip(progress.missing, self._phrases, strict=True))
        gains = [
            self._phrases[index].later - self._phrases[index].needed[progress.nodes[index]]
            for index in self._wanted(progress)
        ]
        least = whole - max(gains, default=0)
        return min(least, whole + 1) if progress.context == _START else least  # any text first, then all phrases

    def next_tokens(self, progress: ConstraintState) -> tuple[int, ...]:
        """The ascending ids of the tokens that make progress: they raise `num_met`."""
        if progress not in self._next_tokens:
            met, tokens = self.num_met(progress), self._continuations(progress)
            self._next_tokens[progress] = tuple([t for t in tokens if self.num_met(self.next_state(progress, t)) > met])
        return self._next_tokens[progress]

    def applies(self, state: ConstraintState, tokens: Sequence[int]) -> bool:
        """Whether a phrase is missing."""
        return not self.is_done(state)

    def apply(self, scores_V: np.ndarray, state: ConstraintState, tokens: Sequence[int]) -> None:
        """Excludes the end token, and every token after which the phrases would no longer fit."""
        left = self.max_tokens - len(tokens) - 2  # without the token that is selected now and the end token
        scores_V[self._eos_ids] = -np.inf
        tight = [
            context
            for context in (_CLOSED, _OPEN, state.context)
            if self._remaining_after(context, state.missing) > left
        ]
        if not tight:
            return
        continuing = self._continuations(state)
        possible = [token for token in continuing if self.remaining(self.next_state(state, token)) <= left]
        kept = scores_V[possible]
        contexts_V = np.where(self._contexts_V, self._contexts_V, state.context)
        scores_V[np.isin(contexts_V, tight)] = -np.inf
        scores_V[continuing] = -np.inf
        scores_V[possible] = kept

    def excluded(self, progress: ConstraintState, tokens: Sequence[int]) -> None:
        """Not known: it depends on the room that is left."""

    def _at(self, context: int, missing: tuple[int, ...]) -> ConstraintState:
        """The state in which no phrase has begun."""
        return ConstraintState(
            tuple([phrase.automaton.step(ROOT, context) for phrase in self._phrases]), missing, context
        )

    def _remaining_after(self, context: int, missing: tuple[int, ...]) -> int:
        """`remaining` after a token that continues no phrase, which is the maximum over all tokens."""
        if (context, missing) not in self._remaining:
            self._remaining[context, missing] = self.remaining(self._at(context, missing))
        return self._remaining[context, missing]

    def _wanted(self, progress: ConstraintState) -> Iterable[int]:
        """Indices of the phrases that may come next."""
        missing = [index for index, count in enumerate(progress.missing) if count]
        return missing[:1] if self._is_ordered else missing

    def _continuations(self, progress: ConstraintState) -> list[int]:
        found = [self._phrases[index].continuations(progress.nodes[index]) for index in self._wanted(progress)]
        return sorted(frozenset[int]().union(*found))


def _allowed(variants: Variants, vocabulary: Vocabulary) -> list[frozenset[int]]:
    """The contexts that each tokenization may follow; empty: all.

    Of a phrase with tokenizations with and without a leading blank, the one with the blank does not begin an answer,
    and the other one, if it is a word, does not follow where a blank must. So each position has one.
    """
    texts = [b"".join(vocabulary.pieces[token] for token in variant) for variant in variants]
    if len({text.startswith(b" ") for text in texts}) == 1:
        return [frozenset()] * len(texts)
    blank, bare = frozenset({_CLOSED, _OPEN}), frozenset({_START, _OPEN})
    return [blank if text.startswith(b" ") else bare if _is_word(text.decode()[0]) else frozenset() for text in texts]


def _is_word(character: str) -> bool:
    """Whether blanks separate words of this character, judged by whether its script has upper and lower case."""
    return character.isalnum() and category(character) != "Lo"


def _contexts(vocabulary: Vocabulary) -> list[int]:
    """The context after each token; 0: the token has no text. 3 ms for 8000 tokens."""
    return [_context(piece) for piece in vocabulary.pieces]


def _context(text: bytes) -> int:
    """The context after a text; 0: it is empty. An incomplete character counts as a letter, as most of them are."""
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


def allocate(candidates: Sequence[tuple[float, int]], beam_size: int) -> list[int]:
    """Dynamic beam allocation: the indices of the candidates (score, bank) that enter the beam, best first.

    Banks 0 up to the highest one of a candidate get equal shares of the beam, the highest one the remainder too. Slots
    that a bank cannot fill go to the next lower one, and those left in the end to the higher ones again. So
    min(beam_size, len(candidates)) enter. Of equal candidates the earlier comes first.

    The paper shares among all banks, including those that no candidate has reached; their slots would all go to the
    highest bank with candidates, and phrases would be forced into the first words of the answer.
    """
    order = sorted(range(len(candidates)), key=lambda index: -candidates[index][0])
    banks: list[list[int]] = [[] for _ in range(max((bank for _, bank in candidates), default=-1) + 1)]
    for index in order:
        banks[candidates[index][1]].append(index)
    share, rest = divmod(beam_size, max(1, len(banks)))
    sizes, spare = [0] * len(banks), rest
    for bank in reversed(range(len(banks))):
        spare += share
        sizes[bank] = min(len(banks[bank]), spare)
        spare -= sizes[bank]
    for bank, indices in enumerate(banks):
        more = min(len(indices) - sizes[bank], spare)
        sizes[bank] += more
        spare -= more
    chosen = {index for indices, size in zip(banks, sizes, strict=True) for index in indices[:size]}
    return [index for index in order if index in chosen]
