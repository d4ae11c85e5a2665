"""The server's live figures: gauges and counters of its ops port, read at most once a second for all pages."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from typing import Any

from glossa.web.refusals import Refused

FIGURES = {  # what the page shows, by the server's metric
    "rows_used": "glossa_rows_used",
    "rows_limit": "glossa_rows_limit",
    "queued": "glossa_requests_queued",
    "queue_limit": "glossa_requests_queue_limit",
    "running": "glossa_requests_running",
    "generated_tokens": "glossa_generated_tokens_total",
    "cache_ratio": "glossa_kv_cache_usage_ratio",
    "first_token_s_sum": "glossa_time_to_first_token_seconds_sum",
    "first_token_count": "glossa_time_to_first_token_seconds_count",
}
FRESH_S = 1.0
TIMEOUT_S = 5.0
_NAMES = {metric: name for name, metric in FIGURES.items()}
_SAMPLE = re.compile(r'^(\w+)\{(?:[^}]*,)?model="([^"]*)"[^}]*\} (\S+)', re.MULTILINE)


class Figures:
    """The figures of one server."""

    def __init__(self, ops: str) -> None:
        """ops: HOST:PORT of its ops port; empty: unknown."""
        self._ops, self._read_s = ops, 0.0
        self._reading: asyncio.Task[dict[str, Any]] | None = None

    async def now(self) -> dict[str, Any]:
        """Figures by model, and when they were read, in seconds. Raises Refused."""
        if not self._ops:
            raise Refused(
                "live figures come from the server's ops port; name it with --ops, such as 127.0.0.1:9464", 501
            )
        if self._reading is None or (self._reading.done() and time.monotonic() - self._read_s > FRESH_S):
            self._read_s = time.monotonic()
            self._reading = asyncio.create_task(asyncio.to_thread(self._read))
        return await asyncio.shield(self._reading)

    def _read(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{self._ops}/metrics", timeout=TIMEOUT_S) as reply:
                return {"read_s": time.monotonic(), "models": by_model(reply.read().decode())}
        except OSError as error:
            raise Refused(f"no ops port at {self._ops} (--ops): {error}", 503) from None


def by_model(metrics: str) -> dict[str, dict[str, float]]:
    """The figures of each model in Prometheus' text format."""
    found: dict[str, dict[str, float]] = {}
    for metric, model, value in _SAMPLE.findall(metrics):
        if metric in _NAMES:
            figures = found.setdefault(model, {})
            figures[_NAMES[metric]] = figures.get(_NAMES[metric], 0.0) + float(value)
    return found
