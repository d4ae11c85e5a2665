import math

import pytest

from model.training.log_line import figures_since, log_line
from model.training.training_state import Progress, TrainError

LOGGED = Progress(step=10, tokens=1000, flops=4_000_000, elapsed_s=2.0)
NOW = Progress(step=20, tokens=3000, flops=9_000_000, elapsed_s=6.0, loss_sum=50.0, loss_tokens=100)


def test_figures_are_those_since_the_last_log_step():
    figures = figures_since(LOGGED, NOW, 1e7)
    assert figures == {"train_loss": 0.5, "tokens_per_s": 500.0, "peak_share": 0.125}
    line = log_line(NOW, figures, share=0.25, rate=3e-4)
    assert line == (
        "step 20  25%  0:18 left  loss 0.500  lr 3.0e-04  500 tokens/s  12% of peak  3.00 ktokens  9.00 MFLOP"
    )


def test_a_loss_that_is_not_finite_ends_the_run():
    with pytest.raises(TrainError, match="the loss is nan after step 3; lower --learning-rate, or raise warmup_steps"):
        figures_since(Progress(), Progress(step=3, loss_sum=math.nan, loss_tokens=1), 1e7)
