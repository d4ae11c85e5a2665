"""Checks of a quantized variant: its integers against the checkpoint, each product against its inputs, and its outputs
against the unquantized model; the last check is less sensitive, but makes no assumptions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from export.verification.case import Case, capacity_of
from export.verification.emulated_quantization import product_error, weight_error
from export.verification.inputs import predicted_places
from export.verification.measure import Comparison, Measured, largest_error
from export.verification.torch_reference import TorchReference


def weights(case: Case) -> Measured:
    """The weights of every graph but `attend`."""
    found = [weight_error(case.plain_model, case.roundings)]
    if "align" in case.graphs.roles:
        found.append(weight_error(case.plain_model, case.align_roundings, is_whole=False))
    return max(found)


def attend_weights(case: Case) -> Measured:
    return weight_error(case.plain_model, case.read_roundings("attend"), is_whole=False)


def equalization(case: Case) -> Iterator[Comparison]:
    """The equalized model against the checkpoint's."""
    expected, made = case.plain, TorchReference(case.plain_model)
    for _, source, target in case.rows:
        if case.config.has_decoder:
            yield "logits", made.logits(source, target), expected.logits(source, target)
        else:
            name = "encoder_states"
            yield name, made.source(source)[name], expected.source(source)[name]


def products(case: Case) -> Measured:
    """The products of `encode` for all sources, and of a step at the end of each target."""
    recorded, graphs = [], case.graphs
    if case.config.has_encoder:
        places = [predicted_places(source) for source in case.sources]
        recorded += graphs.record_products("encode", graphs.encoder_feeds(case.sources, places))
    if case.config.has_decoder:
        buffers = graphs.buffers(len(case.rows), capacity_of(case.targets))
        for row, source, target in case.rows:
            case.fill(buffers, row, source, target[:-1])
        blocks, starts = [target[-1:] for target in case.targets], [len(target) - 1 for target in case.targets]
        cross = case.cross(range(len(case.rows)))
        recorded += graphs.record_products("decode", graphs.decoder_feeds(blocks, starts, buffers, cross))
    return product_error(case.plain_model, case.roundings, recorded)


def unrounded(case: Case) -> Measured:
    """Logits of cached steps against the unquantized model. The median, because in a random model rounding removes what
    determines some rows."""
    errors = [largest_error([pair], is_quantized=True).error for pair in _logits(case)]
    return Measured(float(np.median(errors)), f"median of {len(errors)} rows, worst {max(errors):.2g}")


def unrounded_encoder(case: Case) -> Measured:
    """The states of an encoder against the unquantized model: the median row of the sources of the length for which it
    is the largest. A scale that fits the development text may be far off for what longer texts contain."""
    reference, medians = case.plain.own, list[tuple[float, int]]()
    for group in case.samples.joined:
        errors = [
            largest_error([("encoder_states", *pair)], is_quantized=True).error
            for outputs, source in zip(case.encode(group), group, strict=True)
            for pair in zip(outputs["encoder_states"], reference.source(source)["encoder_states"], strict=True)
        ]
        medians.append((float(np.median(errors)), len(group[0])))
    error, length = max(medians)
    return Measured(
        error,
        f"median row of texts of {length} tokens, {min(medians)[0]:.2g} for {min(medians)[1]} tokens; fix: give "
        "--calibration texts as long as those that will be read, or another --scheme",
    )


def _logits(case: Case) -> Iterator[Comparison]:
    for row, source, target in case.rows:
        logits_TV = case.plain.own.logits(source, target)
        for position, prediction in case.steps.predictions[row].items():
            yield "logits", prediction.logits[0], logits_TV[position]
