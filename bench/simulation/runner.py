"""A runner that costs virtual time and hardly any other: the next token of a row is looked up by what the row has read.

A row remembers a number for each position, which depends on its source and all tokens up to there. So a copy, a load or
a row that went wrong gives other tokens, and the right answer to a greedy request is known without the engine
(`greedy_answer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from export.bundle.manifest import Limits
from service.encoder_request import EncoderOutput
from service.memory.cache_layout import CacheLayout
from service.request import Request
from service.step import (
    Burst,
    DecodeStep,
    ExtraSteps,
    Plain,
    Predictions,
    PrefillCost,
    Ranked,
    StepPlan,
    TurnOutput,
    VerifiedDraft,
)

EOS = 2
LINES = 509  # different distributions
FAULTS = ("raises", "is not finite", "kills its thread")
"""What can become of a turn beside an answer."""


class Table:
    """Distributions over a vocabulary, each with its tokens from the most to the least likely."""

    def __init__(self, vocab_size: int) -> None:
        logits_LV = np.random.default_rng(vocab_size).normal(0.0, 2.0, (LINES, vocab_size)).astype(np.float32)
        logits_LV[:, EOS] += 1.2
        logits_LV[:, [0, 1, 3]] = -30.0
        self.logprobs_LV = logits_LV - np.log(np.exp(logits_LV.astype(np.float64)).sum(1, keepdims=True))
        self.logprobs_LV = self.logprobs_LV.astype(np.float32)
        ids_LV = np.argsort(-self.logprobs_LV, axis=1, kind="stable")
        self.ids: list[list[int]] = ids_LV.tolist()
        self.scores: list[list[float]] = np.take_along_axis(self.logprobs_LV, ids_LV, axis=1).tolist()


def begun(source: Sequence[int]) -> int:
    """The number of a row that has read nothing but its source."""
    number = 7
    for token in source:
        number = following(number, token)
    return number


def following(number: int, token: int) -> int:
    """The number after one more token."""
    return (number * 31 + token * 2654435761 + 1) & 0xFFFFFFFF


def greedy_answer(table: Table, request: Request) -> tuple[int, ...]:
    """The tokens of a greedy answer, whatever the request's neighbours."""
    return greedy_tokens(table, request.source, request.prompt, request.max_tokens)


