"""Mixture-of-experts feed-forward: a router picks one or two of many feed-forwards for each token.

Fedus et al. 2022 (one expert, weighted by its probability; the balance loss), Lepikhin et al. 2021 (two, their
probabilities made to sum to 1). Only the chosen experts are computed.

Shapes: N tokens, X experts, K chosen, M d_model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from model.architecture_config import TransformerConfig


class ExpertFeedForward(nn.Module):
    """The `experts_per_token` likeliest feed-forwards of each token, weighted by the router's probabilities.

    `balance` holds the balance loss of the last call in training, a scalar with gradient; None otherwise.
    """

    def __init__(self, config: TransformerConfig, experts: Iterable[nn.Module]) -> None:
        """experts: `config.num_experts` of them, each (N, M) → (N, M)."""
        super().__init__()
        self.chosen = config.experts_per_token
        self.router = nn.Linear(config.d_model, config.num_experts, bias=False)
        self.experts = nn.ModuleList(experts)
        self.balance: Tensor | None = None

    def forward(self, x_BTM: Tensor) -> Tensor:
        """(B, T, M) → (B, T, M)."""
        x_NM = x_BTM.flatten(0, -2)
        logits_NX = self._logits(x_NM)
        self.balance = balance_loss(logits_NX) if self.training else None
        gates_NX = gates(logits_NX, self.chosen).to(x_NM.dtype)
        # float32: the sum over the experts is rounded once, and CPUs need not add half-precision values at indices.
        mixed_NM = torch.zeros_like(x_NM, dtype=torch.float32)
        for index, expert in enumerate(self.experts):
            gate_N = gates_NX[:, index]
            tokens: Any = gate_N.nonzero()[:, 0]
            mixed = expert(x_NM[tokens]) * gate_N[tokens, None]
            mixed_NM = mixed_NM.index_add(0, tokens, mixed.float())
        return mixed_NM.to(x_NM.dtype).view_as(x_BTM)

    def _logits(self, x_NM: Tensor) -> Tensor:
        """In float32, under autocast too: a rounded logit may choose another expert (Fedus et al. 2022, 2.4)."""
        device = x_NM.device.type
        if not torch.is_autocast_enabled(device):  # nor is it when graphs are traced
            logits_NX: Tensor = self.router(x_NM)
            return logits_NX.float()
        with torch.autocast(device, enabled=False):
            logits_NX = self.router(x_NM.float())
        return logits_NX


def gates(logits_NX: Tensor, chosen: int) -> Tensor:
    """The weight of each expert's output for each token, (N, X): 0 for experts that were not chosen."""
    weights_NK, experts_NK = logits_NX.softmax(-1).topk(chosen, dim=-1)
    if chosen > 1:
        weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
    return torch.zeros_like(logits_NX).scatter(-1, experts_NK, weights_NK)


def balance_loss(logits_NX: Tensor) -> Tensor:
    """Fedus et al. 2022, eq. 4: X times the sum over experts of (share of tokens whose first choice it is) * (mean
    probability); 1 where all are alike."""
    probabilities_NX = logits_NX.softmax(-1)
    experts = logits_NX.shape[1]
    shares_X = torch.bincount(logits_NX.argmax(-1), minlength=experts) / len(logits_NX)
    return experts * (shares_X * probabilities_NX.mean(0)).sum()
