"""The model of a run where every rank holds the whole of it: on a single rank, or on each of several (DDP).

    Replica       one rank: the model itself
    Replicated    Li et al. 2020: every rank holds the model and its optimiser, and gradients are summed over the ranks

Each gives the gradients of the whole step: a loss is divided by the targets of all ranks, and gradients are summed, not
averaged. What a state stores is always the whole model, so a run may go on with another number of ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from model.architectures import Model
from model.training.data.examples import Batch, Batches
from model.training.distributed.ranks import Ranks
from model.training.evaluate import loss_per_token
from model.training.objective.loss import Loss, batch_loss


class BatchLoss(nn.Module):
    """A model's `batch_loss` as one module: what DDP and FSDP2 need to see as a forward pass."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, **settings: Any) -> Loss:
        """settings: those of `batch_loss`."""
        return batch_loss(self.model, batch, **settings)


class Replica:
    """The model and its optimiser on a single rank."""

    is_whole = True  # on every rank

    def __init__(self, model: Model, optimiser: torch.optim.Optimizer, ranks: Ranks) -> None:
        self.model, self.optimiser, self.ranks = model, optimiser, ranks
        self._objective: Any = BatchLoss(model)

    def backward(self, batch: Batch, targets: int, *, is_last: bool, seed: int | None, **settings: Any) -> float:
        """Adds the gradients of a batch, and after the last one of this rank those of the other ranks; returns the
        plain loss of the batch, in nats.

        targets: of the step on all ranks. seed: of the generator that dropout draws from; None: it goes on. settings:
        those of `batch_loss`. The balance loss of a mixture of experts is of each batch, so that the number of ranks
        does not matter to it either.
        """
        if seed is not None:
            torch.manual_seed(seed)
        with self.watched(is_last=is_last):
            loss = self._objective(batch, **settings)
            (loss.smoothed / targets).backward()
            plain: float = loss.plain.item()
        return plain

    @contextlib.contextmanager
    def watched(self, *, is_last: bool) -> Iterator[None]:
        """The context of a batch, of which the last one exchanges gradients."""
        yield

    def loss_per_token(self, batches: Batches) -> float:
        """As `evaluate.loss_per_token`, with the batches divided among the ranks."""
        return loss_per_token(self.model, batches)

    def gathered(self) -> tuple[Model, torch.optim.Optimizer]:
        """The whole model and its optimiser, for a state. Called by every rank; whole on the first."""
        return self.model, self.optimiser


class JoinedReplica(Replica):
    """What the replicas of several ranks have in common."""

    def loss_per_token(self, batches: Batches) -> float:
        ranks, plan = self.ranks, batches.plan(0)
        device = next(self.model.parameters()).device
        losses, tokens = [], []
        self.model.eval()
        for start in range(0, len(plan), ranks.size):  # as many passes on every rank: those of FSDP2 exchange weights
            index = start + ranks.rank
            batch = batches.load(plan[min(index, len(plan) - 1)])
            with torch.no_grad(), ranks.watched():
                loss = self._objective(batch.to(device)).plain.item()
            losses.append(loss if index < len(plan) else 0.0)
            tokens.append(batch.tokens if index < len(plan) else 0)
        self.model.train()
        return sum(ranks.in_order(losses)) / sum(ranks.in_order(tokens))


class Replicated(JoinedReplica):
    """The whole model on each of several ranks."""

    def __init__(self, model: Model, optimiser: torch.optim.Optimizer, ranks: Ranks) -> None:
        super().__init__(model, optimiser, ranks)
        with ranks.watched():
            take_weights_of_first(model)
            parameters = dict(model.named_parameters())
            for name, key, tensor in moments_of(model, optimiser, ranks):
                distributed.broadcast(tensor, src=0)
                optimiser.state[parameters[name]][key] = tensor
            self._objective = DistributedDataParallel(self._objective, forward_sync_buffers=False)
        self._objective.register_comm_hook(None, lambda _, bucket: _summed(bucket))
        self._is_settled = False

    def backward(self, batch: Batch, targets: int, *, is_last: bool, seed: int | None, **settings: Any) -> float:
        if not self._is_settled:
            # DDP groups gradients in the order in which a first pass finishes them. Without a pass before the first
            # step, three or more ranks would add them in another order in that step, and a resumed run would differ.
            self._is_settled = True
            super().backward(batch, targets, is_last=True, seed=seed, **settings)
            self.model.zero_grad(set_to_none=True)
        return super().backward(batch, targets, is_last=is_last, seed=seed, **settings)

    @contextlib.contextmanager
    def watched(self, *, is_last: bool) -> Iterator[None]:
        with self.ranks.watched(), contextlib.nullcontext() if is_last else self._objective.no_sync():
            yield


def take_weights_of_first(model: nn.Module) -> None:
    """Replace the weights of a whole model by those of the first rank; an exchange."""
    for parameter in model.parameters():
        distributed.broadcast(parameter.detach(), src=0)


def moments_of(model: nn.Module, optimiser: torch.optim.Optimizer, ranks: Ranks) -> Iterator[tuple[str, str, Tensor]]:
    """The tensors of the optimiser's state by the names of parameter and moment: the first rank's, and on the others
    empty ones of their shapes, each made when its turn comes. The optimiser may be emptied before."""
    held = {
        (name, key): tensor
        for name, parameter in (model.named_parameters() if ranks.is_first else ())
        for key, tensor in optimiser.state.get(parameter, {}).items()
    }
    kinds = ranks.from_first(
        lambda: [(*names, tensor.shape, tensor.dtype, tensor.device.type) for names, tensor in held.items()]
    )

    def tensors() -> Iterator[tuple[str, str, Tensor]]:
        for name, key, shape, dtype, device in kinds:
            own = held.pop((name, key), None)
            yield name, key, torch.empty(shape, dtype=dtype, device=device) if own is None else own

    return tensors()


def _summed(bucket: Any) -> torch.futures.Future[Tensor]:
    """DDP's exchange of a bucket of gradients; by default it would average them."""
    work = distributed.all_reduce(bucket.buffer(), async_op=True)
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future
