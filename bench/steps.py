"""Decode steps of a runner without engine or scheduler, by rows, cached positions and source length.

The contents of the caches do not affect the time of a step, so rows are placed at a position without decoding up to it.
"""

from __future__ import annotations

import random

from service.runtime.runner import OnnxModel
from service.step import NewRow, StepPlan

SOURCE_TOKENS, CONTEXT = 20, 16


class Rows:
    """Rows of a new runner that can be stepped repeatedly at one position."""

    def __init__(
        self, model: OnnxModel, rows: int, *, context: int = CONTEXT, source_tokens: int = SOURCE_TOKENS
    ) -> None:
        """context: positions that are cached before the step."""
        rng, limits = random.Random(rows), model.manifest.limits
        self._runner = model.runner(max_rows=rows)
        self._rows, self._longest_source = rows, source_tokens

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(rng.randrange(4, limits.vocab_size) for _ in range(count))

        self._inputs = tokens(rows)
        joins = tuple(NewRow(row=row, source=tokens(source_tokens)) for row in range(rows))
        self.join_s = self._run(0, joins)[0]
        self._context = context
        self.step()

    def step(self) -> float:
        """Seconds of one step of all rows."""
        return self._run(self._context)[1]

    def _run(self, position: int, joins: tuple[NewRow, ...] = ()) -> tuple[float, float]:
        output = self._runner.run(
            StepPlan(
                rows=self._rows,
                new_rows=joins,
                tokens=self._inputs,
                starts=(position,) * self._rows,
                rows_before=self._rows - len(joins),
                max_target_len=position + 1,
                max_source_len=self._longest_source,
                top_k=0,
            )
        )
        return output.turn.prefill_s, output.turn.step_s
