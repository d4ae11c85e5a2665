"""The checks of `attend`: every attention of every kind of model, against PyTorch. `export.verification.measure`
defines the measures.

Shapes: L layers, B batch, H heads, Q positions of queries, K of keys.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from export.manifest import Quantization, Role
from export.verification.emulated_quantization import Roundings, emulated_model, weights_off
from export.verification.graph_calls import Arrays
from export.verification.inputs import Ids, Samples
from export.verification.measure import HALF_A_STEP, TOLERANCES, Check, Checker, ErrorTracker, Measured, NamedCheck
from export.verification.torch_reference import Yardstick
from model.architectures import Model

# Weights are at most 1. The error of a weight is up to half the error of its score, and float32's error is proportional
# to the score: above LARGE_SCORE the tolerance grows in proportion. Unscaled random models have scores above 100, where
# PyTorch itself has an error of 1e-5.
ATTENTION_TOLERANCES = {**TOLERANCES, "fp32": 1e-5}
LARGE_SCORE = 10.0


class AttendGraphs(Protocol):
    """The `attend` graph of one variant, run as a server runs it."""

    def attend(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> Arrays:
        """Every attention of a pass over a ragged batch, by output name: float32 (L, B, H, Q, K), padded.

        targets: as fed to the decoder, bos first. Rows of an input that the model does not have are empty.
        """
        ...

    def roundings(self, *roles: Role) -> Roundings:
        """The roundings in the graphs of these roles."""
        ...


class AttentionVerifier(Checker):
    """All checks of `attend` for one variant."""

    def __init__(
        self,
        served: AttendGraphs,
        precision: str,
        model: Model,
        samples: Samples,
        quantization: Quantization | None = None,
    ) -> None:
        super().__init__(precision, samples, quantization)
        self.served, self.plain_model = served, model
        rows = max(len(samples.sources), len(samples.targets))
        self.sources, self.targets = samples.sources or ((),) * rows, samples.targets or ((),) * rows

    def verify(self, only: Collection[str] = ()) -> tuple[Check, ...]:
        checks = [
            NamedCheck("every attention against PyTorch", self.against_pytorch, ATTENTION_TOLERANCES[self.precision]),
            NamedCheck("every attention stays within its rows", self.within, 0.0),
        ]
        if self.quantization:
            checks.insert(0, NamedCheck("weights of every attention against the checkpoint", self.weights, HALF_A_STEP))
        return self.run(checks, only)

    @cached_property
    def roundings(self) -> Roundings:
        return self.served.roundings("attend") if self.quantization else Roundings()

    @cached_property
    def attended(self) -> Arrays:
        """Attention weights of a ragged batch."""
        return self.served.attend(self.sources, self.targets)

    def weights(self) -> Measured:
        return weights_off(self.plain_model, self.roundings, is_whole=False)

    def against_pytorch(self) -> ErrorTracker:
        """Every kind, layer and head of each row of a ragged batch, and of the longest source and target in a batch of
        their own. The error is that of weights where scores are at most LARGE_SCORE."""
        model = emulated_model(self.plain_model, self.roundings) if self.quantization else self.plain_model
        expected, tracker = Yardstick(model, in_float64=self.quantization is None), self.tracker()
        longest = [self.samples.longest_source], [self.samples.longest_target]
        for attended, sources, targets in (
            (self.attended, self.sources, self.targets),
            (self.served.attend(*longest), *longest),
        ):
            for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
                for name, weights_LHQK in expected.every_attention(source, target).items():
                    layers, _, queries, keys = weights_LHQK.exact.shape
                    for layer in range(layers):
                        actual = attended[name][layer, row, :, :queries, :keys]
                        tracker.add(f"{name} of layer {layer + 1}", actual, weights_LHQK[layer])
        largest = expected.exact.largest_score
        tracker.note = f"{tracker.note}, scores of up to {largest:.3g}"
        tracker.scale(1 / max(1.0, largest / LARGE_SCORE))
        return tracker

    def within(self) -> Measured:
        """No weight lies after the end of a row's queries or keys, and none on a later position in a decoder."""
        found = 0
        for name, weights_LBHQK in self.attended.items():
            for row, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
                queries = len(source) if name == "encoder_attention" else len(target)
                keys = len(target) if name == "decoder_attention" else len(source)
                outside_HQK = weights_LBHQK[:, row].copy()
                inside = np.ones((queries, keys), bool)
                outside_HQK[:, :, :queries, :keys] *= ~(np.tril(inside) if name == "decoder_attention" else inside)
                found += int(np.count_nonzero(outside_HQK))
        return float(found), "weights behind the end of a row, or ahead in it"
