"""Load generation: sends requests on a schedule and records the outcome of each.

Open loop (`run_load`): the schedule does not depend on the answers, as with many independent users. Latencies count
from the scheduled moment, not from the actual sending; otherwise a stalled generator would omit exactly the requests
that would have waited longest ("coordinated omission", Gil Tene). `Outcome.lag_s` is the delay of the generator itself.
Closed loop (`run_closed_loop`): a fixed number of clients, each of which sends its next request after an answer. It
measures the maximum throughput, but its latencies are not those of users, who do not wait for each other.

This module knows neither gRPC nor this service: `Send` is any asynchronous generator. Time is that of the event loop.
`cli.load.load_report` computes the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

OK = "OK"
UNFINISHED = "UNFINISHED"  # not a gRPC status: still running at the end of the wait
FAILURE_PAUSE_S = 0.1  # of a closed-loop client after a failure, or it would only repeat rejected requests

Send = Callable[[str], AsyncGenerator[int, None]]
"""Sends one text and yields the number of tokens in each piece of the answer; a unary answer is one piece. Raises
SendFailed without an answer. Closing it early cancels the request."""


class SendFailed(Exception):
    """A request failed. `status` is the name of a gRPC status, or that of the service."""

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(f"{status}: {message}" if message else status)
        self.status, self.message = status, message


class Planned(NamedTuple):
    """A request scheduled `at_s` seconds after the start."""

    at_s: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Window:
    """Requests scheduled in [warm_up_s, ends_s) count; earlier ones bring the service to a steady state."""

    warm_up_s: float
    duration_s: float

    @property
    def ends_s(self) -> float:
        return self.warm_up_s + self.duration_s

    def contains(self, at_s: float) -> bool:
        return self.warm_up_s <= at_s < self.ends_s


@dataclass(frozen=True, kw_only=True)
class Patience:
    """A load is cut short as soon as `misses` of the counted requests have failed or taken longer than `limit_s`."""

    limit_s: float
    misses: int


@dataclass(slots=True)
class Outcome:
    """The outcome of a request. Moments are seconds after the start of the load."""

    intended_s: float  # when it was scheduled
    sent_s: float  # when it was
    ended_s: float = math.nan
    status: str = UNFINISHED
    message: str = ""  # of a failure
    pieces: list[tuple[float, int]] = field(default_factory=list)  # when tokens arrived, and how many

    @property
    def is_answered(self) -> bool:
        return self.status == OK

    @property
    def lag_s(self) -> float:
        """Delay of the generator."""
        return self.sent_s - self.intended_s

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.pieces)

    @property
    def end_to_end_s(self) -> float:
        return self.ended_s - self.intended_s

    @property
    def first_token_s(self) -> float | None:
        return self.pieces[0][0] - self.intended_s if self.pieces else None

    @property
    def gaps_s(self) -> list[float]:
        """Times between pieces. Tokens that arrive together are one piece."""
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.pieces)]

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first piece; None without any."""
        later = self.tokens - self.pieces[0][1] if self.pieces else 0
        return (self.pieces[-1][0] - self.pieces[0][0]) / later if later else None


@dataclass(frozen=True, kw_only=True)
class Load:
    """The outcomes of a finished load."""

    window: Window
    outcomes: tuple[Outcome, ...]  # in the order of sending, warm-up included
    most_outstanding: int  # concurrent requests
    cpu_s: float  # processor time of this process
    wall_s: float
    is_cut_short: bool = False  # the patience was exhausted

    @property
    def counted(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if self.window.contains(outcome.intended_s)]


