"""Checks of attention weights: `align`, which returns how a target attends to its source, and `attend`, which returns
every attention of a pass.

Shapes: L layers, B batch, H heads, Q positions of queries, K of keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from export.verification.case import Case
from export.verification.measure import Comparison, Measured, largest_error

LARGE_SCORE = 10.0  # see ATTENTION_TOLERANCES in `export.verification.checks`


def cross(case: Case) -> Iterator[Comparison]:
    """Every layer and head in a ragged batch, and the longest target in a batch of its own with a source of several
    positions."""
    expected = case.reference(case.align_roundings) if case.quantization else case.expected
    longest = case.samples.longest_target
    row, source, _ = max(case.rows, key=lambda row: len(row[1]))
    alone_LBHQK = case.graphs.align([longest], case.cross([row]))
    for weights_LBHQK, rows in ((case.aligned, case.rows), (alone_LBHQK, [(0, source, longest)])):
        for row, source, target in rows:
            weights_LHQK = expected.attention(source, target)
            layers = len(weights_LHQK.own)
            for layer in range(layers):
                actual_HQK = weights_LBHQK[layer, row, :, : len(target), : len(source)]
                yield f"layer {layer + 1} of {layers}", actual_HQK, weights_LHQK[layer]


def cross_inside(case: Case) -> Iterator[Comparison]:
    """No weight lies after the end of a source."""
    for row, source, _ in case.rows:
        yield f"the padding of source {row}", case.aligned[:, row, :, :, len(source) :], np.zeros(())


def every(case: Case) -> Measured:
    """Every kind, layer and head of each row of a ragged batch, and of the longest source and target in a batch of
    their own. The error is that of weights where scores are at most LARGE_SCORE."""
    expected = case.reference(case.read_roundings("attend"))

    def comparisons() -> Iterator[Comparison]:
        longest = case.samples.longest_source, case.samples.longest_target
        alone = case.graphs.attend(*([ids] for ids in longest))
        for attended, rows in ((case.attended, case.rows), (alone, [(0, *longest)])):
            for row, source, target in rows:
                for name, weights_LHQK in expected.every_attention(source, target).items():
                    layers, _, queries, keys = weights_LHQK.own.shape
                    for layer in range(layers):
                        actual_HQK = attended[name][layer, row, :, :queries, :keys]
                        yield f"{name} of layer {layer + 1}", actual_HQK, weights_LHQK[layer]

    error, note, float32_error = largest_error(comparisons(), is_quantized=case.quantization is not None)
    largest = expected.own.largest_score
    factor = max(1.0, largest / LARGE_SCORE)
    return Measured(error / factor, f"{note}, scores of up to {largest:.3g}", float32_error / factor)


def every_inside(case: Case) -> Iterator[Comparison]:
    """No weight lies after the end of a row's queries or keys, and none on a later position in a decoder."""
    for name, weights_LBHQK in case.attended.items():
        for row, source, target in case.rows:
            inside = (
                len(source if name == "encoder_attention" else target),
                len(target if name == "decoder_attention" else source),
            )
            allowed_QK = np.zeros(weights_LBHQK.shape[-2:], bool)
            allowed_QK[: inside[0], : inside[1]] = np.tri(*inside) if name == "decoder_attention" else True
            yield f"{name} outside row {row}", weights_LBHQK[:, row][..., ~allowed_QK], np.zeros(())
