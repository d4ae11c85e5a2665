"""The engine: one thread that owns all mutable state and turns requests into events, one turn after another.

inbox → plan → run → select → commit → text → events. Everything that can go wrong ends in exactly one answer for every
accepted request: a failed turn answers its rows and leaves the engine alive, `close` and the death of the thread answer
everything that is left. Events reach the event loop in one batch a turn. `EnginePool` is several engines of one model.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

from service.decoding import Greedy, Strategy
from service.detokenizer import Detokenizer, Incremental
from service.errors import InternalFailure, Overloaded, RequestError, ShuttingDown
from service.request import Event, EventSink, Finished, FinishReason, Request, TextDelta, Timings
from service.scheduler import Plan, Scheduler, SchedulerConfig, check_invariants
from service.sequence import Sequence
from service.step import Runner

log = logging.getLogger(__name__)

IDLE_TURN_S = 0.5
"""An idle loop turns at least so often, only to show that it is alive."""


class EngineMetrics(Protocol):
    """What an engine reports, from its own thread. Calls are few per turn, and none per row but `finished`."""

    def admitted(self, queue_s: float, prompt_tokens: int) -> None:
        """A request got a row after `queue_s`; it brings `prompt_tokens` of source and prompt."""

    def joined(self, seconds: float) -> None:
        """One turn's encoding or prefill of new rows."""

    def stepped(self, seconds: float, rows: int) -> None:
        """One decode step."""

    def first_token(self, seconds: float) -> None:
        """From arrival to the first token."""

    def next_tokens(self, gap_s: float, rows: int) -> None:
        """`rows` sequences got one more token, `gap_s` after their last one."""

    def generated(self, tokens: int) -> None:
        """Tokens produced by one turn."""

    def finished(self, reason: str, wasted_tokens: int) -> None:
        """A request ended: a FinishReason's value, or an error's reason in lower case; tokens nobody will read."""

    def state(self, queued: int, running: int, kv_ratio: float) -> None:
        """After a turn: requests waiting, rows live, worst-case state of live rows as a share of what is allowed."""


class NullMetrics:
    """Counts nothing."""

    def admitted(self, queue_s: float, prompt_tokens: int) -> None: ...
    def joined(self, seconds: float) -> None: ...
    def stepped(self, seconds: float, rows: int) -> None: ...
    def first_token(self, seconds: float) -> None: ...
    def next_tokens(self, gap_s: float, rows: int) -> None: ...
    def generated(self, tokens: int) -> None: ...
    def finished(self, reason: str, wasted_tokens: int) -> None: ...
    def state(self, queued: int, running: int, kv_ratio: float) -> None: ...


class TextDecoder(Protocol):
    """What an engine needs of a tokenizer."""

    def incremental(self) -> Incremental: ...


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    max_queue: int = 256  # requests that may wait beyond those that could have a row
    failures_until_unhealthy: int = 3  # failed turns in a row
    checks_invariants: bool = False  # after every turn; a violation ends the engine: for tests


@dataclass(frozen=True)
class Snapshot:
    """What the engine's state was after a turn."""

    rows: int = 0
    queued: int = 0
    kv_ratio: float = 0.0
    steps: int = 0
    tokens: int = 0
    failures: int = 0


class _Answer:
    """A request on its way: where its events go, its text, its times."""

    __slots__ = (
        "admitted_s",
        "arrived_s",
        "deltas",
        "first_s",
        "is_ended",
        "join_s",
        "loop",
        "sequence",
        "sink",
        "text",
    )

    def __init__(
        self, sequence: Sequence, text: Detokenizer, loop: asyncio.AbstractEventLoop, sink: EventSink, arrived_s: float
    ) -> None:
        self.sequence, self.text, self.loop, self.sink = sequence, text, loop, sink
        self.arrived_s = arrived_s
        self.admitted_s = self.first_s = 0.0
        self.join_s = 0.0
        self.deltas: list[int] = []  # tokens not yet sent
        self.is_ended = False


class Submission:
    """A request that was accepted."""

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine, self._sequence = engine, sequence

    def cancel(self) -> None:
        """Ends the request with Cancelled at the next step boundary, unless it has ended. From any thread, any time."""
        self._engine._cancel(self._sequence)


