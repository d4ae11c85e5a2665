"""The checks of the graph of an encoder-only model. `export.verification.measure` defines the measures.

Shapes: B batch, S source, M d_model, V vocabulary, L labels.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from export.manifest import GoldenVector, Quantization, Role
from export.verification.emulated_quantization import Roundings, SeenProduct, emulated_model, products_off, weights_off
from export.verification.graph_calls import Array, Arrays
from export.verification.inputs import Ids, Samples
from export.verification.measure import (
    HALF_A_STEP,
    PLAIN_TOLERANCES,
    PRODUCT_TOLERANCE,
    Check,
    Checker,
    ErrorTracker,
    Measured,
    NamedCheck,
)
from export.verification.torch_reference import Expectation
from model.encoder import Encoder

PLACES = 3  # positions of each text that a masked head predicts: the first, one in the middle, the last
# The largest difference of a vector on another machine, as a share of its largest value. Quantized graphs can differ by
# a step where a value lies between two integers.
VECTOR_TOLERANCES = {"fp32": 1e-3, "fp16": 3e-2, "int8": 0.1, "int4": 0.1}
DIGITS = 6  # significant digits of a golden vector's values


class EncoderGraphs(Protocol):
    """The `encode` graph of one variant, run as a server runs it."""

    def encode(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        """All outputs of `encode` for a ragged batch, by name. places: positions of each source to predict."""
        ...

    def roundings(self, *roles: Role) -> Roundings:
        """The roundings in the graphs of these roles."""
        ...

    def seen_encoder_products(self, sources: Sequence[Ids], places: Sequence[Sequence[int]]) -> list[SeenProduct]:
        """The inputs and outputs of its products."""
        ...


class EncoderReference:
    """PyTorch's outputs, one text at a time, without padding and without a batch."""

    def __init__(self, model: Encoder) -> None:
        self.model = model

    @torch.inference_mode()
    def encode(self, source: Ids, places: Sequence[int]) -> Arrays:
        """Outputs by their names in the graph, without the batch axis; encoder_states (S, M)."""
        model, lengths = self.model, torch.tensor([len(source)])
        states = model(torch.tensor([source]), lengths)
        arrays: Arrays = {"encoder_states": states[0].numpy()}
        if model.pooler is not None:
            arrays["pooled"] = model.pool(states)[0].numpy()
        if model.masked is not None:
            arrays["place_logprobs"] = model.token_logits(states[0, list(places)]).log_softmax(-1).numpy()
        elif model.config.is_classifier:
            logits, weights = model.classify(states, lengths)
            arrays["label_logits"] = logits[0].numpy()
            if weights is not None:
                arrays["token_weights"] = weights[0].numpy()
        return arrays


