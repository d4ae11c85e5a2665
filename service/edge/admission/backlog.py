"""The age of calls that wait inside gRPC for their handlers (`Backlog`), and when it means collapse (`Collapse`).

gRPC reports neither when a call arrived nor the timeout it came with, only the time that is left. So the server probes
itself: while it has calls, it sends itself a tiny one every 50 ms, which waits in the same queue as all others. The
delay until its handler starts is the age of the backlog. A probe takes some 0.5 ms of processor time: 1 %.

What counts is an age that stays above a target for an interval, as in CoDel (Nichols and Jacobson, "Controlling queue
delay", ACM Queue 10(5), 2012): a burst leaves a queue that empties soon; only one that stands shows too many calls.
gRPC takes calls out of its queue in order of arrival alone, neither the newest nor the most urgent first. So a queue
that stands is shortened by refusing, which takes a third of the processor time of accepting.
"""

from __future__ import annotations

import asyncio
import collections
import secrets
import time
from collections.abc import Callable
from typing import Any

import grpc

from service.edge.observability import logs
from service.errors import Backlogged

EVERY_S = 0.05
INTERVAL_S = 0.25  # of five probes
TARGET_S = 0.05  # a backlog that stands at this age is shortened: within it refusals shall reach their clients
SHARE = TARGET_S / 1.0  # of the time that a call has left; one that has more than a second can wait longer
RETRY_S = 0.5
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)  # whose limit of streams no other calls use up
PASSED = 8  # of so many calls in a backlog that stands, one is not refused for it
COLLAPSED_AFTER_S, RECOVERED_AFTER_S = 1.0, 2.0


class Backlog:
    """Measures the age of the backlog. Event-loop thread only, but for `age_s`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # A name that no stranger can guess: its calls would be counted as probes.
        self._service = f"glossa.backlog.{secrets.token_hex(8)}"
        self._has_calls = asyncio.Event()
        self._sent_s: float | None = None  # of a probe whose handler has not started
        self._last_s, self._delay_s = -INTERVAL_S, 0.0  # of the last one: when its handler started, and how late
        self._seen = collections.Counter[str]()  # calls while the backlog stands, by connection
        self._calls = 0  # their number, which is needed for each refusal
        self._spared = 0  # of those, because their connections had few
        self._above_s: float | None = None  # since when every observed age is above TARGET_S

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler of the probes, for the server that is measured."""

        async def probe(_messages: Any, _context: Any) -> bytes:
            self.arrived()
            return b""

        # Like all calls of clients it takes a stream: its handler starts before its message is read.
        return grpc.method_handlers_generic_handler(
            self._service, {"Probe": grpc.stream_unary_rpc_method_handler(probe)}
        )

    def called(self) -> None:
        """The server has got a call: the next probe is due."""
        self._has_calls.set()

    def sent(self) -> None:
        """A probe leaves."""
        self._sent_s = self._clock()

    def arrived(self) -> None:
        """The handler of the last probe starts."""
        if self._sent_s is not None:
            self._last_s = self._clock()
            self._delay_s, self._sent_s = self._last_s - self._sent_s, None
            self._observe()

    @property
    def age_s(self) -> float:
        """How long the calls wait that the server sees now, as far as is known; 0 without calls."""
        now_s, sent_s = self._clock(), self._sent_s
        waiting_s = 0.0 if sent_s is None else now_s - sent_s
        return max(waiting_s, self._delay_s if now_s - self._last_s < INTERVAL_S else 0.0)

    def _observe(self) -> float:
        """For how long the backlog has stood."""
        now_s = self._clock()
        if self.age_s <= TARGET_S:
            self._above_s, self._calls, self._spared = None, 0, 0
            self._seen.clear()
        elif self._above_s is None:
            self._above_s = now_s
        return 0.0 if self._above_s is None else now_s - self._above_s

    def refusal(self, peer: str, remaining_s: float) -> Backlogged | None:
        """The refusal of a call with so much time left, while the backlog stands and is older than a twentieth of that.

        Refused are the first ones, too: they are seen first, so that the others would wait behind them. One of PASSED
        is not refused, which empties the queue a sixth more slowly, and keeps engines at work if refusals alone fill
        the event loop. Nor are as many of connections that have sent a PASSEDth of the mean: a burst of some costs the
        others little. A moment in which the event loop stood still is no backlog: what it left is gone within the
        interval.
        """
        stood_s = self._observe()
        if self._above_s is not None:
            self._seen[peer] += 1
            self._calls += 1
        if stood_s < INTERVAL_S or self.age_s <= SHARE * remaining_s:
            return None
        if PASSED * self._seen[peer] * len(self._seen) <= self._calls and PASSED * self._spared < self._calls:
            self._spared += 1
            return None
        if self._calls % PASSED == 0:
            return None
        problem = f"calls wait {self.age_s:.1g} s before the server sees them"
        return Backlogged(problem, retry_after_s=RETRY_S)

    async def measure(self, address: str) -> None:
        """Probes the server at `address`, its own, until it is cancelled."""
        async with grpc.aio.insecure_channel(address, OWN_CONNECTION) as channel:
            probe: Any = channel.unary_unary(f"/{self._service}/Probe")
            while True:
                await self._has_calls.wait()
                self._has_calls.clear()
                self.sent()
                try:
                    await probe(b"")
                except grpc.aio.AioRpcError as error:  # without descriptors or memory: not known
                    self._sent_s = None
                    logs.event("backlog_not_measured", {"problem": error.details() or ""}, level=logs.WARNING)
                await asyncio.sleep(EVERY_S)


class Collapse:
    """Whether the backlog has collapsed: calls have waited longer than `limit_s` for COLLAPSED_AFTER_S, until they have
    waited less than half of it for RECOVERED_AFTER_S."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._changing_s: float | None = None  # since when the other state is observed
        self.is_there = False
        self.age_s = 0.0

    def update(self, age_s: float, now_s: float) -> None:
        """Takes in the age of the backlog."""
        self.age_s = age_s
        is_other = age_s < self._limit_s / 2 if self.is_there else age_s > self._limit_s
        if not is_other:
            self._changing_s = None
            return
        if self._changing_s is None:
            self._changing_s = now_s
        if now_s - self._changing_s >= (RECOVERED_AFTER_S if self.is_there else COLLAPSED_AFTER_S):
            self.is_there, self._changing_s = not self.is_there, None
