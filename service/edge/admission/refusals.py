"""Refusals of calls, logged and counted together once a second (`Refusals`): under overload, a log line and ten series
for each would cost more than to refuse it.
"""

from __future__ import annotations

import asyncio
import collections

from service.edge.observability import logs
from service.edge.observability.metrics import Metrics, Rpc
from service.edge.observability.status import status_code
from service.errors import RequestError

REPORTED_S = 1.0


class Refusals:
    """Those of the last second. Event-loop thread only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._unlogged: collections.Counter[tuple[str, str]] = collections.Counter()  # by method and reason
        self._uncounted: collections.Counter[tuple[Rpc, int, str]] = collections.Counter()  # by RPC, code and reason
        self._seconds = 0.0  # that those took

    def add(self, rpc: Rpc, error: RequestError, seconds: float) -> None:
        """A call was refused, so many seconds after its handler began."""
        self.log(rpc, error)
        self._uncounted[rpc, status_code(error).value[0], error.reason] += 1
        self._seconds += seconds

    def log(self, rpc: Rpc, error: RequestError) -> None:
        """A call was refused that is counted already: one line a second for each method and reason."""
        if not self._unlogged:
            asyncio.get_running_loop().call_later(REPORTED_S, self.report)
        self._unlogged[f"{rpc.service}/{rpc.method}", error.reason] += 1

    def report(self) -> None:
        """Logs and counts what has not been yet."""
        each_s = self._seconds / max(1, self._uncounted.total())
        for (rpc, code, reason), count in self._uncounted.items():
            self._metrics.rpcs_refused(rpc, code=code, reason=reason, seconds=each_s, count=count)
        for (method, reason), count in self._unlogged.items():
            logs.event("refused", {"method": method, "reason": reason, "count": count}, level=logs.WARNING)
        self._uncounted.clear()
        self._unlogged.clear()
        self._seconds = 0.0
