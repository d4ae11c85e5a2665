"""The SSRU: a recurrent layer in the place of a decoder's self-attention (Kim et al. 2019, "From Research to Production
and Back: Ludicrously Fast Neural Machine Translation", 3.2).

    f_t = sigmoid(W_f x_t + b_f)
    c_t = f_t * c_{t-1} + (1 - f_t) * (W x_t),  c_{-1} = 0
    y_t = relu(c_t)

One state of the width of the model replaces keys and values that grow with the target. As with attention, the layer
owns the products alone, and how states follow each other is handed in as a `Recur`: over whole targets, over a state
that is kept between calls, or as operators of a graph.

Shapes: B batch, T target positions, M d_model.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import ModelConfig


class Recur(Protocol):
    """Computes states one after another: c_t = forget_t * c_{t-1} + update_t."""

    def __call__(self, forget_BTM: Tensor, update_BTM: Tensor) -> Tensor:
        """forget and update (B, T, M) → c (B, T, M), all of one floating dtype."""


class SimpleRecurrentUnit(nn.Module):
    """The products of both gates are one; W has no bias."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_forget = nn.Linear(config.d_model, 2 * config.d_model, bias=False)
        self.forget_bias = nn.Parameter(torch.zeros(config.d_model))

    def forward(self, x_BTM: Tensor, recur: Recur) -> Tensor:
        """x (B, T, M) → (B, T, M)."""
        input_BTM, forget_BTM = self.input_forget(x_BTM).chunk(2, dim=-1)
        forget_BTM = torch.sigmoid(forget_BTM + self.forget_bias.to(forget_BTM.dtype))
        return functional.relu(recur(forget_BTM, (1 - forget_BTM) * input_BTM))


class FullRecurrence:
    """Whole targets, from a state of zeros. longest: at least T, where that is not a number yet, as in a trace."""

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest

    def __call__(self, forget_BTM: Tensor, update_BTM: Tensor) -> Tensor:
        return _scanned(forget_BTM, update_BTM, self.longest or forget_BTM.shape[1])[1].to(update_BTM.dtype)


class CachedRecurrence:
    """The next tokens of each row. state_BM: after the tokens before; replaced in place."""

    def __init__(self, state_BM: Tensor) -> None:
        self.state_BM = state_BM

    def __call__(self, forget_BTM: Tensor, update_BTM: Tensor) -> Tensor:
        kept_BTM, new_BTM = _scanned(forget_BTM, update_BTM, forget_BTM.shape[1])
        states_BTM = (kept_BTM * self.state_BM[:, None] + new_BTM).to(update_BTM.dtype)
        self.state_BM.copy_(states_BTM[:, -1])
        return states_BTM


def _scanned(forget_BTM: Tensor, update_BTM: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """What is left of the state before the first token after each token, as a factor, and what the tokens add; in at
    least float32.

    Spans of tokens double in length (Hillis and Steele 1986): a target of T tokens takes log2 T products, where a
    token after another would take T.
    """
    kept, added = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (forget_BTM, update_BTM))
    span = 1
    while span < longest:
        added = added + kept * _delayed(added, span, 0.0)
        kept = kept * _delayed(kept, span, 1.0)
        span *= 2
    return kept, added


def _delayed(x_BTM: Tensor, steps: int, before: float) -> Tensor:
    """x of so many tokens earlier."""
    batch, length, width = x_BTM.shape
    return torch.cat((x_BTM.new_full((batch, steps, width), before), x_BTM), dim=1)[:, :length]
