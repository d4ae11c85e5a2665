"""Rounding weights to integers: by column for int8 matrix products, by block for MatMulNBits."""

from __future__ import annotations

import numpy as np

INT8_MAX = 127
MOST_WEIGHT = 64  # 2 * 64 * 255 is below 2^15
WORST_SHARE = 1e-12  # of a scale: keeps weights that are all zero from dividing by it
BLOCK_CLIPS = np.linspace(0.7, 1.0, 7, dtype=np.float32)  # of a block's largest magnitude; the best one is taken


def symmetric_columns(weight_KN: np.ndarray, *, most: int = MOST_WEIGHT) -> tuple[np.ndarray, np.ndarray]:
    """int8 (K, N) and float32 scales (N,), the largest magnitude of each column being `most`: their product is within
    half a scale of the weight."""
    scale_N = np.maximum(np.abs(weight_KN).max(0), WORST_SHARE) / most
    integers = np.rint(weight_KN / scale_N).astype(np.int8)
    return integers, scale_N.astype(np.float32)


def symmetric_blocks(weight_KN: np.ndarray, *, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights of MatMulNBits: uint8 (N, blocks, bytes) with zero point 2^(bits-1), scales float32 (N, blocks).

    Of several scales for a block the one with the least squared error is taken: at 4 bits clipping the largest weight
    a little makes all others finer.
    """
    inputs, outputs = weight_KN.shape
    blocks = -(-inputs // block)
    parts = np.zeros((outputs, blocks * block), np.float32)
    parts[:, :inputs] = weight_KN.T
    parts = parts.reshape(outputs, blocks, block)
    half = 1 << (bits - 1)
    # The magnitude of the most extreme weight lies on the side that has one integer more.
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(2)[..., None], 2)[..., 0]
    widest = np.where(np.abs(extreme) > WORST_SHARE, extreme, WORST_SHARE) / -half
    best_error = np.full((outputs, blocks), np.inf, np.float32)
    scale, integers = np.zeros_like(widest), np.zeros_like(parts)
    for clip in BLOCK_CLIPS if bits == 4 else BLOCK_CLIPS[-1:]:
        tried = (widest * clip).astype(np.float32)
        rounded = np.clip(np.rint(parts / tried[..., None]), -half, half - 1)
        error = np.square(rounded * tried[..., None] - parts).sum(2)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        scale = np.where(better, tried, scale)
        integers = np.where(better[..., None], rounded, integers)
    unsigned: np.ndarray = (integers + half).astype(np.uint8)
    if bits == 4:
        unsigned = unsigned[..., 0::2] | (unsigned[..., 1::2] << 4)
    return unsigned, scale.astype(np.float32)