def greedy_tokens(table: Table, source: Sequence[int], prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    """The most likely tokens after a source and a prompt, the end included."""
    number, tokens = begun(source), list[int]()
    for token in prompt:
        number = following(number, token)
    while len(tokens) < max_tokens and EOS not in tokens:
        tokens.append(table.ids[number % LINES][0])
        number = following(number, tokens[-1])
    return tuple(tokens)


class ScriptedFailure(RuntimeError):
    """A turn that a seed wants to fail."""


class _Outputs(NamedTuple):
    """See `service.step.DeferredOutputs`. lines: of the table. sources: of new rows."""

    table: Table
    lines: list[int]
    sources: dict[int, tuple[int, ...]]

    def logprobs(self, row: int, line: int) -> np.ndarray:
        found: np.ndarray = self.table.logprobs_LV[self.lines[line]]
        return found

    def logsumexp(self, row: int, line: int) -> float:
        return 3.0

    def encoder_output(self, row: int) -> EncoderOutput:
        return EncoderOutput(vector=np.array(self.sources[row], np.float32))

    def cross_attention(self, row: int, tokens: Sequence[int]) -> Any:
        raise NotImplementedError

    def attention(self, source: Sequence[int], tokens: Sequence[int], kinds: Sequence[str]) -> Any:
        raise NotImplementedError


class SimulatedRunner:
    """See `service.step.Runner`.

    next_fault: one of FAULTS or None, for each turn. spend: takes the seconds that a turn lasts. report: takes what is
    wrong with a plan.
    """

    eos_ids = (EOS,)

    def __init__(
        self,
        table: Table,
        limits: Limits,
        layout: CacheLayout,
        *,
        max_rows: int,
        step_s: float,
        next_fault: Callable[[], str | None],
        spend: Callable[[float], None],
        report: Callable[[str], None],
    ) -> None:
        self.table, self.limits, self.layout, self.max_rows = table, limits, layout, max_rows
        self._step_s, self._next_fault, self._spend, self._report = step_s, next_fault, spend, report
        self._rows: list[list[int]] = []  # by position
        self._kept: dict[int, list[int]] = {}  # of the prefix cache, by slot
        self._parked: dict[int, list[list[int]]] = {}  # by slot
        self._lines: list[int] = []  # of the last turn
        self._newest: list[int] = []  # of its last step

    def reset(self) -> None:
        self._rows = []

    def mark_idle(self) -> None: ...

    def run(self, plan: StepPlan) -> TurnOutput:
        return self._end(*self._begin(plan))

    def _begin(self, plan: StepPlan) -> tuple[TurnOutput | ScriptedFailure, float]:
        try:
            return self._run(plan)
        except Exception as error:
            self._report(f"a plan cannot be executed: {error!r}")
            raise

    def _end(self, found: TurnOutput | ScriptedFailure, seconds: float) -> TurnOutput:
        self._spend(seconds)
        if isinstance(found, ScriptedFailure):
            raise found
        return found

    def _run(self, plan: StepPlan) -> tuple[TurnOutput | ScriptedFailure, float]:
        """What a plan computes or fails with, and the seconds that it takes."""
        fault = self._next_fault()
        prefill = sum([len(new.source) for new in plan.new_rows])
        prefill += sum([len(chunk.tokens) for chunk in plan.prompts.chunks])
        step_s = self._step_s * (1 + plan.shape.rows / 16)
        prefill_s = self._step_s * prefill / 32
        if fault == "raises":
            return ScriptedFailure("the graph failed"), prefill_s
        if fault == "kills its thread":
            raise SystemExit("the thread was ended")
        self._place(plan)
        lines = [row[-1] for row in self._feed(plan.decode)] if plan.decode else []
        bursts = self._more(plan.decode, lines, step_s) if plan.decode else {}
        extra = max([len(burst.tokens) for burst in bursts.values()], default=0)
        drafts = {}
        for draft in plan.drafts:
            row, first = self._rows[draft.row], len(lines)
            del row[draft.start + 1 :]
            for token in draft.tokens:
                row.append(following(row[-1], token))
                lines.append(row[-1])
            drafts[draft.row] = VerifiedDraft(draft.tokens[1:], range(first, len(lines)), step_s)
        self._lines = [line % LINES for line in lines]
        self._newest = self._lines[-len(self._rows) :]
        output = TurnOutput(
            predictions=self._predictions(plan),
            non_finite=[0] if lines and fault == "is not finite" else [],
            drafts=drafts,
            bursts=bursts,
            prefill=PrefillCost(prefill_s, 0.0, prefill, 0) if prefill else None,
            step_s=step_s,
        )
        return output, prefill_s + step_s * (1 + extra + len(plan.drafts))

    def _place(self, plan: StepPlan) -> None:
        del self._rows[plan.rows_before :]
        self._parked = {slot: rows for slot, rows in self._parked.items() if slot in plan.moves.slots}
        for parked in plan.moves.parked:
            self._parked[parked.slot] = [self._rows[row][: parked.target_len + 1] for row in parked.rows]
        before = list(self._rows)
        self._rows += [[0] for _ in range(plan.shape.rows - len(self._rows))]
        del self._rows[plan.shape.rows :]
        for copy in plan.moves.copies:
            self._rows[copy.target] = before[copy.source][: copy.stop + 1]
        for resumed in plan.moves.resumed:
            for place, line in resumed.lines.items():
                self._rows[place] = list(self._parked[resumed.slot][line])
        for new in plan.new_rows:
            self._rows[new.row] = [begun(new.source)]
        for load in plan.prompts.loads:
            row, kept = self._rows[load.row], self._kept[load.slot]
            assert len(row) == load.start + 1, "a chunk of the prefix cache does not continue its row"
            assert kept[load.start] == row[-1], "a chunk of the prefix cache follows another beginning"
            row += kept[load.start + 1 :]
        for chunk in plan.prompts.chunks:
            row = self._rows[chunk.row]
            del row[chunk.start + 1 :]
            for token in chunk.tokens:
                row.append(following(row[-1], token))
        for save in plan.prompts.stores:
            self._kept[save.slot] = self._rows[save.row][: save.start + save.count + 1]

    def _feed(self, step: DecodeStep) -> Iterator[list[int]]:
        tokens = list(step.tokens)
        for place, line in step.fed:
            tokens[place] = self.table.ids[self._newest[line]][0]
        for place, (row, token, start) in enumerate(zip(self._rows, tokens, step.starts, strict=True)):
            assert start < len(row), "a row lacks positions before its input"
            del row[start + 1 :]
            if place in step.prefilling_rows:
                yield [0]
            else:
                row.append(following(row[-1], token))
                yield row

    def _more(self, step: DecodeStep, lines: list[int], step_s: float) -> dict[int, Burst]:
        """The extra steps of the only row."""
        steps, extra = step.extra or ExtraSteps(0, 0.0), list[int]()
        most = min(steps.most, int(steps.max_s / step_s))
        while len(extra) < most and (token := self.table.ids[lines[-1] % LINES][0]) != EOS:
            extra.append(token)
            lines.append(following(lines[-1], token))
            self._rows[0].append(lines[-1])
        return {0: Burst(extra, range(1 + len(extra)))} if extra else {}

    def _predictions(self, plan: StepPlan) -> Predictions:
        table, lines, top_k = self.table, self._lines, plan.top_k
        deferred = _Outputs(table, lines, {new.row: new.source for new in plan.new_rows})
        if not top_k:
            return Plain([table.ids[line][0] for line in lines], deferred)
        ids, scores = [table.ids[line][:top_k] for line in lines], [table.scores[line][:top_k] for line in lines]
        return Ranked(ids, scores, range(plan.step_rows), deferred)


class SimulatedAheadRunner(SimulatedRunner):
    """See `service.step.AheadRunner`. A turn takes its time when it is collected, and fails then."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._launched: list[tuple[TurnOutput | ScriptedFailure, float]] = []

    def reset(self) -> None:
        super().reset()
        self._launched.clear()

    def launch(self, plan: StepPlan) -> None:
        assert len(self._launched) <= 1, "too many turns are launched"
        failed = [found for found, _ in self._launched if isinstance(found, ScriptedFailure)]
        self._launched.append((failed[0], 0.0) if failed else self._begin(plan))

    def collect(self) -> TurnOutput:
        return self._end(*self._launched.pop(0))

    def _more(self, step: DecodeStep, lines: list[int], step_s: float) -> dict[int, Burst]:
        """Further steps of all rows."""
        rows = len(self._rows)
        for _ in range(step.more):
            for place, row in enumerate(self._rows):
                if place in step.still:
                    del row[-1]
                row.append(following(row[-1], self.table.ids[lines[-rows] % LINES][0]))
                lines.append(row[-1])
        if not step.more:
            return {}
        best = [self.table.ids[line % LINES][0] for line in lines]
        return {row: Burst(best[row:-rows:rows], range(row, len(lines), rows)) for row in range(rows)}
