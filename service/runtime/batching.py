"""What is computed together: sources in one run of the encoder, first blocks of prompts in one of the decoder; and what
such a run told, row by row. Pure: plans and arrays in, plans and arrays out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from service.encoder_request import LABELS, PLACES, POOLED, STATES, WEIGHTS, EncoderOutput, likeliest, vector_of
from service.step import NewRow, PrefillChunk, padded

READ_BATCH = 8
"""First blocks of prompts that are read at once."""

SOURCE_MULTIPLE = 4
"""Sources are padded to a multiple of this: then further padding changes no bit of a row (encoders in fp32, static and
by row, 240 rows with up to 12 more positions: 0 differ), and sources of different lengths can share a batch."""

ENCODER_TOKENS = 256
"""Of a batch, padding included. Larger batches are not faster (6 layers, d512, 32 tokens in fp32 on one Zen 4 core:
17.4 ms a sentence alone, 15.7 in pairs, 14.5 in batches of 8, 14.8 of 32)."""

PADDING_SHARE, PADDING_TOKENS = 0.25, 16
"""How much padding a batch may have beside its own tokens: a run of its own costs a small model more than that."""


def blocks_together(blocks: Sequence[PrefillChunk]) -> Iterator[list[PrefillChunk]]:
    """First blocks of one padded length in neighbouring rows come together; a block with a past comes alone, because
    the operator takes no others."""
    together: list[PrefillChunk] = []
    for block in blocks:
        if together and not (
            block.start == 0
            and block.row == together[-1].row + 1
            and padded(len(block.tokens)) == padded(len(together[0].tokens))
            and len(together) < READ_BATCH
        ):
            yield together
            together = []
        together.append(block)
    if together:
        yield together


def contiguous_runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The places [first, stop) of rows that follow each other without a gap."""
    first = 0
    for stop in range(1, len(rows) + 1):
        if stop == len(rows) or rows[stop] != rows[stop - 1] + 1:
            yield first, stop
            first = stop


def source_width(join: NewRow) -> int:
    return padded(len(join.source), SOURCE_MULTIPLE)


def source_batches(joins: Iterable[NewRow]) -> Iterator[list[NewRow]]:
    """Joins with a source, which come ordered by its length, in batches of bounded size and padding."""
    batch: list[NewRow] = []
    own = 0  # tokens, each source padded for itself
    for join in joins:
        width = source_width(join)
        whole = width * (len(batch) + 1)
        if batch and whole > min(ENCODER_TOKENS, (1 + PADDING_SHARE) * (own + width) + PADDING_TOKENS):
            yield batch
            batch, own = [], 0
        if width:
            batch.append(join)
            own += width
    if batch:
        yield batch


def mask_positions(joins: Iterable[NewRow], width: int) -> np.ndarray:
    """All places that are to be told, as `encode` counts them in a batch of this width; the first one, if there are
    none: the graph wants one."""
    pairs = [
        (row, place)
        for row, join in enumerate(joins)
        if join.encoder_request
        for place in join.encoder_request.mask_positions
    ]
    return np.array([row * width + place for row, place in pairs] or [0], np.int64)


def encoder_outputs_by_row(joins: Iterable[NewRow], outputs: Mapping[str, np.ndarray]) -> dict[int, EncoderOutput]:
    """What each of the joins that have a reading was to be told, by row. outputs: those that any of them wanted."""
    encoded, first = {}, 0
    for place, join in enumerate(joins):
        reading, length = join.encoder_request, len(join.source)
        if reading is None:
            continue
        wanted, count = reading.outputs, len(reading.mask_positions)
        vector = outputs[POOLED][place].copy() if POOLED in wanted else None
        if STATES in wanted and reading.pooling is not None:
            vector = vector_of(reading.pooling, outputs[STATES][place, :length])
        encoded[join.row] = EncoderOutput(
            vector=vector,
            mask_predictions=likeliest(outputs[PLACES][first : first + count], reading.top_k) if count else (),
            label_logits=outputs[LABELS][place].copy() if LABELS in wanted else None,
            token_weights=outputs[WEIGHTS][place, :length].copy() if WEIGHTS in wanted else None,
        )
        first += count
    return encoded


def pad(rows: Sequence[tuple[int, ...]], width: int) -> np.ndarray:
    """Tokens of rows, padded with 0 behind: int64 (rows, width)."""
    block = np.zeros((len(rows), width), np.int64)
    for place, tokens in enumerate(rows):
        block[place, : len(tokens)] = tokens
    return block
