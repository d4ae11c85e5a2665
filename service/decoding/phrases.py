"""Texts that must appear in the answer, for beam search (lexical constraints).

Each phrase has one or more spellings in tokens; the text of any of them contains the phrase, wherever it stands. How
far a hypothesis has come with each phrase is one node of an automaton over its spellings (Hu et al. 2019 keep a trie).
A token that does not continue a phrase throws it back to the longest beginning that is still there. Phrases may share
tokens ("New York", "York City"), as their texts may; one asked for twice must appear twice, one behind the other.

Beam search with dynamic beam allocation (Post & Vilar 2018) asks `next_tokens` for continuations that come closer, and
`met` for the bank of a hypothesis; `allocate` divides the beam among banks. As a mask, the phrases keep the end token
away until all have appeared, and leave as many tokens as they still need: what `minimum` says can be met is met.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from model.tokenizer import Tokenizer
from service.decoding.automaton import ROOT, Automaton
from service.errors import InvalidRequest

Variants = tuple[tuple[int, ...], ...]
"""The spellings of one phrase: token ids, none of them empty."""


class Progress(NamedTuple):
    """What a hypothesis has of the phrases: for each different one its node, and how often it is still missing."""

    nodes: tuple[int, ...]
    missing: tuple[int, ...]


class _Phrase:
    """One phrase. From each node, `needed`: fewest tokens that complete it; `met`: how many of `longest` are there."""

    def __init__(self, variants: Variants) -> None:
        self.automaton = Automaton(variants)
        self.shortest, self.longest = min(map(len, variants)), max(map(len, variants))
        ahead = [self.longest] * len(self.automaton)  # fewest tokens from a beginning to the end of a spelling
        for place, variant in enumerate(variants):
            for length, node in enumerate(self.automaton.path(place), start=1):
                ahead[node] = min(ahead[node], len(variant) - length)
        best = [
            min((ahead[at] for at in self.automaton.chain(node)), default=self.longest) for node in range(len(ahead))
        ]
        self.met = [self.longest - tokens for tokens in best]
        self.needed = [min(tokens, self.shortest) for tokens in best]
        self._continuations: dict[int, frozenset[int]] = {}

    def continuations(self, node: int) -> frozenset[int]:
        """The tokens behind which something of the phrase is there."""
        if node not in self._continuations:
            edges = self.automaton.edges
            tokens = frozenset(edges[ROOT]).union(*(edges[at] for at in self.automaton.chain(node)))
            self._continuations[node] = tokens
        return self._continuations[node]


class Phrases:
    """The phrases of one request: a rule, and what beam search must know of them.

    phrases: the spellings of each, as from `phrase_variants`; the same may come more than once. is_ordered: each begins
    behind the end of the one before. max_tokens: of the answer, end token included.
    """

    is_mask = True

    def __init__(self, phrases: Sequence[Variants], *, eos_id: int, ordered: bool, max_tokens: int) -> None:
        assert phrases
        self._eos_id, self._is_ordered, self._max_tokens = eos_id, ordered, max_tokens
        different = list(phrases) if ordered else list(dict.fromkeys(phrases))
        self._phrases = [_Phrase(variants) for variants in different]
        self._missing = (1,) * len(different) if ordered else tuple(map(phrases.count, different))
        self.total = sum(count * phrase.longest for count, phrase in zip(self._missing, self._phrases, strict=True))
        self.minimum = 1 + self.remaining(self.start())  # fewest tokens of an answer, its end token included
        self._next_tokens: dict[Progress, tuple[int, ...]] = {}

    def start(self) -> Progress:
        return Progress((ROOT,) * len(self._phrases), self._missing)

    def after(self, progress: Progress, token: int) -> Progress:
        nodes, missing = list(progress.nodes), list(progress.missing)
        for place in self._wanted(progress):
            automaton = self._phrases[place].automaton
            node = automaton.step(nodes[place], token)
            if automaton.ends[node]:
                missing[place] -= 1
                node = ROOT
            nodes[place] = node
        return Progress(tuple(nodes), tuple(missing))

    def is_done(self, progress: Progress) -> bool:
        return not any(progress.missing)

    def met(self, progress: Progress) -> int:
        """Tokens of phrases that are there, 0..total: of those complete, and of the one that has come furthest.

        Each phrase counts as much as its longest spelling. What has begun of other phrases counts nothing: only one of
        them can be continued.
        """
        complete = self.total - sum(
            count * phrase.longest for count, phrase in zip(progress.missing, self._phrases, strict=True)
        )
        begun = [self._phrases[place].met[progress.nodes[place]] for place in self._wanted(progress)]
        return complete + max(begun, default=0)

    def remaining(self, progress: Progress) -> int:
        """So many tokens are enough to complete all phrases, and some token makes them one fewer.

        First the phrase that gains most by being continued, then the others from their beginnings. Shared tokens may
        make the way shorter; the shortest of all ways is a shortest common superstring, which is NP-hard to find.
        """
        whole = sum(count * phrase.shortest for count, phrase in zip(progress.missing, self._phrases, strict=True))
        gains = [
            self._phrases[place].shortest - self._phrases[place].needed[progress.nodes[place]]
            for place in self._wanted(progress)
        ]
        return whole - max(gains, default=0)

    def next_tokens(self, progress: Progress) -> tuple[int, ...]:
        """The tokens that bring the phrases further, in ascending order: behind them, `met` is more."""
        if progress not in self._next_tokens:
            met, tokens = self.met(progress), self._continuations(progress)
            self._next_tokens[progress] = tuple([t for t in tokens if self.met(self.after(progress, t)) > met])
        return self._next_tokens[progress]

    def applies(self, state: Progress, tokens: Sequence[int]) -> bool:
        return not self.is_done(state)

    def apply(self, scores_V: np.ndarray, state: Progress, tokens: Sequence[int]) -> None:
        """No end yet; and no token behind which the phrases would not fit any more."""
        left = self._max_tokens - len(tokens) - 2  # without the token that is chosen now, and the end token
        scores_V[self._eos_id] = -np.inf
        if left >= self._fallen(state):
            return
        possible = [token for token in self._continuations(state) if self.remaining(self.after(state, token)) <= left]
        kept = scores_V[possible]
        scores_V.fill(-np.inf)
        scores_V[possible] = kept

    def _wanted(self, progress: Progress) -> Iterable[int]:
        """The phrases that may come next."""
        missing = [place for place, count in enumerate(progress.missing) if count]
        return missing[:1] if self._is_ordered else missing

    def _continuations(self, progress: Progress) -> list[int]:
        found = [self._phrases[place].continuations(progress.nodes[place]) for place in self._wanted(progress)]
        return sorted(frozenset[int]().union(*found))

    def _fallen(self, progress: Progress) -> int:
        """`remaining` behind a token that continues nothing. Any other token leaves at most as many to do."""
        return self.remaining(Progress((ROOT,) * len(progress.nodes), progress.missing))


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
    if unknown := tokenizer.unknown_words(text):
        raise InvalidRequest(field, f"the model's closed vocabulary does not know {', '.join(unknown)}")
    starts = ("",) if text.startswith(" ") else (" ", "")
    spellings = dict.fromkeys(tuple(tokenizer.encode(start + text)) for start in starts)
    wanted = text.encode()
    variants = tuple(tokens for tokens in spellings if tokens and wanted in _text(tokenizer, tokens))
    if not variants:
        raise InvalidRequest(field, f"no tokens of the model have the text {text!r}; use other blanks or characters")
    return variants


def _text(tokenizer: Tokenizer, tokens: Iterable[int]) -> bytes:
    """The least that the tokens add to a text: where they begin it, a first blank may be no part of it."""
    text = b"".join(tokenizer.pieces[token] for token in tokens)
    return text.removeprefix(b" ") if tokenizer.drops_first_blank else text
