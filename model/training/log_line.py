"""The figures of a log step, for metrics.csv, and the line that displays them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from model.config import TrainConfig
from model.training.progress import clock, si
from model.training.training_state import Progress, TrainError


def figures_since(logged: Progress, progress: Progress, peak_flops_per_s: float) -> dict[str, float]:
    """The mean loss, the throughput and the share of the peak since the last log step.

    Raises TrainError if the loss is not finite.
    """
    loss = progress.loss_sum / max(1, progress.loss_tokens)
    if not math.isfinite(loss):
        raise TrainError(f"the loss is {loss} after step {progress.step}; lower --learning-rate, or raise warmup_steps")
    seconds = max(progress.elapsed_s - logged.elapsed_s, 1e-9)
    return {
        "train_loss": loss,
        "tokens_per_s": round((progress.tokens - logged.tokens) / seconds, 1),
        "peak_share": round((progress.flops - logged.flops) / (seconds * peak_flops_per_s), 4),
    }


def log_line(progress: Progress, figures: Mapping[str, float], *, share: float, rate: float) -> str:
    """share: of the whole run, 0..1. rate: the learning rate of the top layers. What people look for stands first: a
    narrow terminal cuts the end."""
    remaining_s = progress.elapsed_s * (1.0 - share) / max(share, 1e-9)
    return (
        f"step {progress.step}  {share:.0%}  {clock(remaining_s)} left  "
        f"loss {figures['train_loss']:.3f}  lr {rate:.1e}  "
        f"{figures['tokens_per_s']:,.0f} tokens/s  {figures['peak_share']:.0%} of peak  "
        f"{si(progress.tokens)}tokens  {si(progress.flops)}FLOP"
    )


def short_warm_up(config: TrainConfig, peak: float) -> str:
    """The warning of a run that is too short for its warm-up. peak: the steps after which the rate is highest."""
    run = f"{config.steps} steps" if config.steps else f"{config.minutes:g} minutes"
    return (
        f"warning: warmup_steps {config.warmup_steps} are more than a quarter of the run, {run}; the learning rate has "
        f"its peak after {max(1, round(peak))} steps"
    )
