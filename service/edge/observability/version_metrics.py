"""The metrics of a model (`ModelMetrics`) and of each of its versions that is open (`VersionMetrics`).

The series of a version begin when its processes are started and end when they have, so there are never more than open
versions have. What is counted later is dropped: it must not bring a series back.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from export.bundle.manifest import Manifest
from service.edge.observability.metric_series import ModelSeries, VersionSeries, bind
from service.errors import CHANGES, ENDS, REJECTIONS
from service.machine.execution_choice import ExecutionChoice
from service.measurements import Measurement
from service.request import FinishReason

# Every reason for which an accepted request can end, and for which a request can be rejected.
END_REASONS = (*(reason.value for reason in FinishReason), *(kind.reason.lower() for kind in ENDS))
REJECT_REASONS = tuple(kind.reason.lower() for kind in REJECTIONS)
MEMORY_KINDS = ("weights", "kv_cache", "outputs")
LOADED = "loaded"
LOAD_OUTCOMES = (LOADED, *(kind.reason.lower() for kind in CHANGES), "other")
PROCESS_ENDS = ("killed", "exited", "device_lost", "hung", "engine_failed", "bad_message", "not_started")
"""Why a process was started again."""


class ModelMetrics:
    """The metrics of one model. The event loop's thread counts.

    versions: of those that are open, by name.
    """

    def __init__(self, name: str, series: ModelSeries, families: Mapping[str, Any]) -> None:
        """families: of `VersionSeries`."""
        self.versions: dict[str, VersionMetrics] = {}
        self._name, self._families, self._default = name, families, ""
        self._loads = {outcome: series.loads(outcome) for outcome in LOAD_OUTCOMES}
        series.versions.set_function(lambda: sum(one.measured_count for one in list(self.versions.values())))

    def open(self, version: str) -> VersionMetrics:
        """The metrics of a version that is being opened. `close` must follow. Two bundles can have one name while the
        first of them drains: then they have one series, the sum of both."""
        if (found := self.versions.get(version)) is None:
            found = self.versions[version] = VersionMetrics(self, self._name, version, self._families)
            found.series.default.set(version == self._default)
        found.users += 1
        return found

    def close(self, version: str) -> None:
        """A version is not open any more: its series end, unless another bundle has its name."""
        metrics = self.versions[version]
        metrics.users -= 1
        if metrics.users == 0:
            del self.versions[version]
            for family in self._families.values():
                family.remove_by_labels({"model": self._name, "version": version})

    def make_default(self, version: str) -> None:
        """Requests that name no version get this one from now on."""
        self._default = version
        for name, metrics in self.versions.items():
            metrics.series.default.set(name == version)

    def load_ended(self, outcome: str) -> None:
        """A version was to be loaded; outcome: one of LOAD_OUTCOMES."""
        self._loads[outcome].inc()


class VersionMetrics:
    """The metrics of one version of a model. The event loop's thread counts.

    users: bundles of this name that are open.
    """

    def __init__(self, model: ModelMetrics, name: str, version: str, families: Mapping[str, Any]) -> None:
        self.users = 0
        self.series = series = bind(VersionSeries(), families, name, version)
        self._model, self._labels, self._families = model, (name, version), families
        self._description: dict[str, tuple[str, ...]] = {}
        self._providers = set[str]()  # that have a series of nodes
        self._measured: tuple[_Measured, ...] = ()  # one of each bundle
        # No other reasons, and bound once, which outlives the series.
        series.finished = {reason: series.finished(reason) for reason in END_REASONS}.__getitem__
        series.rejected = {reason: series.rejected(reason) for reason in REJECT_REASONS}.__getitem__
        for kind in MEMORY_KINDS:
            series.memory(kind)
        self._processes_ended = {reason: series.processes_ended(reason) for reason in PROCESS_ENDS}

    def close(self) -> None:
        """The version is not open any more."""
        self._model.close(self._labels[1])

    @property
    def measured_count(self) -> int:
        """How many bundles of this name have engines."""
        return len(self._measured)

    def describe(self, manifest: Manifest, choice: ExecutionChoice, bundle_sha256: str = "") -> None:
        """Sets the labels of a version that serves from now on, or from now on runs elsewhere."""
        for attribute, labels in self._description.items():
            self._families[attribute].remove(*self._labels, *labels)
        self._description = {
            "info": (manifest.architecture, manifest.task, choice.precision, bundle_sha256),
            "provider": (choice.provider, choice.requested, str(int(choice.fallback))),
        }
        for attribute, labels in self._description.items():
            self._families[attribute].labels(*self._labels, *labels).set(1)
        counts = collections.Counter[str]()
        for _, provider, nodes in choice.nodes:
            counts[provider] += nodes
        for provider in self._providers - counts.keys():
            self._families["graph_nodes"].remove(*self._labels, provider)
        for provider, count in counts.items():
            self._families["graph_nodes"].labels(*self._labels, provider).set(count)
        self._providers = set(counts)

    def measure(
        self,
        engines: Callable[[], Sequence[Any]],
        memory: Callable[[], Mapping[str, int]],
        processes: Callable[[], Mapping[str, Any]],
        limits: Callable[[], tuple[int, int]] = lambda: (0, 0),
        clock: Callable[[], float] = time.monotonic,
    ) -> Callable[[], None]:
        """Adds what is called at every scrape, on its thread, for one bundle. Returns what removes it again.

        engines: the state of each; memory: bytes by MEMORY_KINDS; processes: the last `Beat` of each by name, None of
        one that is not open; limits: rows, and requests that may wait. clock: seconds, that of heartbeats."""
        series, names = self.series, tuple(processes())
        measured = _Measured(engines, memory, limits)
        if not self._measured:
            self._measure_all()
        self._measured += (measured,)
        for name in names:
            series.process_memory(name).set_function(partial(_resident, processes, name))
            series.process_up(name).set_function(partial(_is_up, processes, name))
            series.heartbeat_age(name).set_function(partial(_heartbeat_age_s, processes, name, clock))
            series.process_cpu(name)

        def remove() -> None:
            self._measured = tuple(one for one in self._measured if one is not measured)
            for name in names:
                for attribute in ("process_memory", "process_up", "heartbeat_age"):
                    self._families[attribute].remove(*self._labels, name)

        return remove

    def _measure_all(self) -> None:
        """Sums over all bundles of this name, of those that are open at a scrape."""
        series = self.series

        def engines() -> list[Any]:
            return [engine for one in self._measured for engine in one.engines()]

        series.queued.set_function(lambda: sum(engine.queued for engine in engines()))
        series.running.set_function(lambda: sum(engine.rows for engine in engines()))
        series.rows_used.set_function(lambda: sum(engine.hypotheses for engine in engines()))
        series.kv_reserved.set_function(lambda: sum(engine.kv_reserved_bytes for engine in engines()))
        series.kv_used.set_function(lambda: sum(engine.kv_used_bytes for engine in engines()))
        series.kv_limit.set_function(lambda: sum(engine.kv_limit_bytes for engine in engines()))
        series.rows_limit.set_function(lambda: sum(one.limits()[0] for one in self._measured))
        series.queue_limit.set_function(lambda: sum(one.limits()[1] for one in self._measured))
        series.kv_cache.set_function(lambda: fmean([engine.kv_ratio for engine in engines()] or [0.0]))
        for kind in MEMORY_KINDS:
            series.memory(kind).set_function(partial(self._bytes_of, kind))

    def _bytes_of(self, kind: str) -> float:
        return float(sum(one.memory().get(kind, 0) for one in self._measured))

    def answered(self, seconds: float, prompt_tokens: int, generated_tokens: int, shown: dict[str, str] | None) -> None:
        """A request was answered. shown: the labels of its exemplar."""
        self.series.answered.observe(seconds, shown)
        self.series.prompt_length.observe(prompt_tokens)
        self.series.answer_length.observe(generated_tokens)

    def measured(self, measurements: Iterable[Measurement]) -> None:
        """Counts what engines measured. Raises ValueError and KeyError for what none measures."""
        for measurement in measurements:
            measurement.apply(self.series)

    def process_worked(self, process: str, cpu_s: float) -> None:
        """An engine process has used so much more processor time."""
        if self.users:
            self.series.process_cpu(process).inc(cpu_s)

    def process_ended(self, reason: str) -> None:
        """An engine process ended; reason: one of PROCESS_ENDS."""
        self._processes_ended[reason].inc()


class _Measured(NamedTuple):
    """What is called at every scrape for one bundle. See `VersionMetrics.measure`."""

    engines: Callable[[], Sequence[Any]]
    memory: Callable[[], Mapping[str, int]]
    limits: Callable[[], tuple[int, int]]


def _resident(processes: Callable[[], Mapping[str, Any]], name: str) -> float:
    beat = processes()[name]
    return 0.0 if beat is None else float(beat.resident_bytes)


def _heartbeat_age_s(processes: Callable[[], Mapping[str, Any]], name: str, clock: Callable[[], float]) -> float:
    beat = processes()[name]
    return 0.0 if beat is None or not beat.states else max(0.0, clock() - min(one.heartbeat_s for one in beat.states))


def _is_up(processes: Callable[[], Mapping[str, Any]], name: str) -> float:
    return float(processes()[name] is not None)
