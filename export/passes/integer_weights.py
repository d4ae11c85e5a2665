"""Rounding of weights to integers: by column for int8 matrix products, by block for MatMulNBits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from export.passes.error_feedback import Round

INT8_MAX = 127
MOST_WEIGHT = 64  # 2 * 64 * 255 is below 2^15
WORST_SHARE = 1e-12  # of a scale: prevents division by zero for weights that are all zero
BLOCK_CLIPS = np.linspace(0.7, 1.0, 7, dtype=np.float32)  # candidate shares of a block's maximum; the best is used


def symmetric_columns(
    weight_KN: np.ndarray, *, most: int = MOST_WEIGHT, feedback: Round | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights int8 (K, N) and scales (N,) of the weights' type, with `most` as the largest magnitude of each
    column.

    weight_KN: float32 or float16. feedback: rounds by what inputs are like, see `export.passes.error_feedback`;
    without, the product of both differs from the original weight by at most half a scale.
    """
    scale_N = _scales(np.maximum(np.abs(weight_KN).max(0).astype(np.float32), WORST_SHARE) / most, weight_KN.dtype)
    step_N, bound = scale_N.astype(np.float32), np.float32(most)
    integers_KN = feedback(weight_KN, step_N, -bound, bound) if feedback else np.rint(weight_KN / step_N)
    return integers_KN.astype(np.int8), scale_N


class Blocks(NamedTuple):
    """A weight for MatMulNBits: uint8 (N, blocks, bytes), scales (N, blocks) of the weight's type, and zero points,
    uint8 (N, bytes), two in a byte at 4 bits; None: all 2^(bits - 1)."""

    packed: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None


def rounded_blocks(
    weight_KN: np.ndarray,
    *,
    bits: int,
    block: int,
    has_zeros: bool = False,
    feedback: Round | None = None,
) -> Blocks:
    """Return a weight in integers of `bits` whose every `block` inputs have one scale.

    weight_KN: float32 or float16. Each block uses the candidate scale with the smallest squared error: at 4 bits,
    slight clipping of the largest weight gives all other weights a finer step. has_zeros: each block has a zero point
    of its own. feedback: as of `symmetric_columns`.
    """
    inputs, outputs = weight_KN.shape
    blocks = -(-inputs // block)
    parts = np.zeros((outputs, blocks * block), np.float32)
    parts[:, :inputs] = weight_KN.T
    parts = parts.reshape(outputs, blocks, block)
    scale, zero = _best_grid(parts, bits, weight_KN.dtype, has_zeros=has_zeros)
    top = (1 << bits) - 1
    if feedback is None:
        integers = np.clip(np.rint(parts / scale[..., None]), -zero[..., None], top - zero[..., None])
    else:
        step_KN, zero_KN = (np.repeat(part.T, block, axis=0)[:inputs] for part in (scale, zero))
        found_KN = feedback(weight_KN, step_KN, -zero_KN, top - zero_KN)
        integers = np.zeros((outputs, blocks * block), np.float32)
        integers[:, :inputs] = found_KN.T
        integers = integers.reshape(parts.shape)
    packed = _pack((integers + zero[..., None]).astype(np.uint8), bits)
    return Blocks(packed, scale.astype(weight_KN.dtype), _pack(zero.astype(np.uint8), bits) if has_zeros else None)


def _best_grid(parts: np.ndarray, bits: int, dtype: np.dtype, *, has_zeros: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale and the zero point of each block, float32 (N, blocks), for weights (N, blocks, block)."""
    half, top = 1 << (bits - 1), (1 << bits) - 1
    # The weight with the largest magnitude is mapped to the side that has one more integer.
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(2)[..., None], 2)[..., 0]
    widest = np.where(np.abs(extreme) > WORST_SHARE, extreme, WORST_SHARE) / -half
    zero = np.full_like(widest, half)
    if has_zeros:
        low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
        widest = np.maximum(high - low, WORST_SHARE) / top
        zero = np.clip(np.rint(-low / widest), 0, top).astype(np.float32)
    best_error, scale = np.full(widest.shape, np.inf, np.float32), np.zeros_like(widest)
    for clip in BLOCK_CLIPS if bits == 4 else BLOCK_CLIPS[-1:]:
        tried = _scales(widest * clip, dtype).astype(np.float32)
        rounded = np.clip(np.rint(parts / tried[..., None]), -zero[..., None], top - zero[..., None])
        error = np.square(rounded * tried[..., None] - parts).sum(2)
        better = error < best_error
        best_error, scale = np.where(better, error, best_error), np.where(better, tried, scale)
    return scale, zero


def _pack(integers: np.ndarray, bits: int) -> np.ndarray:
    """uint8 (..., count) → the same at 8 bits, (..., bytes) at 4, with the first of two in the low half."""
    if bits == 8:
        return integers
    if integers.shape[-1] % 2:
        integers = np.concatenate((integers, np.zeros_like(integers[..., :1])), axis=-1)
    packed: np.ndarray = integers[..., 0::2] | (integers[..., 1::2] << 4)
    return packed


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return the integers in the bytes (N, ...) of a weight's `Blocks` or of their zero points, uint8 (N, count)."""
    unsigned = np.stack((packed & 15, packed >> 4), axis=-1) if bits == 4 else packed
    return unsigned.reshape(len(packed), -1)


def _scales(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round scales to the type that stores them; none becomes 0, as small ones would in float16."""
    rounded = exact.astype(dtype)
    return np.where(rounded == 0, np.finfo(dtype).smallest_subnormal, rounded)
