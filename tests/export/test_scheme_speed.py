"""Speeds of doubles whose runs take as long as is written down."""

from typing import Any

import numpy as np
import pytest

from export.scheme_speed import ROWS, TIMED_LEAST, TIMED_ROUNDS, TIMED_S, TIMED_STEPS, measure_speeds
from tests.export.test_select_scheme import FakeClock
from tests.tiny import tiny_config, tiny_encoder


class Timed:
    """Graphs whose runs take as long as a list has it, the last of it for all further runs."""

    roles = ("decode",)

    def __init__(self, clock, *seconds):
        self.clock, self.seconds, self.runs, self.rows = clock, list(seconds), 0, []

    def run(self):
        self.clock.now_s += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        self.runs += 1

    def buffers(self, rows, capacity):
        return {"self_key.0": np.zeros((rows, capacity))}

    def step(self, blocks, starts, buffers, cross, *, top_k=1):
        self.rows.append(len(blocks))
        return self.run, None

    def encode(self, sources, places=()):
        self.run()
        return {}


def speeds(clock, sources=((5, 6),), config=None, **graphs: Any):
    return measure_speeds(graphs, sources, config or tiny_config("decoder"), clock)


def test_decode_steps_are_timed_with_many_rows_and_with_one():
    clock = FakeClock()
    fast, slow = Timed(clock, 0.01), Timed(clock, 0.02)
    found = speeds(clock, fast=fast, slow=slow)
    assert found["fast"] == {"tokens_per_s": ROWS / 0.01, "single_stream_tokens_per_s": 1 / 0.01}
    assert found["slow"] == {"tokens_per_s": ROWS / 0.02, "single_stream_tokens_per_s": 1 / 0.02}
    assert fast.rows == [ROWS, 1]
    assert fast.runs == slow.runs == 2 * (1 + TIMED_ROUNDS * TIMED_STEPS), "one to warm up, then every round"


def test_one_slow_round_does_not_count():
    clock = FakeClock()
    graphs = Timed(clock, 0.01, 5.0, 0.01)  # the first run warms up, the second belongs to the first round
    assert speeds(clock, only=graphs)["only"]["tokens_per_s"] == pytest.approx(ROWS / 0.01, rel=1e-3)


def test_slow_steps_are_timed_in_fewer_rounds():
    clock = FakeClock()
    graphs = Timed(clock, TIMED_S)
    speeds(clock, only=graphs)
    assert graphs.runs == 2 * (1 + TIMED_LEAST * TIMED_STEPS)


def test_an_encoder_is_timed_by_its_source_tokens():
    clock = FakeClock()
    found = speeds(clock, [(5, 6, 2), (5, 2)], tiny_encoder("classify").config, only=Timed(clock, 0.5))
    assert found["only"] == {"tokens_per_s": 5 / 0.5, "single_stream_tokens_per_s": 3 / 0.5}
