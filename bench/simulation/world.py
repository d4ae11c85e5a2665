"""One seed: a server, its engine processes and its clients on a virtual clock, from the first call to the last end.

The edge is the product's own: `Server` (its drain), `Calls`, `Servicer`, `ProcessPool`, `EngineLink`; so are the
engines behind it. Replaced is what is outside: gRPC, sockets, programs, the models' arithmetic and the clock.
"""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from bench.simulation.answers import Answers
from bench.simulation.ledger import CheckedPool, Ledger
from bench.simulation.loop import End, SimulatedLoop, connection
from bench.simulation.preparation import SimulatedPreparation
from bench.simulation.process import CHOICE, DIGEST, SimulatedProcess
from bench.simulation.runner import SimulatedAheadRunner, SimulatedRunner
from bench.simulation.scenario import MAX_SOURCE, TABLE, TOKENIZER, Scenario
from bench.simulation.transport import Transport
from service.decoding.vocabulary import Vocabulary
from service.edge.calls.calls import WRITTEN_S
from service.edge.models.engine_link import EXIT_S, EngineLink
from service.edge.models.process_pool import CLOSE_S, PoolLimits, ProcessPool
from service.edge.models.served_model import ServedModel
from service.edge.rpcs.servicer import Servicer
from service.engine.engine import Engine
from service.measurements import Measure
from service.memory.cache_layout import CacheLayout
from service.server import Server
from service.settings.engine_settings import EngineSettings
from service.wire.messages import Start

START = Start(program="", model="m", path="/none", settings=EngineSettings(), first_engine=0)
VOCABULARY = Vocabulary.of(TOKENIZER, eos_ids=(2,))
LATE_CALLS = 3  # of clients that come when the server takes none any more
LATEST_S = 600.0  # of virtual time: nothing takes so long


class Outcome(NamedTuple):
    """What became of a seed. digest: of all ends and their times; the same whenever the seed is replayed."""

    seed: int
    calls: int
    accepted: int
    turns: int
    ends: collections.Counter[tuple[str, str]]
    events: collections.Counter[str]
    violations: list[str]
    digest: int
    virtual_s: float


