"""What one turn of an engine asks of its runner (`StepPlan`) and gets back (`StepResult`).

A plan is plain data: it names rows and tokens, never tensors, sessions or requests, so that the scheduler stays pure
and a runner can be replaced by a script. Live rows are the dense prefix [0, rows) of the runner's buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from export.bundle import PAD_MULTIPLE, Limits
from service.states import StateLayout


def padded(length: int) -> int:
    """`length` rounded up to a multiple of PAD_MULTIPLE; graphs know positions for that beyond the model's limit."""
    return -(-length // PAD_MULTIPLE) * PAD_MULTIPLE


@dataclass(frozen=True, slots=True)
class Move:
    """Row `source` becomes row `target`: `cached` positions of its own and `source_len` of its source are valid."""

    source: int
    target: int
    cached: int
    source_len: int


@dataclass(frozen=True, slots=True)
class Join:
    """A new row. `source` goes through the encoder; `prompt` is prefilled as one block. Either may be empty."""

    row: int
    source: tuple[int, ...]
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One turn, done in this order: moves, growth, encoding, prefill, step.

    rows: live rows after moves and joins; the turn yields logits for each of them.
    joins: the last rows, ordered by padded length, so that equal ones are neighbours.
    tokens, starts: input token and its position, for the first rows, which step; the rows behind are prefilled.
    longest, longest_source: positions that some row needs when the turn is over.
    """

    rows: int
    moves: tuple[Move, ...] = ()
    joins: tuple[Join, ...] = ()
    tokens: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    longest: int = 0
    longest_source: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """logits_RV: float32 (rows, vocabulary), each row's last valid position; valid until the next run.

    join_s: seconds of encoding and prefill; step_s: seconds of the step itself.
    """

    logits_RV: np.ndarray
    join_s: float
    step_s: float


class Runner(Protocol):
    """Computes. It knows rows, tokens and states, but no requests, texts or strategies; one thread uses it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def layout(self) -> StateLayout: ...

    @property
    def eos_id(self) -> int: ...

    @property
    def max_rows(self) -> int: ...

    def run(self, plan: StepPlan) -> StepResult: ...

    def reset(self) -> None:
        """Forgets all rows, whatever happened in a run that raised."""
        ...
