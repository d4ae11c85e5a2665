"""The model of a run in shards.

    Sharded       FSDP2, Zhao et al. 2023: every rank holds a share of each weight, of its gradient and of its moments

Apart from `replicas`, because loading FSDP2 takes a second, for which other runs need not wait.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from model.architectures import Model
from model.layers import FeedForward
from model.training.distributed.ranks import Ranks
from model.training.distributed.replicas import JoinedReplica, moments_of, take_weights_of_first

MakeOptimiser = Callable[[nn.Module], torch.optim.Optimizer]


class Sharded(JoinedReplica):
    """A share of the model on each of several ranks. Feed-forwards, two thirds of a Transformer's layers, are whole
    only while they compute, the other weights during a step."""

    is_whole = False

    def __init__(
        self,
        model: Model,
        optimiser: torch.optim.Optimizer,
        ranks: Ranks,
        make_optimiser: MakeOptimiser,
        device: torch.device,
    ) -> None:
        """model, optimiser: whole, in main memory. Only shares of them come to the device, a unit of FSDP2 or a moment
        after the other, so that it never holds more than in a step. The optimiser is empty afterwards."""
        self._make_optimiser = make_optimiser
        with ranks.watched():
            take_weights_of_first(model)
            self._whole = copy.deepcopy(model) if ranks.is_first else None
            moments = moments_of(model, optimiser, ranks)
            optimiser.param_groups.clear()  # the old parameters, which FSDP2 moves to the device whole, must go with
            optimiser.state.clear()  # their last reference
            super().__init__(model, optimiser, ranks)
            mesh = init_device_mesh(device.type, (ranks.size,))
            for unit in [*(module for module in model.modules() if isinstance(module, FeedForward)), self._objective]:
                fully_shard(unit, mesh=mesh)
                unit.set_gradient_divide_factor(1.0)  # a sum, not a mean,
                unit.set_force_sum_reduction_for_comms(True)  # by an operation that gloo has as well
            self.optimiser = make_optimiser(model)
            shares = dict(model.named_parameters())
            for name, key, tensor in moments:
                self.optimiser.state[shares[name]][key] = _share(tensor, shares[name])

    @contextlib.contextmanager
    def watched(self, *, is_last: bool) -> Iterator[None]:
        self._objective.set_requires_gradient_sync(is_last)
        with self.ranks.watched(), warnings.catch_warnings():
            # A feed-forward returns a view, of which nothing is changed in place.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
            yield

    def gathered(self) -> tuple[Model, torch.optim.Optimizer]:
        """On the first rank a copy of the whole in main memory, on the others their shares."""
        for module in self._objective.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        model, optimiser, whole = self.model, self.optimiser, dict[str, nn.Parameter]()
        if self._whole is not None:
            model, optimiser, whole = (
                self._whole,
                self._make_optimiser(self._whole),
                dict(self._whole.named_parameters()),
            )
        with self.ranks.watched(), torch.no_grad():
            for name, share in self.model.named_parameters():
                weight, state = self._kept(share), self.optimiser.state.get(share, {})
                moments = {key: self._kept(tensor) for key, tensor in state.items()}
                if name in whole:
                    whole[name].copy_(weight)
                    optimiser.state[whole[name]] = moments
        return model, optimiser

    def _kept(self, share: Tensor) -> Tensor:
        """The whole tensor of a share in main memory on the first rank, an empty one elsewhere; an exchange."""
        whole: Tensor = share.full_tensor().detach() if isinstance(share, DTensor) else share.detach()
        return whole.cpu() if self.ranks.is_first else whole.new_empty(0)


def _share(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This rank's share of a moment of a sharded parameter, on its device; the number of steps, a scalar, is whole on
    every rank. tensor: in main memory, used on the first rank."""
    if isinstance(parameter, DTensor) and tensor.dim():
        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
    own = tensor.clone()  # what it is read from stays as it is
    distributed.broadcast(own, src=0)
    return own.to(parameter.device)
