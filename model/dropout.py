"""Dropout (Srivastava et al. 2014) with a generator that a processor draws from quickly.

On a processor `torch.nn.functional.dropout` draws once per element, which took a fifth of the training step of a small
Transformer; here one draw of 64 bits decides about four elements. Other devices use PyTorch's fused operator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 2**16  # of the 16 bits for an element: the share that is dropped is a multiple of 1 / LEVELS
PER_DRAW = 4  # elements of one draw
LOWEST = -(2**63)  # the draws are all 64-bit integers


def drop(x: Tensor, share: float) -> Tensor:
    """Sets elements to zero, each with probability `share` (0 <= share < 1), and divides the others by 1 - share, so
    that the expected value is `x`. Any shape and floating-point dtype, which the result has too.

    Draws from the device's default generator of PyTorch, unless the share is 0: then the result is `x`.
    """
    if not share:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, share)
    dropped, count = min(round(share * LEVELS), LEVELS - 1), x.numel()
    draws = torch.empty(-(-count // PER_DRAW), dtype=torch.int64).random_(LOWEST, None)
    is_kept = draws.view(torch.int16)[:count].view(x.shape) >= dropped - LEVELS // 2
    return x * is_kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))


class Dropout(nn.Module):
    """`drop` in training; otherwise the identity."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.share) if self.training else x
