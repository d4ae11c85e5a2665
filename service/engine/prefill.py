"""Prefill planning: which chunks of which prompts are computed in a turn, and which ones the prefix cache has already.

Prefill never keeps running rows waiting for long. In every turn each running row steps once, and beside it at most
`max_prefill_tokens` tokens of sources and prompts are computed. (One source or one chunk is always computed, even if it
is longer.) Sources are encoded whole, in order of arrival. Prompts are computed in chunks of `chunk_tokens` tokens from
position 0 on. The split depends on nothing else, so neither do the bits; the load decides only how many chunks a turn
has. The oldest unfinished prompt gets one of them in every turn, so that it ends, and the shortest ones get the others,
so that a long prompt does not hold them up. While no row steps, a turn may compute `max_idle_prefill_tokens`, or fewer
if these would take longer than IDLE_TURN_S: requests that arrive wait for it, and a turn without end is a hang.
Pure: no buffers, no sessions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from service.engine.prefix_cache import PrefixCache
from service.engine.row_assignment import Assigned
from service.sequence import Sequence
from service.step import PrefillChunk, PrefillCost, PrefixBlock, Prompts, padded

IDLE_TURN_S = 2.0


class Prefill(NamedTuple):
    """The prefill of a turn. abandoned_rows: see `service.step.Moves`. computed: sequences with a chunk. unfinished:
    live ones whose prompts are not computed up to the last token when the turn is over."""

    prompts: Prompts = Prompts()
    abandoned_rows: tuple[int, ...] = ()
    computed: frozenset[Sequence] = frozenset()
    unfinished: frozenset[Sequence] = frozenset()


NO_PREFILL = Prefill()


class PrefillPlanner:
    """Plans the prefill of one engine. chunk_tokens: 0 for decoders that take single tokens, whose prompts are fed as
    ordinary steps. max_tokens, max_idle_tokens: of sources and padded chunks in a turn, beside steps and without any.
    prefix_slots: chunks that the prefix cache holds."""

    def __init__(self, chunk_tokens: int, *, max_tokens: int, max_idle_tokens: int, prefix_slots: int) -> None:
        self.chunk_tokens = chunk_tokens
        self.prefix_cache = PrefixCache(prefix_slots, chunk_tokens)
        self._max_tokens, self._max_idle_tokens = max_tokens, max(max_tokens, max_idle_tokens)
        self._idle_tokens = self._max_idle_tokens
        self._abandoned_rows: tuple[int, ...] = ()  # since the last turn that was computed

    def unfinished(self, live: Iterable[Sequence]) -> list[Sequence]:
        """Sequences whose prompts are not computed up to the last token, which is the input of a step; oldest first."""
        if not self.chunk_tokens:
            return []
        return [sequence for sequence in live if sequence.num_computed < len(sequence.request.prompt) - 1]

    def abandon(self, live: Iterable[Sequence]) -> None:
        """Notes the rows of those that have ended in mid-prompt."""
        for sequence in self.unfinished(live):
            if sequence.outcome is not None and sequence.num_computed:
                self._abandoned_rows += sequence.rows

    def clear(self) -> None:
        """Forgets what is cached, after a turn failed."""
        self.prefix_cache.clear()
        self._abandoned_rows = ()

    def record(self, cost: PrefillCost) -> None:
        """Notes what a turn took: the next one without steps may take IDLE_TURN_S at its pace."""
        tokens = int(IDLE_TURN_S * cost.tokens / max(cost.seconds, 1e-6))
        self._idle_tokens = min(max(tokens, self._max_tokens), self._max_idle_tokens)

    def budget(self, live: int, unfinished: int) -> int:
        """Tokens that this turn may compute beside the steps of the `live` sequences that are not `unfinished`."""
        return self._max_tokens if live > unfinished else self._idle_tokens

    def cost(self, sequence: Sequence) -> int:
        """Tokens of the next chunk of a prompt, padding included; 0: there is none."""
        return padded(self._next_chunk(sequence)) if self.chunk_tokens else 0

    def plan(self, rows: list[Assigned], unfinished: list[Sequence], admitted: list[Sequence], *, live: int) -> Prefill:
        """The prefill of this turn for `admitted` and older `unfinished` sequences, which have their rows. live: all
        that have; without any, the turn is not computed."""
        abandoned_rows = self._abandoned_rows
        if live:
            self._abandoned_rows = ()
        if not self.chunk_tokens or not (unfinished or admitted):
            return Prefill(abandoned_rows=abandoned_rows) if abandoned_rows else NO_PREFILL
        loads = self._load(admitted)
        candidates = [*unfinished, *admitted]
        counts = self._share(unfinished[:1], candidates, self.budget(live, len(candidates)))
        chunks = self._chunks(counts)
        left = {sequence: len(sequence.request.prompt) - 1 - sequence.num_computed for sequence in candidates}
        for chunk in chunks:
            left[rows[chunk.row][0]] -= len(chunk.tokens)
        return Prefill(
            Prompts(tuple(loads), tuple(chunks), tuple(self._store(chunks, rows)), self.prefix_cache.slots),
            abandoned_rows,
            frozenset(counts),
            frozenset([sequence for sequence, tokens in left.items() if tokens > 0]),
        )

    def _load(self, admitted: Iterable[Sequence]) -> list[PrefixBlock]:
        """Chunks of new prompts that the prefix cache has: they are copied instead of computed."""
        loads = []
        for sequence in admitted:
            for slot in self.prefix_cache.find(sequence.request.prompt):
                loads.append(PrefixBlock(sequence.rows[0], sequence.num_computed, self.chunk_tokens, slot))
                sequence.num_computed += self.chunk_tokens
        return loads

    def _share(self, oldest: list[Sequence], candidates: list[Sequence], budget: int) -> dict[Sequence, int]:
        """How many chunks of each prompt this turn has: one of the oldest prompt, then all of the shortest ones."""
        by_rest = sorted(candidates, key=lambda sequence: len(sequence.request.prompt) - sequence.num_computed)
        counts: dict[Sequence, int] = {}
        cost = 0
        for sequence, is_single in [*((one, True) for one in oldest), *((other, False) for other in by_rest)]:
            while size := self._next_chunk(sequence, counts.get(sequence, 0)):
                cost += padded(size)
                if counts and cost > budget:
                    return counts
                counts[sequence] = counts.get(sequence, 0) + 1
                if is_single:
                    break
        return counts

    def _next_chunk(self, sequence: Sequence, skipped: int = 0) -> int:
        """Tokens of the chunk after the next `skipped` ones; 0: the prompt has no more."""
        rest = len(sequence.request.prompt) - 1 - sequence.num_computed - skipped * self.chunk_tokens
        return max(0, min(self.chunk_tokens, rest))

    def _chunks(self, counts: dict[Sequence, int]) -> list[PrefillChunk]:
        """The next chunks of each prompt, ordered so that equal first ones are neighbours. A step takes the last token
        of a prompt."""
        chunks = []
        for sequence, count in counts.items():
            prompt, (row,) = sequence.request.prompt[:-1], sequence.rows
            for start in range(sequence.num_computed, len(prompt), self.chunk_tokens)[:count]:
                chunks.append(PrefillChunk(row, start, prompt[start : start + self.chunk_tokens]))
        firsts = [chunk for chunk in chunks if chunk.start == 0]
        firsts.sort(key=lambda chunk: (padded(len(chunk.tokens)), chunk.row))
        return [*firsts, *[chunk for chunk in chunks if chunk.start]]

    def _store(self, chunks: Collection[PrefillChunk], rows: list[Assigned]) -> list[PrefixBlock]:
        """Whole chunks that are new to the prefix cache, and their slots."""
        stores = []
        for chunk in chunks:
            if len(chunk.tokens) == self.chunk_tokens:
                slot = self.prefix_cache.store(rows[chunk.row][0].request.prompt, chunk.start)
                if slot is not None:
                    stores.append(PrefixBlock(chunk.row, chunk.start, self.chunk_tokens, slot))
        return stores
