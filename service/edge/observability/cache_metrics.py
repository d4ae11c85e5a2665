"""The series of the answer cache: of the server (`CacheSeries`, in which `CacheMetrics` counts), and of a version of a
model (`VersionCacheSeries`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.measurements import MetricDefinition, counter


class VersionCacheSeries:
    cache_hits: Any = counter("glossa_answer_cache_hits", "Requests that were answered from the answer cache.")
    cache_misses: Any = counter(
        "glossa_answer_cache_misses", "Requests whose answers were not in the answer cache when looked up."
    )


class CacheSeries:
    cache_evicted: Any = counter("glossa_answer_cache_evicted", "Answers that gave way to others in the answer cache.")
    cache_bytes: Any = MetricDefinition("gauge", "glossa_answer_cache_bytes", "Bytes of answers in the answer cache.")
    cache_limit: Any = MetricDefinition("gauge", "glossa_answer_cache_limit_bytes", "Their limit; 0 without a cache.")


class CacheMetrics:
    """The answer cache of one server. series: bound. Event-loop thread only."""

    def __init__(self, series: CacheSeries) -> None:
        self._series = series

    def evicted(self, count: int) -> None:
        """So many answers gave way to another one."""
        self._series.cache_evicted.inc(count)

    def measure(self, size: Callable[[], int], limit: int) -> None:
        """size: bytes, called at every scrape, on its thread. limit: of them."""
        self._series.cache_bytes.set_function(size)
        self._series.cache_limit.set(limit)
