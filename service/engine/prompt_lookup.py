"""Prompt lookup: drafts from n-grams that a sequence has repeated (Saxena 2023), and when they pay (`DraftProposer`).

What followed the last few tokens when they stood together before is a draft. The model verifies a draft in one pass and
keeps the tokens it would have chosen itself (Leviathan et al. 2023), so a draft costs time and never changes what is
chosen, near-ties aside. `DraftProposer` compares the tokens of a turn with its seconds, both as measured lately, and
drafts only where that gives more tokens a second. A sequence whose drafts did not pay is tried again after ever longer
pauses. Pure: it is given times and reads no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from service.sequence import Sequence

LONGEST, SHORTEST = 3, 2  # lengths of n-grams, tried from the longest on; single tokens predict too little
MOST_ROWS = 4  # in a turn with drafts: each draft is a pass of its own, while a step computes all rows in one
HOPE = 2.0  # draft tokens that are expected to be accepted of a new sequence
NEW_SHARE = 0.4  # weight of the newest draft in the moving average of accepted tokens
PAUSE, LONGEST_PAUSE = 16, 512  # skipped drafts of a sequence before one is tried all the same; doubled each time
FORGETS = 1.05  # factor by which a measured cost may have grown since; noise only ever makes a time longer


class NgramIndex:
    """The tokens of one sequence, and the last place of each n-gram."""

    __slots__ = ("_places", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}  # of the token after the n-gram

    def append(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        known = self.tokens
        for token in tokens:
            place = len(known)
            for length in range(SHORTEST, min(LONGEST, place) + 1):
                self._places[tuple(known[place - length :])] = place
            known.append(token)

    def draft(self, most: int) -> tuple[int, ...]:
        """`most` tokens that may come next; (): the last n-grams are new. Where the earlier place is so near that its
        continuation reaches the end, it goes on with itself, as in a text that repeats."""
        known = self.tokens
        for length in range(LONGEST, SHORTEST - 1, -1):
            place = self._places.get(tuple(known[-length:])) if len(known) > length else None
            if place is not None:
                period = len(known) - place
                return tuple([known[place + ahead % period] for ahead in range(most)])
        return ()


@dataclass(slots=True)
class _Record:
    """One sequence. mean: moving average of its accepted draft tokens. skipped: drafts since the last one that was
    verified; pause: after how many of them one is tried whatever is expected of it."""

    ngrams: NgramIndex = field(default_factory=NgramIndex)
    mean: float = HOPE
    skipped: int = 0
    pause: int = PAUSE


class _Costs(dict[int, float]):
    """Seconds by size, the shortest measured lately; a size that was never measured has those of the nearest one."""

    def learn(self, size: int, seconds: float) -> None:
        """Records a measurement."""
        self[size] = min(seconds, self.get(size, seconds) * FORGETS)

    def of(self, size: int) -> float:
        """Expected seconds of a size."""
        return self[min(self, key=lambda known: (abs(known - size), known))]


class DraftProposer:
    """The drafts of one engine. most: tokens of a draft."""

    def __init__(self, most: int) -> None:
        assert most >= 1, most
        self.most = most
        self._records: dict[Sequence, _Record] = {}
        self._steps, self._passes = _Costs(), _Costs()  # by rows, and by tokens

    def propose(self, stepping: Collection[Sequence], rows: int) -> dict[Sequence, tuple[int, ...]]:
        """Drafts of those sequences for which they pay. stepping: sequences that step in this turn and have generated a
        token. rows: of all live sequences."""
        if rows > MOST_ROWS or not self._steps:
            return {}
        self._records = {one: record for one, record in self._records.items() if one in stepping}
        found = []
        for sequence in stepping:
            # The draft and one token after it are new.
            room = min(self.most, sequence.request.max_tokens - sequence.steps - 1)
            if room < 1 or not sequence.search.is_greedy or sequence.steps < len(sequence.request.prefix):
                continue
            record = self._record(sequence)
            draft = record.ngrams.draft(min(room, int(2 * record.mean) + 2))
            if draft:
                found.append((min(record.mean, len(draft)), sequence, draft))
        found.sort(key=lambda one: -one[0])
        worth = self.worthwhile([(gain, 1 + len(draft)) for gain, _, draft in found], rows)
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
        if not record.ngrams.tokens:
            record.ngrams.append(prompt)
        record.ngrams.append(hypothesis.tokens[len(record.ngrams.tokens) - len(prompt) :])
        return record

    def worthwhile(self, drafts: Iterable[tuple[float, int]], rows: int) -> int:
        """How many of the drafts, the best ones first, give the most tokens a second. drafts: expected gain and tokens
        of the pass of each."""
        step_s = self._steps.of(rows)
        best, best_rate = 0, rows / step_s
        passes_s, gained = 0.0, 0.0
        for count, (gain, size) in enumerate(drafts, 1):
            passes_s += self._passes.of(size) if self._passes else step_s
            gained += gain
            turn_s = passes_s + (step_s if count < rows else 0.0)
            if (rows + gained) / turn_s > best_rate:
                best, best_rate = count, (rows + gained) / turn_s
        return best

    def record_step(self, rows: int, seconds: float) -> None:
        """Records the time of a step of `rows` rows."""
        self._steps.learn(rows, seconds)

    def record_draft(self, sequence: Sequence, size: int, accepted: int, seconds: float) -> None:
        """Records the time of a pass of `size` tokens, and how many tokens of its draft were accepted."""
        self._passes.learn(size, seconds)
        record = self._records[sequence]
        record.mean += NEW_SHARE * (accepted - record.mean)
