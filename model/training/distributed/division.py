"""Which form the model of a run takes on its ranks: `Replica`, `Replicated` or `Sharded`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from model.architectures import Model
from model.training.distributed.ranks import Ranks
from model.training.distributed.replicas import Replica, Replicated

if TYPE_CHECKING:
    from model.training.distributed.shards import MakeOptimiser


def first_device(device: torch.device, ranks: Ranks, *, shard: bool) -> torch.device:
    """Where `divided` takes the model and its optimiser: on the device of the training, or, to be divided into shards,
    in main memory."""
    return torch.device("cpu") if shard and ranks.size > 1 else device


def divided(
    model: Model,
    optimiser: torch.optim.Optimizer,
    ranks: Ranks,
    *,
    shard: bool,
    make_optimiser: MakeOptimiser,
    device: torch.device,
) -> Replica:
    """The model on these ranks, with the weights and moments of the first. model, optimiser: on `first_device`. shard:
    keep a share of them on each device."""
    if ranks.size == 1:
        return Replica(model, optimiser, ranks)
    if shard:
        from model.training.distributed.shards import Sharded

        return Sharded(model, optimiser, ranks, make_optimiser, device)
    return Replicated(model, optimiser, ranks)