def arrival_times(rate: float, until_s: float, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Moments in [0, until_s), `rate` a second on average.

    burstiness: shape of the gamma distribution of the gaps: 1 is a Poisson process, below 1 requests come in bursts,
    above 1 more evenly. One seed gives the same arrivals at every rate, stretched: rates differ in nothing else.
    """
    rng = random.Random(f"arrivals of {seed}")
    moments: list[float] = []
    at_s = rng.gammavariate(burstiness, 1 / burstiness) / rate
    while at_s < until_s:
        moments.append(at_s)
        at_s += rng.gammavariate(burstiness, 1 / burstiness) / rate
    return moments


def drawn(texts: Sequence[str], *, seed: int = 0) -> Iterator[str]:
    """An endless random sequence of texts, fixed by the seed."""
    rng = random.Random(f"texts of {seed}")
    while True:
        yield rng.choice(texts)


async def run_load(
    send: Send,
    plan: Sequence[Planned],
    *,
    window: Window,
    wait_s: float,
    patience: Patience | None = None,
) -> Load:
    """Send every request at its scheduled time; returns when all have ended, or `wait_s` after the window.

    plan: ordered by time. patience: None measures to the end. Errors of `send` other than SendFailed are raised.
    """
    running = _Running(send, window, wait_s, patience)
    async with running.requests():
        for at_s, text in plan:
            if (delay_s := at_s - running.now()) > 0:
                await asyncio.sleep(delay_s)
            running.group.create_task(running.ask(text, at_s))
    return running.result()


async def run_closed_loop(send: Send, texts: Iterator[str], *, concurrency: int, window: Window, wait_s: float) -> Load:
    """Run `concurrency` clients, each with one request at a time, until the window ends."""
    running = _Running(send, window, wait_s)

    async def client() -> None:
        while (now_s := running.now()) < window.ends_s:
            outcome = await running.ask(next(texts), now_s)
            if not outcome.is_answered:
                await asyncio.sleep(FAILURE_PAUSE_S)

    async with running.requests():
        for _ in range(concurrency):
            running.group.create_task(client())
    return running.result()


class _Running:
    def __init__(self, send: Send, window: Window, wait_s: float, patience: Patience | None = None) -> None:
        self._send, self._window, self._wait_s, self._patience = send, window, wait_s, patience
        self._missed = 0
        self._loop = asyncio.get_running_loop()
        self._began_s, self._began_cpu_s = self._loop.time(), time.process_time()
        self._outcomes: list[Outcome] = []
        self._outstanding = self._most_outstanding = 0
        self.group, self._limit = asyncio.TaskGroup(), asyncio.timeout(None)
        self.is_cut_short = False

    def now(self) -> float:
        return self._loop.time() - self._began_s

    @contextlib.asynccontextmanager
    async def requests(self) -> AsyncGenerator[None, None]:
        """On exit, wait for the requests and cancel those that remain; when patience is over, at once."""
        try:
            async with self._limit, self.group:
                yield
                if not self.is_cut_short:
                    self._limit.reschedule(self._began_s + self._window.ends_s + self._wait_s)
        except TimeoutError:
            pass
        except BaseExceptionGroup as defects:
            raise defects.exceptions[0] from None

    async def ask(self, text: str, intended_s: float) -> Outcome:
        outcome = Outcome(intended_s=intended_s, sent_s=self.now())
        self._outcomes.append(outcome)
        self._outstanding += 1
        self._most_outstanding = max(self._most_outstanding, self._outstanding)
        alarm = self._alarm(intended_s)
        try:
            async with contextlib.aclosing(self._send(text)) as answer:
                async for count in answer:
                    if count:
                        outcome.pieces.append((self.now(), count))
            outcome.status = OK
        except SendFailed as error:
            outcome.status, outcome.message = error.status, error.message
        finally:
            outcome.ended_s = self.now()
            self._outstanding -= 1
            if alarm and outcome.is_answered:
                alarm.cancel()
        return outcome

    def _alarm(self, intended_s: float) -> asyncio.TimerHandle | None:
        """A timer that counts a request as missed at its limit; an earlier answer cancels it."""
        if not self._patience or not self._window.contains(intended_s):
            return None
        return self._loop.call_at(self._began_s + intended_s + self._patience.limit_s, self._miss)

    def _miss(self) -> None:
        assert self._patience
        self._missed += 1
        if self._missed == self._patience.misses:
            self.is_cut_short = True
            with contextlib.suppress(RuntimeError):  # the load has ended
                self._limit.reschedule(self._loop.time())

    def result(self) -> Load:
        return Load(
            window=self._window,
            outcomes=tuple(self._outcomes),
            most_outstanding=self._most_outstanding,
            cpu_s=time.process_time() - self._began_cpu_s,
            wall_s=self.now(),
            is_cut_short=self.is_cut_short,
        )
