"""The engine: one thread that owns all mutable state and turns requests into events, one turn after another.

inbox → plan → run → commit → advance → text → events. Everything that can go wrong ends in exactly one answer for every
accepted request: a failed turn answers its rows and leaves the engine alive, `close` and the death of the thread answer
everything that is left. Events reach the event loop in one batch a turn.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from service.decoding.search import advance, search_for
from service.decoding.stop_strings import StopMatcher
from service.engine.detokenizer import Detokenizer, Incremental
from service.engine.engine_metrics import EngineMetrics, NullMetrics
from service.engine.response import Response
from service.engine.scheduler import Plan, Scheduler, SchedulerConfig, check_invariants
from service.errors import InternalFailure, Overloaded, RequestError, ShuttingDown, Unsupported
from service.request import Event, EventSink, Finished, Request, TextDelta
from service.sequence import Sequence
from service.step import Runner, StepOutput, StepPlan

log = logging.getLogger(__name__)

IDLE_TURN_S = 0.5
"""An idle loop turns at least so often, only to show that it is alive."""


class TextDecoder(Protocol):
    """What an engine needs of a tokenizer."""

    @property
    def pieces(self) -> Items[bytes]: ...

    @property
    def strips_leading_space(self) -> bool: ...

    def incremental(self) -> Incremental: ...


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    max_queue: int = 256  # requests that may wait beyond those that could have a row
    failures_until_unhealthy: int = 3  # failed turns in a row
    checks_invariants: bool = False  # after every turn; a violation ends the engine: for tests


class Snapshot(NamedTuple):
    """What the engine's state was after a turn."""

    rows: int = 0
    queued: int = 0
    kv_ratio: float = 0.0
    steps: int = 0
    tokens: int = 0
    failures: int = 0


class Submission:
    """A request that was accepted."""

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine, self._sequence = engine, sequence

    def cancel(self) -> None:
        """Ends the request with Cancelled at the next step boundary, unless it has ended. From any thread, any time."""
        self._engine._cancel(self._sequence)


