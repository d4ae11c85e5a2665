"""Checks of `encode`: ragged, padded batches against PyTorch and against batches of one source; and of `embed`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from export.bundle.pooling import pool
from export.verification.case import Case
from export.verification.inputs import predicted_places
from export.verification.measure import Comparison


def outputs(case: Case) -> Iterator[Comparison]:
    """Valid positions of a ragged, padded batch, and the longest source, against single unpadded sources in PyTorch."""
    longest = case.encoded_longest, case.samples.longest_source
    for actual, source in (*zip(case.encoded, case.sources, strict=True), longest):
        for name, expected in case.expected.source(source).items():
            yield name, case.roundings.values(name, actual[name]), expected


def outputs_alone(case: Case) -> Iterator[Comparison]:
    """Sources in a batch against the same sources in batches of one."""
    for together, source in zip(case.encoded, case.sources, strict=True):
        for name, alone in case.encode([source])[0].items():
            yield name, together[name], alone


def embeddings(case: Case) -> Iterator[Comparison]:
    """What `embed` makes of the mean state of each source."""
    for outputs, source in zip(case.encoded, case.sources, strict=True):
        mean_M = pool("mean", outputs["encoder_states"][: len(source)])
        yield "embedding", case.graphs.embed(mean_M), case.expected.embedding(mean_M)


def masks_alone(case: Case) -> Iterator[Comparison]:
    """Predictions for the masks of one text, with and without those of the other texts in its batch."""
    places = [predicted_places(case.sources[0]), *[()] * (len(case.sources) - 1)]
    name = "place_logprobs"
    yield name, case.encode(case.sources, places)[0][name], case.encoded[0][name]


def weights_inside(case: Case) -> Iterator[Comparison]:
    """The weights of a text's tokens are 0 after its end."""
    for source, weights_S in zip(case.sources, case.graphs.encode(case.sources)["token_weights"], strict=True):
        yield "the padding of a text", weights_S[len(source) :], np.zeros(())