class Engine:
    """One thread and its rows. `submit`, `cancel`, `close` and the properties may be used from any thread."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: TextDecoder,
        config: EngineConfig | None = None,
        metrics: EngineMetrics | None = None,
        *,
        strategy: Strategy | None = None,
        clock: Callable[[], float] = time.monotonic,
        name: str = "engine",
    ) -> None:
        self.config = config or EngineConfig()
        self._runner, self._tokenizer, self._clock = runner, tokenizer, clock
        self._metrics: EngineMetrics = metrics or NullMetrics()
        self._strategy: Strategy = strategy or Greedy()
        self._scheduler = Scheduler(self.config.scheduler, runner.limits, runner.layout, eos_id=runner.eos_id)
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        # Shared with other threads, under the condition:
        self._wake = threading.Condition()
        self._arrivals: list[_Answer] = []
        self._cancels: list[Sequence] = []
        self._unfinished = 0
        self._is_accepting = False
        self._is_closing = False
        # The engine thread's own:
        self._answers: dict[Sequence, _Answer] = {}
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[EventSink, Event]]] = {}
        self._answered = 0  # final answers in the outbox
        self._failures_in_a_row = 0
        self._last_tokens_s = 0.0
        self._s_per_request = 0.1
        # Written by the engine thread, read by others:
        self.snapshot = Snapshot()
        self.heartbeat_s = clock()
        self.is_healthy = True

    # ---- any thread

    @property
    def unfinished(self) -> int:
        """Accepted requests without a final answer."""
        return self._unfinished

    def start(self) -> None:
        self.heartbeat_s = self._clock()
        self._is_accepting = True
        self._thread.start()

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Submission:
        """Accepts a request: `sink` gets its events on `loop`, the last of them Finished or a RequestError.

        Raises InvalidRequest, Overloaded or ShuttingDown instead of accepting.
        """
        self._scheduler.check(request)
        sequence = Sequence(request)
        text = Detokenizer(self._tokenizer.incremental(), request.stop)
        limit = self.config.scheduler.max_rows + self.config.max_queue
        with self._wake:
            if not self._is_accepting:
                raise ShuttingDown
            if self._unfinished >= limit:
                retry_after_s = min(30.0, max(0.05, self._s_per_request * self.config.max_queue))
                raise Overloaded(
                    f"{self.config.max_queue} requests are waiting already; try again in {retry_after_s:.1f} s",
                    retry_after_s=retry_after_s,
                    limit=self.config.max_queue,
                )
            self._unfinished += 1
            self._arrivals.append(_Answer(sequence, text, loop, sink, self._clock()))
            self._wake.notify_all()
        return Submission(self, sequence)

    def stop_accepting(self) -> None:
        """From now on `submit` raises ShuttingDown; what was accepted goes on."""
        with self._wake:
            self._is_accepting = False

    def wait_until_finished(self, timeout_s: float) -> bool:
        """Blocks until every accepted request has its answer. False: not within `timeout_s`."""
        with self._wake:
            return self._wake.wait_for(lambda: self._unfinished == 0, timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Answers every unfinished request with ShuttingDown and ends the thread. Repeating it does nothing."""
        with self._wake:
            self._is_accepting = False
            self._is_closing = True
            self._wake.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _cancel(self, sequence: Sequence) -> None:
        with self._wake:
            self._cancels.append(sequence)
            self._wake.notify_all()

    # ---- the engine's thread

    def _main(self) -> None:
        try:
            while not self._is_closing:
                self._turn()
        except BaseException:
            log.exception("the engine's thread died")
            self.is_healthy = False
        finally:
            with self._wake:
                self._is_accepting = False
            self._take_inbox(wait_s=0)
            for sequence in list(self._answers):
                self._answer(sequence, ShuttingDown() if self.is_healthy else _internal(sequence))
            self._send()

    def _turn(self) -> None:
        self._take_inbox(wait_s=IDLE_TURN_S if self._scheduler.is_idle else 0)
        now_s = self.heartbeat_s = self._clock()
        plan = self._scheduler.plan(now_s)
        for sequence in plan.ended:
            assert isinstance(sequence.end, RequestError)
            self._answer(sequence, sequence.end)
        for sequence in plan.admitted:
            answer = self._answers[sequence]
            answer.admitted_s = now_s
            tokens = len(sequence.request.source) + len(sequence.request.prompt)
            self._metrics.admitted(now_s - answer.arrived_s, tokens)
        if plan.rows:
            self._run(plan)
        self._report()
        self._send()

    def _take_inbox(self, wait_s: float) -> None:
        with self._wake:
            if wait_s and not (self._arrivals or self._cancels or self._is_closing):
                self._wake.wait(wait_s)
            arrivals, self._arrivals = self._arrivals, []
            cancels, self._cancels = self._cancels, []
        for answer in arrivals:
            self._answers[answer.sequence] = answer
            self._scheduler.submit(answer.sequence)
        for sequence in cancels:
            sequence.is_cancelled = True

    def _run(self, plan: Plan) -> None:
        try:
            result = self._runner.run(plan.step)
            selection = self._strategy.select(result.logits_RV, plan.rows)
            advanced = self._scheduler.commit(plan, selection)
        except Exception:
            self._fail(plan)
            return
        self._failures_in_a_row = 0
        metrics = self._metrics
        if plan.admitted:
            metrics.joined(result.join_s)
            for sequence in plan.admitted:
                self._answers[sequence].join_s = result.join_s
        if plan.step.tokens:
            metrics.stepped(result.step_s, len(plan.step.tokens))
        self._emit(advanced)
        shot = self.snapshot
        self.snapshot = Snapshot(
            shot.rows, shot.queued, shot.kv_ratio, shot.steps + 1, shot.tokens + len(advanced), shot.failures
        )

    def _emit(self, advanced: Items[Sequence]) -> None:
        """Turns each sequence's newest token into text and events."""
        now_s = self._clock()
        metrics = self._metrics
        for sequence in advanced:
            answer = self._answers[sequence]
            if len(sequence.tokens) == 1:
                answer.first_s = now_s
                metrics.first_token(now_s - answer.arrived_s)
            try:
                self._extend(answer, now_s)
            except Exception:  # one answer's text must not cost others theirs
                log.exception("request %s: its text failed", sequence.request.request_id)
                sequence.end = _internal(sequence)
                self._answer(sequence, sequence.end)
        repeated = sum(len(sequence.tokens) > 1 for sequence in advanced)
        if repeated:
            metrics.next_tokens(now_s - self._last_tokens_s, repeated)
        metrics.generated(len(advanced))
        self._last_tokens_s = now_s

    def _extend(self, answer: _Answer, now_s: float) -> None:
        sequence = answer.sequence
        token = sequence.tokens[-1]
        answer.deltas.append(token)
        text = "" if sequence.end is FinishReason.END_OF_SEQUENCE else answer.text.push(token)
        if sequence.end is not None:
            text += answer.text.flush()
        if answer.text.is_stopped:
            sequence.end = FinishReason.STOP_STRING
        if isinstance(sequence.end, FinishReason):
            self._answer(sequence, self._finished(answer, sequence.end, text, now_s))
        elif text:
            self._post(answer, TextDelta(text, tuple(answer.deltas)))
            answer.deltas.clear()

    def _finished(self, answer: _Answer, reason: FinishReason, text: str, now_s: float) -> Finished:
        request, arrived_s = answer.sequence.request, answer.arrived_s
        return Finished(
            reason=reason,
            text=text,
            tokens=tuple(answer.deltas),
            prompt_tokens=len(request.source) + len(request.prompt),
            generated_tokens=len(answer.sequence.tokens),
            timings=Timings(
                queue_s=answer.admitted_s - arrived_s,
                prefill_s=answer.join_s,
                first_token_s=answer.first_s - arrived_s,
                total_s=now_s - arrived_s,
            ),
        )

    def _fail(self, plan: Plan) -> None:
        log.exception("a turn with %d rows failed: %s", len(plan.rows), [s.request.request_id for s in plan.rows])
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self.config.failures_until_unhealthy:
            self.is_healthy = False
        for sequence in self._scheduler.drop_live():
            self._answer(sequence, _internal(sequence))
        self._runner.reset()

    def _answer(self, sequence: Sequence, event: Finished | RequestError) -> None:
        """The one place where a request gets its final answer."""
        answer = self._answers.pop(sequence)
        if isinstance(event, Finished):
            self._metrics.finished(event.reason.value, 0)
        else:
            self._metrics.finished(event.reason.lower(), len(sequence.tokens))
        self._post(answer, event)

    def _post(self, answer: _Answer, event: Event) -> None:
        self._outbox.setdefault(answer.loop, []).append((answer.sink, event))
        self._answered += not isinstance(event, TextDelta)

    def _send(self) -> None:
        for loop, batch in self._outbox.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:  # the loop is closed: nobody is there to be told
                log.warning("%d events found their event loop closed", len(batch))
        self._outbox = {}
        if self._answered:
            with self._wake:
                self._unfinished -= self._answered
                self._wake.notify_all()
            self._answered = 0

    def _report(self) -> None:
        scheduler = self._scheduler
        if self.config.checks_invariants:
            broken = check_invariants(scheduler)
            assert not broken, broken


