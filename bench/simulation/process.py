"""An engine process on the virtual clock: the product's `EngineProcess` and engines, turned by the event loop.

A turn takes in what has arrived when it begins; what it gives leaves when it is over, and a process that ended
meanwhile has said nothing of it. As in a real process, the thread of a single engine reads before each turn, and
several engines get their requests from the main thread. `Fate` says what goes wrong and when.
"""

from __future__ import annotations

import asyncio
import collections
import os
import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from bench.simulation.loop import End, SimulatedLoop
from bench.simulation.runner import FAULTS
from service.edge.models.child_process import Progress
from service.engine.engine import IDLE_TURN_S, Engine
from service.engine_process.engine_process import BEAT_S, EngineProcess
from service.engine_process.measurements import Measurements
from service.engine_process.open_engines import OpenedEngines
from service.machine.execution_choice import ExecutionChoice
from service.measurements import Measure
from service.wire.channel import receive, send
from service.wire.messages import FromEngine, Opened, Refused, Start, WireError, decode_to_engine, encode

CHOICE = ExecutionChoice("CPUExecutionProvider", "cpu", False, "", "fp32")
DIGEST = "ab" * 32
LONGEST_PREPARATION_S = 0.01
GIVES_UP_S = 10.0  # as `Engine.close`: on a turn that does not come back
NEVER = 1e9

START_FATES = ("opens", "is killed", "refuses", "never opens")
LIFE_FATES = ("lives", "is killed", "crashes", "hangs", "is stopped", "freezes", "starves", "talks nonsense")


class Fate(NamedTuple):
    """What becomes of a process. start: one of START_FATES. life: one of LIFE_FATES, `life_s` after it has opened.
    faults: of FAULTS, the share of turns that end so."""

    open_s: float
    start: str = "opens"
    life: str = "lives"
    life_s: float = NEVER
    faults: tuple[float, ...] = (0.0,) * len(FAULTS)


NewEngine = Callable[["SimulatedProcess", Measure, int], Engine]
AfterTurn = Callable[[Engine, float, float], None]
"""Gets the engine, and when its turn began and ended."""


class SimulatedProcess:
    """A `ChildProcess` that runs in this one. Its own clock is ahead of the loop's while a turn is computed."""

    def __init__(
        self,
        name: str,
        end: End,
        loop: SimulatedLoop,
        rng: random.Random,
        fate: Fate,
        new_engine: NewEngine,
        engines: int,
        after_turn: AfterTurn,
        trace: Callable[..., None],
    ) -> None:
        self.name, self.pid, self.loop, self.fate = name, end.number, loop, fate
        self.was_killed = self.is_silent = False
        self.ended = asyncio.Event()
        self._ahead_s = 0.0
        self._end, self._rng, self._trace = end, rng, trace
        self._new_engine, self._count, self._after_turn = new_engine, engines, after_turn
        self._serving: _Serving | None = None
        self._state, self._ticks = "R", 0
        end.watch_reading(self._begin)

    def clock(self) -> float:
        """Its time: the loop's, and how long the turn has taken that is being computed."""
        return self.loop.time() + self._ahead_s

    def spend(self, seconds: float) -> None:
        """The turn takes so long."""
        self._ahead_s += seconds

    def draw(self, low: float, high: float) -> float:
        """A number between these."""
        return self._rng.uniform(low, high)

    def next_fault(self) -> str | None:
        """What goes wrong in the next turn."""
        draw = self._rng.random()
        for fault, share in zip(FAULTS, self.fate.faults, strict=True):
            if draw < share:
                return fault
            draw -= share
        return None

    def progress(self) -> Progress | None:
        if self.ended.is_set():
            return None
        self._ticks += self._state == "R"
        return Progress(self._state, self._ticks)

    def kill(self) -> None:
        if not self.ended.is_set():
            self.was_killed = True
            self.stop("is killed")

    def stop(self, why: str) -> None:
        """It has ended."""
        if not self.ended.is_set():
            self._trace(self.name, why)
            self.ended.set()
            if self._serving is not None:
                self._serving.release()
            self._end.close()

    async def wait(self, timeout_s: float) -> str:
        try:
            await asyncio.wait_for(self.ended.wait(), timeout_s)
        except TimeoutError:
            self.kill()
        return "killed by SIGKILL" if self.was_killed else "exit status 1"

    def _begin(self) -> None:
        """Takes the first message."""
        self._end.watch_reading(None)
        data = receive(self._end)  # type: ignore[arg-type]
        if not data:
            self.stop("was given up")
            return
        assert isinstance(decode_to_engine(data), Start)
        self.loop.call_later(self.fate.open_s, self._open)

    def _open(self) -> None:
        if self.ended.is_set():
            return
        if self.fate.start == "is killed":
            self.kill()
        elif self.fate.start == "refuses":
            send(self._end, encode(Refused("the bundle is damaged")))  # type: ignore[arg-type]
            self.stop("refuses")
        elif self.fate.start == "opens":
            self._trace(self.name, "opens")
            self._serving = _Serving(self, self._end)
            if self.fate.life != "lives":
                self.loop.call_later(self.fate.life_s, self._suffer)

    def _suffer(self) -> None:
        serving, life = self._serving, self.fate.life
        if self.ended.is_set() or serving is None:
            return
        self._trace(self.name, life)
        if life == "is killed":
            self.kill()
        elif life == "crashes":
            self.stop("crashes")
        elif life == "talks nonsense":
            serving.connection.post(b"\xc1 nonsense")
        elif life == "hangs":
            serving.is_hanging = True
        else:
            self._state = {"is stopped": "T", "freezes": "S", "starves": "R"}[life]
            self.is_silent = True
            if life == "starves":
                self.loop.call_later(self.draw(0.1, 0.9), self._recover)

    def _recover(self) -> None:
        self.is_silent = False
        if self._serving is not None and not self.ended.is_set():
            self._serving.resume()


