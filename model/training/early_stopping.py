"""Early stopping: a validation metric decides when a run ends and which of its states is the result (Prechelt 1998).

The counter and the best value are part of `Progress`, and the best state is an ordinary state that is not pruned, so a
run that is interrupted resumes exactly.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from model.architectures import GenerativeModel, Model
from model.checkpoints.atomic_write import DamagedError, verify
from model.checkpoints.checkpoint import load_weights, map_tensors
from model.config import ConfigError, ModelConfig, TrainConfig
from model.encoder import Encoder
from model.fine_tuning import FineTuning, StopMetric
from model.tokenizer import Tokenizer
from model.training.data.encoder_data import spans_by_text
from model.training.data.examples import Batches, Examples
from model.training.data.labelled_spans import found_spans, span_scores
from model.training.evaluate import accuracy
from model.training.report import final_scores
from model.training.training_state import WEIGHTS, DamagedStateWarning, Progress, state_of


def check_stopping(tuning: FineTuning, model: ModelConfig, train: TrainConfig) -> None:
    """Raises ConfigError if the stop metric is none of this kind of model, or if no validation comes before the end."""
    known: dict[StopMetric, bool] = {
        "loss": True,
        "bleu": model.has_encoder and model.has_decoder,
        "accuracy": not model.has_decoder,
        "f1": model.is_tagger,
    }
    if not known[tuning.stop_metric]:
        possible = ", ".join(name for name, is_known in known.items() if is_known)
        raise ConfigError("stop_metric", f"must be one of {possible} for this model, got {tuning.stop_metric}")
    every, is_validated = train.validate_every_steps, not train.steps or train.validate_every_steps <= train.steps
    if tuning.patience and not is_validated:
        problem = f"needs validations, got validate_every_steps {every} and steps {train.steps}; lower the former"
        raise ConfigError("patience", problem)


def validation_score(
    metric: StopMetric, model: Model, tokenizer: Tokenizer, held_out: Examples, batches: Batches
) -> float:
    """The value of a metric other than the loss: BLEU in points, accuracy and F1 of spans as shares.

    batches: of the held-out examples. The model is in evaluation mode only during the call; no random numbers are used.
    """
    was_training = model.training
    model.eval()
    try:
        if metric == "bleu":
            assert not isinstance(model, Encoder)
            return _bleu(model, tokenizer, held_out)
        assert isinstance(model, Encoder)
        if metric == "accuracy":
            return accuracy(model, batches)
        found = found_spans(model, tokenizer, [text for text, _ in held_out.pairs])
        return span_scores(found, spans_by_text(held_out)).f1
    finally:
        model.train(was_training)


def _bleu(model: GenerativeModel, tokenizer: Tokenizer, held_out: Examples) -> float:
    scores, _ = final_scores(model, tokenizer, held_out)
    return float(scores["bleu"])


def observe(progress: Progress, value: float, metric: StopMetric) -> bool:
    """Counts a validation; returns whether it is the best so far. A value that is equal to the best is not better."""
    best = progress.best_value
    is_better = best is None or (value < best if metric == "loss" else value > best)
    if is_better:
        progress.best_value, progress.best_step, progress.stale = value, progress.step, 0
    else:
        progress.stale += 1
    return is_better


def load_best(states: Path, model: Model, progress: Progress) -> bool:
    """Loads the weights of the best state; returns whether there is a usable one. Warns of a damaged one."""
    path = state_of(states, progress.best_step)
    if not progress.best_step:
        return False
    try:
        verify(path, (WEIGHTS,))
    except DamagedError as error:
        message = f"DAMAGED TRAINING STATE {path.name}: {error}; the last state is used instead of this best one"
        warnings.warn(message, DamagedStateWarning, stacklevel=2)
        return False
    load_weights(model, map_tensors(path / WEIGHTS), path)
    return True
