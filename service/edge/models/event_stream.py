"""The events of one request between its engine and its handler. Knows neither gRPC nor engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.errors import RequestError
from service.request import Event, Finished, TextDelta


class EventStream:
    """An `EventSink` that returns the events since the last call as one piece. Event-loop thread only.

    Merging is the back-pressure: an engine cannot wait for a slow reader, which gets fewer, larger pieces instead. The
    buffer is bounded by the request's max_tokens.
    """

    def __init__(self) -> None:
        self.on_end: Callable[[Finished | RequestError], None] | None = None  # called when the last event arrives
        self._events: list[Event] = []
        self._waiting: asyncio.Future[None] | None = None  # of the caller of `piece`
        self._error: RequestError | None = None
        self.finished: Finished | None = None  # the end of the answer, once it was read

    def __call__(self, event: Event) -> None:
        self._events.append(event)
        if self.on_end is not None and not isinstance(event, TextDelta):
            self.on_end(event)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    @property
    def unread(self) -> Finished | None:
        """The end of the answer, if it has come and was not read."""
        return next((event for event in self._events if isinstance(event, Finished)), None)

    async def piece(self) -> tuple[str, tuple[int, ...], Finished | None]:
        """New text, new token ids and, at the end, Finished. Raises the RequestError that ended the request.

        Not for concurrent callers.
        """
        if self._error:
            raise self._error
        if not self._events:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        events, self._events = self._events, []
        if len(events) == 1 and not isinstance(event := events[0], RequestError):  # nearly always
            self.finished = event if isinstance(event, Finished) else None
            return event.text, event.tokens, self.finished
        return self._merged(events)

    def _merged(self, events: list[Event]) -> tuple[str, tuple[int, ...], Finished | None]:
        texts: list[str] = []
        tokens: list[int] = []
        for event in events:
            match event:
                case TextDelta() | Finished():
                    texts.append(event.text)
                    tokens += event.tokens
                    self.finished = event if isinstance(event, Finished) else None
                case RequestError():
                    self._error = event
        if self._error and not tokens:
            raise self._error
        return "".join(texts), tuple(tokens), self.finished
