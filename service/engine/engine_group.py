"""Several engines with one `submit`: a request goes to the one with the fewest unfinished requests, and among those to
the one that has most of its prompt in its prefix cache.

What crosses this border is plain data: requests with a ticket and cancellations by ticket go in; batches of
(ticket, event), one a turn, come out. Any thread may call everything here; events arrive on the engines' threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from service.engine.engine import Engine, Intake
from service.request import Event, Request

DeliverTurn = Callable[[int, list[tuple[int, Event]]], None]
"""Receives the index of an engine and the events of its turn, each with its request's ticket, in order."""


class EngineGroup:
    """Engines that share read-only sessions and nothing else."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        assert engines
        self.engines = tuple(engines)

    def start(self, deliver: DeliverTurn, *, intake: Intake | None = None, is_manual: bool = False) -> None:
        """Starts the engines. intake: of the only engine, see `Engine.start`. is_manual: without their threads, the
        caller turns them."""
        assert intake is None or len(self.engines) == 1
        for index, engine in enumerate(self.engines):
            engine.start(partial(deliver, index), intake=intake, is_manual=is_manual)

    def submit(self, ticket: int, request: Request) -> None:
        """Accepts a request. Raises and blocks as `Engine.submit`."""
        engines = [engine for engine in self.engines if engine.is_healthy] or self.engines
        best = min(engines, key=lambda engine: (engine.inbox.unfinished, -engine.cached_chunks(request)))
        best.submit(ticket, request)

    def cancel(self, ticket: int) -> None:
        """Ends an accepted request with Cancelled at the next step boundary, unless it has ended."""
        for engine in self.engines:
            engine.inbox.cancel(ticket)

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends unfinished requests with ShuttingDown, and the threads. timeout_s: see `Engine.close`."""
        for engine in self.engines:
            engine.inbox.stop_accepting()
        for engine in self.engines:
            engine.close(timeout_s)
