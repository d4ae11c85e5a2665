"""How loaded this server is (`LoadMeter`), as averages by which balancers choose among servers.

A single look at a queue says little: one turn fills or empties it. Averages are exponential, over AVERAGED_S, and right
from the first look on: what came before it has no weight. Nothing here knows in which form balancers get them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

AVERAGED_S = 2.0
"""Time constant. A balancer's weight is the quotient of two of these averages, so both have the same one; a change of
load is seen to 92 % after 5 s, and 50 calls a second are counted to within 7 %."""
FAILURES = frozenset({2, 4, 8, 13, 14, 15})
"""The numbers of gRPC statuses that a caller has not caused: UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL,
UNAVAILABLE and DATA_LOSS."""

Trailers = tuple[tuple[str, bytes], ...]


class Sample(NamedTuple):
    """One look at the server. fullness: rows that are used or waited for, over all rows, of the model where that is
    most. waiting, running: requests. kv_cache: share reserved, of the model where that is most. cpu_s: used so far by
    all processes. memory: share of what they may have."""

    fullness: float
    waiting: float
    running: float
    kv_cache: float
    memory: float
    cpu_s: float


class Load(NamedTuple):
    """Averages. cpu: processors in use. calls, failures: that ended each second. The others are those of `Sample`."""

    fullness: float
    waiting: float
    running: float
    kv_cache: float
    memory: float
    cpu: float
    calls: float
    failures: float


NO_LOAD = Load(*[0.0] * len(Load._fields))


class LoadMeter:
    """Counts calls, and averages what a function measures whenever `look` is called. Event-loop thread only.

    measure: looks at the server. trailers: what to add to a call's trailing metadata; its argument tells whether the
    client has asked. Both are set by who reports the load.
    """

    def __init__(self) -> None:
        self.measure: Callable[[], Sample] = lambda: Sample(*NO_LOAD[:6])
        self.trailers: Callable[[bool], Trailers] = lambda asked: ()
        self._calls = self._failures = 0
        self._looked_s = -math.inf
        self._before = (0.0, 0, 0)  # cpu_s, calls and failures of the last look
        self._sums, self._weight = NO_LOAD, 0.0

    def count(self, code: int, calls: int = 1) -> None:
        """So many calls ended with the number of a gRPC status."""
        self._calls += calls
        if code in FAILURES:
            self._failures += calls

    def look(self, now_s: float) -> None:
        """Takes one more measurement. now_s: on any clock, but always the same."""
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        sample, before = self.measure(), self._before
        self._before = (sample.cpu_s, self._calls, self._failures)
        if elapsed_s <= 0 or math.isinf(elapsed_s):
            elapsed_s, before = 1.0, self._before  # nothing to compare with yet
        rates = [max(0.0, new - old) / elapsed_s for new, old in zip(self._before, before, strict=True)]
        keep = math.exp(-elapsed_s / AVERAGED_S)
        values = (*sample[:5], *rates)
        self._sums = Load(*[keep * old + (1 - keep) * new for old, new in zip(self._sums, values, strict=True)])
        self._weight = keep * self._weight + 1 - keep

    def forget(self) -> None:
        """Starts anew: nobody has looked for a while."""
        self._sums, self._weight, self._looked_s = NO_LOAD, 0.0, -math.inf

    @property
    def load(self) -> Load:
        """The averages."""
        return Load(*[total / self._weight for total in self._sums]) if self._weight else NO_LOAD
