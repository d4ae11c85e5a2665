"""The end of calls whose clients read nothing: streams (`StallTimer`), and unary responses (`UnwrittenResponses`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from service.errors import DeadlineExceeded


class UnwrittenResponses:
    """Unary calls whose responses are complete but not written yet, by their tasks."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._since_s: dict[asyncio.Task[Any], float] = {}

    def add(self, task: asyncio.Task[Any]) -> None:
        """A response is complete."""
        self._since_s[task] = self._clock()

    def discard(self, task: asyncio.Task[Any]) -> None:
        """It is written, or there never was one."""
        self._since_s.pop(task, None)

    def end_stalled(self) -> None:
        """Ends the calls whose clients have read nothing for `limit_s`."""
        since_s = self._clock() - self._limit_s
        for task in [task for task, at_s in self._since_s.items() if at_s < since_s]:
            task.cancel()


class StallTimer:
    """Ends a stream with DeadlineExceeded when one of its writes takes longer than `limit_s`.

    One timer for all messages of a stream, which checks periodically: a timer for each message took a tenth of what a
    message costs.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._loop = limit_s, asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._began_s: float | None = None

    def begin(self) -> None:
        """A write begins."""
        self._began_s = self._loop.time()

    def end(self) -> None:
        """The write has ended."""
        self._began_s = None

    def _check(self) -> None:
        now_s = self._loop.time()
        until_s = (now_s if self._began_s is None else self._began_s) + self._limit_s
        if now_s >= until_s:
            self._timeout.reschedule(now_s)
        else:
            self._timer = self._loop.call_at(until_s, self._check)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self._limit_s, self._check)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, error, at)
        except TimeoutError:
            raise DeadlineExceeded(f"the client read nothing for {self._limit_s:g} s") from None
