"""Checks of `decode` with blocks of tokens: prompts in a batch and alone, blocks after a prefill, several positions."""

from __future__ import annotations

from functools import cached_property

from export.verification.case import Case, capacity_of, valid
from export.verification.graph_calls import Arrays, Prediction, compared_outputs, differing
from export.verification.measure import ErrorTracker, Measured, NamedCheck


class PrefillChecks:
    """Checks of blocks of tokens, in models that support chunked prefill."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def checks(self) -> list[NamedCheck]:
        if not self.case.config.supports_chunked_prefill:
            return []
        return [
            NamedCheck("prefill against PyTorch", self.prefill, self.case.tolerance),
            NamedCheck("prefill in a batch as alone", self.prefill_alone, self.case.alone_tolerance),
            NamedCheck("prefill that nobody asks about", self.prefill_unasked, 0.0),
            NamedCheck("block after a prefill against PyTorch", self.later_block, self.case.tolerance),
            NamedCheck("several positions of a block against PyTorch", self.several_positions, self.case.tolerance),
        ]

    @cached_property
    def prefilled(self) -> tuple[Prediction, Arrays]:
        rows = len(self.case.targets)
        buffers = self.case.served.buffers(rows, capacity_of(self.case.targets))
        return self.case.served.decode(self.case.targets, [0] * rows, buffers, {}, top_k=self.case.top_k[0]), buffers

    @cached_property
    def prefilled_alone(self) -> list[Prediction]:
        alone = [([target], self.case.served.buffers(1, capacity_of([target]))) for target in self.case.targets]
        return [self.case.served.decode(block, [0], buffers, {}, top_k=self.case.top_k[1]) for block, buffers in alone]

    def predictions(self) -> list[Prediction]:
        """Predictions after whole prompts, in a batch and alone; none if the model does not read blocks."""
        return [self.prefilled[0], *self.prefilled_alone] if self.case.config.supports_chunked_prefill else []

    def prefill(self) -> ErrorTracker:
        """A ragged, right-padded batch of prompts, and the longest prompt."""
        tracker = self.case.tracker()
        longest = [self.case.samples.longest_target]
        buffers = self.case.served.buffers(1, capacity_of(longest))
        for (prediction, caches), targets in (
            (self.prefilled, self.case.targets),
            ((self.case.served.decode(longest, [0], buffers, {}), buffers), longest),
        ):
            for row, target in enumerate(targets):
                tracker.add("logprobs", prediction.logprobs[row], self.case.expected.logprobs((), target)[-1])
                for name, expected in self.case.expected.caches((), target).items():
                    actual = self.case.roundings.values(name, valid(caches[name][row], len(target)))
                    tracker.add(f"present.{name}", actual, expected)
        return tracker

    def prefill_alone(self) -> Measured:
        together = self.prefilled[0]
        return self.case.alone(
            pair
            for row, alone in enumerate(self.prefilled_alone)
            for pair in compared_outputs(together.row(row), alone)
        )

    def prefill_unasked(self) -> Measured:
        """Prompts without requested logits leave the same caches."""
        differ = 0
        for target in self.case.targets:
            asked, unasked = (self.case.served.buffers(1, capacity_of([target])) for _ in range(2))
            self.case.served.decode([target], [0], asked, {})
            said = self.case.served.decode([target], [0], unasked, {}, asked=())
            differ += said.logits.size + sum(differing(unasked[name], array) for name, array in asked.items())
        return float(differ), "values of the caches that differ in any bit"

    def later_block(self) -> ErrorTracker:
        """One row in two blocks: the second attends to the first in the cache."""
        tracker = self.case.tracker()
        for target in self.case.targets:
            cut = max(1, len(target) // 3)
            if len(target) - cut > 1:
                buffers = self.case.served.buffers(1, capacity_of([target]))
                self.case.served.decode([target[:cut]], [0], buffers, {})
                prediction = self.case.served.decode([target[cut:]], [cut], buffers, {})
                tracker.add("logprobs", prediction.logprobs[0], self.case.expected.logprobs((), target)[-1])
        return tracker

    def several_positions(self) -> ErrorTracker:
        """Predictions after every token of a ragged batch, the last row first; and after every token of a block with a
        past, as in the verification of a draft, whose preceding block returned a prediction in its middle."""
        tracker = self.case.tracker()
        asked = [(row, place) for row, target in enumerate(self.case.targets) for place in range(len(target))][::-1]
        buffers = self.case.served.buffers(len(self.case.targets), capacity_of(self.case.targets))
        together = self.case.served.decode(self.case.targets, [0] * len(self.case.targets), buffers, {}, asked=asked)
        for line, (row, place) in enumerate(asked):
            expected = self.case.expected.logprobs((), self.case.targets[row])[place]
            tracker.add(f"logprobs at {place} of row {row}", together.logprobs[line], expected)
        for target in self.case.targets:
            cut = max(1, len(target) // 3)
            if len(target) > cut:
                buffers = self.case.served.buffers(1, capacity_of([target]))
                self.case.served.decode([target[:cut]], [0], buffers, {}, asked=[(0, cut // 2)])
                places = [(0, place) for place in range(len(target) - cut)]
                behind = self.case.served.decode([target[cut:]], [cut], buffers, {}, asked=places)
                tracker.add("logprobs of a block", behind.logprobs, self.case.expected.logprobs((), target)[cut:])
        return tracker
