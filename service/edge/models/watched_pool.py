"""The requests of a version while it is judged (`WatchedPool`): how many ended, how long they took, which it failed."""

from __future__ import annotations

import asyncio
import collections
import copy
from collections.abc import Callable
from typing import Any

from service.edge.models.served_model import Pool, ServedModel
from service.errors import DeadlineExceeded, EngineUnavailable, InternalFailure
from service.request import Cancel, Event, EventSink, Finished, Request

KEPT = 10_000  # times of requests
FAILURES = (InternalFailure, EngineUnavailable, DeadlineExceeded)  # of a version: others are their clients' doing


class Seen:
    """Requests that ended. seconds: of the last KEPT that were answered."""

    def __init__(self) -> None:
        self.seconds = collections.deque[float](maxlen=KEPT)
        self.calls = self.failed = 0

    @property
    def p99_s(self) -> float:
        """The 99th percentile of their seconds, the nearest rank; 0 without any."""
        ordered = sorted(self.seconds)
        return ordered[(99 * len(ordered) + 99) // 100 - 1] if ordered else 0.0


class WatchedPool:
    """A pool whose requests are counted in `seen`. The pool itself is not changed. clock: seconds."""

    def __init__(self, pool: Pool, clock: Callable[[], float]) -> None:
        self.pool, self._clock, self.seen = pool, clock, Seen()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def submit(self, request: Request, loop: asyncio.AbstractEventLoop, sink: EventSink) -> Cancel:
        """As that of the pool."""
        began_s = self._clock()

        def watch(event: Event) -> None:
            if isinstance(event, Finished):
                self.seen.calls += 1
                self.seen.seconds.append(self._clock() - began_s)
            elif isinstance(event, FAILURES):
                self.seen.calls += 1
                self.seen.failed += 1
            sink(event)

        return self.pool.submit(request, loop, watch)


def unwatched(model: ServedModel) -> ServedModel:
    """The same version for requests that are no client's."""
    if not isinstance(model.pool, WatchedPool):
        return model
    found = copy.copy(model)
    found.pool = model.pool.pool
    return found
