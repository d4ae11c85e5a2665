"""Which tenants are there (`Presence`): limits of one hold only while it has others beside it."""

from __future__ import annotations

import math


class Presence:
    """When a tenant was last seen, and when any other one was. That is all that is remembered, whatever names clients
    invent. Nothing here knows time: the caller passes it in, in seconds."""

    def __init__(self) -> None:
        self._last = ("", -math.inf)  # the tenant seen last, and when
        self._last_other_s = -math.inf  # when any other one was

    def see(self, tenant: str, now_s: float) -> None:
        """Notes that a tenant is there."""
        last, seen_s = self._last
        if last != tenant:
            self._last_other_s = seen_s
        self._last = tenant, now_s

    def others_s(self, tenant: str) -> float:
        """When a tenant other than this one was last seen; -inf: never."""
        last, seen_s = self._last
        return seen_s if last != tenant else self._last_other_s
