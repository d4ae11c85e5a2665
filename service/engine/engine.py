"""An engine: one thread, the inbox that other threads fill, and the core that only this thread uses.

Threads and locks: the inbox has a condition of its own. `_ownership` is a lock around the core and the delivery of its
events. The engine's thread holds it in every turn except while the runner computes, which is also where it releases the
GIL. `close` takes it when a computation does not come back, and then ends the requests in its place. Other threads read
`snapshot`, `heartbeat_s`, `is_healthy` and `Inbox.unfinished` without a lock: each is one value, replaced as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from model.tokenizer import Tokenizer
from service.decoding.prompt_form import PLAIN, PromptForm
from service.decoding.request_processors import processors_of
from service.decoding.search import search_for
from service.decoding.stop_strings import StopMatcher
from service.decoding.vocabulary import Vocabulary
from service.engine.core import EngineCore, EventBatch, Snapshot
from service.engine.detokenizer import Detokenizer
from service.engine.inbox import Inbox
from service.engine.response import Response
from service.errors import EngineUnavailable, InternalFailure, RequestError, ShuttingDown
from service.measurements import Measure, not_measured
from service.memory.engine_limits import EngineLimits
from service.request import Event, Request
from service.sequence import Sequence
from service.step import DeviceLost, Runner

log = logging.getLogger(__name__)

LOST = "the engine's device failed before the answer was complete"
RESTART_S = 1.0  # about as long as another process takes to open a model
T = TypeVar("T")
IDLE_TURN_S = 0.25  # an idle engine turns at least so often, to show that it is alive

Deliver = Callable[[list[tuple[int, Event]]], None]
"""Receives the events of a turn, each with its request's ticket, in order; called on the engine's thread."""
Intake = Callable[[float], None]
"""Waits for requests for at most so many seconds, and submits them."""


class Engine:
    """One thread and its rows. Any thread may use everything here, except `turn`.

    inbox: cancels requests by ticket, stops accepting, knows what is unfinished. heartbeat_s: when the last turn began.
    has_lost_device: it has ended, and so should its process, for another one to take over.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        limits: EngineLimits | None = None,
        measure: Measure = not_measured,
        *,
        vocabulary: Vocabulary | None = None,
        form: PromptForm = PLAIN,
        clock: Callable[[], float] = time.monotonic,
        name: str = "engine",
    ) -> None:
        """vocabulary: of the tokenizer, if engines share one. form: of the model's prompts."""
        self.limits = limits or EngineLimits()
        rows = self.limits.max_rows
        assert rows == runner.max_rows, f"{rows} rows are scheduled on a runner with {runner.max_rows}"
        self._runner, self._tokenizer, self._form, self._clock = runner, tokenizer, form, clock
        self._vocabulary = vocabulary or Vocabulary.of(tokenizer, eos_ids=runner.eos_ids)
        self._core = EngineCore(
            runner,
            self.limits,
            measure,
            run=self._compute,
            clock=clock,
        )
        self.inbox = Inbox()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._ownership = threading.Lock()
        self._is_abandoned = self._is_dead = self.has_lost_device = False
        self._deliver: Deliver = lambda events: None
        self._intake: Intake | None = None
        self.heartbeat_s = clock()

    @property
    def is_healthy(self) -> bool:
        """The thread lives and its last turns did not all fail."""
        return not self._is_dead and self._core.failures_in_a_row < self.limits.failures_until_unhealthy

    @property
    def snapshot(self) -> Snapshot:
        """The state after the last turn."""
        return self._core.snapshot

    def start(self, deliver: Deliver, *, intake: Intake | None = None, is_manual: bool = False) -> None:
        """Accepts requests, and starts the thread that turns; if `is_manual`, the caller turns instead.

        intake: what the thread calls before each turn instead of waiting at its inbox; it may submit and cancel.
        """
        self._intake = intake
        self.heartbeat_s = self._clock()
        self._deliver = deliver
        self.inbox.is_accepting = True
        if not is_manual:
            self._thread.start()

    def submit(self, ticket: int, request: Request) -> None:
        """Accepts a request: events with this ticket follow, the last of them Finished or a RequestError.

        Raises InvalidRequest or ShuttingDown instead of accepting. Blocks for up to seconds with one of
        `service.decoding.request_processors.SLOW_OPTIONS`.
        """
        self._core.scheduler.capacity.check(request)
        tokenizer, vocabulary = self._tokenizer, self._vocabulary
        stops = StopMatcher(vocabulary, request.stop) if request.stop else None
        processors = processors_of(request, vocabulary, tokenizer.target, self._form)
        search = search_for(request, eos_ids=vocabulary.eos_ids, stops=stops, processors=processors, form=self._form)
        sequence = Sequence(request, search)
        text = partial(_new_text, tokenizer, request)
        response = Response(ticket, sequence, text, self._clock())
        self.inbox.put(response)

    def cached_chunks(self, request: Request) -> int:
        """How many chunks of a request's prompt the prefix cache has. See `PrefixCache.count`."""
        return self._core.scheduler.prefix_cache.count(request.prompt)

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends every unfinished request with ShuttingDown, and the thread. A second call changes nothing.

        A turn that does not come back within `timeout_s` is abandoned: this thread ends its requests.
        """
        self.inbox.close()
        if self._thread.ident is None:  # never started, or the caller turns
            with self._ownership:
                self._end_all(lambda _: ShuttingDown())
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive() and not self._is_abandoned and self._ownership.acquire(timeout=1.0):
            log.error("a turn did not come back within %.1f s: it is abandoned", timeout_s)
            self._is_abandoned = self._is_dead = True
            self._end_all(lambda _: ShuttingDown())
            self._ownership.release()

    def turn(self) -> None:
        """One turn: takes in what has arrived, computes one plan and delivers its events."""
        with self._ownership:
            if self._is_abandoned:
                raise _Abandoned
            arrivals, cancels = self.inbox.take()
            self.heartbeat_s = self._clock()
            self._send(self._core.turn(arrivals, cancels, self.heartbeat_s))

    def _main(self) -> None:
        try:
            while not self.inbox.is_closing:
                if self._core.scheduler.is_idle:
                    self._runner.mark_idle()
                    (self._intake or self.inbox.wait)(IDLE_TURN_S)
                elif self._intake is not None:
                    self._intake(0.0)
                self.turn()
            with self._ownership:
                if not self._is_abandoned:
                    self._end_all(lambda _: ShuttingDown())
        except DeviceLost as error:
            log.error("the engine ends with its device: %s", error)
            self._is_dead = self.has_lost_device = True
            with self._ownership:
                self._end_all(lambda _: EngineUnavailable(LOST, retry_after_s=RESTART_S))
        except _Abandoned:
            log.warning("an abandoned turn came back; its requests have ended")
        except BaseException:
            self.fail()
        finally:
            self._runner.mark_idle()

    def fail(self) -> None:
        """Ends the engine and its requests after an exception that `turn` raised, which is being handled."""
        log.exception("the engine's thread died")
        self._is_dead = True
        with self._ownership:
            self._end_all(InternalFailure)

    def _compute(self, run: Callable[[], T]) -> T:
        """The only blocking part of a turn. `close` may take over meanwhile, if it does not come back."""
        self._ownership.release()
        try:
            return run()
        finally:
            self._ownership.acquire()
            if self._is_abandoned:
                raise _Abandoned

    def _end_all(self, error: Callable[[str], RequestError]) -> None:
        """The end of the engine: nothing is accepted any more, and every accepted request ends."""
        self.inbox.stop_accepting()
        self._send(self._core.end_all(self.inbox.take()[0], error))

    def _send(self, batch: EventBatch) -> None:
        events, finals = batch
        if events:
            self._deliver(events)
        if finals:
            self.inbox.count_answers(finals)


class _Abandoned(BaseException):
    """`close` has ended this turn's requests while the runner was computing."""


def _new_text(tokenizer: Tokenizer, request: Request) -> Detokenizer:
    return Detokenizer(tokenizer.incremental(), request.stop, trims=request.trims_text)
