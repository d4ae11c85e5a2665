"""Calls that run on one more version, whose answers are dropped (`Shadows`): what a new version would have answered.

A shadow begins when the live call has its answer, by the same method and message, and engines are idle; the next live
call interrupts it, and it begins again later. On a server that is never idle it begins while rows are free, and ends
when requests wait for them. It takes no place among the server's calls and no memory that others need. It is not
reported as a call; what engines measure includes it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal, NamedTuple

from service.edge.admission.request_memory import RequestMemory, Reservation, SpareMemory, message_bytes
from service.edge.calls.budget import Budget
from service.edge.calls.call import Call
from service.edge.calls.record import Record
from service.edge.models.served_model import ServedModel
from service.edge.models.watched_pool import unwatched
from service.edge.observability import logs
from service.edge.observability.metrics import Method
from service.edge.observability.traffic_series import DIFFERENT, FAILED, SAME, SKIPPED, TrafficMetrics
from service.edge.requests.catalog import Catalog
from service.errors import EngineUnavailable, RequestError, Retryable, ShuttingDown
from service.options import SAMPLING
from service.request import Priority

MAX_SHADOWS = 4  # at a time, those that wait for rows included: a burst is not worth memory
WAIT_S, LOOK_S = 2.0, 0.002  # for idle engines
TRIES = 4  # of one that is interrupted
LIMIT_S = 30.0  # for an answer

Behaviour = Callable[[Any, Call], Any]


class _Live(NamedTuple):
    """A call that was answered. told: see `told`."""

    method: Method
    behaviour: Behaviour
    message: Any
    call: Call
    told: str | bytes
    seconds: float


class Shadows:
    """The shadows of one server. Event-loop thread only.

    compared: how many there were so far by model, version and outcome, of shadows since the traffic was last set.
    """

    def __init__(
        self,
        catalog: Catalog,
        memory: RequestMemory,
        metrics: TrafficMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """memory: of the server's requests. clock: seconds, that of calls."""
        self._catalog, self._metrics, self._clock = catalog, metrics, clock
        self._memory = SpareMemory(memory)
        self._running: dict[asyncio.Task[None], ServedModel] = {}
        self._attempts: dict[asyncio.Task[str], tuple[ServedModel, bool]] = {}  # whether any call interrupts it
        self.compared: collections.Counter[tuple[str, str, str]] = collections.Counter()

    def around(self, method: Method, behaviour: Behaviour) -> Behaviour:
        """A method that also runs on shadows. Those with many items do not: each is work of minutes."""
        if method.type == "unary":

            async def answer(message: Any, call: Call) -> Any:
                self._make_room()
                response = await behaviour(message, call)
                if self._catalog.has_shadows:
                    self._offer(method, behaviour, message, call, told(response))
                return response

            return answer
        if method.type != "server_stream":
            return behaviour

        async def stream(message: Any, call: Call) -> AsyncGenerator[Any, None]:
            self._make_room()
            pieces, is_whole = list[str](), self._catalog.has_shadows  # one that was set meanwhile has missed the start
            async with contextlib.aclosing(behaviour(message, call)) as responses:
                async for response in responses:
                    if is_whole:
                        pieces.append(response.text)
                    yield response
            if is_whole and self._catalog.has_shadows:
                self._offer(method, behaviour, message, call, "".join(pieces))

        return stream

    def forget(self, model: str) -> None:
        """The traffic of a model changes: its shadows end."""
        for task, running in self._running.items():
            if running.name == model:
                task.cancel()
        for key in [key for key in self.compared if key[0] == model]:
            del self.compared[key]

    def _offer(self, method: Method, behaviour: Behaviour, message: Any, call: Call, answer: str | bytes) -> None:
        model = call.budget.model
        if model is None or call.budget.is_pivot or not call.record.is_accepted or not self._catalog.is_default(model):
            return
        traffic = self._catalog.traffic(model.name)
        if not traffic.is_shadowed(model.name, call.rpc.request_id) or is_random(message):
            return
        shadow = self._catalog.version(model.name, traffic.shadow)
        seconds = self._clock() - call.rpc.started_s
        if len(self._running) >= MAX_SHADOWS:
            self._count(shadow, SKIPPED, seconds)
            return
        live = _Live(method, behaviour, message, call, answer, seconds)
        task = asyncio.create_task(self._run(live, shadow))
        self._running[task] = shadow
        task.add_done_callback(self._running.pop)

    async def _run(self, live: _Live, shadow: ServedModel) -> None:
        outcome, shadow_s = SKIPPED, None
        try:
            for _ in range(TRIES):
                room = await self._room(shadow)
                if room is None:
                    break
                attempt, began_s = asyncio.create_task(self._outcome(live, shadow)), self._clock()
                self._attempts[attempt] = shadow, room == "idle"
                attempt.add_done_callback(self._attempts.pop)
                try:
                    await asyncio.wait([attempt])
                finally:
                    attempt.cancel()
                if not attempt.cancelled():
                    outcome = attempt.result()
                    shadow_s = self._clock() - began_s if outcome in (SAME, DIFFERENT) else None
                    break
        finally:
            self._count(shadow, outcome, live.seconds, shadow_s)

    async def _room(self, shadow: ServedModel) -> Literal["idle", "free"] | None:
        """Waits until all engines are idle; or, if they were not for all of its patience, finds whether no request for
        the model waits."""
        until_s = self._clock() + WAIT_S
        while any(_is_busy(model) for model in self._catalog):
            if self._clock() >= until_s:
                return None if self._is_full(shadow.name) else "free"
            await asyncio.sleep(LOOK_S)
        return "idle"

    def _is_full(self, name: str) -> bool:
        return any(state.queued for model in self._catalog.versions(name) for state in model.states())

    async def _outcome(self, live: _Live, shadow: ServedModel) -> str:
        now_s, caller = self._clock(), live.call.rpc.caller._replace(priority=Priority.LOW)
        rpc = live.call.rpc._replace(
            request_id=f"{live.call.rpc.request_id}/shadow",
            caller=caller,
            started_s=now_s,
            deadline_s=now_s + LIMIT_S,
            client_deadline_s=math.inf,
            trace_id="",
            exemplar="",
        )
        memory = Reservation(self._memory, caller)
        call = Call(rpc, Budget(memory, pinned=unwatched(shadow)), Record())
        try:
            memory.grow(message_bytes(live.message.ByteSize()))
            if live.method.type == "unary":
                answer = told(await live.behaviour(live.message, call))
            else:
                answer = "".join([response.text async for response in live.behaviour(live.message, call)])
        except EngineUnavailable:
            return FAILED
        except (Retryable, ShuttingDown):
            return SKIPPED  # what is refused for others' sake says nothing of the version
        except RequestError:
            return FAILED
        except Exception as error:
            fields = {"request_id": rpc.request_id, "method": rpc.method.name}
            logs.event("internal_error", fields, level=logs.ERROR, exception=error)
            return FAILED
        finally:
            call.budget.leave()
            memory.release()
        return SAME if answer == live.told else DIFFERENT

    def _count(self, shadow: ServedModel, outcome: str, live_s: float, shadow_s: float | None = None) -> None:
        self.compared[shadow.name, shadow.version, outcome] += 1
        self._metrics.shadowed(shadow.name, shadow.version, outcome, live_s, shadow_s)

    def _make_room(self) -> None:
        """A live call comes."""
        for attempt, (shadow, is_interrupted) in self._attempts.items():
            if is_interrupted or self._is_full(shadow.name):
                attempt.cancel()


def _is_busy(model: ServedModel) -> bool:
    return any(state.rows or state.queued for state in model.states())


def told(response: Any) -> str | bytes:
    """What an answer says: its text; of one without, everything but timings."""
    names = response.DESCRIPTOR.fields_by_name
    if "text" in names:
        return str(response.text)
    kept = type(response)()
    kept.CopyFrom(response)
    if "timings" in names:
        kept.ClearField("timings")
    return bytes(kept.SerializeToString(deterministic=True))


def is_random(message: Any) -> bool:
    """Whether two answers to a message may differ by chance: it samples without a seed."""
    if "options" not in message.DESCRIPTOR.fields_by_name:
        return False
    given = {field.name for field, _ in message.options.ListFields()}
    return bool(given & SAMPLING.keys()) and "seed" not in given
