"""The series of all metrics, as classes whose attributes are bound to the values of their labels.

A metric is one attribute of `ServerSeries`, `RpcSeries`, `ModelSeries`, `VersionSeries` or
`service.measurements.EngineSeries`, and one line in docs/metrics.md.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.samples import Exemplar

from service.edge.observability.cache_metrics import CacheSeries, VersionCacheSeries
from service.edge.observability.tenant_metrics import TenantSeries
from service.measurements import EngineSeries, MetricDefinition, counter, histogram

CONFIDENCE_BUCKETS = (0.2, 0.4, 0.6, 0.8)
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class FastHistogram(Histogram):
    """A histogram that counts one value for all rows of a step in one call."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Counts one value; by bisection, where the library searches bucket by bucket."""
        self.observe_many(amount, 1)
        if exemplar:
            self.show(amount, exemplar)

    def show(self, value: float, exemplar: dict[str, str]) -> None:
        """Makes a value that is counted, or will be, the exemplar of its bucket."""
        bucket = self._buckets[bisect.bisect_left(self._upper_bounds, value)]
        bucket.set_exemplar(Exemplar(exemplar, value, time.time()))

    def observe_many(self, value: float, times: int) -> None:
        """Counts a value `times` times."""
        self._sum.inc(value * times)
        self._buckets[bisect.bisect_left(self._upper_bounds, value)].inc(times)


_KINDS: dict[str, type[Any]] = {"counter": Counter, "gauge": Gauge, "histogram": FastHistogram}


def _gauge(name: str, text: str, *labels: str) -> Any:
    return MetricDefinition("gauge", name, text, labels)


_Series = TypeVar("_Series", "ServerSeries", "RpcSeries", "ModelSeries", "VersionSeries")


def families(kind: type[Any], registry: CollectorRegistry, *labels: str) -> dict[str, Any]:
    """The metrics of a class of series by attribute; made once, as a registry holds each name once."""
    return {
        attribute: _KINDS[metric.kind](
            metric.name,
            metric.text,
            labels + metric.labels,
            registry=registry,
            **({"buckets": metric.buckets} if metric.buckets else {}),
        )
        for base in reversed(kind.__mro__)
        for attribute, metric in vars(base).items()
        if isinstance(metric, MetricDefinition)
    }


def bind(series: _Series, families: Mapping[str, Any], *values: str) -> _Series:
    """Sets the attributes of `series` for these label values. Finding a series by labels takes as long as counting."""
    for attribute, family in families.items():
        if getattr(type(series), attribute).labels:
            family = partial(family.labels, *values)
        elif values:
            family = family.labels(*values)
        setattr(series, attribute, family)
    return series


class ServerSeries(CacheSeries, TenantSeries):
    in_flight: Gauge = _gauge("glossa_requests_in_flight", "RPCs in progress, except health and reflection.")
    items: Callable[..., Counter] = counter(
        "glossa_batch_items",
        "Items of calls with many that ended, by the call's method, and by the status code of their result.",
        *("method", "code"),
    )
    ready: Gauge = _gauge("glossa_ready", "1 while the server takes requests and all models do, else 0.")
    draining: Gauge = _gauge("glossa_draining", "1 while the server refuses new requests to end, else 0.")
    event_loop_lag: Gauge = _gauge(
        "glossa_event_loop_lag_seconds", "How late the event loop was with its last beat, two a second."
    )
    connections_closed: Counter = counter(
        "glossa_connections_closed",
        "Connections closed because most of their calls were reset or had no message.",
    )
    log_lines: Counter = counter(
        "glossa_log_lines_dropped", "Lines of the log that nobody read in time, or could not be written."
    )
    predicted_memory: Gauge = _gauge(
        "glossa_memory_predicted_peak_bytes", "Resident memory of all processes at most, as predicted."
    )
    backlog_age: Gauge = _gauge(
        "glossa_backlog_age_seconds", "How long calls wait until the server sees them; 0 without calls."
    )
    event_loop_cpu: Counter = counter("glossa_event_loop_cpu_seconds", "Processor time of the event loop's thread.")
    certificate_expiry: Gauge = _gauge(
        "glossa_certificate_expiry_timestamp_seconds",
        "When the server's certificate expires, in seconds since 1970; +Inf without one.",
    )
    files_changed: Callable[..., Counter] = counter(
        "glossa_file_reloads",
        "Changes of the certificate's files and of the tokens' while serving, taken over or refused.",
        *("kind", "outcome"),
    )
    build: Callable[..., Gauge] = _gauge(
        "glossa_build_info", "Always 1; labels are the running version.", "version", "commit"
    )