def _internal(sequence: Sequence) -> InternalFailure:
    return InternalFailure(sequence.request.request_id)


def _deliver(batch: list[tuple[EventSink, Event]]) -> None:
    for sink, event in batch:
        try:
            sink(event)
        except Exception:  # one client's sink must not cost others their events
            log.exception("a sink raised")


class EnginePool:
    """Engines of one model; a request goes to the one with the least to do."""

    def __init__(self, engines: Items[Engine]) -> None:
        assert engines
        self.engines = tuple(engines)

    @property
    def is_healthy(self) -> bool:
        return all(engine.is_healthy for engine in self.engines)

    @property
    def heartbeat_s(self) -> float:
        """The last turn of the engine that turned longest ago."""
        return min(engine.heartbeat_s for engine in self.engines)

    @property
    def unfinished(self) -> int:
        return sum(engine.unfinished for engine in self.engines)

    def start(self) -> None:
        for engine in self.engines:
            engine.start()

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Submission:
        """See `Engine.submit`."""
        engines = [engine for engine in self.engines if engine.is_healthy] or self.engines
        return min(engines, key=lambda engine: engine.unfinished).submit(request, loop, sink)

    def stop_accepting(self) -> None:
        for engine in self.engines:
            engine.stop_accepting()

    def drain(self, grace_s: float) -> bool:
        """Accepts nothing new and blocks until all is answered, for at most `grace_s`. True: everything is."""
        self.stop_accepting()
        end_s = time.monotonic() + grace_s
        return all(engine.wait_until_finished(max(0.0, end_s - time.monotonic())) for engine in self.engines)

    def close(self, timeout_s: float = 10.0) -> None:
        """Answers what is unfinished with ShuttingDown and ends the threads."""
        self.stop_accepting()
        for engine in self.engines:
            engine.close(timeout_s)
