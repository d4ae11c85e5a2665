"""Which batches a step takes, and the seeds of their dropout: the same for any number of ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator

from model.training.data.examples import Batches
from model.training.training_state import Progress


def step_groups(batches: Batches, progress: Progress, accumulate: int) -> Iterator[list[list[int]]]:
    """The batches of each optimiser step, `accumulate` of them, from the position of `progress` on, which moves along.
    Without end; groups may cross epochs."""
    group = list[list[int]]()
    while True:
        plan = batches.plan(progress.epoch)
        while progress.position < len(plan):
            group.append(plan[progress.position])
            progress.position += 1
            if len(group) == accumulate:
                yield group
                group = []
        progress.epoch, progress.position = progress.epoch + 1, 0


def batch_seed(seed: int, step: int, index: int) -> int:
    """The seed of dropout in one batch of a step, by the run's seed and the index among the step's batches."""
    return random.Random(f"dropout {seed} {step} {index}").getrandbits(63)
