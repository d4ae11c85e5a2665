"""The end of a run: the choice of its weights, their scores, and the checkpoint with its model card and curves.

The weights are those of the last state, of the best one, or the mean of the last states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from model.architectures import Model
from model.checkpoints.atomic_write import Disk
from model.checkpoints.checkpoint import load_weights, save_checkpoint, weights_of
from model.config import TrainConfig
from model.encoder import Encoder
from model.tokenizer import Tokenizer
from model.training.data.examples import Batches, Examples
from model.training.early_stopping import load_best
from model.training.evaluate import loss_per_token
from model.training.objective.freezing import counts_of
from model.training.progress import Display
from model.training.report import curves_png, encoder_scores, final_scores, lineage_of, metrics_csv, model_card
from model.training.start import Start
from model.training.training_state import Progress, average_states


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run after its last step. examples, held_out: its data; batches, validation: the same in token ids."""

    model: Model
    start: Start
    config: TrainConfig
    progress: Progress
    tokenizer: Tokenizer
    examples: Examples
    held_out: Examples
    batches: Batches
    validation: Batches
    states: Path
    peak_flops_per_s: float


def write_result(run: TrainedRun, out: Path, display: Display, disk: Disk | None) -> None:
    """Chooses the weights, scores them and writes the checkpoint. Raises CheckpointError."""
    model, config, progress = run.model, run.config, run.progress
    chosen = choose_weights(
        model,
        run.states,
        progress,
        run.validation,
        average=config.average_checkpoints,
        stops_early=run.start.tuning.patience > 0,
    )
    display.message(chosen.line)
    metrics: dict[str, Any] = {
        "steps": progress.step,
        "epochs": round(progress.epoch + progress.position / len(run.batches.plan(progress.epoch)), 3),
        "target_tokens": progress.tokens,
        "seconds": round(progress.elapsed_s, 1),
        "tokens_per_s": round(progress.tokens / max(progress.elapsed_s, 1e-9), 1),
        "training_flops": float(progress.flops),
        "peak_flops_per_s": run.peak_flops_per_s,
        "peak_share": round(progress.flops / max(progress.elapsed_s * run.peak_flops_per_s, 1.0), 4),
        "examples_too_long": run.batches.dropped,
        **chosen.metrics,
    }
    if (counts := counts_of(model)).trained != counts.all:
        metrics |= {"parameters": counts.all, "trained_parameters": counts.trained}
    weights, adapter = run.start.finished_weights(model)
    display.message(f"scoring the model on {run.held_out.name}")
    if isinstance(model, Encoder):
        scores, samples = encoder_scores(model, run.tokenizer, run.held_out, run.validation)
    else:
        scores, samples = final_scores(model, run.tokenizer, run.held_out)
    metrics.update(scores)
    for line in (*samples, *(f"{name}: {value}" for name, value in scores.items())):
        display.message(line)
    rows = run.start.rows(run.examples)
    lineage = {**lineage_of(config, run.examples, run.held_out, rows), **run.start.lineage()}
    save_checkpoint(
        out,
        model.config,
        weights,
        tokenizer=run.tokenizer,
        train=config,
        metrics=metrics,
        lineage=lineage,
        adapter=adapter,
        extra={
            "model_card.md": model_card(model.config, config, metrics, lineage, samples).encode(),
            "metrics.csv": metrics_csv(progress.history),
            "curves.png": curves_png(progress.history),
            **rows.files(),
            **(run.start.base.templates.files() if run.start.base else {}),
        },
        disk=disk,
    )
    display.message(f"checkpoint written to {out}")


class Chosen(NamedTuple):
    """The choice: a line for the display, and the metrics of the checkpoint."""

    line: str
    metrics: dict[str, float]


def choose_weights(
    model: Model, states: Path, progress: Progress, validation: Batches, *, average: int, stops_early: bool
) -> Chosen:
    """Replaces the last weights by those of the best state if the run can stop early, otherwise by the mean of the last
    `average` states unless that is worse. The model is in evaluation mode afterwards."""
    model.eval()
    last_loss = loss_per_token(model, validation)
    if stops_early and load_best(states, model, progress):
        loss, step = loss_per_token(model, validation), progress.best_step
        line = f"validation loss {loss:.4f} of the best state, step {step}; last state {last_loss:.4f}"
        return Chosen(line, {"best_step": step, **_losses(loss, last_loss)})
    last = {name: weight.clone() for name, weight in weights_of(model).items()}
    averaged = average_states(states, average, model)
    loss = loss_per_token(model, validation)
    if loss > last_loss:  # the states are too far apart, as in a short run
        averaged, loss = 1, last_loss
        load_weights(model, last, states)
    line = f"validation loss {loss:.4f}, {averaged} states averaged; last state {last_loss:.4f}"
    return Chosen(line, {"averaged_states": averaged, **_losses(loss, last_loss)})


def _losses(loss: float, last_loss: float) -> dict[str, float]:
    return {
        "validation_loss": loss,
        "validation_loss_last_state": last_loss,
        "validation_perplexity": math.exp(min(loss, 700.0)),
    }
