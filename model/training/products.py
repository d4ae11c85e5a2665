"""Counts the operations of matrix products, forward and backward, by what a run trains.

A product of two operands has up to two products of the same size in the backward pass: one for the gradient of each
operand that needs a gradient. A weight needs one if it is trained, and an activation if anything before it is trained.
So autograd computes neither gradients of frozen weights nor those of activations below the lowest trained parameter,
and neither does this count. LoRA matrices (`model.adapters`) are two more products beside that of their layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple, Self

from torch import nn

from model.adapters import A, B
from model.config import ModelConfig
from model.training.data.examples import Batch


class Trained:
    """The parameters that a run trains, by name, and the rank of each adapted layer. None: all, and no layer is."""

    def __init__(self, names: Iterable[str] | None = None, ranks: Mapping[str, int] | None = None) -> None:
        self._is_all, self.ranks = names is None, dict(ranks or {})
        self._within = {part for name in names or () for part in accumulate(name.split("."), "{}.{}".format)}

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Those of a model that require gradients. A tied parameter has each of its names."""
        parameters = list(model.named_parameters(remove_duplicate=False))
        ranks = {name.removesuffix(A): len(parameter) for name, parameter in parameters if name.endswith(A)}
        if not ranks and all(parameter.requires_grad for _, parameter in parameters):
            return cls()
        return cls((name for name, parameter in parameters if parameter.requires_grad), ranks)

    def __contains__(self, name: str) -> bool:
        """Whether a parameter of this name, or one in a module of this name, is trained."""
        return self._is_all or name in self._within


def product(rows: int, inner: int, columns: int) -> int:
    """Operations of (rows, inner) by (inner, columns): a multiplication and an addition for each term."""
    return 2 * rows * inner * columns


class BatchShape(NamedTuple):
    """What of a batch determines the operations."""

    rows: int
    source: int  # positions of each row, padding included
    target: int
    source_tokens: int  # of all rows, without padding: what recurrent encoders read
    predicted: int  # positions whose logits the loss needs

    @classmethod
    def of(cls, batch: Batch) -> BatchShape:
        rows, source = batch.source_BS.shape
        return cls(rows, source, batch.input_BT.shape[1], int(batch.lengths_B.sum()), batch.tokens)


class Products:
    """Adds up the operations of products. What the methods return, and take as `carries`, is whether a tensor needs a
    gradient."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.forward = self.backward = 0

    def add(self, operations: int, first: bool, second: bool) -> bool:
        """A product of two operands, of which each may need a gradient."""
        self.forward += operations
        self.backward += operations * (first + second)
        return first or second

    def linear(self, name: str, rows: int, inner: int, columns: int, *, carries: bool) -> bool:
        """A linear layer on an input (rows, inner), with its LoRA matrices if it has some."""
        self.add(product(rows, inner, columns), carries, f"{name}.weight" in self.trained)
        if rank := self.trained.ranks.get(name, 0):
            reduced = self.add(product(rows, inner, rank), carries, name + A in self.trained)
            self.add(product(rows, rank, columns), reduced, name + B in self.trained)
        return carries or name in self.trained

    def project(self, config: ModelConfig, predicted: int, *, carries: bool) -> None:
        """The projection to the vocabulary, whose bias is one more dimension of the states: `with_bias` of `loss`."""
        size = product(predicted, config.d_model + config.output_bias, config.vocab_size)
        self.add(size, carries, "decoder.unembedding" in self.trained)
