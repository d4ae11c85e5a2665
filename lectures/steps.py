"""A single optimizer step, for claims about the speed of training."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.measure import seconds
from model.architectures import GenerativeModel, build
from model.config import ModelConfig, TrainConfig
from model.training.data.examples import Batch
from model.training.objective.loss import batch_loss, takes_bf16
from model.training.objective.optimiser import make_optimiser


def step_job(config: ModelConfig, train: TrainConfig, batch: Batch) -> Callable[[], float]:
    """A function that takes one training step of a fresh model, always on the same batch, and returns its seconds. The
    caller sets torch to one thread."""
    torch.manual_seed(1)
    model: GenerativeModel = build(config).train()
    optimiser = make_optimiser(model, train)
    bf16 = takes_bf16(train.bf16, torch.device("cpu"))

    def step() -> None:
        loss = batch_loss(model, batch, bf16=bf16)
        (loss.smoothed / batch.tokens).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return lambda: seconds(step)


def random_batch(rows: int, length: int, words: int) -> Batch:
    """Sources and targets of `length` tokens each, of ids from 4 to `words`."""
    tokens = torch.Generator().manual_seed(1)
    source, target, read = (torch.randint(4, words, (rows, length), generator=tokens) for _ in range(3))
    return Batch(source, torch.full((rows,), length), read, target, rows * length)
