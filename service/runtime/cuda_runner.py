"""One engine's turns on CUDA: put on the stream of the model, and read later.

The host waits for a turn when its output is read, not when it is launched. So the next turn can be put on the stream
meanwhile: the best tokens of a turn stay on the device too, where the next one takes them (`DecodeStep.fed`). What the
host may read of a turn is copied to main memory after it, as the next one overwrites it on the device.

Shapes: V vocabulary.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.draws import NotKept
from service.encoder_request import EncoderOutput
from service.runtime.batching import contiguous_runs
from service.runtime.cuda_memory import CudaMemory, DeviceTurn
from service.runtime.decoder import logits_rows
from service.runtime.memory import StoredArray
from service.runtime.model_sessions import ModelSessions
from service.runtime.row_shortlist import possible
from service.runtime.runner import Computed, OnnxRunner
from service.runtime.step_outputs import OutputBlocks
from service.runtime.token_draws import TokenDraws
from service.step import Burst, PrefillCost, Ranked, StepPlan, TurnOutput, VerifiedDraft, non_finite


class _Launched(NamedTuple):
    """A turn on the stream. It fetches, for each step, the best tokens of `best`, and what was drawn, if anything is;
    then so many arrays of each of `rows`."""

    plan: StepPlan
    computed: Computed
    best: list[OutputBlocks]
    is_drawn: bool
    rows: dict[int, int]
    on_device: DeviceTurn
    encoder_outputs: dict[int, EncoderOutput]


class CudaRunner(OnnxRunner):
    """See `service.step.AheadRunner`."""

    def __init__(self, model: ModelSessions, memory: CudaMemory, **limits: Any) -> None:
        """limits: see `OnnxRunner`."""
        super().__init__(model, memory, **limits)
        self._device = memory
        self._launched = deque[_Launched]()
        self._draws: TokenDraws | None = None
        self.last_plan: StepPlan | None = None

    def capture(self) -> None:
        super().capture()
        if (decoder := self._shared.decoder) is not None and self.model.choice.captures:
            self._draws = TokenDraws(self.model, self._logits, self._inputs)
            self._draws.capture(decoder.rooms, self.model.graph_ids)

    def reset(self) -> None:
        self._launched.clear()
        super().reset()

    def run(self, plan: StepPlan) -> TurnOutput:
        self.launch(plan)
        return self.collect()

    def launch(self, plan: StepPlan) -> None:
        self._device.begin_turn()
        self.last_plan = plan
        draws = self._draws if plan.decode and plan.decode.draws and logits_rows(plan) else None
        if draws is not None:
            draws.place(plan, 0)
        computed = self._compute(plan)
        draws = draws if draws is not None and draws.is_possible else None
        best: list[OutputBlocks] = [self._logits] if logits_rows(plan) else []
        if plan.shortlist_rows and self._shortlist is not None:
            best.append(self._shortlist)
        for number in range(_steps(plan)):
            if number and (decoder := self._passes.decoder):
                if draws is not None:
                    draws.place(plan, number)
                decoder.follow(plan, number)
            if lines := self._rank(plan, []):
                self._device.fetch([array for outputs in best for array in outputs.stored_best(0, lines)])
                if draws is not None:
                    draws.run(self._logits.room_for(plan.step_rows))
                    self._device.fetch(draws.stored(plan.step_rows))
                self._keep(plan, best if draws is None else best[1:])
        rows = {row: self._stored_row(row) for row in plan.read_rows if plan.decode}
        self._device.fetch(itertools.chain(*rows.values()))
        counts, read = {row: len(arrays) for row, arrays in rows.items()}, best if lines else []
        on_device, is_drawn = self._device.end_turn(), draws is not None
        self._launched.append(_Launched(plan, computed, read, is_drawn, counts, on_device, self._encoder_outputs))

    def collect(self) -> TurnOutput:
        turn = self._launched.popleft()
        plan, steps, arrays = turn.plan, _steps(turn.plan), iter(turn.on_device.wait())
        ids, scores, draws = list[list[int]](), list[list[float]](), list[tuple[int, bool]]()
        for _ in range(steps):
            own_ids, own_scores = self._best_of(turn, arrays)
            ids += own_ids
            scores += own_scores
            if turn.is_drawn and self._draws is not None:
                draws += self._draws.read(plan, next(arrays), next(arrays), own_ids)
        outputs = {row: [next(arrays) for _ in range(count)] for row, count in turn.rows.items()}
        prefill_s, step_s, rest_s = turn.on_device.seconds()
        drafts = {row: one._replace(seconds=rest_s / len(plan.drafts)) for row, one in turn.computed.drafts.items()}
        predictions = Ranked(ids, scores, range(plan.step_rows), _Outputs(self, turn, outputs), draws)
        bursts = _bursts(predictions, plan.step_rows) if steps > 1 else {}
        return TurnOutput(
            predictions=predictions,
            non_finite=self._wrong(predictions, scores, bursts),
            drafts=drafts,
            bursts=bursts,
            prefill=turn.computed.prefill and _measured(turn.computed.prefill, prefill_s),
            step_s=step_s if drafts else (step_s + rest_s) / steps,
        )

    def _wrong(self, predictions: Ranked, scores: list[list[float]], bursts: dict[int, Burst]) -> list[int]:
        """Lines that are not finite. What follows the end of an answer is not part of it."""
        wrong = non_finite([best[0] for best in scores])
        if wrong:
            for burst in bursts.values():
                ends = [line for line in burst.lines if predictions.taken(line) in self.eos_ids]
                wrong = [line for line in wrong if not ends or line not in burst.lines or line <= ends[0]]
        return wrong

    def _start_rows(self, plan: StepPlan, started_s: float) -> PrefillCost | None:
        cost = super()._start_rows(plan, started_s)
        self._device.turn.prefilled.record()
        return cost

    def _verify(self, plan: StepPlan) -> dict[int, VerifiedDraft]:
        self._device.turn.stepped.record()
        return super()._verify(plan)

    def _keep(self, plan: StepPlan, best: Sequence[OutputBlocks]) -> None:
        """Keeps the best token of each row for the next step."""
        for outputs in best:
            rows = sorted(plan.shortlist_rows) if outputs is self._shortlist else range(plan.step_rows)
            for first, stop in contiguous_runs(rows):
                self._inputs.keep(rows[first], outputs.stored("top_ids", rows[first], stop - first))

    def _stored_row(self, row: int) -> list[StoredArray]:
        """Where the distribution of a row is, and its log-sum-exp."""
        outputs = self._of(row)
        return [*outputs.stored_row(row, row), outputs.stored("normaliser", row, 1)]

    def _best_of(self, turn: _Launched, arrays: Iterator[np.ndarray]) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and log-probabilities of the best tokens of each line."""
        ids, scores = list[list[int]](), list[list[float]]()
        for outputs in turn.best:
            own = next(arrays).tolist(), next(arrays).tolist()
            if outputs is not self._shortlist:
                ids, scores = own
                continue
            own_ids, own_scores = possible(*own)
            if not ids:
                return own_ids, own_scores
            for row in turn.plan.shortlist_rows:
                ids[row], scores[row] = own_ids[row], own_scores[row]
        return ids, scores


