"""AdamW and its learning-rate schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from model.config import TrainConfig
from model.training.objective.freezing import steps_from_top

LONGEST_WARM_UP = 0.25  # share of a run; one that is too short for `warmup_steps` would never learn at its peak rate


def learning_rate(config: TrainConfig, step: int, share: float) -> float:
    """Linear warm-up over the first steps, in a short run over its first quarter, times linear decay to 0 over the
    completed share of the run (0..1)."""
    done = max((step + 1) / config.warmup_steps, share / LONGEST_WARM_UP) if config.warmup_steps else 1.0
    warm = min(1.0, done)
    return config.learning_rate * warm * max(0.0, 1.0 - share)


def make_optimiser(model: nn.Module, config: TrainConfig, *, layer_decay: float = 1.0) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) of the parameters that require gradients, with weight decay on matrices only.

    layer_decay: the factor of the learning rate for each layer from the top (`steps_from_top`). A group's factor is its
    `scale`, see `set_learning_rate`.
    """
    steps = steps_from_top(model) if layer_decay != 1.0 else {}
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for is_matrix in (True, False):
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and (parameter.dim() > 1) == is_matrix:
                groups.setdefault((steps.get(name, 0), is_matrix), []).append(parameter)
    settings: list[dict[str, Any]] = [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if is_matrix else 0.0,
            "scale": layer_decay**step,
        }
        for (step, is_matrix), parameters in groups.items()
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(settings, lr=config.learning_rate, betas=betas, eps=1e-9, fused=True)


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Sets the rate of the top layers; other groups get theirs by their scale."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]
