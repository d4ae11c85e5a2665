"""A training of seconds: a model of one layer on each side that learns to copy a little, with dropout, accumulation and
several validations and states."""

import contextlib
import functools
import inspect
from typing import Any

import pytest

from model.architecture_config import EncoderDecoderConfig
from model.config import TrainConfig
from model.training import finish
from model.training import train as training

MODEL = EncoderDecoderConfig(
    d_model=16,
    num_heads=2,
    d_ff=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout=0.2,
    max_source_len=16,
    max_target_len=16,
)
TRAIN = TrainConfig(
    tokenizer="words",
    vocab_size=40,
    batch_tokens=128,
    accumulate=2,
    steps=24,
    warmup_steps=5,
    save_every_steps=5,
    validate_every_steps=6,
    log_every_steps=4,
    average_checkpoints=2,
    validation_size=20,
    bf16=False,
)


def quick_trainings() -> None:
    """Makes trainings in this process draw no curves, and count the operations of models of one shape once: three
    fifths of the time of one like this. `with_curves` draws them; StepFlops itself has its own tests."""
    if hasattr(finish.curves_png, "__wrapped__"):
        return
    draw: Any = finish.curves_png
    count: Any = training.StepFlops
    counted: dict[Any, Any] = {}

    @functools.wraps(draw)
    def no_curves(history):
        return b"none"

    @functools.wraps(count)
    def count_once(model, *, r_drop_weight=0.0):
        shapes = [(name, weight.shape, weight.requires_grad) for name, weight in model.named_parameters()]
        key = repr((model.config.to_json(), shapes, r_drop_weight))
        if key not in counted:
            counted[key] = count(model, r_drop_weight=r_drop_weight)
        return counted[key]

    finish.curves_png = no_curves
    training.StepFlops = count_once


@contextlib.contextmanager
def with_curves():
    """Trainings draw their curves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "curves_png", inspect.unwrap(finish.curves_png))
        yield
