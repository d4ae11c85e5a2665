"""Checks of a quantized variant: its integers against the checkpoint, each product against its inputs, and its logits
against the unquantized model; the last check is less sensitive, but makes no assumptions."""

from __future__ import annotations

import numpy as np

from export.verification.case import Case, capacity_of
from export.verification.decode_checks import DecodeChecks
from export.verification.emulated_quantization import products_off, weights_off
from export.verification.measure import HALF_A_STEP, PLAIN_TOLERANCES, PRODUCT_TOLERANCE, Measured, NamedCheck
from export.verification.torch_reference import TorchReference


class QuantizationChecks:
    """Checks of the integers, products and logits of one quantized variant."""

    def __init__(self, case: Case, decode: DecodeChecks) -> None:
        self.case, self.decode = case, decode

    def checks(self) -> list[NamedCheck]:
        if not self.case.quantization:
            return []
        return [
            NamedCheck("weights against the checkpoint", self.weights, HALF_A_STEP),
            NamedCheck("each product against its inputs", self.products, PRODUCT_TOLERANCE),
            NamedCheck("logits against PyTorch without rounding", self.plain, PLAIN_TOLERANCES[self.case.precision]),
        ]

    def weights(self) -> Measured:
        """The weights of every graph, `align` included."""
        found = [weights_off(self.case.plain_model, self.case.roundings)]
        if "align" in self.case.served.roles:
            found.append(weights_off(self.case.plain_model, self.case.aligning, is_whole=False))
        return max(found)

    def products(self) -> Measured:
        """The products of `encode` for all sources, and of a step at the end of each target."""
        rows, ends = range(len(self.case.targets)), [len(target) - 1 for target in self.case.targets]
        buffers = self.case.served.buffers(len(rows), capacity_of(self.case.targets))
        for row, (source, target) in enumerate(zip(self.case.sources, self.case.targets, strict=True)):
            self.case.fill(buffers, row, source, target[: ends[row]])
        tokens = [target[-1] for target in self.case.targets]
        seen = self.case.served.seen_products(self.case.sources, tokens, ends, buffers, self.case.cross(rows))
        return products_off(self.case.plain_model, self.case.roundings, seen)

    def plain(self) -> Measured:
        """Cached steps against the full sequence of the unquantized model. The median, because in a random model
        rounding removes what determines some rows."""
        errors, expected = list[float](), TorchReference(self.case.plain_model)
        for row, (source, target) in enumerate(zip(self.case.sources, self.case.targets, strict=True)):
            logits = expected.logits(source, target)
            for position in self.decode.positions(row):
                tracker = self.case.tracker()
                tracker.add("logits", self.decode.played.predictions[row, position].logits[0], logits[position])
                errors.append(tracker.error)
        return float(np.median(errors)), f"median of {len(errors)} rows, worst {max(errors):.2g}"