class _Connection:
    """Keeps what the process says until its time has come and the socket takes it. What waits blocks every sender."""

    def __init__(self, process: SimulatedProcess, end: End) -> None:
        self.end: Any = end
        self._process = process
        self._said: list[bytes] = []
        self._unsent: collections.deque[bytes] = collections.deque()
        self.freed: Callable[[], None] = lambda: None

    @property
    def is_blocked(self) -> bool:
        return bool(self._unsent)

    def send(self, message: FromEngine) -> None:
        """Says something in the turn that is being computed, or now."""
        self.send_bytes(encode(message))

    def send_bytes(self, data: bytes) -> None:
        self._said.append(data)

    def take(self) -> list[bytes]:
        """What was said since the last call."""
        said, self._said = self._said, []
        return said

    def post(self, *packets: bytes) -> None:
        """Sends packets; those that the socket does not take wait."""
        self._unsent += packets
        self._write()

    def _write(self) -> None:
        was_blocked = False
        try:
            while self._unsent:
                send(self.end, self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            was_blocked = True
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()
        self.end.watch_writing(self._freed if was_blocked else None)

    def _freed(self) -> None:
        self._write()
        if not self._unsent:
            self.freed()


class _Preparing:
    """The threads beside the main one: what is submitted is done a little later."""

    def __init__(self, process: SimulatedProcess, done: Callable[[], None]) -> None:
        self._process, self._done = process, done

    def see(self, tenant: str) -> None: ...

    def close(self) -> None: ...

    def submit(self, _: str, task: Callable[[], None]) -> Future[None]:
        future = Future[None]()

        def run() -> None:
            if not self._process.ended.is_set() and future.set_running_or_notify_cancel():
                task()
                future.set_result(None)
                self._done()

        self._process.loop.call_later(self._process.draw(0.0, LONGEST_PREPARATION_S), run)
        return future


class _Serving(EngineProcess):
    """The conversation of an open process; what waits and what computes is scheduled on the loop."""

    def __init__(self, process: SimulatedProcess, end: End) -> None:
        self.process, self.connection = process, _Connection(process, end)
        measurements = [Measurements() for _ in range(process._count)]
        engines = [process._new_engine(process, mine.append, place) for place, mine in enumerate(measurements)]
        opened = OpenedEngines(
            engines=engines,
            choice=CHOICE,
            bundle_sha256=DIGEST,
            is_batch_invariant=True,
            open_attention=lambda: None,
            memory_bytes=dict,
        )
        super().__init__(self.connection, opened, measurements, process.clock)  # type: ignore[arg-type]
        self._slow = _Preparing(process, self._prepared_one)  # type: ignore[assignment]
        self.engines = engines
        self.is_hanging = False
        self._is_ending = False
        self._due: list[asyncio.TimerHandle | None] = [None] * len(engines)
        self._busy = [False] * len(engines)
        self.connection.freed = self.resume
        self.connection.send(Opened(bundle_sha256=DIGEST, choice=CHOICE, engines=len(engines), is_batch_invariant=True))
        self._beat()
        self.connection.post(*self.connection.take())
        self._group.start(self._deliver, is_manual=True)
        self._beating = process.loop.call_later(BEAT_S, self._beat_again)
        end.watch_reading(self._readable)
        for place in range(len(engines)):
            self._wait(place)

    def release(self) -> None:
        """Returns what the operating system would take back."""
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
            self._beating.cancel()

    @property
    def _is_able(self) -> bool:
        return not (self.process.ended.is_set() or self.process.is_silent or self._is_ending)

    def _prepared_one(self) -> None:
        """A request was prepared and submitted, or refused."""
        self.connection.post(*self.connection.take())
        self.resume()

    def resume(self) -> None:
        """Goes on after a time in which it could not."""
        if self._is_able:
            self.connection.end.watch_reading(self._readable)
            for place in range(len(self.engines)):
                if not self._busy[place]:
                    self._turn(place)

    def _beat_again(self) -> None:
        if self.process.ended.is_set() or self._is_ending:
            return
        if not self.process.is_silent and not self.connection.is_blocked:
            self._beat()
            self.connection.post(*self.connection.take())
        self._beating = self.process.loop.call_later(BEAT_S, self._beat_again)

    def _readable(self) -> None:
        """Something has arrived."""
        if not self._is_able or self.connection.is_blocked:
            self.connection.end.watch_reading(None)
        elif len(self.engines) == 1:
            if self._busy[0]:
                self.connection.end.watch_reading(None)
            else:
                self._turn(0)
        elif self._take_in():
            for place in range(len(self.engines)):
                if not self._busy[place]:
                    self._turn(place)

    def _take_in(self) -> bool:
        """Reads what has arrived. False: the edge wants the end."""
        is_open = True
        try:
            while is_open and self.connection.end.is_readable:
                is_open = self._read()
            self.connection.post(*self.connection.take())
        except WireError as error:  # never: the edge is the product's own
            raise AssertionError(error) from error
        if not is_open:
            self._is_ending = True
            is_stuck = self.is_hanging and any(engine.snapshot.rows for engine in self.engines)
            self.process.loop.call_later(GIVES_UP_S if is_stuck else 0.001, self._finish)
        return is_open

    def _finish(self) -> None:
        if not self.process.ended.is_set():
            self._group.close()
            for packet in self.connection.take():
                try:
                    send(self.connection.end, packet)
                except OSError:
                    break
            self.process.stop("has closed")

    def _wait(self, place: int) -> None:
        """Until there is something to do, or the next turn of an idle engine is due."""
        inbox = self.engines[place].inbox
        is_idle = self.engines[place]._core.scheduler.is_idle and not (inbox._arrivals or inbox._cancels)
        self._due[place] = self.process.loop.call_later(IDLE_TURN_S if is_idle else 0.0, self._turn, place)
        if len(self.engines) == 1:
            self.connection.end.watch_reading(self._readable)

    def _turn(self, place: int) -> None:
        """One turn of an engine, as its thread would make it."""
        if due := self._due[place]:
            due.cancel()
            self._due[place] = None
        if not self._is_able or self.connection.is_blocked or self._busy[place]:
            return
        if len(self.engines) == 1 and not self._take_in():
            return
        process, engine = self.process, self.engines[place]
        if self.is_hanging and not engine._core.scheduler.is_idle:
            self._busy[place] = True
            return
        if engine._is_dead:
            return
        began_s = process.loop.time()
        try:
            engine.turn()
        except SystemExit:
            engine.fail()
        took_s, process._ahead_s = process._ahead_s, 0.0
        process._after_turn(engine, began_s, began_s + took_s)
        self._busy[place] = True
        process.loop.call_later(took_s, self._over, place, self.connection.take())

    def _over(self, place: int, said: list[bytes]) -> None:
        """The turn is over: what it gave leaves."""
        if self.process.ended.is_set():
            return
        if self.process.is_silent:  # it goes on where it was, later
            self.process.loop.call_later(0.1, self._over, place, said)
            return
        self._busy[place] = False
        self.connection.post(*said)
        if self._is_able and not self.connection.is_blocked:
            self._wait(place)
