"""LoRA (Hu et al. 2021): a linear layer y = x W^T + b becomes y = x W^T + b + (alpha / r) (x A^T) B^T, with A (r, in)
and B (out, r) trained and W frozen.

An adapted model has the parameters of the plain one under their names, and `NAME.lora_a` and `NAME.lora_b` beside them.
`merge` turns it back into a plain model. The projection to the vocabulary is never adapted: it usually is the embedding
table, and the loss reads its weights without calling the layer.

Shapes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import ConfigError

A, B = ".lora_a", ".lora_b"
SHOWN = 6  # names in an error message


class AdaptedLinear(nn.Linear):
    """A linear layer with a low-rank update beside its own, shared parameters."""

    def __init__(self, plain: nn.Linear, rank: int, scale: float) -> None:
        """A is drawn from torch's generator with the variance 1 / I, B is 0, so that the layer starts as `plain`."""
        nn.Module.__init__(self)  # nn.Linear would draw weights, which are those of `plain`
        self.in_features, self.out_features, self.scale = plain.in_features, plain.out_features, scale
        self.weight, self.bias = plain.weight, plain.bias
        self.lora_a = nn.Parameter(torch.randn(rank, self.in_features) * self.in_features**-0.5)
        self.lora_b = nn.Parameter(torch.zeros(self.out_features, rank))

    def forward(self, input: Tensor) -> Tensor:
        """(..., I) → (..., O)."""
        plain = functional.linear(input, self.weight, self.bias)
        return plain + self.scale * functional.linear(functional.linear(input, self.lora_a), self.lora_b)


def matching(patterns: Sequence[str], names: Sequence[str], *, field: str, noun: str) -> set[str]:
    """The names that any pattern matches. Raises ConfigError for a pattern that matches none, with some that exist."""
    found = set[str]()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            some = ", ".join(dict.fromkeys(names[:: max(1, len(names) // SHOWN)]))
            raise ConfigError(field, f"{pattern!r} matches no {noun}; there are {len(names)}, such as {some}")
        found |= matched
    return found


def adapt(model: nn.Module, targets: Sequence[str], *, rank: int, scale: float) -> None:
    """Replaces the linear layers that the patterns match. Raises ConfigError for one that matches none."""
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith("unembedding")
    }
    chosen = matching(targets, list(layers), field="lora_targets", noun="linear layer but the output projection")
    for name, layer in layers.items():
        if name in chosen:
            _replace(model, name, AdaptedLinear(layer, rank, scale))


def merge(model: nn.Module) -> None:
    """Replaces adapted layers by plain ones with the weights W + (alpha / r) B A."""
    for name, module in list(model.named_modules()):
        if isinstance(module, AdaptedLinear):
            has_bias = module.bias is not None
            plain = nn.Linear(module.in_features, module.out_features, bias=has_bias, device="meta")
            merged = merged_weight(module.weight.detach(), module.lora_a.detach(), module.lora_b.detach(), module.scale)
            plain.weight, plain.bias = nn.Parameter(merged), module.bias
            _replace(model, name, plain)


def merged_weight(weight_OI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: float) -> Tensor:
    """W + scale B A, float32."""
    return weight_OI + scale * (b_OR @ a_RI)


def merged_weights(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights of a base with the LoRA matrices of an adapter merged, and its other parameters put in."""
    others = {name: tensor for name, tensor in adapter.items() if not name.endswith((A, B))}
    weights = {**base, **others}  # before the matrices, because a target may have been trained as well
    for name, a_RI, b_OR in _pairs(adapter):
        weights[f"{name}.weight"] = merged_weight(weights[f"{name}.weight"], a_RI, b_OR, scale)
    return weights


def _pairs(adapter: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The layers that have a matrix, with both. Raises KeyError for one that is missing."""
    for layer in dict.fromkeys(name.removesuffix(A).removesuffix(B) for name in adapter if name.endswith((A, B))):
        yield layer, adapter[f"{layer}{A}"], adapter[f"{layer}{B}"]


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, layer)
