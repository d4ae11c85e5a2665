"""The unfinished requests of each tenant in one place (`TenantShares`): how many more a tenant may have there, and how
many go before its next one.

A place is the server, the preparation of its requests, or an engine process. Only tenants with unfinished requests are
remembered, so the table never has more entries than the place has room for requests, whatever names clients invent.
Nothing here knows gRPC or time: the caller passes it in.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from service.errors import Overloaded, TenantLimit
from service.presence import Presence
from service.request import Caller, Priority

PRESENT_S = 60.0  # since a tenant's last request


class TenantShares:
    """Event-loop thread only.

    lent: the share of a place that a tenant of weight 1 may fill by itself, once others are present.
    """

    def __init__(self, lent: float) -> None:
        assert 0 < lent < 1, lent
        # Dynamic thresholds (Choudhury & Hahne 1998): each tenant may have a multiple of what is free. One greedy
        # tenant gets `lent`, two get lent / (1 + lent) each, and some room is left for those that come next.
        self._multiple = round(lent / (1 - lent), 9)
        self._classes = {priority: _Class() for priority in Priority}
        self._presence = Presence()
        self.total = 0

    def enter(self, caller: Caller, count: int = 1) -> None:
        """A request is there, or that many."""
        self._classes[caller.priority].change(caller, count)
        self.total += count

    def leave(self, caller: Caller, count: int = 1) -> None:
        """A request that was there has ended, or that many."""
        self._classes[caller.priority].change(caller, -count)
        self.total -= count

    def unfinished(self, tenant: str) -> int:
        """The number of a tenant's requests."""
        return sum([one.open.get(tenant, 0) for one in self._classes.values()])

    def has_room(self, caller: Caller, capacity: int, now_s: float, count: int = 1) -> bool:
        """Whether a tenant may have `count` more requests in a place that has room for `capacity` of them, of all
        tenants. One that is alone for PRESENT_S may fill it; one without a request is refused only if it is full."""
        self._presence.see(caller.tenant, now_s)
        free = capacity - self.total
        if free < count or now_s - self._presence.others_s(caller.tenant) > PRESENT_S:
            return free >= count
        return self.unfinished(caller.tenant) + count - 1 < max(count, self._multiple * caller.weight * free)

    def refusal(
        self, caller: Caller, capacity: int, now_s: float, *, retry_after_s: float, full: Callable[[], Overloaded]
    ) -> TenantLimit | Overloaded | None:
        """Why a tenant may not have one more request in such a place; None if it may.

        retry_after_s: for a tenant that has its share. full: makes the refusal of a place that is full.
        """
        if self.has_room(caller, capacity, now_s):
            return None
        return (
            full()
            if self.total >= capacity
            else TenantLimit(caller.tenant, retry_after_s=retry_after_s, limit=capacity)
        )

    def before(self, caller: Caller) -> int:
        """How many unfinished requests go before the next one of this caller, where tenants have turns by weight: all
        of higher classes; of its class its own, and of each other tenant as many as it may have by then."""
        higher = sum([one.total for priority, one in self._classes.items() if priority < caller.priority])
        return higher + self._classes[caller.priority].before(caller)


class _Class:
    """The requests of one priority. open: by tenant. sizes: how many tenants have a weight and a number of requests; so
    `before` takes no longer with many tenants."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}
        self._sizes: dict[tuple[float, int], int] = {}
        self.total = 0

    def change(self, caller: Caller, by: int) -> None:
        tenant, weight, _ = caller
        before, sizes = self.open.get(tenant, 0), self._sizes
        after = before + by
        assert after >= 0, tenant
        if before:
            if (left := sizes[weight, before] - 1) > 0:
                sizes[weight, before] = left
            else:
                del sizes[weight, before]
        if after:
            sizes[weight, after] = sizes.get((weight, after), 0) + 1
            self.open[tenant] = after
        elif before:
            del self.open[tenant]
        self.total += by

    def before(self, caller: Caller) -> int:
        tenant, weight, _ = caller
        turns = (self.open.get(tenant, 0) + 1) / weight
        return sum([count * min(size, math.ceil(turns * theirs)) for (theirs, size), count in self._sizes.items()])
