"""Calls that wait for their clients with nothing in flight (`IdleCalls`): how many may, and which of them goes first.

A call with items may stay open for long, and takes the place of a request. So few may wait, and once they do, the one
that has waited longest makes room: of the connection or the tenant that has most of them, as a client may have many
connections, and may invent a tenant for each call. Nothing here knows what a call asks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from service.edge.admission.waiting_calls import WaitingCalls
from service.errors import MessagesMissing, RequestError

SHARE, MIN_IDLE = 4, 64  # one of four requests may be such a call; so many in any case
IDLE_S = 0.25  # between the items of a busy client, at most: a call is not ended before
RETRY_S = 0.5

End = Callable[[RequestError], None]
"""Ends a call, which holds none of the server's resources from then on."""


class IdleCalls:
    """Those of one server, the one that has waited longest first. Event-loop thread only."""

    def __init__(self, max_requests: int, clock: Callable[[], float]) -> None:
        """max_requests: of the server. clock: seconds."""
        self._most, self._clock = max(MIN_IDLE, max_requests // SHARE), clock
        self._calls = WaitingCalls[_Idle]()  # by connection and by tenant

    def __len__(self) -> int:
        return len(self._calls)

    @contextlib.contextmanager
    def waiting(self, peer: str, tenant: str, end: End) -> Iterator[None]:
        """A call waits, which `end` may be asked to end."""
        if len(self._calls) >= self._most:
            self.make_room()
        one = _Idle(peer, tenant, end, self._clock())
        self._calls.add(one)
        try:
            yield
        finally:
            self._calls.remove(one)

    def make_room(self) -> None:
        """Ends the call that has waited longest in the largest group, or else the longest of all, if that is longer
        than a busy client lets it wait."""
        if longest := self._calls.longest(self._clock() - IDLE_S):
            self._calls.remove(longest)
            problem = f"{self._most} calls wait for messages with nothing in flight"
            longest.end(MessagesMissing(problem, retry_after_s=RETRY_S))


class _Idle(NamedTuple):
    peer: str
    tenant: str
    end: End
    since_s: float

    @property
    def groups(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return ("connection", self.peer), ("tenant", self.tenant)
