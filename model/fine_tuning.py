"""`FineTuning`: which parameters a training run changes, how fast each of them learns, and when the run ends early.

It applies to runs from scratch as well as to those that continue a checkpoint. Nothing here imports torch; the settings
act in `model.training.objective.freezing`, `model.training.objective.optimiser`, `model.training.early_stopping` and
`model.adapters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model.config import Config, bounded, check

StopMetric = Literal["loss", "bleu", "accuracy", "f1"]


@dataclass(frozen=True, kw_only=True)
class FineTuning(Config):
    """Patterns are those of `fnmatch`: `*` also matches dots."""

    freeze: tuple[str, ...] = ()  # patterns of parameter names that keep their values
    layer_decay: float = bounded(1.0, 0.01, 1.0)  # factor of the learning rate per layer from the top
    patience: int = bounded(0, 0)  # validations without a better value before the run ends; 0: it never ends early
    stop_metric: StopMetric = "loss"  # of the validation set; decides when to end and which state is the result
    lora_rank: int = bounded(0, 0)  # r of Hu et al. 2021; 0: no LoRA
    lora_alpha: float = bounded(0.0, 0)  # the update is scaled by alpha / rank; 0: alpha = rank
    lora_targets: tuple[str, ...] = ("*attention*",)  # patterns of names of linear layers
    lora_train: tuple[str, ...] = ()  # patterns of parameters that are trained beside the LoRA matrices
    lora_merge: bool = True  # the result is an ordinary checkpoint; false: the matrices beside a reference to the base

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("freeze", "lora_targets", "lora_train"):
            patterns = getattr(self, name)
            are_patterns = isinstance(patterns, tuple) and all(isinstance(item, str) and item for item in patterns)
            check(are_patterns, name, f"must be a list of patterns, got {patterns!r:.80}")
        for name in ("lora_alpha", "lora_targets", "lora_train"):
            is_given = getattr(self, name) != getattr(FineTuning, name)  # the class holds the defaults
            check(bool(self.lora_rank) or not is_given, name, "needs lora_rank of at least 1")
        check(self.lora_merge or bool(self.lora_rank), "lora_merge", "false needs lora_rank of at least 1")
        check(not self.lora_rank or bool(self.lora_targets), "lora_targets", "must name a layer, got none")
        is_used = self.patience > 0 or self.stop_metric == "loss"
        check(is_used, "stop_metric", f"{self.stop_metric} needs patience of at least 1")

    @property
    def lora_scale(self) -> float:
        """The factor of the low-rank product."""
        return (self.lora_alpha or self.lora_rank) / self.lora_rank if self.lora_rank else 0.0
