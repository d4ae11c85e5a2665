"""The core of an engine: all of its mutable state, and what a turn does with it, from plan to events.

arrivals → plan → run → commit → advance → text → events. It has no threads, locks or event loops: one thread at a time
calls it, and it blocks only in `run`. Every request gets exactly one final event: a failed turn ends its rows' requests
and leaves the core usable, and `end_all` ends what is left.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, cast

from service.decoding.search import advance
from service.engine.response import Response
from service.engine.run_ahead import back_on_track
from service.engine.scheduler import Plan, Scheduler
from service.errors import InternalFailure, RequestError
from service.measurements import (
    Admitted,
    FirstToken,
    Generated,
    LookedUp,
    Measure,
    NextTokens,
    Preempted,
    Prefilled,
    RequestEnded,
    Speculated,
    Stepped,
    TurnFailed,
)
from service.memory.engine_limits import EngineLimits
from service.request import Event, Finished, TextDelta
from service.sequence import Sequence
from service.step import AheadRunner, Runner, TurnOutput

MAX_STREAM_GAP_S = 0.1
"""Longest time for which a token waits for the next ones, however many streams there are."""

USED_S = 0.2
"""How old the sum over all live rows may be: it takes some 40 microseconds of a turn of 64 rows."""

log = logging.getLogger(__name__)


T = TypeVar("T")
EventBatch = tuple[list[tuple[int, Event]], int]
"""The events of a turn, each with the ticket of its request, in order, and how many of them are final."""


class Snapshot(NamedTuple):
    """The state of an engine after a turn. rows: live requests; hypotheses: theirs, each with a row of the caches.
    kv_ratio: reserved share of the cache memory, as are kv_reserved_bytes of kv_limit_bytes. kv_used_bytes: that the
    live rows fill, at most USED_S earlier."""

    rows: int = 0
    queued: int = 0
    kv_ratio: float = 0.0
    hypotheses: int = 0
    kv_reserved_bytes: int = 0
    kv_limit_bytes: int = 0
    kv_used_bytes: int = 0


class Run(Protocol):
    """Calls a function that may block, and returns its result."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


class _Launched(NamedTuple):
    """A turn that was not read yet. advancing: the sequences that it brings forward. began_s: when it was launched, or
    when the turn before it was read."""

    plan: Plan
    advancing: list[Sequence]
    began_s: float


