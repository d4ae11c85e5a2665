"""The end of a run: which weights it keeps, their scores, and the checkpoint with its model card and curves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.architectures import Model
from model.checkpoints.atomic_write import Disk
from model.checkpoints.checkpoint import save_checkpoint
from model.config import TrainConfig
from model.encoder import Encoder
from model.tokenizer import Tokenizer
from model.training.data.examples import Batches, Examples
from model.training.final_weights import choose_weights
from model.training.objective.freezing import counts_of
from model.training.progress import Display
from model.training.report import curves_png, encoder_scores, final_scores, lineage_of, metrics_csv, model_card
from model.training.start import Start
from model.training.training_state import Progress

__all__ = ["TrainedRun", "write_result"]


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
        },
        disk=disk,
    )
    display.message(f"checkpoint written to {out}")
