"""Which parameters of a model a run trains, and the depth of each for learning rates that decay from the top."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import nn

from model.adapters import A, B, adapt, matching
from model.config import ConfigError
from model.encoder import Encoder
from model.fine_tuning import FineTuning

_BLOCK = re.compile(r"^(encoder|decoder)\.(?:blocks|layers|cells)\.(\d+)\.")
_BELOW = re.compile(r"^(encoder|decoder)\.(?:embedding|position_encoding)\.")


class Counts(NamedTuple):
    """Numbers of parameters; those of LoRA count in both."""

    all: int
    trained: int


def choose_trained(model: nn.Module, tuning: FineTuning, *, fresh: Collection[str] = ()) -> None:
    """Adds LoRA matrices if they are wanted, and lets only the parameters require gradients that are to be trained.

    fresh: names of parameters that no checkpoint holds, such as those of a new head; LoRA trains them as well. A
    pattern matches a tied parameter, such as an embedding table of both sides, by each of its names.
    Raises ConfigError for a pattern that matches nothing or a fresh parameter, and if nothing is left to train.
    """
    if tuning.lora_rank:
        adapt(model, tuning.lora_targets, rank=tuning.lora_rank, scale=tuning.lora_scale)
    names = [name for name, _ in model.named_parameters()]
    trained = set(names)
    if tuning.lora_rank:
        further = _matched(model, tuning.lora_train, field="lora_train")
        trained = {name for name in names if name.endswith((A, B))} | further | set(fresh)
    frozen = _matched(model, tuning.freeze, field="freeze")
    if still := sorted(frozen & set(fresh)):
        raise ConfigError("freeze", f"matches {still[0]} of the new head, which would stay random; narrow the pattern")
    trained -= frozen
    if isinstance(model, Encoder):  # ranks wait for gradients that never come
        unread = ("dense.",) if model.reads_pooler else ("dense.", "pooler.")
        trained -= {name for name in names if name.startswith(unread)}
    if not trained:
        raise ConfigError("freeze", f"leaves none of the {len(names)} parameters to train; leave out a pattern")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)


def _matched(model: nn.Module, patterns: Sequence[str], *, field: str) -> set[str]:
    """The parameters that the patterns match, by their first names. Raises ConfigError."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {first[parameters[name]] for name in matching(patterns, list(parameters), field=field, noun="parameter")}


def counts_of(model: nn.Module) -> Counts:
    """The numbers of parameters of a model and of those that are trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return Counts(sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained))


def steps_from_top(model: nn.Module) -> dict[str, int]:
    """By parameter name the number of layers above, counted in its own stack: 0 for heads, last norms and output
    projections, 1 for the last layer, one more for each layer before it, and the most for embeddings, which a tied
    output projection is part of (Howard and Ruder 2018, section 3.2; Clark et al. 2020 for encoders)."""
    names = [name for name, _ in model.named_parameters()]
    layers = dict.fromkeys(("encoder", "decoder"), 0)
    for name in names:
        if found := _BLOCK.match(name):
            layers[found[1]] = max(layers[found[1]], int(found[2]) + 1)
    steps = dict.fromkeys(names, 0)
    for name in names:
        if found := _BLOCK.match(name):
            steps[name] = layers[found[1]] - int(found[2])
        elif found := _BELOW.match(name):
            steps[name] = layers[found[1]] + 1
    return steps
