"""What a call may use (`Budget`): memory, a model, and the right to wait for room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from service.edge.admission.request_memory import Reservation
from service.edge.admission.token_quotas import TokenQuota
from service.edge.models.served_model import ServedModel
from service.errors import MemoryLimit, Retryable

Wait = Callable[[Retryable, float], Awaitable[None]]
"""Returns when to try again what was refused with an error. Raises the error at a deadline."""


class Slots:
    """How many requests a call may have in flight. Event-loop thread only. freed: set for a moment when there may be
    room again."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self.freed = asyncio.Event()

    def take(self, most: int) -> int:
        """Takes so many, or as many as are free. Returns how many."""
        taken = max(0, min(most, self.free))
        self.free -= taken
        return taken

    def give(self, count: int) -> None:
        """Gives some back."""
        self.free += count
        self.wake()

    def wake(self) -> None:
        """Wakes what waits for room, of whatever kind."""
        self.freed.set()
        self.freed.clear()


class Budget:
    """Of one call, or of one item of a call. Event-loop thread only.

    memory: reserved for the call's message and answer. wait: of an item, which waits where other calls are refused;
    None for those. pinned: of an item, the version of the model that its call uses. slots: of an item, from which it
    takes one for each request beyond its first; None: it has all that the model gives a call. quota: of tokens; None:
    none.
    """

    def __init__(
        self,
        memory: Reservation,
        wait: Wait | None = None,
        pinned: ServedModel | None = None,
        slots: Slots | None = None,
        quota: TokenQuota | None = None,
    ) -> None:
        self.quota = quota
        self.memory, self.wait, self.pinned, self.slots = memory, wait, pinned, slots
        self.model: ServedModel | None = None  # in use
        self._first: ServedModel | None = None  # in use too: translates for it into a language between

    def item(self, memory: Reservation, wait: Wait | None, slots: Slots) -> Budget:
        """The budget of one of the call's items, which uses the same version of the same model."""
        assert self.model is not None, "the call has no model"
        return Budget(memory, wait, self.model, slots, self.quota)

    async def wait_for_room(self, error: Retryable, deadline_s: float) -> None:
        """Returns when it is time to try again what was refused. Raises `error` of a call that does not wait."""
        if self.wait is None:
            raise error
        await self.wait(error, deadline_s)

    async def reserve(self, size: int, deadline_s: float) -> None:
        """Reserves `size` bytes. An item for which there is no memory waits, and gives back what it has reserved
        meanwhile: items that each have a part of what they need would wait for each other. Raises MemoryLimit."""
        while True:
            try:
                self.memory.grow(size)
                return
            except MemoryLimit as error:
                if self.wait is None:
                    raise
                size += self.memory.size
                self.memory.release()
                await self.wait(error, deadline_s)

    def let_wait(self, wait: Wait | None) -> None:
        """From now on the call waits where it would be refused; with None no longer."""
        self.wait = wait

    @contextlib.contextmanager
    def window(self, most: int) -> Iterator[int]:
        """How many requests, at most `most`, may be in flight together for the call; of an item, those that its own
        call leaves it."""
        slots = self.slots
        more = slots.take(most - 1) if slots else most - 1
        try:
            yield 1 + more
        finally:
            if slots:
                slots.give(more)

    def share(self, slots: Slots) -> None:
        """Requests beyond the first one of each text take from these from now on."""
        self.slots = slots

    @property
    def is_pivot(self) -> bool:
        """Whether two models translate."""
        return self._first is not None

    def use(self, model: ServedModel) -> None:
        """The request is for this version of a model, which stays open until `leave`."""
        assert self.model is None, self.model
        self.model = model
        model.users.enter()

    def use_first(self, model: ServedModel) -> None:
        """The same of the model before it, in a translation by two."""
        assert self._first is None, self._first
        self._first = model
        model.users.enter()

    def leave(self) -> None:
        """The call needs its models no longer."""
        if self._first is not None:
            self._first.users.leave()
            self._first = None
        if self.model is not None:
            self.model.users.leave()
            self.model = None
