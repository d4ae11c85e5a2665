"""Many requests inside one call (`ItemRunner`): a bounded window of them is in flight, each with a `Call` of its own.

Items begin in the order of their source, which is asked for more only while the window has room. An item keeps its
place and its memory until its result has been written, so a client that stops reading stops its own items, at a
constant cost. Where a queue or the memory is full, an item waits, and no later one begins; what ends an item, ends only
that one. Nothing here knows what a request means, and nothing knows gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import Message

from service.edge.admission.request_memory import Reservation
from service.edge.calls.budget import Slots
from service.edge.calls.call import Call
from service.edge.calls.item_counts import ItemCounts
from service.edge.calls.record import count_request, report_request
from service.edge.calls.rpc import is_late
from service.edge.models.served_model import Users
from service.edge.observability import logs
from service.edge.observability.metrics import Metrics
from service.edge.observability.status import status_code
from service.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineUnavailable,
    InternalFailure,
    InvalidRequest,
    RequestError,
    Retryable,
    ShuttingDown,
)

ITEM_BYTES = 12 << 10  # of an item, beside its message and its answer; some 4 KB were measured (demo model)
RESULT_FACTOR = 4  # for each byte of a response that has not been written
DONE_BYTES = 2 << 10  # of an item that waits for its result to be written, beside the result
HELD = 16  # windows of items that may be there together, those included whose results are not written: results in order
# wait for the slowest one, of up to max_tokens tokens, in whose time the engines answer many others
BEGUN_TOGETHER = 8  # items, in 1 to 2 ms; then the event loop has its turn
LOOK_AGAIN_S = 0.25  # for room that other calls take, at the latest
GATHER_S = 0.02  # from an outcome to its message, while others are on their way: a message costs as much as an item
MAX_RESULTS, MAX_RESULT_BYTES = 256, 1 << 20  # of one message: clients accept 4 MiB, and convert it in one piece
OK = 0  # the number of gRPC's status
ENDED = "the call ended before the item was answered"
REPLACED = "the version of the model was replaced; send the items without a result in another call"

Answer = Callable[[Any, Call], Awaitable[Message]]
"""Answers one request, as the unary method of its kind. Raises RequestError."""


class Item(NamedTuple):
    """One request, as `Answer` takes it. id: unique among the items of a call that are in flight. memory: reserved for
    its message, if that is not part of the call's."""

    id: str
    request: Any
    memory: Reservation | None = None


class Outcome(NamedTuple):
    """The end of an item: a response, or an error. size: bytes of the response."""

    id: str
    response: Message | None
    error: RequestError | None = None
    size: int = 0


class ItemLimits(NamedTuple):
    """answer_s: from the beginning of an item to its deadline, if that of the call is not before it; also for the next
    items, of a call that has nothing in flight. idle_s: for the next message of such a call."""

    answer_s: float
    idle_s: float


class ItemRunner:
    """Runs the items of all calls of a server. Event-loop thread only."""

    def __init__(
        self,
        metrics: Metrics,
        limits: ItemLimits,
        clock: Callable[[], float],
        idle: Callable[[Call], contextlib.AbstractContextManager[None]],
    ) -> None:
        """idle: entered by a call while it waits for its client with nothing in flight."""
        self.metrics, self.limits, self.clock, self.idle = metrics, limits, clock, idle

    def begin(self, item: Call, call: Call) -> None:
        """Lets an item of a call begin now, after it has waited for others: its time runs from here."""
        item.limit(item.rpc.started_at(self.clock(), self.limits.answer_s, call.rpc.deadline_s))

    def run(
        self,
        call: Call,
        source: AsyncGenerator[Iterable[Item], None],
        answer: Answer,
        *,
        window: int,
        in_order: bool = False,
        has_client: bool = True,
        is_one: bool = False,
        item_bytes: int = 0,
    ) -> AsyncGenerator[list[Outcome], None]:
        """The outcomes of all items, those together that are there together. `call` must use its model already: its
        items get the same version.

        source: may raise RequestError; the items that have begun are answered first, then it is raised.
        item_bytes: what each item needs beside its own message, while it is in flight.
        window: items in flight without an outcome. in_order: outcomes come in the order of the items. Raises
        InvalidRequest for an id that is in flight, DeadlineExceeded for a source that stays idle, ShuttingDown when the
        server drains and the items that have begun are answered, EngineUnavailable if the version was replaced. Asking
        for the next outcomes means that those before are written. has_client: the source waits for the client, which
        may not be idle. is_one: the items are parts of one request, without a client. It is counted, drained and
        refused as one: the first part does not wait where the request would not.
        """
        run = _Run(
            *(self, call, answer, window),
            has_client=has_client and not is_one,
            in_order=in_order,
            is_one=is_one,
            item_bytes=item_bytes,
        )
        return run.outcomes(source)


