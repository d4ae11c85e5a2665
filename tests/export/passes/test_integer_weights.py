"""Rounding weights to integers, by column and by block."""

import numpy as np
import pytest

from export.passes.integer_weights import MOST_WEIGHT, rounded_blocks, symmetric_columns

# ---- weights


def test_columns_are_rounded_to_within_half_a_step():
    weight = np.random.default_rng(1).standard_normal((48, 20)).astype(np.float32)
    weight[:, 3] = 0
    integers, scale = symmetric_columns(weight)
    assert integers.dtype == np.int8
    assert np.abs(integers).max(0).tolist() == [64 if column != 3 else 0 for column in range(20)]
    assert (np.abs(integers * scale - weight) <= scale / 2 * 1.001).all()
    assert 2 * MOST_WEIGHT * 255 < 1 << 15


def unpacked(packed, bits, inputs):
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:2], -1)
    integers = packed.astype(np.int64) - (1 << (bits - 1))
    return integers.reshape(len(packed), -1)[:, :inputs], integers.shape[2]


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 64)])
@pytest.mark.parametrize("inputs", [128, 160])
def test_blocks_are_rounded_to_within_a_step_and_less_on_average(bits, block, inputs):
    weight = np.random.default_rng(2).standard_normal((inputs, 24)).astype(np.float32)
    packed, scale = rounded_blocks(weight, bits=bits, block=block)[:2]
    integers, size = unpacked(packed, bits, inputs)
    assert (size, packed.shape[0], packed.shape[1]) == (block, 24, -(-inputs // block))
    steps = np.abs(np.repeat(scale, block, 1)[:, :inputs])
    error = integers * np.repeat(scale, block, 1)[:, :inputs] - weight.T
    assert np.sqrt(np.square(error / steps).mean()) < 0.35  # 0.29 is that of rounding without clipping
    extremes = np.abs(weight.T[:, : inputs // block * block].reshape(24, -1, block)).max(2)
    plain = extremes / (2 ** (bits - 1) - 1)
    assert np.square(error).mean() <= 1.02 * np.square(plain).mean() / 12


@pytest.mark.parametrize("size", [1, 1e-7])
def test_integers_are_those_of_the_scales_in_float16(size):
    """Also where a weight is so small that its scale would round to 0."""
    weight = (np.random.default_rng(5).standard_normal((64, 24)) * size).astype(np.float16)
    packed, scales = rounded_blocks(weight, bits=8, block=32)[:2]
    integers_NK, _ = unpacked(packed, 8, 64)
    columns_KN, scale_N = symmetric_columns(weight)
    assert scales.dtype == scale_N.dtype == np.dtype(np.float16)
    steps_NK = np.abs(np.repeat(scales, 32, 1).astype(np.float32))
    assert (np.abs(integers_NK * np.repeat(scales, 32, 1).astype(np.float32) - weight.T) <= steps_NK * 1.001).all()
    assert (np.abs(columns_KN * scale_N.astype(np.float32) - weight) <= scale_N.astype(np.float32) / 2 * 1.001).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_block_of_zeros_stays_zero(dtype):
    packed, scale = rounded_blocks(np.zeros((32, 2), dtype), bits=4, block=32)[:2]
    assert np.isfinite(scale).all()
    assert (unpacked(packed, 4, 32)[0] == 0).all()
