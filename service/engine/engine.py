"""An engine: one thread, the inbox that other threads fill, and the core that only this thread uses.

Threads and locks: `Inbox` has a condition of its own. `Engine._ownership` is a lock around the core and the delivery of
its events; the engine's thread holds it in every turn, except while the runner computes, which is where it releases
the GIL too. `close` takes it when a computation does not come back, and then ends the requests in its place. Counters
that other threads read without a lock (`snapshot`, `heartbeat_s`, `is_healthy`, `unfinished`) are single values, each
replaced as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

from service.decoding.search import search_for
from service.decoding.stop_strings import StopMatcher
from service.engine.core import EngineCore, EventBatch, Snapshot
from service.engine.detokenizer import Detokenizer, Incremental
from service.engine.engine_metrics import EngineMetrics, NullMetrics
from service.engine.inbox import Inbox
from service.engine.response import Response
from service.engine.scheduler import SchedulerConfig
from service.errors import InternalFailure, RequestError, ShuttingDown
from service.request import Event, Request
from service.sequence import Sequence
from service.step import Runner, StepOutput, StepPlan

log = logging.getLogger(__name__)

IDLE_TURN_S = 0.5
"""An idle engine turns at least so often, to show that it is alive."""

Deliver = Callable[[list[tuple[int, Event]]], None]
"""Receives the events of a turn, each with its request's ticket, in order; called on the engine's thread."""


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


class Engine:
    """One thread and its rows. Any thread may use everything here, except `turn`.

    Requests, tickets, events and snapshots are plain data; the caller chooses tickets and keeps what belongs to them.
    """

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
        self._core = EngineCore(
            runner,
            self.config.scheduler,
            metrics or NullMetrics(),
            run=self._compute,
            clock=clock,
            checks_invariants=self.config.checks_invariants,
        )
        self._inbox = Inbox(rows, self.config.max_queue, clock())
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._ownership = threading.Lock()
        self._is_abandoned = self._is_dead = False
        self._deliver: Deliver = lambda events: None
        self.heartbeat_s = clock()  # of the last turn

    @property
    def unfinished(self) -> int:
        """Accepted requests without a final event."""
        return self._inbox.unfinished

    @property
    def is_accepting(self) -> bool:
        """Whether `submit` takes requests."""
        return self._inbox.is_accepting

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    @property
    def is_healthy(self) -> bool:
        """The thread lives and its last turns did not all fail."""
        return not self._is_dead and self._core.failures_in_a_row < self.config.failures_until_unhealthy

    @property
    def snapshot(self) -> Snapshot:
        """The state after the last turn."""
        return self._core.snapshot

    def start(self, deliver: Deliver) -> None:
        """Accepts requests, and starts the thread that turns."""
        self.open(deliver)
        self._thread.start()

    def open(self, deliver: Deliver) -> None:
        """Accepts requests without a thread of its own: the caller turns."""
        self.heartbeat_s = self._clock()
        self._deliver = deliver
        self._inbox.open()

    def submit(self, ticket: int, request: Request) -> None:
        """Accepts a request: events with this ticket follow, the last of them Finished or a RequestError.

        Raises InvalidRequest, Overloaded or ShuttingDown instead of accepting.
        """
        self._core.scheduler.check(request)
        options = request.options
        assert self._runner.has_attention or (options.alignment == "none" and not options.coverage_penalty), options
        sequence = Sequence(request, search_for(request, eos_ids=self._runner.eos_ids, stops=self._stops(request)))

        def new_text() -> Detokenizer:
            return Detokenizer(self._tokenizer.incremental(), request.stop)

        self._inbox.put(Response(ticket, sequence, new_text, self._clock()))

    def cancel(self, ticket: int) -> None:
        """Ends a request with Cancelled at the next step boundary, unless it has ended by then."""
        self._inbox.cancel(ticket)

    def stop_accepting(self) -> None:
        """From now on `submit` raises ShuttingDown; accepted requests go on."""
        self._inbox.stop_accepting()

    def wait_until_finished(self, timeout_s: float) -> bool:
        """Blocks until every accepted request has its final event. False: not within `timeout_s`."""
        return self._inbox.wait_until_finished(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends every unfinished request with ShuttingDown, and the thread. A second call changes nothing.

        A turn that does not come back within `timeout_s` is abandoned: this thread ends its requests.
        """
        self._inbox.close()
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive() and not self._is_abandoned and self._ownership.acquire(timeout=1.0):
            log.error("a turn did not come back within %.1f s: it is abandoned", timeout_s)
            self._is_abandoned = self._is_dead = True
            self._end_all(lambda _: ShuttingDown())
            self._ownership.release()

    def turn(self) -> None:
        """One turn: what has arrived is taken in, one plan computed, its events delivered. The engine's thread calls it
        again and again; a caller that has used `open` calls it itself."""
        with self._ownership:
            if self._is_abandoned:
                raise _Abandoned
            arrivals, cancels = self._inbox.take()
            self.heartbeat_s = self._clock()
            self._send(self._core.turn(arrivals, cancels, self.heartbeat_s))

    def _stops(self, request: Request) -> StopMatcher | None:
        if not request.stop:
            return None
        tokenizer = self._tokenizer
        return StopMatcher(tokenizer.pieces, request.stop, strips_leading_space=tokenizer.strips_leading_space)

    def _main(self) -> None:
        try:
            while not self._inbox.is_closing:
                if self._core.scheduler.is_idle:
                    self._runner.mark_idle()
                    self._inbox.wait(IDLE_TURN_S)
                    self._inbox.restart_pace(self._clock())
                self.turn()
            with self._ownership:
                if not self._is_abandoned:
                    self._end_all(lambda _: ShuttingDown())
        except _Abandoned:
            log.warning("an abandoned turn came back; its requests have ended")
        except BaseException:
            log.exception("the engine's thread died")
            self._is_dead = True
            with self._ownership:
                self._end_all(InternalFailure)
        finally:
            self._runner.mark_idle()

    def _compute(self, step: StepPlan) -> StepOutput:
        """The only blocking part of a turn. `close` may take over meanwhile, if it does not come back."""
        self._ownership.release()
        try:
            return self._runner.run(step)
        finally:
            self._ownership.acquire()
            if self._is_abandoned:
                raise _Abandoned

    def _end_all(self, error: Callable[[str], RequestError]) -> None:
        """The end of the engine: nothing is accepted any more, and every accepted request ends."""
        self._inbox.stop_accepting()
        self._send(self._core.end_all(self._inbox.take()[0], error))

    def _send(self, batch: EventBatch) -> None:
        if batch.events:
            self._deliver(batch.events)
        if batch.finals:
            self._inbox.count_answers(batch.finals, self._clock())


class _Abandoned(BaseException):
    """`close` has ended this turn's requests while the runner was computing."""
