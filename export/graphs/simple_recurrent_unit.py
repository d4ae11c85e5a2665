"""The recurrence of `model.attention.SimpleRecurrentUnit` for one token per row, over a state that every step replaces.

Shapes: B batch, M d_model.
"""

from __future__ import annotations

import torch
from torch import Tensor


class GraphRecurrence:
    """`Recur` for one token per row: `present` holds the new state after the call."""

    def __init__(self, past_BM: Tensor, starts_B: Tensor) -> None:
        """past_BM: the state after the tokens before, anything for a row that starts. starts_B: int64."""
        self.past_BM, self.starts_B = past_BM, starts_B
        self.present: tuple[Tensor, ...] | None = None

    def __call__(self, forget_B1M: Tensor, update_B1M: Tensor) -> Tensor:
        # One node reads the state, and its replacement depends on it: both may share memory.
        before_BM = torch.where((self.starts_B == 0)[:, None], 0.0, self.past_BM)
        state_B1M = forget_B1M * before_BM.to(forget_B1M.dtype)[:, None] + update_B1M
        self.present = (state_B1M.squeeze(1).to(self.past_BM.dtype),)
        return state_B1M
