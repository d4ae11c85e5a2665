"""A training of seconds: a model of one layer on each side that learns to copy a little, with dropout, accumulation and
several validations and states."""

import contextlib
import functools
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
    """Makes trainings in this process draw no curves, measure no peak of the machine, and count the operations of
    models of one shape once: three fifths of the time of one like this, and ten seconds of a process for the peak in
    bfloat16. `with_figures` does without; what is left out has tests of its own."""
    draw: Any = vars(finish)["curves_png"]
    count: Any = vars(training)["StepFlops"]
    measure: Any = vars(training)["peak_flops_per_s"]
    if hasattr(draw, "__wrapped__"):
        return
    counted: dict[Any, Any] = {}

    @functools.wraps(draw)
    def no_curves(history):
        return b"none"

    @functools.wraps(measure)
    def no_peak(device, dtype, threads):
        return 1e11

    @functools.wraps(count)
    def count_once(model, *, r_drop_weight=0.0):
        shapes = [(name, weight.shape, weight.requires_grad) for name, weight in model.named_parameters()]
        key = repr((model.config.to_json(), shapes, r_drop_weight))
        if key not in counted:
            counted[key] = count(model, r_drop_weight=r_drop_weight)
        return counted[key]

    vars(finish)["curves_png"] = no_curves
    vars(training).update(StepFlops=count_once, peak_flops_per_s=no_peak)


@contextlib.contextmanager
def with_figures():
    """Trainings draw their curves and measure the peak of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((finish, "curves_png"), (training, "peak_flops_per_s")):
            patch.setattr(module, name, vars(module)[name].__wrapped__)
        yield