class World:
    """A seed that runs. trace: gets the words of every event."""

    def __init__(self, seed: int, requests: int, loop: SimulatedLoop, trace: Callable[..., None] | None) -> None:
        self.seed, self.loop = seed, loop
        self.scenario = scenario = Scenario.draw(seed, requests)
        self.trace: Callable[..., None] = trace or _ignore
        self.ledger = Ledger(
            loop.time, TABLE, may_fail=scenario.may_fail, latency_s=scenario.latency_s, trace=self.trace
        )
        self.answers = Answers(
            *(TABLE, TOKENIZER, MAX_SOURCE, self.ledger.break_promise, lambda what: self.ledger.events.update([what])),
            may_fail=scenario.may_fail,
        )
        self.server = Server(scenario.settings, open_model=_no_model, clock=loop.time)
        self.server._preparation = SimulatedPreparation(scenario.settings.tenant_share)
        self._ends: dict[int, End] = {}
        self._next_number = 1000
        self._generations = collections.Counter[int]()
        self.processes: list[SimulatedProcess] = []
        settings = scenario.settings
        limits = PoolLimits(
            rows=settings.max_rows,
            queued=-(-settings.max_queue // scenario.processes),
            start_s=settings.process_start_timeout_s,
            heartbeat_s=settings.heartbeat_timeout_s,
        )
        self.metrics = self.server.metrics.model("m").open("")
        self.pool = ProcessPool("m", scenario.processes, self._start, limits, self.metrics, loop.time)
        self.links: list[EngineLink] = []

    def _start(self, place: int, digest: str) -> EngineLink:
        """Starts the process of a place."""
        name, generation = f"m-{place}", self._generations[place]
        self._generations[place] += 1

        def start_child(name: str, module: str, arguments: Any, files: tuple[int, int], environment: Any) -> Any:
            end = self._ends[files[0]]
            end.users += 1
            scenario = self.scenario
            process = SimulatedProcess(
                *(name, end, self.loop, random.Random(scenario.rng.random()), scenario.fate(generation)),
                *(self._new_engine, scenario.engines, self.ledger.turned, self.trace),
            )
            self.processes.append(process)
            return process

        link = EngineLink(
            *(name, START, 0, self.metrics, {}, start_child),
            tenant_share=self.scenario.settings.tenant_share,
            connect=self._connect,
            clock=self.loop.time,
        )
        self.links.append(link)
        return link

    def _connect(self) -> tuple[End, End]:
        scenario = self.scenario
        most_s, rng = scenario.latency_s, random.Random(scenario.rng.random())
        latency_s = (lambda: rng.uniform(0.0, most_s)) if most_s else float
        ours, theirs = connection(
            self.loop, self._next_number, scenario.capacity, latency_s, on_full=self.ledger.note_full
        )
        self._next_number += 2
        self._ends[theirs.number] = theirs
        return ours, theirs

    def _new_engine(self, process: SimulatedProcess, measure: Measure, place: int) -> Engine:
        scenario, limits = self.scenario, self.scenario.manifest().limits
        has_source = scenario.task == "translation"
        kind = SimulatedAheadRunner if self.seed % 2 else SimulatedRunner
        runner = kind(
            TABLE,
            limits,
            CacheLayout(target_bytes=10, source_bytes=10 if has_source else 0),
            max_rows=scenario.settings.max_rows,
            step_s=scenario.step_s,
            next_fault=process.next_fault,
            spend=process.spend,
            report=self.ledger.break_promise,
        )
        engines = scenario.processes * scenario.engines
        messages_per_s = scenario.settings.stream_messages_per_s / engines
        own = replace(scenario.limits, stream_messages_per_s=messages_per_s)
        return Engine(runner, TOKENIZER, own, measure, vocabulary=VOCABULARY, clock=process.clock)

    async def run(self) -> Outcome:
        """From the start of the processes to the end of the server."""
        scenario, loop, server = self.scenario, self.loop, self.server
        await self.pool.open()
        checked = CheckedPool(self.pool, self.ledger, loop.time)
        model = ServedModel(
            name="m",
            manifest=scenario.manifest(),
            choice=CHOICE,
            bundle_sha256=DIGEST,
            tokenizer=TOKENIZER,
            pool=checked,
            max_hypotheses=scenario.settings.max_rows,
            draft_tokens=scenario.limits.draft_tokens,
        )
        server._catalog.add(model)
        servicer = Servicer(server._catalog, server._preparation, server.calls.items, server._glossaries)
        transport = Transport(loop, server.calls, lambda method: getattr(servicer, method), self.ledger, self.answers)
        server._grpc, server.state = transport, "ready"
        server._running.append(loop.create_task(server._beat()))
        server._close_connections = transport.close_connections  # type: ignore[method-assign]
        arrivals = loop.create_task(self._arrive(transport))
        if scenario.drains_s is None:
            await arrivals
            await server.calls.idle()
        else:
            await asyncio.sleep(scenario.drains_s)
        await self._stop(arrivals)
        self._check_nothing_left(transport)
        return self._outcome()

    async def _arrive(self, transport: Transport) -> None:
        """All clients, one after the other or in bursts."""
        scenario, late = self.scenario, 0
        for number in range(scenario.requests):
            if number % scenario.burst == 0:
                await asyncio.sleep(scenario.rng.expovariate(1 / (scenario.gap_s * scenario.burst)))
            if transport.is_stopping and (late := late + 1) > LATE_CALLS:
                return
            transport.begin(scenario.call(number))

    async def _stop(self, arrivals: asyncio.Task[None]) -> None:
        settings, began_s = self.scenario.settings, self.loop.time()
        self.trace("the server drains")
        await self.server.stop()
        self.trace("the server has stopped")
        took_s = self.loop.time() - began_s
        # A process that is well closes as soon as it is asked; one that hangs is given up.
        closing_s = 0.1 + (CLOSE_S + EXIT_S if self.scenario.may_fail else 4 * self.scenario.latency_s)
        most_s = settings.drain_delay_s + settings.drain_timeout_s + closing_s
        if took_s > most_s:
            self.ledger.break_promise(f"the drain took {took_s:.3f} s of at most {most_s:.3f} s")
        if took_s > settings.drain_delay_s + settings.drain_timeout_s + WRITTEN_S:
            self.ledger.events["drains that waited for a process"] += 1
        await arrivals
        await asyncio.sleep(0)  # what was cancelled last ends

    def _check_nothing_left(self, transport: Transport) -> None:
        ledger = self.ledger
        ledger.close()
        left = {
            "handlers": len(transport.handlers),
            "open calls": len(self.server.calls._open),
            "receivers": sum(len(link.receivers) for link in self.links),
            "processes": sum(not process.ended.is_set() for process in self.processes),
            "tasks": len(asyncio.all_tasks(self.loop)) - 1,
        }
        for what, count in left.items():
            if count:
                ledger.break_promise(f"{count} {what} are left")
        for process in self.processes:
            for link_reason in [process.fate.life]:
                ledger.events[f"process {link_reason}"] += 1

    def _outcome(self) -> Outcome:
        ledger = self.ledger
        for link in self.links:
            ledger.events[f"link ended: {link.end_reason}"] += 1
        return Outcome(
            seed=self.seed,
            calls=ledger.ends.total(),
            accepted=len(ledger.accepted),
            turns=ledger.turns,
            ends=ledger.ends,
            events=ledger.events,
            violations=ledger.violations,
            digest=ledger.digest,
            virtual_s=self.loop.time(),
        )


def simulate_seed(seed: int, requests: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Runs a seed. trace: gets a line for each event. An exception becomes a violation."""
    loop = SimulatedLoop()
    told: Callable[..., None] | None = None
    if trace is not None:
        told = lambda *words: trace(f"{loop.time():10.6f}  {' '.join(map(str, words))}")  # noqa: E731
    world: World | None = None
    lost: list[str] = []
    loop.set_exception_handler(lambda _, context: lost.append(f"{context.get('exception') or context['message']!r}"))

    async def story() -> Outcome:
        nonlocal world
        world = World(seed, requests, loop, told)
        async with asyncio.timeout(LATEST_S):
            return await world.run()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            outcome = runner.run(story())
        except Exception as error:
            if world is None:
                raise
            world.ledger.break_promise(f"the simulation ended with {error!r}")
            outcome = world._outcome()
    return outcome._replace(violations=[*outcome.violations, *lost])


async def _no_model(name: str, path: object) -> ServedModel:
    raise AssertionError(f"model {name} is not opened from a file")


def _ignore(*words: object) -> None: ...
