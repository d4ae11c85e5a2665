"""AdamW and its learning-rate schedule."""

from __future__ import annotations

import torch
from torch import nn

from model.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, share: float) -> float:
    """Linear warm-up over the first steps, times linear decay to 0 over the completed share of the run (0..1)."""
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return config.learning_rate * warm * max(0.0, 1.0 - share)


def make_optimiser(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) with weight decay on matrices only."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=1e-9, fused=True)
