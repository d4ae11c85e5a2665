"""Prompt lookup: what a sequence may say next is what followed when it said the same before (Saxena 2023). The tokens
found are a draft; the model reads all of them in one block and keeps those that it would have chosen itself (Leviathan
et al. 2023), so a draft costs time and never changes what is chosen, near-ties aside.

A block pays when what it gains is more than what it costs: `DraftProposer` compares the tokens of a turn with its
seconds, both as measured lately, and drafts only where that makes tokens faster. A sequence whose drafts were not worth
it is left alone and tried again, ever more seldom. Pure: it is told times, and reads no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from service.sequence import Sequence

LONGEST, SHORTEST = 3, 2
"""Tokens that must have stood together before, tried from the longest on. One alone says too little."""

MOST_ROWS = 4
"""Rows that may step in a turn with drafts: each draft is a block of its own, while a step reads all rows at once."""

HOPE = 2.0
"""Draft tokens that a new sequence is expected to accept."""

NEW_SHARE = 0.4
"""Of the newest draft in the mean of those that were accepted."""

PAUSE, LONGEST_PAUSE = 16, 512
"""Drafts of a sequence that are left out until one is tried all the same; twice as many each time, up to a limit."""

FORGETS = 1.05
"""By how much a cost that was measured once may have grown since; noise only ever makes a time longer."""


class NgramIndex:
    """The tokens of one sequence, and where each few of them stood last."""

    __slots__ = ("_places", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}  # of what followed them

    def read(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        known = self.tokens
        for token in tokens:
            place = len(known)
            for length in range(SHORTEST, min(LONGEST, place) + 1):
                self._places[tuple(known[place - length :])] = place
            known.append(token)

    def draft(self, most: int) -> tuple[int, ...]:
        """`most` tokens that may come next; (): the last ones never stood together before. Where the earlier place is
        so near that its continuation reaches the end, it goes on with itself, as in a text that repeats."""
        known = self.tokens
        for length in range(LONGEST, SHORTEST - 1, -1):
            place = self._places.get(tuple(known[-length:])) if len(known) > length else None
            if place is not None:
                period = len(known) - place
                return tuple([known[place + ahead % period] for ahead in range(most)])
        return ()


@dataclass(slots=True)
class _Record:
    """What is remembered of one sequence. mean: accepted tokens of its drafts. skipped: drafts since the last one that
    was read; pause: after how many of them one is tried whatever is expected of it."""

    lookup: NgramIndex = field(default_factory=NgramIndex)
    mean: float = HOPE
    skipped: int = 0
    pause: int = PAUSE


class _Costs:
    """Seconds by size, the best of those measured lately; of sizes never measured those of the nearest one."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def learn(self, size: int, seconds: float) -> None:
        self._seconds[size] = min(seconds, self._seconds.get(size, seconds) * FORGETS)

    def of(self, size: int) -> float:
        return self._seconds[min(self._seconds, key=lambda known: (abs(known - size), known))]


class DraftProposer:
    """The drafts of one engine. most: tokens of a draft."""

    def __init__(self, most: int) -> None:
        assert most >= 1, most
        self.most = most
        self._records: dict[Sequence, _Record] = {}
        self._steps, self._blocks = _Costs(), _Costs()  # by rows, and by tokens

    def propose(self, stepping: Collection[Sequence], rows: int) -> dict[Sequence, tuple[int, ...]]:
        """Drafts of those sequences for which they pay. stepping: what steps in this turn and has a token of its own.
        rows: of all live sequences."""
        if rows > MOST_ROWS or not self._steps:
            return {}
        self._records = {one: record for one, record in self._records.items() if one in stepping}
        found = []
        for sequence in stepping:
            # The draft and one token behind it are new.
            room = min(self.most, sequence.request.max_tokens - sequence.steps - 1)
            if room < 1 or not sequence.search.is_greedy or sequence.steps < len(sequence.request.prefix):
                continue
            record = self._record(sequence)
            draft = record.lookup.draft(min(room, int(2 * record.mean) + 2))
            if draft:
                found.append((min(record.mean, len(draft)), sequence, draft))
        found.sort(key=lambda one: -one[0])
        worth = self._worth([(gain, 1 + len(draft)) for gain, _, draft in found], rows)
        proposed = {}
        for place, (_, sequence, draft) in enumerate(found):
            record = self._records[sequence]
            if place < worth:
                record.pause = PAUSE
            elif record.skipped < record.pause:
                record.skipped += 1
                continue
            else:
                record.pause = min(LONGEST_PAUSE, 2 * record.pause)
            record.skipped = 0
            proposed[sequence] = draft
        return proposed

    def _record(self, sequence: Sequence) -> _Record:
        record = self._records.setdefault(sequence, _Record())
        prompt, (hypothesis,) = sequence.request.prompt, sequence.hypotheses
        if not record.lookup.tokens:
            record.lookup.read(prompt)
        record.lookup.read(hypothesis.tokens[len(record.lookup.tokens) - len(prompt) :])
        return record

    def _worth(self, drafts: Iterable[tuple[float, int]], rows: int) -> int:
        """How many of the drafts, each with what it should gain and the tokens of its block, the best ones first, make
        a turn that has most tokens a second."""
        step_s = self._steps.of(rows)
        best, best_rate = 0, rows / step_s
        blocks_s, gained = 0.0, 0.0
        for count, (gain, size) in enumerate(drafts, 1):
            blocks_s += self._blocks.of(size) if self._blocks else step_s
            gained += gain
            turn_s = blocks_s + (step_s if count < rows else 0.0)
            if (rows + gained) / turn_s > best_rate:
                best, best_rate = count, (rows + gained) / turn_s
        return best

    def stepped(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        self._steps.learn(rows, seconds)

    def verified(self, sequence: Sequence, size: int, accepted: int, seconds: float) -> None:
        """A block of `size` tokens took so long, and so many tokens of its draft were right."""
        self._blocks.learn(size, seconds)
        record = self._records[sequence]
        record.mean += NEW_SHARE * (accepted - record.mean)
