"""Checks of decode steps and of `logprobs`: cached steps against the full sequence, caches, log-probabilities and best
tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from export.manifest import PAD_MULTIPLE
from export.verification.case import Case, capacity_of, written_places
from export.verification.graph_calls import (
    Arrays,
    Prediction,
    compared_outputs,
    differing,
    garbage,
    round_up,
    rows_of,
)
from export.verification.measure import ErrorTracker, Measured, NamedCheck
from export.verification.prefill_checks import PrefillChecks

ONE_TOLERANCE = 5e-5  # of the sum of a row's probabilities, in any precision: log-softmax is always computed in float32


@dataclass(frozen=True)
class _Played:
    """Predictions for single rows by (row, position), and the buffers after the last step."""

    predictions: dict[tuple[int, int], Prediction]
    buffers: Arrays


class DecodeChecks:
    """Checks of steps with one token per row."""

    def __init__(self, case: Case, prefill: PrefillChecks) -> None:
        self.case, self.prefill = case, prefill

    def checks(self) -> list[NamedCheck]:
        return [
            NamedCheck("cached steps against the full sequence", self.steps, self.case.tolerance),
            NamedCheck("caches against PyTorch", self.caches, self.case.tolerance),
            NamedCheck("caches written nowhere else", self.untouched, 0.0),
            NamedCheck("steps in a batch as alone", self.steps_alone, self.case.alone_tolerance),
            NamedCheck("normaliser against PyTorch", self.normaliser, self.case.tolerance),
            NamedCheck("probabilities of a row add up to one", self.sums, ONE_TOLERANCE),
            NamedCheck("best tokens are those of the sorted row", self.best, 0.0),
            NamedCheck("last position against PyTorch", self.last_position, self.case.tolerance),
        ]

    def play(self, rows: Sequence[int], capacity: int, top_k: Sequence[int]) -> _Played:
        """Feeds the targets of these rows: first each row's head separately, then all rows together, token by token.
        Finished rows leave from the end. The buffers have one more row, which no target uses. The numbers of best
        tokens rotate."""
        predictions: dict[tuple[int, int], Prediction] = {}
        buffers, cross = self.case.served.buffers(len(rows) + 1, capacity), self.case.cross(rows)
        for i, row in enumerate(rows):
            head, place = self.case.targets[row][: self.case.heads[row]], (i, i + 1)
            blocks = [head] if self.case.config.supports_chunked_prefill else [[token] for token in head]
            for start, block in enumerate(blocks):
                predictions[row, start + len(block) - 1] = self.case.served.decode(
                    [block], [start], rows_of(buffers, *place), rows_of(cross, *place), top_k=top_k[start % len(top_k)]
                )
        for step in range(max(len(self.case.targets[row]) - self.case.heads[row] for row in rows)):
            live = [row for row in rows if self.case.heads[row] + step < len(self.case.targets[row])]
            starts = [self.case.heads[row] + step for row in live]
            blocks = [[self.case.targets[row][start]] for row, start in zip(live, starts, strict=True)]
            place = (0, len(live))
            some = self.case.served.decode(
                blocks, starts, rows_of(buffers, *place), rows_of(cross, *place), top_k=top_k[step % len(top_k)]
            )
            predictions |= {(row, start): some.row(i) for i, (row, start) in enumerate(zip(live, starts, strict=True))}
        return _Played(predictions, buffers)

    @cached_property
    def played(self) -> _Played:
        return self.play(range(len(self.case.targets)), capacity_of(self.case.targets), self.case.top_k)

    @cached_property
    def played_alone(self) -> dict[tuple[int, int], Prediction]:
        """Every row in separate buffers of another capacity, with other numbers of best tokens."""
        alone, capacity = dict[tuple[int, int], Prediction](), capacity_of(self.case.targets) + 8
        for row in range(len(self.case.targets)):
            alone |= self.play([row], capacity, (*self.case.top_k[1:], self.case.top_k[0])).predictions
        return alone

    def steps(self) -> ErrorTracker:
        tracker = self.case.tracker()
        for row, (source, target) in enumerate(zip(self.case.sources, self.case.targets, strict=True)):
            expected = self.case.expected.logprobs(source, target)
            for position in self.positions(row):
                actual = self.played.predictions[row, position].logprobs[0]
                tracker.add(f"logprobs at {position}", actual, expected[position])
        return tracker

    def positions(self, row: int) -> list[int]:
        return [position for own, position in self.played.predictions if own == row]

    def caches(self) -> ErrorTracker:
        tracker = self.case.tracker()
        for row, (source, target) in enumerate(zip(self.case.sources, self.case.targets, strict=True)):
            for name, expected in self.case.expected.caches(source, target).items():
                actual = self.case.roundings.values(
                    name, written_places(self.played.buffers[name][row], expected.exact)
                )
                tracker.add(f"present.{name}", actual, expected)
        return tracker

    def untouched(self) -> Measured:
        differ = 0
        for name, array in self.played.buffers.items():
            stride = self._stride(name)
            for row, rest in enumerate(array):
                used = len(self.case.targets[row]) if row < len(self.case.targets) else 0
                # The padding of a head is written but never read.
                if used and self.case.config.supports_chunked_prefill:
                    used = max(used, round_up(self.case.heads[row], PAD_MULTIPLE))
                behind = rest[:, -(-used // stride) :] if rest.ndim > 1 else rest[rest.size * bool(used) :]
                differ += differing(behind, garbage(behind.shape, rest.dtype))
        return float(differ), "values behind a row's end or in another row"

    def _stride(self, name: str) -> int:
        """Target positions per entry of a state."""
        config = self.case.config
        if not config.compression_stride or not config.is_compressed(int(name.rpartition(".")[2])):
            return 1
        return config.compression_stride

    def steps_alone(self) -> Measured:
        return self.case.alone(
            pair
            for key, alone in self.played_alone.items()
            for pair in compared_outputs(self.played.predictions[key], alone)
        )

    def normaliser(self) -> ErrorTracker:
        """Logits from log-probabilities plus normaliser, and the logits that the graph returns."""
        tracker = self.case.tracker()
        for row, (source, target) in enumerate(zip(self.case.sources, self.case.targets, strict=True)):
            expected = self.case.expected.logits(source, target)
            for position in self.positions(row):
                prediction = self.played.predictions[row, position]
                tracker.add(f"logits at {position}", prediction.logits[0], expected[position])
                tracker.add(f"normalised logits at {position}", prediction.normalised[0], expected[position])
        return tracker

    def _predictions(self) -> list[Prediction]:
        """All predictions: of rows in a batch, of rows in buffers of their own, of one or more rows."""
        return [*self.prefill.predictions(), *self.played.predictions.values(), *self.played_alone.values()]

    def sums(self) -> Measured:
        sums = np.concatenate([np.exp(p.logprobs.astype(np.float64)).sum(-1) for p in self._predictions()])
        error = float(np.nan_to_num(np.abs(sums - 1), nan=np.inf).max())
        return error, f"worst of {len(sums)} rows"

    def best(self) -> Measured:
        """The best tokens, one or several, in a batch and in buffers of their own, against a stable sort of the logits:
        a caller that reads only the logits finds the same tokens."""
        differ, counts = 0, set[int]()
        for prediction in self._predictions():
            counts.add(count := prediction.top_ids.shape[1])
            order = np.argsort(-prediction.logits, axis=-1, kind="stable")[:, :count]
            differ += differing(prediction.top_ids, order)
            differ += differing(prediction.top_logprobs, np.take_along_axis(prediction.logprobs, order, axis=-1))
        return float(differ), f"ids and log-probabilities of the best {' and '.join(map(str, sorted(counts)))}"

    def last_position(self) -> ErrorTracker:
        """One step at the end of the longest target, over PyTorch's caches of the preceding tokens."""
        tracker, target = self.case.tracker(), self.case.samples.longest_target
        source, last = self.case.sources[0], len(target) - 1
        buffers = self.case.served.buffers(1, capacity_of([target]))
        self.case.fill(buffers, 0, source, target[:last])
        prediction = self.case.served.decode([target[last:]], [last], buffers, self.case.cross([0]))
        tracker.add(f"logprobs at {last}", prediction.logprobs[0], self.case.expected.logprobs(source, target)[last])
        return tracker
