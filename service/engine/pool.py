"""Several engines of one model, behind one `submit`. They share the read-only sessions and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from service.engine.engine import Engine, Submission
from service.request import EventSink, Request


class EnginePool:
    """Engines of one model; a request goes to the one with the least to do."""

    def __init__(self, engines: Sequence[Engine]) -> None:
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
