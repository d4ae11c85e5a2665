"""The work on requests that would hold up the event loop, in threads (`Preparation`): long texts are tokenized, large
responses converted.

Tenants take turns, and one that sends much waits for itself (`service.fair_executor`). What is prepared at a time is
bounded: a request beyond that is refused, like one beyond the queue of a model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from service.edge.admission.tenant_shares import TenantShares
from service.errors import Overloaded, TenantLimit
from service.fair_executor import FairExecutor
from service.request import Caller

THREADS = 2
MAX_PREPARING = 256  # requests of all tenants: a second of texts of 16 KB, which take 4 to 10 ms each
RETRY_S = 0.5

T = TypeVar("T")


class Preparation:
    """The threads of one server. Event-loop thread only."""

    def __init__(self, tenant_share: float, capacity: int = MAX_PREPARING) -> None:
        """tenant_share: see `TenantShares`."""
        self._executor = FairExecutor(THREADS, "prepare")
        self._shares, self._capacity = TenantShares(tenant_share), capacity

    def see(self, caller: Caller) -> None:
        """Notes that a tenant is present: others among them share the threads."""
        self._executor.see(caller.tenant)

    async def prepare(self, caller: Caller, build: Callable[[], T]) -> T:
        """`build()` in a thread, in its tenant's turn. Raises Overloaded and TenantLimit instead."""
        if error := self.refusal(caller):
            raise error
        self._shares.enter(caller)
        try:
            return await self.convert(caller, build)
        finally:
            self._shares.leave(caller)

    def refusal(self, caller: Caller) -> Overloaded | TenantLimit | None:
        """Why no more is prepared for a tenant now; None if it is."""
        return self._shares.refusal(caller, self._capacity, time.monotonic(), retry_after_s=RETRY_S, full=self._full)

    async def convert(self, caller: Caller, convert: Callable[[], T]) -> T:
        """`convert()` in a thread, in its tenant's turn. Never refused: the response has been computed."""
        return await asyncio.wrap_future(self._executor.submit(caller.tenant, convert))

    def _full(self) -> Overloaded:
        problem = f"{self._capacity} long requests are being prepared already"
        return Overloaded(problem, retry_after_s=RETRY_S, limit=self._capacity)

    def close(self) -> None:
        """Ends the threads."""
        self._executor.close()