class _Outputs:
    """See `service.step.DeferredOutputs`. rows: arrays of `CudaRunner._stored_row`, by row of the turn."""

    def __init__(self, runner: CudaRunner, turn: _Launched, rows: dict[int, list[np.ndarray]]) -> None:
        self._runner, self._turn, self._rows = runner, turn, rows
        self.cross_attention, self.attention = runner.cross_attention, runner.attention

    def logprobs(self, row: int, line: int) -> np.ndarray:
        if line not in self._rows:
            self._check_kept()
            return self._runner.logprobs(row, line)
        *arrays, _ = self._rows[line]
        outputs = self._turn.best[-1 if line in self._turn.plan.shortlist_rows else 0]
        return outputs.distribution(*arrays)

    def logsumexp(self, row: int, line: int) -> float:
        if line not in self._rows:
            self._check_kept()
            return self._runner.logsumexp(row, line)
        return float(self._rows[line][-1].item())

    def encoder_output(self, row: int) -> EncoderOutput:
        return self._turn.encoder_outputs[row]

    def _check_kept(self) -> None:
        if self._runner.last_plan is not self._turn.plan or _steps(self._turn.plan) > 1:
            raise NotKept("a later step has overwritten what the plan did not announce")


def _steps(plan: StepPlan) -> int:
    return 1 + plan.decode.more if plan.decode else 1


def _bursts(predictions: Ranked, rows: int) -> dict[int, Burst]:
    """The further steps of each row. predictions: of all rows in one step after another."""
    lines = {row: range(row, len(predictions.top_ids), rows) for row in range(rows)}
    return {row: Burst([*map(predictions.taken, own[:-1])], own) for row, own in lines.items()}


def _measured(cost: PrefillCost, seconds: float) -> PrefillCost:
    """The cost with the device's seconds. Those of the encoder are in proportion to its launches."""
    share = cost.encode_s / cost.seconds if cost.seconds else 0.0
    return cost._replace(seconds=seconds, encode_s=seconds * share)
