"""Batches sources for runs of the encoder and prefill chunks for runs of the decoder, and splits a run's outputs by
row. Pure functions of plans and arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from export.bundle.manifest import SOURCE_MULTIPLE
from export.bundle.pooling import pool
from service.encoder_request import (
    LABELS,
    PLACES,
    POOLED,
    STATES,
    TOKEN_LABELS,
    WEIGHTS,
    EncoderOutput,
    most_likely,
    scaled_to_1,
)
from service.step import NewRow, PrefillChunk, padded

MAX_PREFILL_BATCH = 8
"""First chunks of prompts in one batch."""

ENCODER_TOKENS = 256
"""Tokens of a batch, padding included. Larger batches are not faster (6 layers, d512, 32 tokens in fp32 on one Zen 4
core: 17.4 ms per sentence in batches of 1, 15.7 of 2, 14.5 of 8, 14.8 of 32)."""

PADDING_SHARE, PADDING_TOKENS = 0.25, 16
"""Padding that a batch may add to its tokens: a separate run costs a small model more."""


PASS_TOKENS = 1024
"""Tokens of a batch on a device, whatever padding is among them: a pass takes a millisecond of launches (H100, six
layers), however few tokens it has."""


class TokenCount:
    """How many tokens some batches compute, and how many of these are padding."""

    def __init__(self) -> None:
        self.tokens = self.padding = 0

    def add(self, lengths: Sequence[int], width: int) -> None:
        """Counts a batch. lengths: of its rows without padding; width: with it."""
        self.tokens += width * len(lengths)
        self.padding += width * len(lengths) - sum(lengths)


def prefill_batches(chunks: Sequence[PrefillChunk], *, on_device: bool = False) -> Iterator[list[PrefillChunk]]:
    """Batches first chunks in consecutive rows, of one padded length unless they are computed on a device. A chunk with
    a past is a batch of its own, because the operator takes no others."""
    batch: list[PrefillChunk] = []
    widest = 0
    for chunk in chunks:
        width = padded(len(chunk.tokens))
        if batch and not (
            batch[0].start == chunk.start == 0
            and chunk.row == batch[-1].row + 1
            and (width == widest or on_device)
            and (max(width, widest) * (len(batch) + 1) <= PASS_TOKENS if on_device else len(batch) < MAX_PREFILL_BATCH)
        ):
            yield batch
            batch, widest = [], 0
        batch.append(chunk)
        widest = max(widest, width)
    if batch:
        yield batch


def contiguous_runs(rows: Sequence[int] | Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The index ranges [first, stop) in which row numbers, or both of each pair, are consecutive."""
    first = 0
    for stop in range(1, len(rows) + 1):
        if stop == len(rows) or rows[stop] != _after(rows[stop - 1]):
            yield first, stop
            first = stop


def _after(rows: int | tuple[int, int]) -> int | tuple[int, int]:
    return (rows[0] + 1, rows[1] + 1) if isinstance(rows, tuple) else rows + 1


def source_width(new: NewRow) -> int:
    """Positions of a row's source, padding included."""
    return padded(len(new.source), SOURCE_MULTIPLE)


def source_batches(new_rows: Iterable[NewRow], *, on_device: bool = False) -> Iterator[list[NewRow]]:
    """Rows with a source, ordered by its length, in batches of bounded size and, unless on a device, padding."""
    batch: list[NewRow] = []
    own = 0  # tokens, each source padded separately
    for new in new_rows:
        width = source_width(new)
        whole = width * (len(batch) + 1)
        bounded = min(ENCODER_TOKENS, (1 + PADDING_SHARE) * (own + width) + PADDING_TOKENS)
        if batch and whole > (PASS_TOKENS if on_device else bounded):
            yield batch
            batch, own = [], 0
        if width:
            batch.append(new)
            own += width
    if batch:
        yield batch


def mask_positions(new_rows: Iterable[NewRow], width: int) -> np.ndarray:
    """Mask positions of all requests, int64, as `encode` counts them in a batch of this width; position 0 if there are
    none, because the graph needs one."""
    requests = [(row, new.encoder_request) for row, new in enumerate(new_rows) if new.encoder_request]
    found = [row * width + position for row, request in requests for position in request.mask_positions]
    return np.array(found or [0], np.int64)


def encoder_outputs_by_row(
    new_rows: Iterable[NewRow],
    outputs: Mapping[str, np.ndarray],
    embed: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[int, EncoderOutput]:
    """The encoder outputs of each row with an encoder request. outputs: those that a request of the batch
    wants, by name. embed: the layers after the pooling, of a model that has them."""
    found, first = {}, 0
    for place, new in enumerate(new_rows):
        request, length = new.encoder_request, len(new.source)
        if request is None:
            continue
        wanted, count = request.outputs, len(request.mask_positions)
        chosen = list(request.state_positions)
        vector = None
        if request.pooling == "pooler":
            vector = outputs[POOLED][place].copy()
        elif request.pooling is not None:
            vector = pool(request.pooling, outputs[STATES][place, :length], request.pooled_from)
        if vector is not None and request.has_dense:
            assert embed is not None, "the bundle has no layers after the pooling"
            vector = embed(vector)
        if vector is not None and request.normalized:
            vector = scaled_to_1(vector)
        found[new.row] = EncoderOutput(
            vector=vector,
            mask_predictions=most_likely(outputs[PLACES][first : first + count], request.top_k) if count else (),
            label_logits=outputs[LABELS][place].copy() if LABELS in wanted else None,
            token_weights=outputs[WEIGHTS][place, :length].copy() if WEIGHTS in wanted else None,
            token_label_logits=outputs[TOKEN_LABELS][place, :length].copy() if TOKEN_LABELS in wanted else None,
            states=outputs[STATES][place, chosen].astype(np.float32) if chosen else None,
        )
        first += count
    return found


def pad(rows: Sequence[tuple[int, ...]], width: int) -> np.ndarray:
    """Token ids of rows, right-padded with 0: int64 (rows, width)."""
    block = np.zeros((len(rows), width), np.int64)
    for place, tokens in enumerate(rows):
        block[place, : len(tokens)] = tokens
    return block
