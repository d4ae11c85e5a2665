"""The metrics of traffic by version: weights, shadows, and how canaries end. Series come with a version's part in the
traffic and go with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.edge.observability.metric_series import families
from service.measurements import CounterSeries, HistogramSeries, MetricDefinition, counter, histogram

SAME, DIFFERENT, FAILED, SKIPPED = SHADOW_OUTCOMES = ("same", "different", "failed", "skipped")
PROMOTED, STOPPED, TOO_FEW = "promoted", "stopped", "too_few_calls"
BOUNDS = ("failed", "p99", "chrf", "disagreement", "memory")  # of `CanaryBounds` in admin.proto
CANARY_ENDS = (PROMOTED, STOPPED, TOO_FEW, *BOUNDS)


class TrafficSeries:
    weight: Any = MetricDefinition(
        "gauge", "glossa_traffic_weight_ratio", "Share of the requests without a version that go to one, 0..1."
    )
    shadows: Callable[..., CounterSeries] = counter(
        "glossa_shadow_calls", "Calls of the default version that were to run on a shadow, by outcome.", "outcome"
    )
    shadow_time: HistogramSeries = histogram("glossa_shadow_seconds", "Time of a call on a shadow.")
    live_time: HistogramSeries = histogram("glossa_shadowed_seconds", "Time of the same calls on the default version.")


class CanarySeries:
    ends: Callable[..., CounterSeries] = counter(
        "glossa_canaries", "Canaries that ended, by outcome: promoted, or why not.", "outcome"
    )


class TrafficMetrics:
    """The metrics of traffic of one server. The event loop's thread counts."""

    def __init__(self, registry: Any) -> None:
        self._series = families(TrafficSeries, registry, "model", "version")
        self._ends = families(CanarySeries, registry, "model")["ends"]
        self._shown: dict[str, set[str]] = {}  # versions with series, by model

    @property
    def families(self) -> tuple[Any, ...]:
        """All metrics."""
        return (*self._series.values(), self._ends)

    def show(self, model: str, weights: dict[str, int], shadow: str) -> None:
        """A model's traffic has these weights, of a hundred requests, and this shadow, or none. Series of other
        versions end."""
        shown = {*weights, *([shadow] if shadow else [])}
        for version in self._shown.get(model, set()) - shown:
            for attribute in ("weight", "shadow_time", "live_time"):
                self._remove(attribute, model, version)
            for outcome in SHADOW_OUTCOMES:
                self._remove("shadows", model, version, outcome)
        self._shown[model] = shown
        for version, weight in weights.items():
            self._series["weight"].labels(model, version).set(weight / 100)
        if shadow:
            for outcome in SHADOW_OUTCOMES:  # from the start: a rate over a later one misses its first event
                self._series["shadows"].labels(model, shadow, outcome)
            for attribute in ("shadow_time", "live_time"):
                self._series[attribute].labels(model, shadow)

    def _remove(self, attribute: str, *labels: str) -> None:
        family = self._series[attribute]
        if labels in family._metrics:
            family.remove(*labels)

    def shadowed(self, model: str, version: str, outcome: str, live_s: float, shadow_s: float | None) -> None:
        """A call was to run on a shadow too; outcome: one of SHADOW_OUTCOMES. shadow_s: None if it did not end."""
        if version not in self._shown.get(model, ()):
            return  # the shadow ended meanwhile
        self._series["shadows"].labels(model, version, outcome).inc()
        if shadow_s is not None:
            self._series["shadow_time"].labels(model, version).observe(shadow_s)
            self._series["live_time"].labels(model, version).observe(live_s)

    def canary_started(self, model: str) -> None:
        """All series of its end exist from here on."""
        for outcome in CANARY_ENDS:
            self._ends.labels(model, outcome)

    def canary_ended(self, model: str, outcome: str) -> None:
        """A canary ended; outcome: one of CANARY_ENDS."""
        self._ends.labels(model, outcome).inc()
