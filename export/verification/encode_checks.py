"""Checks of `encode`: ragged, padded batches against PyTorch and against batches of one source."""

from __future__ import annotations

from functools import cached_property

from export.verification.case import Case, valid
from export.verification.graph_calls import Arrays
from export.verification.measure import ErrorTracker, Measured, NamedCheck


class EncodeChecks:
    """Checks of encoder states and of the decoder's cross-attention keys and values."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def checks(self) -> list[NamedCheck]:
        if not self.case.config.has_encoder:
            return []
        return [
            NamedCheck("encode against PyTorch", self.encode, self.case.tolerance),
            NamedCheck("encode in a batch as alone", self.encode_alone, self.case.alone_tolerance),
        ]

    @cached_property
    def encoded(self) -> Arrays:
        return self.case.served.encode(self.case.sources)

    def encode(self) -> ErrorTracker:
        """Ragged, padded batches against single unpadded sources in PyTorch, valid positions only; and the longest
        source."""
        tracker = self.case.tracker()
        for outputs, sources in (
            (self.encoded, self.case.sources),
            (self.case.served.encode([self.case.samples.longest_source]), [self.case.samples.longest_source]),
        ):
            for row, source in enumerate(sources):
                for name, expected in self.case.expected.source(source).items():
                    actual = self.case.roundings.values(name, outputs[name][row])
                    tracker.add(name, valid(actual, len(source)), expected[0])
        return tracker

    def encode_alone(self) -> Measured:
        return self.case.alone(
            (valid(self.encoded[name][row], len(source)), valid(alone[0], len(source)))
            for row, source in enumerate(self.case.sources)
            for name, alone in self.case.served.encode([source]).items()
        )
