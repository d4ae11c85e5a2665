import random

import numpy as np
import pytest

from service.encoder_request import PLACES, POOLED, STATES, EncoderRequest
from service.runtime.batching import (
    ENCODER_TOKENS,
    MAX_PREFILL_BATCH,
    PADDING_SHARE,
    PADDING_TOKENS,
    contiguous_runs,
    encoder_outputs_by_row,
    mask_positions,
    pad,
    prefill_batches,
    source_batches,
    source_width,
)
from service.step import NewRow, PrefillChunk, padded


def joins(lengths):
    return [NewRow(row, (5,) * length) for row, length in enumerate(lengths)]


def first(row, length):
    return PrefillChunk(row, 0, (5,) * length)


@pytest.mark.parametrize("seed", range(20))
def test_every_source_is_in_one_batch_of_bounded_size_and_padding(seed):
    rng = random.Random(seed)
    coming = joins(sorted(rng.randrange(0, 90) for _ in range(60)))
    batches = list(source_batches(coming))
    assert [join for batch in batches for join in batch] == [join for join in coming if join.source]
    for batch in batches:
        whole = len(batch) * source_width(batch[-1])
        own = sum(source_width(join) for join in batch)
        assert len(batch) == 1 or whole <= min(ENCODER_TOKENS, (1 + PADDING_SHARE) * own + PADDING_TOKENS)


def test_source_longer_than_a_batch_is_encoded_separately():
    assert [len(batch) for batch in source_batches(joins([ENCODER_TOKENS + 50] * 2))] == [1, 1]


def test_first_blocks_of_neighbours_with_one_padded_length_are_read_together():
    blocks = [first(0, 3), first(1, 16), first(2, 17), first(4, 20), first(5, 18)]
    assert [[block.row for block in some] for some in prefill_batches(blocks)] == [[0, 1], [2], [4, 5]]
    assert [len(some) for some in prefill_batches([first(row, 4) for row in range(MAX_PREFILL_BATCH + 1)])] == [
        MAX_PREFILL_BATCH,
        1,
    ]


def test_block_with_cached_positions_is_prefilled_separately():
    later = [PrefillChunk(row, 16, (5,) * 4) for row in range(2)]
    assert [len(some) for some in prefill_batches([first(0, 4), *later])] == [1, 1, 1]
    assert [len(some) for some in prefill_batches([PrefillChunk(0, 16, (5,) * 4), first(1, 4)])] == [1, 1]
    assert list(prefill_batches([])) == []


def test_a_device_computes_sources_and_prompts_of_any_lengths_in_one_pass():
    sources = joins([3, 20, 90, 300, 300])
    assert [len(batch) for batch in source_batches(sources, on_device=True)] == [3, 2]
    blocks = [first(0, 3), first(1, 40), first(2, 300), first(3, 5), first(5, 5), PrefillChunk(6, 16, (5,) * 4)]
    assert [len(some) for some in prefill_batches(blocks, on_device=True)] == [3, 1, 1, 1]
    for few, most in ((1, 1024), (2, 512), (64, 16)):
        batches = prefill_batches([first(row, most) for row in range(65)], on_device=True)
        assert len(next(batches)) == few


@pytest.mark.parametrize(
    ("rows", "expected"), [([], []), ([3], [(0, 1)]), ([1, 2, 3, 7, 9, 10], [(0, 3), (3, 4), (4, 6)])]
)
def test_neighbours_are_rows_without_a_gap(rows, expected):
    assert list(contiguous_runs(rows)) == expected


def test_rows_are_padded_at_the_end():
    assert pad([(5, 6), (7,)], 4).tolist() == [[5, 6, 0, 0], [7, 0, 0, 0]]


def test_encoder_outputs_are_assigned_to_their_rows():
    some = [
        NewRow(3, (5, 6), EncoderRequest(pooling="mean")),
        NewRow(4, (5, 6, 7)),
        NewRow(6, (5, 6, 7, 8), EncoderRequest(mask_positions=(1, 3), top_k=2, state_positions=(0, 2))),
    ]
    assert mask_positions(some, 4).tolist() == [9, 11]
    assert mask_positions(some[1:2], 4).tolist() == [0], "the graph wants one"
    outputs = {
        STATES: np.arange(12, dtype=np.float32).reshape(3, 4, 1),
        PLACES: np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], np.float32)),
        POOLED: np.zeros((3, 1), np.float32),
    }
    found = encoder_outputs_by_row(some, outputs)
    assert list(found) == [3, 6]
    assert found[3].vector is not None
    assert found[3].vector.tolist() == [0.5], "of its own tokens"
    assert found[3].states is None
    assert found[6].states is not None
    assert found[6].states.tolist() == [[8.0], [10.0]]
    assert found[6].states.dtype == np.float32
    assert [[token for token, *_ in filling] for filling in found[6].mask_predictions] == [[0, 1], [2, 1]]


def test_a_vector_passes_the_layers_after_the_pooling_before_it_is_scaled():
    states = {STATES: np.array([[[1, 2], [3, 4], [5, 8]]], np.float32)}
    row = NewRow(0, (5, 6, 7), EncoderRequest(pooling="mean", pooled_from=1, has_dense=True, normalized=True))
    vector = encoder_outputs_by_row([row], states, lambda vector_M: vector_M[::-1] / 2)[0].vector
    assert vector is not None
    assert vector.tolist() == pytest.approx([3 / 13**0.5, 2 / 13**0.5])  # of the mean (4, 6) of the last two


def test_widths_are_those_of_padded_sources():
    assert [source_width(join) for join in joins([0, 1, 4, 5])] == [0, 4, 4, padded(5, 4)]
