"""Calls whose messages have not come (`MessageWaits`): how many may wait, how long, and which of them goes first.

An honest client sends a message with its headers. One that sends headers alone would take the places of all requests,
and 25 KB of memory for each. So few may wait, and once they do, a connection that has its share of them gets no more:
no smaller unit than a connection is known to be one client. Nothing here knows what a call asks for.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from service.edge.admission.waiting_calls import WaitingCalls
from service.errors import DeadlineExceeded, MessagesMissing, RequestError

UNREAD_S = 0.25  # between the headers and the message of an honest client, at most, while many calls wait
SHARE, MIN_WAITING = 4, 64  # one of four requests may wait for its message; so many in any case
SHARE_OF_PEER = 8  # of those; what a connection always has
RETRY_S = 0.5
ENDED_TOGETHER, PAUSE_S = 8, 0.005  # so that ends, 0.15 ms each, take a quarter of the event loop's time at most


class MessageWaits:
    """Those of one server, oldest first. Event-loop thread only."""

    def __init__(self, max_requests: int, limit_s: float) -> None:
        """max_requests: of the server. limit_s: until a wait is ended as DeadlineExceeded."""
        self._most, self._limit_s = max(MIN_WAITING, max_requests // SHARE), limit_s
        self._waits = WaitingCalls[_Wait]()  # by connection
        self._timer: asyncio.TimerHandle | None = None  # one for all: the oldest is due first

    @property
    def are_many(self) -> bool:
        """Whether as many calls wait as may."""
        return len(self._waits) >= self._most

    def refusal(self, peer: str) -> MessagesMissing | None:
        """Why a new call of a peer is refused: many calls wait, and its own connection has its share of them."""
        if not self.are_many or self._waits.count_of(peer) < self._most // SHARE_OF_PEER:
            return None
        problem = f"{self._most} calls wait for their messages, of which this connection has its share"
        return MessagesMissing(problem, retry_after_s=RETRY_S)

    def make_room(self) -> None:
        """Ends the call that has waited longest on the connection with the most of them, or else the longest of all, if
        that is longer than an honest client lets it wait."""
        if not self._waits:
            return
        if longest := self._waits.longest(asyncio.get_running_loop().time() - UNREAD_S):
            problem = "the server is full, and the message of this call had not come"
            self._end(longest, MessagesMissing(problem, retry_after_s=RETRY_S))

    async def read(self, context: Any, peer: str, left: Callable[[], None]) -> Any:
        """What `context.read` returns. Raises DeadlineExceeded or MessagesMissing if the wait is ended; before that it
        calls `left`: from then on the call holds none of the server's resources."""
        loop = asyncio.get_running_loop()
        wait = _Wait(peer, loop.time(), loop.create_future(), left)
        self._waits.add(wait)
        if self._timer is None:
            self._timer = loop.call_at(wait.since_s + self._limit_s, self._end_late)
        try:
            wait.step(context.read())
            await wait.over
        finally:
            self._waits.remove(wait)
        return wait.result()

    def _end_late(self) -> None:
        now_s = asyncio.get_running_loop().time()
        late = itertools.takewhile(lambda wait: wait.since_s + self._limit_s <= now_s, self._waits)
        for wait in list(itertools.islice(late, ENDED_TOGETHER)):
            self._end(wait, DeadlineExceeded(f"no message came within {self._limit_s:g} s"))
        self._timer = None
        if self._waits:
            due_s = max(next(iter(self._waits)).since_s + self._limit_s, now_s + PAUSE_S)
            self._timer = asyncio.get_running_loop().call_at(due_s, self._end_late)

    def _end(self, wait: _Wait, error: RequestError) -> None:
        self._waits.remove(wait)
        wait.left()
        if not wait.over.done():
            wait.over.set_exception(error)


class _Wait:
    """For one message. over: when it has come, with an exception when it is no longer waited for."""

    __slots__ = ("_error", "_message", "groups", "left", "over", "since_s")

    def __init__(self, peer: str, since_s: float, over: asyncio.Future[None], left: Callable[[], None]) -> None:
        self.groups, self.since_s, self.over, self.left = (peer,), since_s, over, left
        self._error: BaseException | None = None
        self._message: Any = None

    def step(self, reading: Coroutine[Any, Any, Any], _awaited: object = None) -> None:
        """Runs a read to its next wait. It is no task, which would take another two turns of the event loop, and it is
        not cancelled with the call: grpc frees what a read has allocated, half a kilobyte, only when the read ends,
        which it does with the call."""
        try:
            awaited = reading.send(None)
        except StopIteration as end:
            self._message = end.value
        except (Exception, asyncio.CancelledError) as error:
            self._error = error
        else:
            step = functools.partial(self.step, reading)
            if awaited is None:
                asyncio.get_running_loop().call_soon(step)
            else:
                awaited._asyncio_future_blocking = False  # as a task does: it waits by the callback
                awaited.add_done_callback(step)
            return
        if not self.over.done():
            self.over.set_result(None)

    def result(self) -> Any:
        """What was read. Raises what the read has raised."""
        if self._error is not None:
            raise self._error
        return self._message
