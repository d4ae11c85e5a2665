"""A call (`Call`): who asks (`Rpc`), what it may use (`Budget`), what has become of it (`Record`), and how the server
ends it (`Ending`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from service.edge.calls.budget import Budget
from service.edge.calls.record import Record
from service.edge.calls.rpc import Rpc
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import ContextSentence
from service.errors import RequestError, Retryable


class Ending:
    """How the server ends a call before its answer is complete. task: handles the call.

    is_between_requests: a stream of requests waits for the next one. on_drain: of a call with items, which must begin
    no more of them.
    """

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        self.task = task
        self.error: RequestError | None = None  # with which the server has ended it
        self.is_between_requests = self.is_draining = False
        self._on_drain: Callable[[], object] | None = None

    def end(self, error: RequestError) -> None:
        """Ends the call with an error."""
        self.error = error
        if self.task is not None:
            self.task.cancel()

    def drain(self) -> None:
        """The server ends."""
        self.is_draining = True
        if self._on_drain is not None:
            self._on_drain()

    @contextlib.contextmanager
    def between_requests(self) -> Iterator[None]:
        """A stream of requests waits for the next one."""
        self.is_between_requests = True
        try:
            yield
        finally:
            self.is_between_requests = False

    def when_draining(self, act: Callable[[], object] | None) -> None:
        """Has `act` called when the server ends, also if it ends already."""
        self._on_drain = act
        if self.is_draining and act is not None:
            act()


class Call:
    """One call, or one item of a call, which is answered as a call of the unary method of its kind.

    context: of a text of a document, the sentences before it that the model reads with it.
    """

    def __init__(self, rpc: Rpc, budget: Budget, record: Record | None = None, ending: Ending | None = None) -> None:
        self.rpc, self.budget, self.record, self.ending = rpc, budget, record or Record(), ending or Ending()
        self.context: tuple[ContextSentence, ...] = ()

    def item(self, number: int, started_s: float, answer_s: float, budget: Budget) -> Call:
        """One of its items. number, answer_s: as of `Rpc.item`. budget: one of `Budget.item`."""
        return Call(self.rpc.item(number, started_s, answer_s), budget)

    def limit(self, rpc: Rpc) -> None:
        """Gives the call other times."""
        self.rpc = rpc

    def read_after(self, context: tuple[ContextSentence, ...]) -> None:
        """Has the text read with these sentences before it."""
        self.context = context

    def use(self, model: ServedModel) -> None:
        """The request is for this version of a model, which stays open until the call ends."""
        self.budget.use(model)
        self.record.use(model)

    def begin_request(self) -> None:
        """Forgets the request before, and leaves its model: a stream of requests has one after the other."""
        self.budget.leave()
        self.record.begin_request()

    async def wait_for_room(self, error: Retryable) -> None:
        """Returns when it is time to try again what was refused. Raises `error` of a call that does not wait."""
        await self.budget.wait_for_room(error, self.rpc.deadline_s)

    async def reserve(self, size: int) -> None:
        """Reserves memory. See `Budget.reserve`."""
        await self.budget.reserve(size, self.rpc.deadline_s)
