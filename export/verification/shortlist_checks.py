"""Checks of `project_shortlist` and `shortlist_logprobs`: predictions over per-row shortlists."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from export.manifest import WORD_MULTIPLE
from export.verification.case import Case, capacity_of
from export.verification.graph_calls import Array, ShortlistPrediction, differing, round_up
from export.verification.inputs import Ids
from export.verification.measure import ErrorTracker, Measured, NamedCheck

# Error of a shortlist's logits against the same states times the checkpoint's weights: seven bits reach 0.02.
SHORTLIST_TOLERANCES = {"fp32": 5e-5, "fp16": 3e-2, "int8": 0.1, "int4": 0.1}
FEWEST_WORDS = 16


class ShortlistChecks:
    """Checks of logits over a row's own shortlist."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def checks(self) -> list[NamedCheck]:
        if "project_shortlist" not in self.case.served.roles:
            return []
        return [
            NamedCheck("own words against PyTorch", self.own_words, SHORTLIST_TOLERANCES[self.case.precision]),
            NamedCheck("own words in a batch as alone", self.own_words_alone, self.case.alone_tolerance),
        ]

    @cached_property
    def words(self) -> list[Ids]:
        """Shortlists of various lengths, one per row, in ascending order; an error over few tokens means little."""
        draw, all_words = np.random.default_rng(1), self.case.config.vocab_size
        least = min(FEWEST_WORDS, all_words)
        sizes = [
            least + (len(target) * 7 + row * 5) % (all_words - least + 1)
            for row, target in enumerate(self.case.targets)
        ]
        return [tuple(sorted(draw.choice(all_words, size, replace=False).tolist())) for size in sizes]

    def _ranked(self, rows: Sequence[int], width: int) -> ShortlistPrediction:
        """Predictions of a step at the end of some targets."""
        targets = [self.case.targets[row] for row in rows]
        buffers = self.case.served.buffers(len(rows), capacity_of(self.case.targets))
        for place, row in enumerate(rows):
            self.case.fill(buffers, place, self.case.sources[row], self.case.targets[row][:-1])
        tokens, starts = [target[-1] for target in targets], [len(target) - 1 for target in targets]
        words = [self.words[row] for row in rows]
        return self.case.served.shortlist_logprobs(words, tokens, starts, buffers, self.case.cross(rows), width=width)

    @cached_property
    def ranked(self) -> ShortlistPrediction:
        return self._ranked(range(len(self.case.targets)), round_up(max(map(len, self.words)), WORD_MULTIPLE))

    def own_words(self) -> Measured | ErrorTracker:
        """Logits against the product of the same states and the checkpoint's weight, and the best tokens against a
        sort."""
        tracker, yardstick = self.case.tracker(), self.case.yardstick(self.case.plain_model)
        for row, own in enumerate(self.words):
            logprobs = self.ranked.logprobs[row]
            logits = yardstick.unembedded(self.ranked.states[row : row + 1])[0]
            tracker.add(f"logits of row {row}", logprobs[: len(own)] + self.ranked.normaliser[row], logits[list(own)])
            tracker.add(f"sum of row {row}", np.exp(logprobs.astype(np.float64)).sum(keepdims=True), np.ones(1))
            if not np.isneginf(logprobs[len(own) :]).all():
                return float("inf"), f"row {row} has words that are not its own"
            best = np.argsort(-logprobs[: len(own)], kind="stable")[: self.ranked.top_ids.shape[1]]
            named = self.ranked.top_ids[row, : len(best)], self.ranked.top_logprobs[row, : len(best)]
            if any(differing(*pair) for pair in zip(named, (np.array(own)[best], logprobs[best]), strict=True)):
                return float("inf"), f"the best words of row {row} are not those of the sorted row"
        return tracker

    def own_words_alone(self) -> Measured:
        """Rows in batches of one, also with a larger shortlist capacity."""
        pairs, width = list[tuple[Array, Array]](), self.ranked.logprobs.shape[1] + WORD_MULTIPLE
        for row, own in enumerate(self.words):
            alone = self._ranked([row], width)
            pairs.append((self.ranked.logprobs[row, : len(own)], alone.logprobs[0, : len(own)]))
            pairs.append((self.ranked.normaliser[row : row + 1], alone.normaliser))
        return self.case.alone(pairs)
