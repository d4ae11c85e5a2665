"""The engines of one model with one `submit`, and the seam between engines and the event loops of their clients.

What crosses the seam is plain data: requests with a ticket and cancellations by ticket go in; batches of (ticket,
event), one a turn, and snapshots come out; `close` ends it. Engines know no event loops and no sinks: those stay
here, by ticket. So an engine could run in a process of its own with a queue in each direction. (Two things assume one
process today: the pool reads the health, the heartbeat and the number of unfinished requests of an engine, and an
engine calls its `EngineMetrics`, with numbers only.) Engines share the read-only sessions and nothing else.

Threads: `submit` and what it returns may be called from any thread. `_deliver` runs on the engines' threads; sinks are
called on their event loops. The table of receivers has no lock: each operation on it is one atomic one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from functools import partial

from service.engine.engine import Engine
from service.request import Cancel, Event, EventSink, Request, TextDelta

log = logging.getLogger(__name__)


class EnginePool:
    """Engines of one model; a request goes to the one with the fewest unfinished requests."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        assert engines
        self.engines = tuple(engines)
        self._tickets = itertools.count()
        self._receivers: dict[int, tuple[asyncio.AbstractEventLoop, EventSink]] = {}

    @property
    def is_healthy(self) -> bool:
        """Whether all engines are."""
        return all(engine.is_healthy for engine in self.engines)

    @property
    def heartbeat_s(self) -> float:
        """The last turn of the engine that turned longest ago."""
        return min(engine.heartbeat_s for engine in self.engines)

    def start(self, *, is_manual: bool = False) -> None:
        """Starts the engines. is_manual: without their threads, the caller turns them."""
        for engine in self.engines:
            engine.start(self._deliver, is_manual=is_manual)

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Cancel:
        """Accepts a request: `sink` gets its events on `loop`, the last of them Finished or a RequestError.

        Returns what cancels the request. Raises InvalidRequest, Overloaded or ShuttingDown instead of accepting. May
        block: see `Engine.submit`.
        """
        engines = [engine for engine in self.engines if engine.is_healthy] or self.engines
        engine, ticket = min(engines, key=lambda engine: engine.inbox.unfinished), next(self._tickets)
        self._receivers[ticket] = loop, sink
        try:
            engine.submit(ticket, request)
        except BaseException:
            del self._receivers[ticket]
            raise
        return partial(engine.inbox.cancel, ticket)

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends unfinished requests with ShuttingDown, and the threads. timeout_s: see `Engine.close`."""
        for engine in self.engines:
            engine.inbox.stop_accepting()
        for engine in self.engines:
            engine.close(timeout_s)

    def _deliver(self, events: list[tuple[int, Event]]) -> None:
        """Hands the events of a turn to their event loops: one wake-up for each loop."""
        receivers, calls = self._receivers, dict[asyncio.AbstractEventLoop, list[tuple[EventSink, Event]]]()
        for ticket, event in events:
            loop, sink = receivers[ticket] if type(event) is TextDelta else receivers.pop(ticket)
            if loop in calls:
                calls[loop].append((sink, event))
            else:
                calls[loop] = [(sink, event)]
        for loop, batch in calls.items():
            try:
                loop.call_soon_threadsafe(_call, batch)
            except RuntimeError:  # the loop is closed
                log.warning("%d events found their event loop closed", len(batch))


def _call(batch: list[tuple[EventSink, Event]]) -> None:
    for sink, event in batch:
        try:
            sink(event)
        except Exception:  # one client's sink must not cost others their events
            log.exception("a sink raised")
