"""The end of a stream whose client reads nothing (`StallTimer`)."""

from __future__ import annotations

import asyncio
from typing import Any

from service.errors import DeadlineExceeded


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
