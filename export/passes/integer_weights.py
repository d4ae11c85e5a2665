"""Rounding of weights to integers: by column for int8 matrix products, by block for MatMulNBits."""

from __future__ import annotations

import numpy as np

INT8_MAX = 127
MOST_WEIGHT = 64  # 2 * 64 * 255 is below 2^15
WORST_SHARE = 1e-12  # of a scale: prevents division by zero for weights that are all zero
BLOCK_CLIPS = np.linspace(0.7, 1.0, 7, dtype=np.float32)  # candidate shares of a block's maximum; the best is used


def symmetric_columns(weight_KN: np.ndarray, *, most: int = MOST_WEIGHT) -> tuple[np.ndarray, np.ndarray]:
    """Return weights int8 (K, N) and scales (N,) of the weights' type, with `most` as the largest magnitude of each
    column.

    weight_KN: float32 or float16. The product of both differs from the original weight by at most half a scale.
    """
    scale_N = _scales(np.maximum(np.abs(weight_KN).max(0).astype(np.float32), WORST_SHARE) / most, weight_KN.dtype)
    integers = np.rint(weight_KN / scale_N.astype(np.float32)).astype(np.int8)
    return integers, scale_N


def symmetric_blocks(weight_KN: np.ndarray, *, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return weights for MatMulNBits: uint8 (N, blocks, bytes) with zero point 2^(bits-1), and scales (N, blocks) of
    the weights' type.

    weight_KN: float32 or float16. Each block uses the candidate scale with the smallest squared error: at 4 bits,
    slight clipping of the largest weight gives all other weights a finer step.
    """
    inputs, outputs = weight_KN.shape
    blocks = -(-inputs // block)
    parts = np.zeros((outputs, blocks * block), np.float32)
    parts[:, :inputs] = weight_KN.T
    parts = parts.reshape(outputs, blocks, block)
    half = 1 << (bits - 1)
    # The weight with the largest magnitude is mapped to the side that has one more integer.
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(2)[..., None], 2)[..., 0]
    widest = np.where(np.abs(extreme) > WORST_SHARE, extreme, WORST_SHARE) / -half
    best_error = np.full((outputs, blocks), np.inf, np.float32)
    scale, integers = np.zeros_like(widest), np.zeros_like(parts)
    for clip in BLOCK_CLIPS if bits == 4 else BLOCK_CLIPS[-1:]:
        tried = _scales(widest * clip, weight_KN.dtype).astype(np.float32)
        rounded = np.clip(np.rint(parts / tried[..., None]), -half, half - 1)
        error = np.square(rounded * tried[..., None] - parts).sum(2)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        scale = np.where(better, tried, scale)
        integers = np.where(better[..., None], rounded, integers)
    unsigned: np.ndarray = (integers + half).astype(np.uint8)
    if bits == 4:
        unsigned = unsigned[..., 0::2] | (unsigned[..., 1::2] << 4)
    return unsigned, scale.astype(weight_KN.dtype)


def _scales(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round scales to the type that stores them; none becomes 0, as small ones would in float16."""
    rounded = exact.astype(dtype)
    return np.where(rounded == 0, np.finfo(dtype).smallest_subnormal, rounded)
