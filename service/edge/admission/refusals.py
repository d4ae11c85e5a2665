"""Refusals of calls, logged and counted together once a second (`Refusals`): under overload, a log line and ten series
for each would cost more than to refuse it.
"""

from __future__ import annotations

import asyncio
import collections

from service.edge.observability import logs
from service.edge.observability.metrics import Method, Metrics
from service.edge.observability.status import status_code
from service.errors import RequestError

REPORTED_S = 1.0


class Refusals:
    """Those of the last second. Event-loop thread only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._unlogged: collections.Counter[tuple[str, str]] = collections.Counter()  # by method and reason
        # By RPC, label of the tenant, code and reason.
        self._uncounted: collections.Counter[tuple[Method, str, int, str]] = collections.Counter()
        self._seconds = 0.0  # that those took

    def add(self, method: Method, tenant: str, error: RequestError, seconds: float) -> None:
        """A call of a tenant was refused, so many seconds after its handler began. tenant: empty if not known."""
        self.log(method, error)
        label = self._metrics.tenants.label(tenant)
        self._uncounted[method, label, status_code(error).value[0], error.reason] += 1
        self._seconds += seconds

    def log(self, method: Method, error: RequestError) -> None:
        """A call was refused that is counted already: one line a second for each method and reason."""
        if not self._unlogged:
            asyncio.get_running_loop().call_later(REPORTED_S, self.report)
        self._unlogged[method.path, error.reason] += 1

    def report(self) -> None:
        """Logs and counts what has not been yet."""
        each_s = self._seconds / max(1, self._uncounted.total())
        for (method, tenant, code, reason), count in self._uncounted.items():
            self._metrics.rpcs_refused(method, tenant, code=code, reason=reason, seconds=each_s, count=count)
        for (path, reason), count in self._unlogged.items():
            logs.event("refused", {"method": path, "reason": reason, "count": count}, level=logs.WARNING)
        self._uncounted.clear()
        self._unlogged.clear()
        self._seconds = 0.0
