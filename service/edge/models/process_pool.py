"""The engines of one model in processes of their own: which of them gets a request, and what happens when one ends.

Event-loop thread only. A process that ends, hangs or breaks the protocol costs its own unfinished requests one error
each, and is restarted: immediately, then after growing delays. Others never notice.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import math
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from service.edge.admission.admission import RETRY_WITHOUT_ENGINE_S, EngineQueue, Entry, check_entry
from service.edge.models.engine_link import EXIT_S, EndReason, EngineLink, deliver
from service.edge.observability import logs
from service.errors import EngineUnavailable, RequestError, ShuttingDown, StartupError
from service.machine.execution_choice import ExecutionChoice
from service.measurements import Measurement, RequestEnded
from service.request import Caller, Cancel, EventSink, Request
from service.wire.messages import Beat, Opened, State

WINDOW_ROWS = 2
CHECK_S = 0.1
LATE_S = 0.25  # of a check: messages may be waiting
QUIET_S = 0.6  # without a message, or without a turn while it has requests, until the system is asked about a process
FROZEN_S = {"S": 0.25, "D": 1.0}
"""Seconds without CPU time until a process counts as frozen, by the state of its threads: all sleep (S), or some wait
for a disk (D). A process with a thread that runs, or waits for a processor, is ended after `PoolLimits.heartbeat_s`."""
RESTART_DELAYS_S = (0.0, 0.1, 0.2, 0.5)  # before the first restart of FAILING_WITHIN_S, the second, …
FAILING_DELAY_S = 30.0  # before each later one
FAILING_DEATHS, FAILING_WITHIN_S = 5, 60.0
CLOSE_S = 15.0  # engines give up a computation after 10


class PoolMetrics(Protocol):
    """The metrics that a pool reports itself."""

    def measured(self, measurements: Iterable[Measurement]) -> None:
        """Measurements in the place of an engine whose process ended."""

    def process_ended(self, reason: EndReason) -> None:
        """An engine process ended that should not have."""


class PoolLimits(NamedTuple):
    """rows: of each engine. queued: more requests that it may hold. start_s: until it must be
    open. heartbeat_s: an engine that has not turned for so long hangs."""

    rows: int
    queued: int
    start_s: float
    heartbeat_s: float


def window_of(rows: int, queued: int) -> int:
    """How many requests of a single call keep engines busy: as many as they have rows, and as many waiting, of which
    they encode those of similar length together; but no more than leave others a good part of the queue."""
    return max(1, min(WINDOW_ROWS * rows, rows + queued // 2))


class ProcessPool:
    """Engine processes of one model, as a `service.edge.models.served_model.Pool`.

    start: starts the process of a place; the bundle's digest is empty the first time. on_move: called when a process
    that was started again runs elsewhere than the one before it.
    """

    def __init__(
        self,
        model: str,
        processes: int,
        start: Callable[[int, str], EngineLink],
        limits: PoolLimits,
        metrics: PoolMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._start, self._limits, self._metrics, self._clock = model, start, limits, metrics, clock
        self._tickets = itertools.count()
        self._deaths = [collections.deque[float](maxlen=FAILING_DEATHS) for _ in range(processes)]
        self._links: list[EngineLink] = []
        self._found: list[Opened] = []  # by the last process of each place that opened
        self.on_move: Callable[[], object] = lambda: None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False
        self.opened: Opened | None = None
        self.window = 1  # see `service.edge.models.served_model.Pool`; known once open

    async def open(self) -> Opened:
        """Starts all processes together. Raises StartupError, after which none of them is left."""
        try:
            for place in range(len(self._deaths)):
                self._links.append(self._start(place, ""))
            found = await asyncio.gather(*[link.wait_opened(self._limits.start_s) for link in self._links])
            if len({opened.bundle_sha256 for opened in found}) > 1:
                raise StartupError("its bundle changed while it was opened; fix: start again")
        except BaseException:
            await self._end_all()
            raise
        self._found = found
        self.window = window_of(self._limits.rows * self.engines, self._limits.queued * len(found))
        is_invariant = all(opened.is_batch_invariant for opened in found)
        self.opened = msgspec.structs.replace(found[0], is_batch_invariant=is_invariant)
        self._tasks = [asyncio.create_task(self._keep_running(place)) for place in range(len(self._links))]
        self._tasks.append(asyncio.create_task(self._watch()))
        return self.opened

    @property
    def choice(self) -> ExecutionChoice:
        """Device and precision of the engines; of a process whose device failed, if there is one."""
        return max((opened.choice for opened in self._found), key=lambda choice: choice.fallback)

    @property
    def is_mixed(self) -> bool:
        """Whether its processes run on different devices, or in different precisions."""
        return len({(opened.choice.provider, opened.choice.precision) for opened in self._found}) > 1

    @property
    def engines(self) -> int:
        """Number of engines of all processes."""
        return sum(opened.engines for opened in self._found)

    @property
    def processes(self) -> Mapping[str, Beat | None]:
        """The last beat of each process, by name; None if it does not run."""
        return {link.name: link.beat if link.is_open else None for link in self._links}

    @property
    def states(self) -> list[State]:
        """The state of every engine that runs."""
        return [state for beat in self.beats for state in beat.states]

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """Bytes by kind, of all processes that run."""
        total = collections.Counter[str]()
        for beat in self.beats:
            total.update(beat.memory)
        return total

    @property
    def beats(self) -> list[Beat]:
        """The last beat of each process that runs."""
        return [beat for beat in self.processes.values() if beat]

    @property
    def _least_busy(self) -> EngineLink | None:
        """The process that gets the next request, with the most of its room free; None while none runs."""
        found, least, queued = None, math.inf, self._limits.queued
        for link in self._links:
            if link.is_open and (load := len(link.receivers) / (self._rows(link) + queued)) < least:
                found, least = link, load
        return found

    @property
    def is_ready(self) -> bool:
        """Whether an engine would take a request."""
        return any(link.is_open for link in self._links)

    def problems(self) -> list[str]:
        """Processes that end again and again. See `service.edge.models.served_model.Pool`."""
        now_s = self._clock()
        return [
            f"engine process {link.name} ended {FAILING_DEATHS} times within {FAILING_WITHIN_S:g} s"
            for link, deaths in zip(self._links, self._deaths, strict=True)
            if not link.is_open and _is_failing(deaths, now_s)
        ]

    def predicted_s(self, caller: Caller) -> float:
        """See `service.edge.models.served_model.Pool`."""
        link = self._least_busy
        return self._queue(link).predicted_s(caller, self._clock()) if link else 0.0

    def _rows(self, link: EngineLink) -> int:
        """Rows of all engines of a process, which has fewer of them on a device than planned."""
        return self._limits.rows * link.engines

    def _queue(self, link: EngineLink) -> EngineQueue:
        return EngineQueue(link.shares, link.pace, link.tenant_paces, self._rows(link), self._limits.queued)

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Cancel:
        """Accepts a request: `sink` gets its events, the last of them Finished or a RequestError.

        Returns what cancels it. Raises Overloaded, ShuttingDown or EngineUnavailable instead of accepting. Never
        blocks: what an engine finds wrong with a request comes as its only event.
        """
        link = self._least_busy
        queue = self._queue(link) if link else None
        check_entry(Entry(self._model, self._is_closing, queue, request, self._clock()))
        assert link is not None, "no gate lets a request pass that no engine can take"
        ticket = next(self._tickets)
        link.submit(ticket, request, sink)
        return partial(link.cancel, ticket)

    async def aclose(self) -> None:
        """Ends unfinished requests with ShuttingDown, and all processes."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links:
            link.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*[link.ended.wait() for link in self._links]), CLOSE_S)
        await self._end_all()

    async def _end_all(self) -> None:
        for link in self._links:
            link.end("closed")
            self._fail(link, ShuttingDown())
        await asyncio.gather(*[link.child.wait(EXIT_S) for link in self._links])

    async def _keep_running(self, place: int) -> None:
        """Starts the process of a place again whenever it ends."""
        while True:
            link = self._links[place]
            await link.ended.wait()
            lost = self._fail(link, self._lost_engine())
            how = await link.child.wait(EXIT_S)
            reason = link.end_reason or "exited"
            if reason == "exited" and link.child.was_killed:
                reason = "killed"
            fields = {"process": link.name, "reason": reason, "how": how, "lost_requests": lost}
            await self._delay_restart(place, reason, "engine_process_ended", fields)
            while problem := await self._restart(place):
                fields = {"process": link.name, "problem": problem}
                await self._delay_restart(place, "not_started", "engine_process_not_started", fields)

    async def _delay_restart(self, place: int, reason: EndReason, event: str, fields: dict[str, object]) -> None:
        """Counts and logs an end, and waits: the longer, the more of them there were within a minute."""
        deaths = self._deaths[place]
        deaths.append(self._clock())
        self._metrics.process_ended(reason)
        delay_s = _delay_s(deaths)
        logs.event(event, fields | {"restart_in_s": delay_s}, level=logs.ERROR)
        if delay_s == FAILING_DELAY_S:
            logs.event("engine_process_failing", {"process": fields["process"], "fix": FIX}, level=logs.ERROR)
        await asyncio.sleep(delay_s)

    async def _restart(self, place: int) -> str:
        """Starts a process. Returns why it cannot serve, or an empty text if it does."""
        began_s = self._clock()
        assert self.opened is not None
        try:
            link = self._links[place] = self._start(place, self.opened.bundle_sha256)
            found = await link.wait_opened(self._limits.start_s)
        except StartupError as error:
            self._links[place].end("not_started")
            await self._links[place].child.wait(EXIT_S)
            return str(error)
        fields = {"process": link.name, "pid": link.child.pid, "start_s": round(self._clock() - began_s, 3)}
        logs.event("engine_process_started", fields)
        before, self._found[place] = self._found[place], found
        if (choice := found.choice) != before.choice:
            self.on_move()
        if choice.fallback:
            fields = {"process": link.name, "provider": choice.provider, "requested": choice.requested}
            logs.event("provider_fallback", {**fields, "reason": choice.reason}, level=logs.WARNING)
        return ""

    def _fail(self, link: EngineLink, error: RequestError) -> int:
        """Ends the unfinished requests of a process that is gone. Returns their number."""
        receivers, link.receivers = link.receivers, {}
        for sink in receivers.values():
            self._metrics.measured([RequestEnded(error.reason.lower(), 0)])
            deliver(sink, error, link.name)
        return len(receivers)

    def _lost_engine(self) -> EngineUnavailable:
        """retry_after_s: until another process or, at best, the next one takes requests."""
        retry_after_s = 0.1 if self.is_ready else RETRY_WITHOUT_ENGINE_S
        problem = "the engine's process ended before the answer was complete"
        return EngineUnavailable(problem, retry_after_s=retry_after_s)

    async def _watch(self) -> None:
        """Ends processes that hang: those that are silent, and those with an engine that does not turn."""
        seen = Progresses()
        while True:
            began_s = self._clock()
            await asyncio.sleep(CHECK_S)
            now_s = self._clock()
            if now_s - began_s > CHECK_S + LATE_S:
                continue
            for link in [link for link in self._links if link.is_open]:
                if link.beat and not all(state.is_healthy for state in link.beat.states):
                    link.end("engine_failed")
                elif self._hangs(link, now_s, seen):
                    link.end("hung")

    def _hangs(self, link: EngineLink, now_s: float, seen: Progresses) -> bool:
        silent_s = now_s - link.heard_s
        turned_s = min((state.heartbeat_s for state in link.beat.states), default=now_s) if link.beat else now_s
        quiet_s = max(silent_s, now_s - turned_s)
        if quiet_s > self._limits.heartbeat_s:
            return True
        if (quiet_s if link.receivers else silent_s) < QUIET_S or (progress := link.child.progress()) is None:
            seen.pop(link, None)
            return False
        if progress.state in "Tt":
            return True
        ticks, since_s = seen.get(link, (-1, now_s))
        if progress.state == "R" or progress.cpu_ticks != ticks:
            since_s = now_s
        seen[link] = progress.cpu_ticks, since_s
        return now_s - since_s >= FROZEN_S.get(progress.state, FROZEN_S["D"])


Progresses = weakref.WeakKeyDictionary[EngineLink, tuple[int, float]]
"""The processor time of each process, and since when it has stood still."""

FIX = "check the bundle with `glossa doctor BUNDLE` and the machine's memory; the server goes on trying"


def _is_failing(deaths: collections.deque[float], now_s: float) -> bool:
    return len(deaths) == FAILING_DEATHS and now_s - deaths[0] < FAILING_WITHIN_S


def _delay_s(deaths: collections.deque[float]) -> float:
    """How long to wait before the restart after the last of these deaths."""
    if _is_failing(deaths, deaths[-1]):
        return FAILING_DELAY_S
    recent = sum(deaths[-1] - death_s < FAILING_WITHIN_S for death_s in deaths)
    return RESTART_DELAYS_S[min(recent, len(RESTART_DELAYS_S)) - 1]
