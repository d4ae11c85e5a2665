"""Where the events of one request wait until its handler sends them on.

It knows no gRPC and no engine: anything that calls an `EventSink` can fill it.
"""

from __future__ import annotations

import asyncio

from service.errors import RequestError
from service.request import Event, Finished, TextDelta


class Arrivals:
    """The sink of one request: what arrived since it was last asked, as one piece. Event-loop thread only.

    Merging is the back-pressure: an engine cannot wait for a slow reader, and a slow reader gets fewer, larger pieces.
    What waits here is bounded by the request's max_tokens.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._error: RequestError | None = None

    def __call__(self, event: Event) -> None:
        self._events.append(event)
        self._arrived.set()

    async def piece(self) -> tuple[str, list[int], Finished | None]:
        """Text, tokens and, at the end, Finished. Raises the RequestError that ended the request."""
        if self._error:
            raise self._error
        await self._arrived.wait()
        self._arrived.clear()
        events, self._events = self._events, []
        texts: list[str] = []
        tokens: list[int] = []
        finished = None
        for event in events:
            match event:
                case TextDelta() | Finished():
                    texts.append(event.text)
                    tokens += event.tokens
                    finished = event if isinstance(event, Finished) else None
                case RequestError():
                    self._error = event
        if self._error and not tokens:
            raise self._error
        return "".join(texts), tokens, finished
