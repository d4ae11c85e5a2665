"""Mixture-of-experts feed-forward: a router picks one or two of many feed-forwards for each token.

Fedus et al. 2022 (one expert, weighted by its probability; the balance loss), Lepikhin et al. 2021 (two, their
probabilities made to sum to 1). Experts that a token does not choose cost it nothing.

Shapes: N tokens, X experts, K chosen, M d_model, F d_ff.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from model.config import ModelConfig


class MixExperts(Protocol):
    """How the chosen experts are computed: token by token in PyTorch, or as one operator of another runtime."""

    def __call__(self, x_NM: Tensor, logits_NX: Tensor, experts: ExpertFeedForward) -> Tensor:
        """Tokens (N, M) and what the router says of them (N, X) → (N, M)."""
        ...


class ExpertFeedForward(nn.Module):
    """W2 act(W1 x) of the `experts_per_token` likeliest experts, weighted by the router's probabilities.

    `balance` holds the balance loss of the last call in training, a scalar with gradient; None otherwise.
    """

    def __init__(self, config: ModelConfig, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        experts, width, inner = config.experts, config.d_model, config.d_ff
        self.chosen, self.activation = config.experts_per_token, activation
        self.router = nn.Linear(width, experts, bias=False)
        self.inner = nn.Parameter(torch.empty(experts, inner, width))
        self.outer = nn.Parameter(torch.empty(experts, width, inner))
        self.mix: MixExperts = mix_chosen
        self.balance: Tensor | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform within each expert."""
        bound = math.sqrt(6 / (self.inner.shape[1] + self.inner.shape[2]))
        nn.init.uniform_(self.inner, -bound, bound)
        nn.init.uniform_(self.outer, -bound, bound)

    def forward(self, x_BTM: Tensor) -> Tensor:
        """(B, T, M) → (B, T, M)."""
        x_NM = x_BTM.flatten(0, -2)
        logits_NX = self.router(x_NM).float()
        self.balance = balance_loss(logits_NX) if self.training else None
        return self.mix(x_NM, logits_NX, self).view_as(x_BTM)


def mix_chosen(x_NM: Tensor, logits_NX: Tensor, experts: ExpertFeedForward) -> Tensor:
    """Each expert reads the tokens that chose it, and no others."""
    weights_NK, chosen_NK = logits_NX.softmax(-1).topk(experts.chosen, dim=-1)
    if experts.chosen > 1:
        weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
    out_NM = torch.zeros_like(x_NM)
    for expert in range(logits_NX.shape[1]):
        tokens, place = (chosen_NK == expert).nonzero(as_tuple=True)
        inner = experts.activation(x_NM[tokens] @ experts.inner[expert].T)
        mixed = (inner @ experts.outer[expert].T) * weights_NK[tokens, place, None].to(inner.dtype)
        out_NM = out_NM.index_add(0, tokens, mixed.to(out_NM.dtype))
    return out_NM


def balance_loss(logits_NX: Tensor) -> Tensor:
    """Fedus et al. 2022, eq. 4: X times the sum over experts of (share of tokens whose first choice it is) * (mean
    probability); 1 where all are alike."""
    probabilities_NX = logits_NX.softmax(-1)
    experts = logits_NX.shape[1]
    shares_X = torch.bincount(logits_NX.argmax(-1), minlength=experts) / len(logits_NX)
    return experts * (shares_X * probabilities_NX.mean(0)).sum()
