"""What a simulated server must never do (`Ledger`): every request, call and turn is reported here.

The checks know the product's engines from inside, but not how they decide.
"""

from __future__ import annotations

import collections
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.simulation.invariants import check_invariants
from bench.simulation.runner import Table, greedy_answer
from service.edge.models.served_model import Pool
from service.engine.engine import Engine
from service.errors import Cancelled, DeadlineExceeded, EngineUnavailable, InternalFailure, RequestError
from service.request import Cancel, Event, EventSink, Finished, Priority, Request, TextDelta
from service.sequence import Sequence

LONGEST_LIFE = 64
"""Most turns between the admission of a simulated request and its end."""

MOST_IDLE_TURNS = 3  # in a row, without a live request while others wait

Lane = tuple[Engine, str, Priority, int]
"""Of one engine: tenant, class and rows of its requests."""


@dataclass(slots=True)
class Accepted:
    """A request that the pool accepted. left_s: when its client had gone, if it had before the end."""

    request: Request
    final: Event | None = None
    tokens: tuple[int, ...] = ()
    left_s: float | None = None
    turns_for_nobody: int = 0
    place: int = 0  # in the order of arrival
    is_admitted: bool = False
    waited: int = 0  # turns without rows


class Ledger:
    """Counts every end, and finds every broken promise.

    may_fail: whether engines or processes fail in this seed. latency_s: the longest of a message on its way to a
    process. ends: of calls, by code and reason. violations: in words.
    """

    def __init__(
        self, clock: Callable[[], float], table: Table, *, may_fail: bool, latency_s: float, trace: Callable[..., None]
    ) -> None:
        self.violations: list[str] = []
        self.ends: collections.Counter[tuple[str, str]] = collections.Counter()
        self.events: collections.Counter[str] = collections.Counter()  # other things that were seen to happen
        self.accepted: dict[str, Accepted] = {}
        self.turns = self.digest = 0
        self.last_blocked_s = -1.0  # when a socket to a process was full
        self._clock, self._table, self._may_fail, self._latency_s = clock, table, may_fail, latency_s
        self._last_admitted: dict[Lane, int] = {}
        self._places = collections.Counter[Engine]()  # requests that came to each engine
        self._idle_turns = collections.Counter[Engine]()
        self._failures = collections.Counter[Engine]()  # in a row, after the last turn in which others waited
        self._trace = trace

    def break_promise(self, what: str) -> None:
        """Records a violation."""
        self._trace("VIOLATION", what)
        self.violations.append(f"at {self._clock():.6f} s: {what}")

    def note_full(self) -> None:
        """A packet found its socket full."""
        self.last_blocked_s = self._clock()
        self.events["full sockets"] += 1

    def accept(self, request: Request) -> Accepted:
        """A request was accepted; an item again, once its engine is lost."""
        name = request.request_id
        earlier = self.accepted.get(name)
        if earlier and not ("/" in name and isinstance(earlier.final, EngineUnavailable)):
            self.break_promise(f"request {name} was accepted twice")
        self._trace(name, "is accepted")
        entry = self.accepted[name] = Accepted(request)
        return entry

    def take(self, entry: Accepted, event: Event) -> None:
        """An event reached the handler of a request."""
        name = entry.request.request_id
        if entry.final is not None:
            self.break_promise(f"request {name}: {type(event).__name__} after its end")
        if isinstance(event, RequestError):
            entry.final = event
            self._check_error(entry, event)
            self._trace(name, "ends with", type(event).__name__)
            return
        entry.tokens += event.tokens
        if isinstance(event, Finished):
            entry.final = event
            self._check_answer(entry)
            self._trace(name, "is answered:", event.reason.value, entry.tokens)

    def _check_error(self, entry: Accepted, error: RequestError) -> None:
        name, deadline_s = entry.request.request_id, entry.request.deadline_s
        match error:
            case Cancelled() if entry.left_s is None:
                self.break_promise(f"request {name} was cancelled by nobody")
            case DeadlineExceeded() if deadline_s is None or self._clock() < deadline_s:
                self.break_promise(f"request {name} ended before its deadline as too late")
            case InternalFailure() | EngineUnavailable() if not self._may_fail:
                self.break_promise(f"request {name} ended with {type(error).__name__} where nothing fails")

    def _check_answer(self, entry: Accepted) -> None:
        request, options, final = entry.request, entry.request.options, entry.final
        if request.encoder_request is not None:
            output = final.encoder_output if isinstance(final, Finished) else None
            if output is None or output.vector is None or tuple(output.vector) != request.source:
                self.break_promise(f"request {request.request_id} got the vector of another one")
            return
        is_changed = options.is_sampling or request.prefix or request.stop or options.bad_words
        is_plain = options.width == 1 and not is_changed
        if is_plain and entry.tokens != (right := greedy_answer(self._table, request)):
            self.break_promise(f"request {request.request_id} got {entry.tokens} instead of {right}")
        if len(entry.tokens) > request.max_tokens:
            self.break_promise(f"request {request.request_id} got {len(entry.tokens)} of {request.max_tokens} tokens")

    def end(self, name: str, code: str, reason: str) -> None:
        """A call has ended for its client. reason: of its error, and the first words of its message."""
        self.ends[code, reason] += 1
        self.digest = zlib.crc32(f"{self._clock():.9f} {name} {code} {reason}".encode(), self.digest)
        self._trace(name, "call ends:", code, reason)
        if code in ("UNKNOWN", "INTERNAL") and not (self._may_fail and code == "INTERNAL"):
            self.break_promise(f"call {name} ended with {code} where nothing fails")

    def turned(self, engine: Engine, began_s: float, ended_s: float) -> None:
        """A turn was computed."""
        self.turns += 1
        scheduler = engine._core.scheduler
        for broken in check_invariants(scheduler):
            self.break_promise(f"invariant: {broken}")
        self.events["turns with parked requests"] += bool(scheduler.parking.used_bytes)
        going_on = len(scheduler.waiting)
        for sequence in scheduler.live:
            going_on += sequence.outcome is None
            self._check_computed(sequence.request, began_s)
        if (lost := len(engine._core._tickets) - going_on) > 0:
            self.break_promise(f"{lost} requests are neither live nor waiting")
        if scheduler.waiting:
            self._check_order(engine)
        else:
            for sequence in scheduler.live:
                self.accepted[sequence.request.request_id].is_admitted = True

    def _check_computed(self, request: Request, began_s: float) -> None:
        if request.deadline_s is not None and request.deadline_s <= began_s:
            self.break_promise(f"request {request.request_id} was computed after its deadline")
        entry = self.accepted[request.request_id]
        if entry.left_s is None or began_s <= entry.left_s + self._latency_s:
            return
        if self.last_blocked_s >= entry.left_s - self._latency_s:
            return  # the cancellation may wait in the edge
        entry.turns_for_nobody += 1
        if entry.turns_for_nobody > 1:
            self.break_promise(f"request {request.request_id} was computed for a client that had gone")

    def _check_order(self, engine: Engine) -> None:
        """First come, first served within a tenant and class among requests of as many rows; nobody waits for ever, and
        nobody waits for nothing."""
        unfinished: Iterable[Sequence] = engine._core._tickets.values()  # in the order of their arrival
        waiting = dict[Lane, int]()  # the first of each tenant, class and number of rows
        present = 0
        for sequence in unfinished:
            request = sequence.request
            entry = self.accepted[request.request_id]
            key = engine, request.tenant, request.priority, request.options.width
            if not entry.place:
                entry.place = self._places[engine] = self._places[engine] + 1
            present += 1
            if entry.is_admitted or sequence.rows:
                entry.is_admitted = True
                self._last_admitted[key] = max(entry.place, self._last_admitted.get(key, 0))
            else:
                waiting.setdefault(key, entry.place)
            entry.waited += not sequence.rows
            if entry.waited > LONGEST_LIFE * self._places[engine]:  # longer than all that came to this engine can last
                self.break_promise(f"request {request.request_id} waits for {entry.waited} turns")
        for key, place in waiting.items():
            if place < self._last_admitted.get(key, 0):
                self.break_promise(f"a later request overtook one of tenant {key[1]!r}, class {key[2]}")
        failures = engine._core.failures_in_a_row
        has_computed = engine._core.scheduler.live or failures > self._failures[engine]
        self._failures[engine] = failures
        self._idle_turns[engine] = 0 if has_computed else self._idle_turns[engine] + 1
        if self._idle_turns[engine] > MOST_IDLE_TURNS:
            self.break_promise(f"{present} requests wait for an engine that is idle")

    def close(self) -> None:
        """Everything has ended."""
        for name, entry in self.accepted.items():
            if entry.final is None:
                self.break_promise(f"request {name} was accepted and never ended")


class CheckedPool:
    """A `Pool` that reports what it accepts and what its requests get."""

    def __init__(self, pool: Pool, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._pool, self._ledger, self._clock = pool, ledger, clock
        self.predicted_s, self.problems, self.aclose = pool.predicted_s, pool.problems, pool.aclose

    @property
    def is_ready(self) -> bool:
        return self._pool.is_ready

    @property
    def window(self) -> int:
        return self._pool.window

    def submit(self, request: Request, loop: object, sink: EventSink) -> Cancel:
        entry: Accepted | None = None

        def checked(event: Event) -> None:
            assert entry is not None, "an event came before its request was accepted"
            self._ledger.take(entry, event)
            sink(event)

        cancel = self._pool.submit(request, loop, checked)  # type: ignore[arg-type]
        entry = self._ledger.accept(request)

        def leave() -> None:
            if entry.final is None or isinstance(entry.final, TextDelta):
                entry.left_s = self._clock()
                self._ledger.events["clients left"] += 1
            cancel()

        return leave