class RpcSeries:
    started: Counter = counter("grpc_server_started", "RPCs started on the server.")
    handled: Callable[..., Counter] = counter(
        "grpc_server_handled", "RPCs completed on the server, by status code.", "grpc_code"
    )
    handling: FastHistogram = histogram(
        "grpc_server_handling_seconds", "Time from an RPC's start to its end on the server."
    )
    received: Counter = counter("grpc_server_msg_received", "Messages received from clients.")
    sent: Counter = counter("grpc_server_msg_sent", "Messages sent to clients.")


class ModelSeries:
    versions: Gauge = _gauge("glossa_model_versions", "Versions of a model that are open: those that drain included.")
    loads: Callable[..., Counter] = counter(
        "glossa_model_loads", "Versions that were to be loaded while serving, by outcome.", "outcome"
    )


class VersionSeries(EngineSeries, VersionCacheSeries):
    """Of one version of a model, while it is open."""

    rejected: Callable[..., Counter] = counter(
        "glossa_requests_rejected",
        "Requests rejected before any work, by reason, and by model and version where those were known.",
        "reason",
    )
    queued: Gauge = _gauge("glossa_requests_queued", "Requests waiting for free rows.")
    running: Gauge = _gauge("glossa_requests_running", "Requests being decoded.")
    queue_limit: Gauge = _gauge("glossa_requests_queue_limit", "Requests that may wait for free rows.")
    rows_used: Gauge = _gauge("glossa_rows_used", "Rows in use: hypotheses being decoded.")
    rows_limit: Gauge = _gauge("glossa_rows_limit", "Rows of all engines.")
    kv_reserved: Gauge = _gauge(
        "glossa_kv_cache_reserved_bytes", "Bytes of the KV cache that running requests may come to need."
    )
    kv_used: Gauge = _gauge("glossa_kv_cache_used_bytes", "Bytes of the KV cache that live rows fill.")
    kv_limit: Gauge = _gauge("glossa_kv_cache_limit_bytes", "Bytes of the KV cache that may be reserved.")
    kv_cache: Gauge = _gauge("glossa_kv_cache_usage_ratio", "Share of the KV cache reserved, 0..1.")
    memory: Callable[..., Gauge] = _gauge("glossa_memory_bytes", "Bytes allocated for a model, by kind.", "kind")
    answered: FastHistogram = histogram(
        "glossa_request_seconds", "Time from an RPC's start to its end, of requests that were answered."
    )
    prompt_length: FastHistogram = histogram(
        "glossa_request_prompt_tokens", "Tokens of the source and prompt of an answered request.", buckets=TOKEN_BUCKETS
    )
    answer_length: FastHistogram = histogram(
        "glossa_request_generated_tokens", "Tokens generated for an answered request.", buckets=TOKEN_BUCKETS
    )
    unknown_tokens: Counter = counter(
        "glossa_request_unknown_tokens",
        "Tokens of the sources and prompts of answered requests that stand for what the vocabulary lacks.",
    )
    confidence: FastHistogram = histogram(
        "glossa_answer_confidence_ratio",
        "Calibrated confidence of translations, where it was requested and of a share of all others.",
        buckets=CONFIDENCE_BUCKETS,
    )
    terms: Counter = counter("glossa_glossary_terms", "Terms of glossaries that answered texts have, each once.")
    terms_met: Counter = counter(
        "glossa_glossary_terms_met", "Terms of these of which the answer has one of their forms."
    )
    processes_ended: Callable[..., Counter] = counter(
        "glossa_engine_process_restarts", "Engine processes that ended and were started again.", "reason"
    )
    process_up: Callable[..., Gauge] = _gauge(
        "glossa_engine_process_up", "1 while an engine process takes requests, else 0.", "process"
    )
    heartbeat_age: Callable[..., Gauge] = _gauge(
        "glossa_engine_process_heartbeat_age_seconds",
        "Time since the last turn of an engine process, of its engine that is longest without one.",
        "process",
    )
    process_cpu: Callable[..., Counter] = counter(
        "glossa_engine_process_cpu_seconds",
        "Processor time of an engine process and its predecessors.",
        "process",
    )
    process_memory: Callable[..., Gauge] = _gauge(
        "glossa_engine_process_resident_memory_bytes", "Resident memory of an engine process.", "process"
    )
    provider: Callable[..., Gauge] = _gauge(
        "glossa_execution_provider_info",
        "Always 1; labels are the provider in use, the requested one, and 1 for a fallback.",
        *("provider", "requested", "fallback"),
    )
    graph_nodes: Callable[..., Gauge] = _gauge(
        "glossa_graph_nodes", "Nodes of a version's graphs that a provider computes.", "provider"
    )
    info: Callable[..., Gauge] = _gauge(
        "glossa_model_info",
        "Always 1; labels describe an open version of a model.",
        *("architecture", "task", "precision", "bundle"),
    )
    default: Gauge = _gauge(
        "glossa_version_default", "1 for the version that answers requests which name none, 0 for others of its model."
    )