class EncoderVerifier(Checker):
    """All checks of one variant of an encoder-only model."""

    def __init__(
        self,
        served: EncoderGraphs,
        precision: str,
        model: Encoder,
        samples: Samples,
        quantization: Quantization | None = None,
    ) -> None:
        super().__init__(precision, samples, quantization)
        self.served, self.plain_model = served, model
        self.sources = (*samples.sources, samples.longest_source)
        is_masked = model.masked is not None
        self.places = tuple(places_of(source) if is_masked else () for source in self.sources)

    def verify(self, only: Collection[str] = ()) -> tuple[Check, ...]:
        checks = [
            NamedCheck("encode against PyTorch", self.encode, self.tolerance),
            NamedCheck("encode in a batch as alone", self.encode_alone, self.alone_tolerance),
        ]
        if "place_logprobs" in self.told:
            checks.append(NamedCheck("places told in any number", self.other_places, self.alone_tolerance))
        if "token_weights" in self.told:
            checks.append(NamedCheck("weights stay within the text", self.weights_within, 0.0))
        if self.quantization:
            checks = [
                NamedCheck("weights against the checkpoint", self.weights, HALF_A_STEP),
                NamedCheck("each product against its inputs", self.products, PRODUCT_TOLERANCE),
                NamedCheck("states against PyTorch without rounding", self.plain, PLAIN_TOLERANCES[self.precision]),
                *checks,
            ]
        return self.run(checks, only)

    # -- outputs of the graph

    @cached_property
    def encoded(self) -> list[Arrays]:
        """Outputs of all texts but the longest in one batch, and of the longest in another."""
        *several, longest = self.sources
        together = self.served.encode(several, self.places[:-1])
        return [
            *_rows(together, several, self.places),
            *_rows(self.served.encode([longest], self.places[-1:]), [longest], self.places[-1:]),
        ]

    @property
    def told(self) -> frozenset[str]:
        """The names of the outputs that the graph must have."""
        return frozenset(self.expected[0])

    # -- expected outputs

    @cached_property
    def roundings(self) -> Roundings:
        return self.served.roundings("encode") if self.quantization else Roundings()

    @cached_property
    def expected(self) -> list[dict[str, Expectation]]:
        model = emulated_model(self.plain_model, self.roundings) if self.quantization else self.plain_model
        float32 = EncoderReference(model)
        exact = float32 if self.quantization else EncoderReference(copy.deepcopy(model).double())
        both = [
            (exact.encode(source, places), float32.encode(source, places))
            for source, places in zip(self.sources, self.places, strict=True)
        ]
        return [{name: Expectation(one[name], other[name]) for name in one} for one, other in both]

    # -- checks

    def encode(self) -> ErrorTracker:
        """Ragged, padded batches against single unpadded texts in PyTorch, valid positions only; also the longest."""
        tracker = self.tracker()
        for actual, expected in zip(self.encoded, self.expected, strict=True):
            for name, expectation in expected.items():
                tracker.add(name, actual[name], expectation)
        return tracker

    def encode_alone(self) -> Measured:
        """A text has the same outputs in any batch and with any padding."""

        def pairs() -> Iterator[tuple[Array, Array]]:
            for together, source, places in zip(self.encoded, self.sources, self.places, strict=True):
                (alone,) = _rows(self.served.encode([source], [places]), [source], [places])
                yield from ((together[name], alone[name]) for name in together)

        return self.alone(pairs())

    def other_places(self) -> Measured:
        """Predictions of one text without those of other texts in its batch."""
        *several, _ = self.sources
        one = [self.places[0], *[()] * (len(several) - 1)]
        (first, *_) = _rows(self.served.encode(several, one), several, one)
        return self.alone([(first["place_logprobs"], self.encoded[0]["place_logprobs"])])

    def weights_within(self) -> Measured:
        *several, _ = self.sources
        weights_BS = self.served.encode(several)["token_weights"]
        behind = sum(int((row[len(source) :] != 0).sum()) for row, source in zip(weights_BS, several, strict=True))
        return float(behind), "weights behind a text's end"

    def weights(self) -> Measured:
        return weights_off(self.plain_model, self.roundings)

    def products(self) -> Measured:
        *several, _ = self.sources
        seen = self.served.seen_encoder_products(several, self.places[:-1])
        return products_off(self.plain_model, self.roundings, seen)

    def plain(self) -> Measured:
        """States of every token against those of the unquantized model. The median, because in a random model rounding
        removes what determines some of them."""
        errors, expected = list[float](), EncoderReference(self.plain_model)
        for actual, source, places in zip(self.encoded, self.sources, self.places, strict=True):
            exact = expected.encode(source, places)["encoder_states"]
            for state, wanted in zip(actual["encoder_states"], exact, strict=True):
                tracker = self.tracker()
                tracker.add("encoder_states", state, wanted)
                errors.append(tracker.error)
        return float(np.median(errors)), f"median of {len(errors)} tokens, worst {max(errors):.2g}"


def places_of(source: Ids) -> tuple[int, ...]:
    """Positions of a text that a masked head predicts."""
    return tuple(sorted({0, len(source) // 2, len(source) - 1}))[:PLACES]


def mean_state(served: EncoderGraphs, source: Ids) -> Array:
    """The mean of the states of a text over its tokens, float32 (M,)."""
    states_SM = served.encode([source])["encoder_states"][0, : len(source)]
    mean: Array = states_SM.astype(np.float32).mean(0)
    return mean


def golden_vector(served: EncoderGraphs, source: Ids, precision: str) -> GoldenVector:
    """The vector of a text that a server must reproduce."""
    values = tuple(float(f"{value:.{DIGITS}g}") for value in mean_state(served, source))
    return GoldenVector(values=values, tolerance=VECTOR_TOLERANCES[precision])


def vector_difference(vector: GoldenVector, values: Array) -> float:
    """The largest difference, as a share of the vector's largest value."""
    expected = np.array(vector.values)
    return float(np.abs(values - expected).max() / max(float(np.abs(expected).max()), 1e-6))


def _rows(arrays: Arrays, sources: Sequence[Ids], places: Sequence[Sequence[int]]) -> list[Arrays]:
    """The outputs of each text: states and weights of its own positions, and the predictions for its masks."""
    rows, first = [], 0
    for row, source in enumerate(sources):
        own: Arrays = {}
        for name, array in arrays.items():
            if name == "place_logprobs":
                own[name] = array[first : first + len(places[row])]
            else:
                own[name] = array[row, : len(source)] if name in ("encoder_states", "token_weights") else array[row]
        rows.append(own)
        first += len(places[row])
    return rows
