"""How quantized products round their inputs, in PyTorch: functions x (..., K) → x of the same shape, float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from export.passes.quantize_products import ROW_ZERO

Round = Callable[[Tensor], Tensor]


def round_rows(x: Tensor, zero: int = ROW_ZERO) -> Tensor:
    """Rounds each row to the same number of steps above 0, and of others below; a row's step lets all of it fit."""
    high = 255 - zero
    low = min(zero, high)
    top = torch.maximum(x, -x * (high / low) if low else x).amax(-1, keepdim=True)
    steps = torch.where(top > 0, x / top, 0.0).div(1 / high).round()
    return steps.clamp(-zero, high) * (1 / high) * top


def round_spread(rounding: Round, inverse_K: np.ndarray) -> Round:
    """Rounds inputs after they are multiplied by `inverse_K`, and divides them by it again."""
    factors = torch.from_numpy(inverse_K.copy())
    return lambda x: rounding(x * factors) / factors


def round_to_grid(step: float, zero: int, low: int, high: int) -> Round:
    """Rounds to multiples of a step, where the integers with their zero point lie between `low` and `high`."""
    return lambda x: ((x / step).round() + zero).clamp(low, high).sub(zero) * step


def round_blocks(block: int) -> Round:
    """Rounds each block of `block` inputs like a row of `round_rows`."""

    def rounded(x: Tensor) -> Tensor:
        inputs = x.shape[-1]
        padded = nn.functional.pad(x, (0, -inputs % block))
        return round_rows(torch.unflatten(padded, -1, (-1, block))).flatten(-2)[..., :inputs]

    return rounded