class Engine:
    """One thread and its rows. Everything without an underscore may be used from any thread."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: TextDecoder,
        config: EngineConfig | None = None,
        metrics: EngineMetrics | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        name: str = "engine",
    ) -> None:
        self.config = config or EngineConfig()
        rows = self.config.scheduler.max_rows
        assert rows == runner.max_rows, f"{rows} rows are scheduled on a runner with {runner.max_rows}"
        self._runner, self._tokenizer, self._clock = runner, tokenizer, clock
        self._metrics: EngineMetrics = metrics or NullMetrics()
        self._scheduler = Scheduler(self.config.scheduler, runner.limits, runner.layout)
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        # Shared with other threads, under this condition:
        self._wake = threading.Condition()
        self._arrivals: list[Response] = []
        self._cancels: list[Sequence] = []
        self._unfinished = 0
        self._is_accepting = False
        self._is_closing = False
        # Whoever holds this owns the rest: the engine's thread, except while the runner computes.
        self._ownership = threading.Lock()
        self._is_abandoned = False
        self._answers: dict[Sequence, Response] = {}
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[EventSink, Event]]] = {}
        self._answered = 0  # final answers in the outbox
        self._last_tokens_s = 0.0
        self._steps = self._tokens = self._failures = 0
        self._pace = _Pace(clock())
        # Written by the engine's thread, read by others:
        self.snapshot = Snapshot()
        self.heartbeat_s = clock()
        self._failures_in_a_row = 0
        self._is_dead = False

    # ---- any thread

    @property
    def unfinished(self) -> int:
        """Accepted requests without a final answer."""
        return self._unfinished

    @property
    def is_healthy(self) -> bool:
        """The thread lives and its last turns did not all fail."""
        return not self._is_dead and self._failures_in_a_row < self.config.failures_until_unhealthy

    def start(self) -> None:
        self.heartbeat_s = self._clock()
        self._is_accepting = True
        self._thread.start()

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Submission:
        """Accepts a request: `sink` gets its events on `loop`, the last of them Finished or a RequestError.

        Raises InvalidRequest, Unsupported, Overloaded or ShuttingDown instead of accepting.
        """
        self._scheduler.check(request)
        if not self._runner.has_attention and (request.options.alignment != "none" or request.options.coverage_penalty):
            raise Unsupported("the model was exported without attention; export it again with --attention")
        sequence = Sequence(request, search_for(request, eos_ids=self._runner.eos_ids, stops=self._stops(request)))
        queue = self.config.max_queue

        def new_text() -> Detokenizer:
            return Detokenizer(self._tokenizer.incremental(), request.stop)

        with self._wake:
            if not self._is_accepting:
                raise ShuttingDown
            if self._unfinished >= self.config.scheduler.max_rows + queue:
                retry_after_s = min(30.0, max(0.05, self._pace.s_per_answer * queue / 2))
                raise Overloaded(
                    f"{queue} requests are waiting already; try again in {retry_after_s:.2g} s",
                    retry_after_s=retry_after_s,
                    limit=queue,
                )
            self._unfinished += 1
            self._arrivals.append(Response(sequence, new_text, loop, sink, self._clock()))
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
        """Answers every unfinished request with ShuttingDown and ends the thread; again: does nothing.

        A turn that does not come back within `timeout_s` is abandoned: its requests are answered here.
        """
        with self._wake:
            self._is_accepting = False
            self._is_closing = True
            self._wake.notify_all()
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._ownership.acquire(timeout=1.0):
            log.error("a turn did not come back within %.1f s: it is abandoned", timeout_s)
            self._is_abandoned = self._is_dead = True
            self._answer_all(lambda _: ShuttingDown())
            self._ownership.release()

    def _stops(self, request: Request) -> StopMatcher | None:
        if not request.stop:
            return None
        tokenizer = self._tokenizer
        return StopMatcher(tokenizer.pieces, request.stop, strips_leading_space=tokenizer.strips_leading_space)

    def _cancel(self, sequence: Sequence) -> None:
        with self._wake:
            self._cancels.append(sequence)
            self._wake.notify_all()

    # ---- the engine's thread

    def _main(self) -> None:
        with self._ownership:
            try:
                while not self._is_closing:
                    self._turn()
                self._answer_all(lambda _: ShuttingDown())
            except _Abandoned:
                log.warning("an abandoned turn came back; nobody waits for it")
            except BaseException:
                log.exception("the engine's thread died")
                self._is_dead = True
                self._answer_all(_internal)
            finally:
                self._runner.mark_idle()

    def _answer_all(self, error: Callable[[Sequence], RequestError]) -> None:
        """The end of the engine: nothing is accepted any more, and what was is answered."""
        with self._wake:
            self._is_accepting = False
        self._take_arrivals()
        for sequence in list(self._answers):
            self._answer(sequence, error(sequence))
        self._send()

    def _turn(self) -> None:
        if self._scheduler.is_idle:
            self._sleep()
        self._take_arrivals()
        now_s = self.heartbeat_s = self._clock()
        plan = self._scheduler.plan(now_s)
        for sequence in plan.ended:
            assert isinstance(sequence.outcome, RequestError)
            self._answer(sequence, sequence.outcome)
        for sequence in plan.admitted:
            answer = self._answers[sequence]
            answer.admitted_s = now_s
            self._metrics.admitted(now_s - answer.arrived_s, answer.prompt_tokens)
        if plan.live:
            self._run(plan)
        self._report()
        self._send()

    def _sleep(self) -> None:
        self._runner.mark_idle()
        with self._wake:
            if not (self._arrivals or self._cancels or self._is_closing):
                self._wake.wait(IDLE_TURN_S)
        self._pace.restart(self._clock())

    def _take_arrivals(self) -> None:
        with self._wake:
            arrivals, self._arrivals = self._arrivals, []
            cancels, self._cancels = self._cancels, []
        for answer in arrivals:
            self._answers[answer.sequence] = answer
            self._scheduler.submit(answer.sequence)
        for sequence in cancels:
            self._scheduler.cancel(sequence)

    def _run(self, plan: Plan) -> None:
        try:
            output = self._compute(plan.step)
            advanced = self._scheduler.commit(plan)
            produced = sum([sequence.num_generated for sequence in advanced])
            advance(advanced, output)
            produced = sum([sequence.num_generated for sequence in advanced]) - produced
            drafted, right = self._scheduler.learn(plan, output)
        except Exception:
            self._fail(plan)
            return
        self._failures_in_a_row = 0
        if plan.step.new_rows or plan.step.prefill_chunks:
            self._metrics.prefilled(output.turn.prefill_s)
            for sequence in {*plan.admitted, *plan.readers}:
                self._answers[sequence].join_s += output.turn.prefill_s
        if plan.looked_up:
            hits = len({load.row for load in plan.step.prefix_loads})
            self._metrics.looked_up(plan.looked_up, hits=hits, reused=plan.reused)
        steps = 1 + len(output.turn.extra_tokens)
        if plan.step.tokens:
            self._metrics.stepped(output.turn.step_s, len(plan.step.tokens), steps)
        if drafted:
            self._metrics.speculated(drafted, right)
            self._metrics.next_tokens(0.0, right)  # they came with others
        self._metrics.generated(produced)
        self._emit(advanced, output)
        self._steps, self._tokens = self._steps + steps, self._tokens + produced

    def _compute(self, step: StepPlan) -> StepOutput:
        """The only blocking call. `close` may take over meanwhile, if it does not come back."""
        self._ownership.release()
        try:
            return self._runner.run(step)
        finally:
            self._ownership.acquire()
            if self._is_abandoned:
                raise _Abandoned

    def _emit(self, advanced: Items[Sequence], output: StepOutput) -> None:
        """Turns what has become certain of each sequence into text and events."""
        now_s = self._clock()
        metrics = self._metrics
        repeated = 0
        for sequence in advanced:
            answer = self._answers[sequence]
            if answer.first_s is None:
                answer.first_s = now_s - len(output.turn.extra_tokens) * output.turn.step_s
                metrics.first_token(answer.first_s - answer.arrived_s)
                if output.turn.extra_tokens:
                    metrics.next_tokens(output.turn.step_s, len(output.turn.extra_tokens))
            else:
                repeated += 1
            if isinstance(sequence.outcome, RequestError):
                self._answer(sequence, sequence.outcome)
                continue
            if sequence.outcome is None and not sequence.request.is_streamed:
                continue
            events: list[TextDelta | Finished] | list[InternalFailure]
            try:
                events = answer.extend(now_s, output)
            except Exception:  # one answer's text must not cost others theirs
                log.exception("request %s: its text failed", sequence.request.request_id)
                sequence.outcome = _internal(sequence)
                events = [sequence.outcome]
            for event in events:
                if isinstance(event, TextDelta):
                    self._post(answer, event)
                else:
                    self._answer(sequence, event)
        if repeated:
            steps = 1 + len(output.turn.extra_tokens)
            metrics.next_tokens((now_s - self._last_tokens_s) / steps, repeated * steps)
        self._last_tokens_s = now_s

    def _fail(self, plan: Plan) -> None:
        log.exception(
            "a turn failed; its requests: %s", ", ".join(sequence.request.request_id for sequence in plan.live)
        )
        self._failures_in_a_row += 1
        self._failures += 1
        for sequence in self._scheduler.drop_live():
            error = _internal(sequence)
            sequence.finish(error)
            self._answer(sequence, error)
        self._runner.reset()

    def _answer(self, sequence: Sequence, event: Finished | RequestError) -> None:
        """The one place where a request gets its final answer."""
        answer = self._answers.pop(sequence)
        if isinstance(event, Finished):
            self._metrics.finished(event.reason.value, 0)
        else:
            self._metrics.finished(event.reason.lower(), sequence.num_generated)
        self._post(answer, event)
        self._answered += 1

    def _post(self, answer: Response, event: Event) -> None:
        self._outbox.setdefault(answer.loop, []).append((answer.sink, event))

    def _send(self) -> None:
        """Hands the turn's events to their event loops: one wake-up for each loop."""
        outbox, self._outbox = self._outbox, {}
        for loop, batch in outbox.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:  # the loop is closed: nobody is there to be told
                log.warning("%d events found their event loop closed", len(batch))
        if self._answered:
            self._pace.answered(self._answered, self._clock())
            with self._wake:
                self._unfinished -= self._answered
                self._wake.notify_all()
            self._answered = 0

    def _report(self) -> None:
        scheduler = self._scheduler
        if self.config.checks_invariants:
            broken = check_invariants(scheduler)
            assert not broken, broken
        queued = len(scheduler.waiting)
        running = len(self._answers) - queued
        kv_ratio = scheduler.reserved_bytes / scheduler.config.kv_cache_bytes
        self._metrics.state(queued, running, kv_ratio)
        self.snapshot = Snapshot(running, queued, kv_ratio, self._steps, self._tokens, self._failures)


class _Abandoned(BaseException):
    """`close` answered for this turn while the runner was computing."""


class _Pace:
    """Seconds from one final answer to the next, smoothed, while there was work."""

    def __init__(self, now_s: float) -> None:
        self.s_per_answer = 0.0
        self._last_s = now_s

    def restart(self, now_s: float) -> None:
        self._last_s = now_s

    def answered(self, count: int, now_s: float) -> None:
        self.s_per_answer += 0.2 * ((now_s - self._last_s) / count - self.s_per_answer)
        self._last_s = now_s


def _internal(sequence: Sequence) -> InternalFailure:
    return InternalFailure(sequence.request.request_id)


def _deliver(batch: list[tuple[EventSink, Event]]) -> None:
    for sink, event in batch:
        try:
            sink(event)
        except Exception:  # one client's sink must not cost others their events
            log.exception("a sink raised")