class EngineCore:
    """The state of one engine.

    run: calls a function of the runner; the only call that blocks. clock: seconds, the clock of deadlines.
    """

    def __init__(
        self,
        runner: Runner,
        limits: EngineLimits,
        measure: Measure,
        *,
        run: Run,
        clock: Callable[[], float],
    ) -> None:
        self.scheduler = Scheduler(limits, runner.limits, runner.layout)
        self.scheduler.is_ahead = isinstance(runner, AheadRunner)
        self.snapshot = Snapshot()
        self.failures_in_a_row = 0
        self._runner, self._run, self._clock, self._measure = runner, run, clock, measure
        self._launched: _Launched | None = None
        self._responses: dict[Sequence, Response] = {}
        self._tickets: dict[int, Sequence] = {}
        self._events: list[tuple[int, Event]] = []
        self._finals = 0
        self._last_tokens_s = 0.0
        self._used = 0, -math.inf  # bytes of the KV cache, and when they were summed
        self._s_per_message = 1 / limits.stream_messages_per_s if limits.stream_messages_per_s else 0.0

    def turn(self, arrivals: Iterable[Response], cancels: Iterable[int], now_s: float) -> EventBatch:
        """Takes in new requests and cancellations, by ticket, and computes one turn."""
        self._take(arrivals)
        for ticket in cancels:
            if ticket in self._tickets:
                self.scheduler.waiting.cancel(self._tickets[ticket])
        plan = self.scheduler.plan(now_s)
        for sequence in plan.ended:
            assert isinstance(sequence.outcome, RequestError)
            self._finish(sequence, sequence.outcome)
        for sequence in plan.admitted:
            response = self._responses[sequence]
            response.admitted_s = now_s
            request = sequence.request
            self._measure(Admitted(now_s - response.arrived_s, len(request.source) + len(request.prompt)))
        if plan.parked:
            self._measure(Preempted(len(plan.parked)))
        if self.scheduler.is_ahead and (plan.live or self._launched is not None):
            self._run_ahead(plan)
        elif plan.live:
            self._compute(plan)
        self._report(now_s)
        return self._take_events()

    def end_all(self, arrivals: Iterable[Response], error: Callable[[str], RequestError]) -> EventBatch:
        """Ends every request with the error for its id, those included that have just arrived."""
        self._take(arrivals)
        for sequence in list(self._responses):
            self._finish(sequence, error(sequence.request.request_id))
        return self._take_events()

    def _take(self, arrivals: Iterable[Response]) -> None:
        for response in arrivals:
            self._responses[response.sequence] = response
            self._tickets[response.ticket] = response.sequence
            self.scheduler.submit(response.sequence)

    def _compute(self, plan: Plan) -> None:
        began_s = self._clock()
        try:
            turn = self._run(partial(self._runner.run, plan.step))
            run_s = self._clock() - began_s
            advancing = self.scheduler.commit(plan)
        except Exception:
            self._fail(plan)
            return
        self._take_in(plan, advancing, turn, began_s, run_s)

    def _run_ahead(self, plan: Plan) -> None:
        """Launches a turn and reads the one before it; the new one too, unless the next can be planned before that."""
        runner = cast(AheadRunner, self._runner)  # asking the protocol would take some microseconds of each turn
        before, self._launched = self._launched, None
        if plan.live:
            began_s = self._clock()
            try:
                self._run(partial(runner.launch, plan.step))
                self._launched = _Launched(plan, self.scheduler.launched(plan), began_s)
            except Exception:
                self._fail(plan)
                return
        if before is not None:
            self._read(runner, before)
            if self._launched is not None:
                self._launched = self._launched._replace(began_s=self._clock())
        if (last := self._launched) is not None and not self.scheduler.can_run_ahead:
            self._launched = None
            self._read(runner, last)

    def _read(self, runner: AheadRunner, launched: _Launched) -> None:
        """Takes in what a turn has computed."""
        plan, advancing, began_s = launched
        try:
            turn = self._run(runner.collect)
            run_s = self._clock() - began_s
            advancing = self.scheduler.read(plan, advancing, turn)
        except Exception:
            self._fail(plan)
            return
        self._take_in(plan, advancing, turn, began_s, run_s)
        if plan.step.decode is not None and plan.step.decode.draws:
            behind = self._launched
            again = back_on_track(advancing, turn, behind.plan.step.decode if behind is not None else None)
            if behind is not None and again:
                left = [sequence for sequence in behind.advancing if sequence not in again]
                self._launched = behind._replace(advancing=left)

    def _take_in(self, plan: Plan, advancing: Items[Sequence], turn: TurnOutput, began_s: float, run_s: float) -> None:
        """Extends sequences by what a turn has computed in `run_s` seconds."""
        try:
            generated = sum([sequence.num_generated for sequence in advancing])
            own_s = advance(advancing, turn, self._clock)
            generated = sum([sequence.num_generated for sequence in advancing]) - generated
            drafted, accepted = self.scheduler.record_drafts(plan, turn)
            self.scheduler.shares.record(run_s, plan.live, own_s)
        except Exception:
            self._fail(plan)
            return
        if len(own_s) < len(advancing):
            advancing = [sequence for sequence in advancing if sequence in own_s]
        self.failures_in_a_row = 0
        if cost := turn.prefill:
            self.scheduler.prefill.record(cost)
            self._measure(Prefilled(cost.seconds, cost.tokens, cost.padding_tokens))
            for sequence in {*plan.admitted, *plan.prefill.computed}:
                if response := self._responses.get(sequence):  # else it has ended
                    response.prefilled(began_s, cost)
        if plan.prefix_queried_tokens:
            hits = len({load.row for load in plan.step.prompts.loads})
            self._measure(LookedUp(plan.prefix_queried_tokens, hits, plan.prefix_hit_tokens))
        if plan.step.step_rows:
            self._measure(Stepped(turn.step_s, plan.step.step_rows, 1 + turn.extra_steps))
        if drafted:
            self._measure(Speculated(drafted, accepted))
            self._measure(NextTokens(0.0, accepted))  # they came with others
        self._measure(Generated(generated))
        self._emit(advancing, turn)

    def _emit(self, advanced: Items[Sequence], turn: TurnOutput) -> None:
        """Turns the newly committed tokens of each sequence into text and events."""
        now_s = self._clock()
        measure, extra_steps = self._measure, turn.extra_steps
        repeated = 0
        streams = sum([sequence.request.is_streamed for sequence in advanced])
        gap_s = min(MAX_STREAM_GAP_S, self._s_per_message * streams)
        for sequence in advanced:
            response = self._responses[sequence]
            if response.first_s is None:
                response.first_s = now_s - extra_steps * turn.step_s
                measure(FirstToken(response.first_s - response.arrived_s))
                if extra_steps:
                    measure(NextTokens(turn.step_s, extra_steps))
            else:
                repeated += 1
            if isinstance(sequence.outcome, RequestError):
                self._finish(sequence, sequence.outcome)
                continue
            is_due = sequence.request.is_streamed and now_s >= response.reported_s + gap_s
            if sequence.outcome is None and not is_due:
                continue
            events: list[TextDelta | Finished] | list[InternalFailure]
            try:
                events = response.extend(now_s, turn.predictions.deferred)
            except Exception:  # the text of one answer must not cost others theirs
                log.exception("request %s: its text failed", sequence.request.log_name)
                error = InternalFailure(sequence.request.request_id)
                sequence.fail(error)
                events = [error]
            for event in events:
                if isinstance(event, TextDelta):
                    self._events.append((response.ticket, event))
                else:
                    self._finish(sequence, event)
        if repeated:
            steps = 1 + extra_steps
            measure(NextTokens((now_s - self._last_tokens_s) / steps, repeated * steps))
        self._last_tokens_s = now_s

    def _fail(self, plan: Plan) -> None:
        """Ends the requests of a failed turn. Raises DeviceLost, and then leaves them to `end_all`."""
        log.exception("a turn failed; its requests: %s", ", ".join(sequence.request.log_name for sequence in plan.live))
        self.failures_in_a_row += 1
        self._measure(TurnFailed())
        self._launched = None
        self._runner.reset()
        for sequence in self.scheduler.drop_live():
            if sequence not in self._responses:  # it ended in an earlier turn that was read while this one was computed
                continue
            error = InternalFailure(sequence.request.request_id)
            sequence.finish(error)
            self._finish(sequence, error)

    def _finish(self, sequence: Sequence, event: Finished | RequestError) -> None:
        """The one place where a request gets its final event."""
        response = self._responses.pop(sequence)
        del self._tickets[response.ticket]
        if isinstance(event, Finished):
            self._measure(RequestEnded(event.reason.value, 0))
            self.scheduler.waiting.learn(sequence.lane, event)
        else:
            event.progress = response.progress(self._clock())
            self._measure(RequestEnded(event.reason.lower(), sequence.num_generated))
        self._events.append((response.ticket, event))
        self._finals += 1

    def _take_events(self) -> EventBatch:
        batch = self._events, self._finals
        self._events, self._finals = [], 0
        return batch

    def _report(self, now_s: float) -> None:
        scheduler = self.scheduler
        queued = len(scheduler.waiting)
        running = len(self._responses) - queued
        reserved, limit = scheduler.capacity.reserved_bytes, scheduler.limits.kv_cache_bytes
        if not scheduler.live or now_s >= self._used[1] + USED_S:
            self._used = scheduler.capacity.used_bytes(scheduler.live), now_s
        self.snapshot = Snapshot(running, queued, reserved / limit, len(scheduler.rows), reserved, limit, self._used[0])
