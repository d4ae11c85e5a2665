"""Checks of `align`: how every layer and head of a finished target attends to its source."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from export.verification.case import Case
from export.verification.emulated_quantization import emulated_model
from export.verification.graph_calls import Array, differing
from export.verification.measure import ErrorTracker, Measured, NamedCheck


class AlignChecks:
    """Checks of cross-attention weights."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def checks(self) -> list[NamedCheck]:
        if "align" not in self.case.served.roles:
            return []
        return [
            NamedCheck("attention against PyTorch", self.attention, self.case.tolerance),
            NamedCheck("attention stays within the source", self.attention_within, 0.0),
        ]

    @cached_property
    def aligned(self) -> Array:
        """Weights of a ragged batch whose sources are followed by garbage."""
        return self.case.served.align(self.case.targets, self.case.cross(range(len(self.case.targets))))

    def attention(self) -> ErrorTracker:
        """Every layer and head in a ragged batch, and the longest target in a batch of its own with a source of several
        positions."""
        tracker, longest, expected = self.case.tracker(), [self.case.samples.longest_target], self.case.expected
        if self.case.quantization:
            expected = self.case.yardstick(emulated_model(self.case.plain_model, self.case.aligning))
        row = max(range(len(self.case.sources)), key=lambda row: len(self.case.sources[row]))
        for aligned, sources, targets in (
            (self.aligned, self.case.sources, self.case.targets),
            (self.case.served.align(longest, self.case.cross([row])), [self.case.sources[row]], longest),
        ):
            for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
                layers = expected.attention(source, target)
                for layer in range(len(layers.exact)):
                    actual = aligned[layer, row, :, : len(target), : len(source)]
                    tracker.add(f"layer {layer + 1} of {len(layers.exact)}", actual, layers[layer])
        return tracker

    def attention_within(self) -> Measured:
        behind = [self.aligned[:, row, :, :, len(source) :] for row, source in enumerate(self.case.sources)]
        return float(sum(differing(part, np.zeros_like(part)) for part in behind)), "weights behind a source's end"