class _Patience:
    """How long a call with nothing in flight waits for its client: for messages, and for items."""

    def __init__(self, limits: ItemLimits) -> None:
        self._limits = limits
        self._timeout: asyncio.Timeout | None = None
        self._last_s = 0.0

    async def wait(self, changed: asyncio.Event) -> str:
        """Returns when something has changed, or else why it has waited for long enough."""
        self._last_s = asyncio.get_running_loop().time() + self._limits.answer_s
        try:
            # wait_for of Python 3.11 may swallow a cancellation
            async with asyncio.timeout_at(self._until_s()) as self._timeout:
                await changed.wait()
        except TimeoutError:
            answer_s, idle_s = self._limits
            is_last = asyncio.get_running_loop().time() >= self._last_s
            return f"no {f'item came within {answer_s:g}' if is_last else f'message came within {idle_s:g}'} s"
        finally:
            self._timeout = None
        return ""

    def heard(self) -> None:
        """A message without items has come."""
        if self._timeout and not self._timeout.expired():
            self._timeout.reschedule(self._until_s())

    def _until_s(self) -> float:
        return min(asyncio.get_running_loop().time() + self._limits.idle_s, self._last_s)


class _Run:
    """The items of one call."""

    def __init__(
        self,
        runner: ItemRunner,
        call: Call,
        answer: Answer,
        window: int,
        *,
        has_client: bool,
        in_order: bool,
        is_one: bool,
        item_bytes: int,
    ) -> None:
        self._item_bytes = ITEM_BYTES + item_bytes
        self._runner, self._call, self._answer = runner, call, answer
        self._in_order, self._is_one = in_order, is_one
        self._slots = Slots(window)
        self._patience = _Patience(runner.limits) if has_client else None
        self.counts = ItemCounts()
        if not is_one:
            call.record.count_items(self.counts)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by id, of items without an outcome
        self._held: dict[str, Reservation] = {}  # by id, of items whose results are not written
        self._ready: dict[int, Outcome] = {}  # by number, not yet yielded
        self._next = 0  # the number of the item whose outcome is next, if in order
        self._waiting = 0  # items for which there is no room in a queue, or no memory
        self._changed = asyncio.Event()  # an item has an outcome, or nothing more will begin

    async def outcomes(self, source: AsyncGenerator[Iterable[Item], None]) -> AsyncGenerator[list[Outcome], None]:
        feeding = asyncio.create_task(self._feed(source))
        feeding.add_done_callback(lambda _: self._changed.set())
        try:
            with contextlib.nullcontext() if self._is_one else self._endable(feeding.cancel):
                while self._held or not feeding.done():
                    await self._next_change(feeding)
                    if self._tasks and not self._is_one:
                        await asyncio.sleep(GATHER_S)
                    while results := self._take():
                        yield results
                        self._written(results)
            if feeding.cancelled():
                raise ShuttingDown if self._call.ending.is_draining else EngineUnavailable(REPLACED, retry_after_s=0.1)
            feeding.result()
        finally:
            await self._end(feeding)

    @contextlib.contextmanager
    def _endable(self, end: Callable[[], object]) -> Iterator[None]:
        """No more items begin, by `end`, when the server drains or the version is replaced; messages may wait."""
        self._call.ending.when_draining(end)  # it may drain since before, while a document was read
        self._call.budget.let_wait(self._wait_for_memory)
        try:
            with self._users.with_items(end):
                yield
        finally:
            self._call.ending.when_draining(None)
            self._call.budget.let_wait(None)

    async def _feed(self, source: AsyncGenerator[Iterable[Item], None]) -> None:
        number = 0
        async with contextlib.aclosing(source):
            async for items in source:
                waiting = deque(items)
                if waiting:
                    self._changed.set()  # the call is not idle
                elif self._patience:
                    self._patience.heard()
                try:
                    while waiting:
                        if number % BEGUN_TOGETHER == BEGUN_TOGETHER - 1:
                            await asyncio.sleep(0)
                        while self._is_full:
                            await self._slots.freed.wait()
                        self._begin(number, waiting[0])
                        waiting.popleft()
                        number += 1
                finally:
                    for item in waiting:
                        if item.memory is not None:
                            item.memory.release()

    @property
    def _is_full(self) -> bool:
        return self._waiting > 0 or not self._slots.free or len(self._held) >= HELD * self._slots.size

    def _begin(self, number: int, item: Item) -> None:
        if item.id in self._held:
            raise InvalidRequest("items.id", f"must be that of no item without a result yet, got {item.id!r}")
        runner, call = self._runner, self._call
        memory, now_s = item.memory or call.budget.memory.another(), runner.clock()
        answer_s = min(runner.limits.answer_s, self._users.closes_at_s - now_s)
        wait = call.budget.wait if self._is_one and not number else self._wait_for_room
        child = call.item(number, now_s, answer_s, call.budget.item(memory, wait, self._slots))
        self._slots.take(1)
        self._held[item.id] = memory
        self.counts.begun += not self._is_one
        self._tasks[item.id] = asyncio.create_task(self._run(number, item, child))

    async def _run(self, number: int, item: Item, call: Call) -> None:
        """Answers an item, and counts it, however it ends."""
        response: Message | None = None
        error: RequestError | None = Cancelled(ENDED)
        try:
            await call.reserve(self._item_bytes)
            response, error = await self._answer(item.request, call), None
        except RequestError as failure:
            error = failure
        except asyncio.CancelledError:
            if is_late(self._runner.clock(), call.rpc.started_s, call.rpc.deadline_s):
                error = DeadlineExceeded("the deadline passed")
            raise
        except Exception as failure:
            fields = {"request_id": call.rpc.request_id, "method": call.rpc.method.name}
            logs.event("internal_error", fields, level=logs.ERROR, exception=failure)
            error = InternalFailure(call.rpc.request_id)
        finally:
            call.budget.leave()
            self._count(call, error)
        size = response.ByteSize() if response is not None else 0
        call.budget.memory.shrink(RESULT_FACTOR * size + DONE_BYTES)
        self._ready[number] = Outcome(item.id, response, error, size)
        del self._tasks[item.id]
        self._changed.set()
        self._slots.give(1)

    def _count(self, call: Call, error: RequestError | None) -> None:
        counts, runner = self.counts, self._runner
        if self._is_one:
            self._call.record.join(call.record)
            return
        self._count_end(error)
        if finished := call.record.finished:
            counts.prompt_tokens += finished.prompt_tokens
            counts.generated_tokens += finished.generated_tokens
        count = report_request if call.record.texts else count_request
        count(call.rpc, call.record, error, runner.metrics, call.rpc.started_s, runner.clock())

    def _count_end(self, error: RequestError | None) -> None:
        if error is not None:
            self.counts.failed[error.reason] += 1
        else:
            self.counts.answered += 1
        code = status_code(error).value[0] if error else OK
        metrics, rpc = self._runner.metrics, self._call.rpc
        metrics.item_ended(rpc.method, code=code)
        metrics.tenants.ended(rpc.caller.tenant, code)

    async def _wait_for_room(self, error: Retryable, deadline_s: float) -> None:
        """Returns when it is time to try again what was refused. Raises `error` at the deadline."""
        left_s = deadline_s - self._runner.clock()
        if left_s <= 0:
            raise error
        self._waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, error.retry_after_s, LOOK_AGAIN_S)):
                    await self._slots.freed.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._slots.wake()

    async def _wait_for_memory(self, error: Retryable, deadline_s: float) -> None:
        """`_wait_for_room`, of a message: raises `error` if no item of the call is there that could make room."""
        if not self._held:
            raise error
        await self._wait_for_room(error, deadline_s)

    async def _next_change(self, feeding: asyncio.Task[None]) -> None:
        """Returns when there is an outcome, or an item has begun, or everything has ended. Raises DeadlineExceeded if
        the client lets the call wait."""
        self._changed.clear()
        if self._ready_now or (feeding.done() and not self._held):
            return
        if self._held or feeding.done() or self._patience is None:
            await self._changed.wait()
            return
        with self._runner.idle(self._call):
            problem = await self._patience.wait(self._changed)
        if problem and not self._held:
            raise DeadlineExceeded(problem)

    @property
    def _users(self) -> Users:
        """Of the model."""
        assert self._call.budget.model is not None, "the call has no model"
        return self._call.budget.model.users

    @property
    def _ready_now(self) -> bool:
        return self._next in self._ready if self._in_order else bool(self._ready)

    def _take(self) -> list[Outcome]:
        """Outcomes for one message."""
        taken, size = list[Outcome](), 0
        while self._ready_now and len(taken) < MAX_RESULTS:
            number = self._next if self._in_order else next(iter(self._ready))
            size += self._ready[number].size
            if taken and size > MAX_RESULT_BYTES:
                break
            taken.append(self._ready.pop(number))
            self._next = number + 1
        return taken

    def _written(self, results: Iterable[Outcome]) -> None:
        for result in results:
            self._held.pop(result.id).release()
        self._slots.wake()

    async def _end(self, feeding: asyncio.Task[None]) -> None:
        """Ends what has not ended, and gives the memory back."""
        tasks = [feeding, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            cancelled = Cancelled(ENDED)
            for _ in range(self.counts.begun - self.counts.answered - self.counts.failed.total()):
                self._count_end(cancelled)  # of those that had no turn of the event loop
            for memory in self._held.values():
                memory.release()
            self._held.clear()
