"""Load on a service: requests sent at times of their own, and what became of each of them.

Open loop (`run_load`): when a request is sent does not depend on the answers to others, as with many independent users.
Every time is counted from the moment at which a request was to be sent, not from the moment at which this process got
round to it; otherwise a stalled generator would leave out just the requests that would have waited longest
("coordinated omission", Gil Tene). How late it was itself is told by `Outcome.lag_s`.
Closed loop (`run_closed_loop`): a fixed number of clients, each of which asks again when it is answered. It finds the
most a service can do, but its latencies are not those of users, who do not wait for each other.

Nothing here knows gRPC or this service: `Send` is any asynchronous generator. Time is that of the event loop.
What the outcomes amount to is told by `cli.load_report`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

OK = "OK"
UNFINISHED = "UNFINISHED"  # no status of gRPC: still running when nobody waited any longer
FAILURE_PAUSE_S = 0.1  # of a closed-loop client that was refused, or it would do nothing but ask again

Send = Callable[[str], AsyncGenerator[int, None]]
"""Sends one text and yields, whenever tokens of the answer arrive, how many; a whole answer is one such event. It ends
with the answer, and raises SendFailed without one. Closing it early cancels the request."""


class SendFailed(Exception):
    """A request was not answered. `status` is the name of a gRPC status, or whatever the service calls it."""

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(f"{status}: {message}" if message else status)
        self.status, self.message = status, message


class Planned(NamedTuple):
    """A request that is to be sent `at_s` seconds after the start, whatever happens to the others."""

    at_s: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Window:
    """Requests to be sent in [warm_up_s, ends_s) are counted; those before only bring the service to a steady state."""

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
    """What became of a request. Moments are seconds after the start of the load."""

    intended_s: float  # when it was to be sent
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
        """How late the generator was."""
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
        """Waits between pieces. Tokens that arrive together are one piece: nobody waited between them."""
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.pieces)]

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token behind the first piece; None without any."""
        behind = self.tokens - self.pieces[0][1] if self.pieces else 0
        return (self.pieces[-1][0] - self.pieces[0][0]) / behind if behind else None


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load that is over."""

    window: Window
    outcomes: tuple[Outcome, ...]  # in the order of sending, warm-up included
    most_outstanding: int  # requests at once
    cpu_s: float  # processor time of this process
    wall_s: float
    is_cut_short: bool = False  # patience was over

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
    """Texts at random, without end; one seed gives one sequence."""
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
    """Sends every request at its moment. Returns when all are answered, or `wait_s` after the end of the window.

    plan: in the order of sending. patience: None measures to the end.
    What `send` raises other than SendFailed is a defect, and is raised.
    """
    running = _Running(send, window, wait_s, patience)
    async with running.requests():
        for at_s, text in plan:
            if (delay_s := at_s - running.now()) > 0:
                await asyncio.sleep(delay_s)
            if running.is_cut_short:
                break
            running.start(running.ask(text, at_s))
    return running.result()


async def run_closed_loop(send: Send, texts: Iterator[str], *, concurrency: int, window: Window, wait_s: float) -> Load:
    """`concurrency` clients ask one request after another until the window ends."""
    running = _Running(send, window, wait_s)

    async def client() -> None:
        while (now_s := running.now()) < window.ends_s:
            outcome = await running.ask(next(texts), now_s)
            if not outcome.is_answered:
                await asyncio.sleep(FAILURE_PAUSE_S)

    async with running.requests():
        for _ in range(concurrency):
            running.start(client())
    return running.result()


class _Running:
    """A load under way."""

    def __init__(self, send: Send, window: Window, wait_s: float, patience: Patience | None = None) -> None:
        self._send, self._window, self._wait_s, self._patience = send, window, wait_s, patience
        self._missed = 0
        self._loop = asyncio.get_running_loop()
        self._began_s, self._began_cpu_s = self._loop.time(), time.process_time()
        self._outcomes: list[Outcome] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._outstanding = self._most_outstanding = 0
        self._group = asyncio.TaskGroup()
        self.is_cut_short = False

    def now(self) -> float:
        return self._loop.time() - self._began_s

    @contextlib.asynccontextmanager
    async def requests(self) -> AsyncGenerator[None, None]:
        """Leaves no request behind."""
        try:
            async with self._group:
                yield
                if self._tasks:
                    limit_s = max(0.0, self._window.ends_s + self._wait_s - self.now())
                    await asyncio.wait(self._tasks, timeout=limit_s)
                self._cancel()
        except BaseExceptionGroup as defects:
            raise defects.exceptions[0] from None

    def start(self, work: Coroutine[object, object, object]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        """Counts a request as missed when its time is over; an answer before that turns it off."""
        if not self._patience or not self._window.contains(intended_s):
            return None
        return self._loop.call_at(self._began_s + intended_s + self._patience.limit_s, self._miss)

    def _miss(self) -> None:
        assert self._patience
        self._missed += 1
        if self._missed == self._patience.misses:
            self.is_cut_short = True
            self._cancel()

    def _cancel(self) -> None:
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    def result(self) -> Load:
        return Load(
            window=self._window,
            outcomes=tuple(self._outcomes),
            most_outstanding=self._most_outstanding,
            cpu_s=time.process_time() - self._began_cpu_s,
            wall_s=self.now(),
            is_cut_short=self.is_cut_short,
        )
