"""Engines in the process of their clients' event loops. Tests and measurements of decoding use it.

A server keeps its engines in processes of their own (`service.edge.models.process_pool`); its answers are bit-identical
to these. Threads: `submit` and what it returns may be called from any thread. `_deliver` runs on the engines' threads;
sinks are called on their event loops. The table of receivers has no lock: each operation on it is one atomic one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from functools import partial

from service.engine.engine import Engine
from service.engine.engine_group import EngineGroup
from service.request import Caller, Cancel, Event, EventSink, Request, TextDelta

log = logging.getLogger(__name__)


class EnginePool:
    """Engines of one model, as a `service.edge.models.served_model.Pool`."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.group = EngineGroup(engines)
        self._tickets = itertools.count()
        self._receivers: dict[int, tuple[asyncio.AbstractEventLoop, EventSink]] = {}

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines, in the order of their making."""
        return self.group.engines

    @property
    def is_ready(self) -> bool:
        """Whether all engines are healthy."""
        return all(engine.is_healthy for engine in self.engines)

    @property
    def window(self) -> int:
        """See `service.edge.models.served_model.Pool`."""
        return 2 * sum(engine.limits.max_rows for engine in self.engines)

    def predicted_s(self, caller: Caller) -> float:
        """See `service.edge.models.served_model.Pool`: not known."""
        return 0.0

    def problems(self) -> list[str]:
        """See `service.edge.models.served_model.Pool`."""
        return [] if self.is_ready else ["an engine failed"]

    def start(self, *, is_manual: bool = False) -> None:
        """Starts the engines. is_manual: without their threads, the caller turns them."""
        self.group.start(self._deliver, is_manual=is_manual)

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Cancel:
        """Accepts a request: `sink` gets its events on `loop`, the last of them Finished or a RequestError.

        Returns what cancels the request. Raises InvalidRequest or ShuttingDown instead of accepting. May
        block: see `Engine.submit`.
        """
        ticket = next(self._tickets)
        self._receivers[ticket] = loop, sink
        try:
            self.group.submit(ticket, request)
        except BaseException:
            del self._receivers[ticket]
            raise
        return partial(self.group.cancel, ticket)

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends unfinished requests with ShuttingDown, and the threads. timeout_s: see `Engine.close`."""
        self.group.close(timeout_s)

    async def aclose(self) -> None:
        """`close`, in a thread."""
        await asyncio.to_thread(self.close)

    def _deliver(self, engine: int, events: list[tuple[int, Event]]) -> None:
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
