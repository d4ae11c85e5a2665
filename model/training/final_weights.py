"""Which weights a finished run ends with: those of its last state, of its best one, or the mean of its last states."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from model.architectures import Model
from model.checkpoints.checkpoint import load_weights, weights_of
from model.training.data.examples import Batches
from model.training.early_stopping import load_best
from model.training.evaluate import loss_per_token
from model.training.training_state import Progress, average_states


class Chosen(NamedTuple):
    """What was chosen: a line for the display, and the metrics of the checkpoint."""

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
