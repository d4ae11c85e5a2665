"""The inbox of an engine: what other threads ask of the engine's thread, and how much is unfinished.

It has no limit: `service.edge.models.process_pool` limits the unfinished requests of a process. One condition guards
all of it. The engine's thread takes its contents once a turn and holds the condition only to swap lists, so a caller
never waits for a computation.
"""

from __future__ import annotations

import threading

from service.engine.response import Response
from service.errors import ShuttingDown


class Inbox:
    """Any thread may call everything here.

    unfinished: accepted requests without a final event.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._arrivals: list[Response] = []
        self._cancels: list[int] = []
        self.unfinished = 0
        self.is_accepting = self.is_closing = False

    def put(self, response: Response) -> None:
        """Accepts a request. Raises ShuttingDown."""
        with self._condition:
            if not self.is_accepting:
                raise ShuttingDown
            self.unfinished += 1
            self._arrivals.append(response)
            self._condition.notify_all()

    def cancel(self, ticket: int) -> None:
        """Asks for the end of a request."""
        with self._condition:
            self._cancels.append(ticket)
            self._condition.notify_all()

    def take(self) -> tuple[list[Response], list[int]]:
        """Takes out the new requests and the tickets to cancel."""
        with self._condition:
            arrivals, self._arrivals = self._arrivals, []
            cancels, self._cancels = self._cancels, []
        return arrivals, cancels

    def wait(self, timeout_s: float) -> None:
        """Blocks until there is something to take, or until the engine is to end."""
        with self._condition:
            if not (self._arrivals or self._cancels or self.is_closing):
                self._condition.wait(timeout_s)

    def count_answers(self, count: int) -> None:
        """Counts final events."""
        with self._condition:
            self.unfinished -= count

    def stop_accepting(self) -> None:
        """From now on `put` raises ShuttingDown."""
        with self._condition:
            self.is_accepting = False

    def close(self) -> None:
        """Stops accepting and asks the engine's thread to end."""
        with self._condition:
            self.is_accepting, self.is_closing = False, True
            self._condition.notify_all()
