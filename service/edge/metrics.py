"""Every metric of the server, in a registry of its own. The only module that knows prometheus_client.

`Metrics` belongs to a server, `ModelMetrics` to one of its models (the engine's `EngineMetrics`). All label values are
fixed when the server starts: no name, text or address of a client becomes one. docs/metrics.md describes each of them.
It deliberately makes no port: service/edge/ops.py asks for `render()`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector

from service.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalFailure,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RequestError,
    ShuttingDown,
    Unsatisfiable,
    Unsupported,
)
from service.request import FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# 1-2-5 from 100 µs to 60 s: the steps of a small model take less than the 10 ms where others start.
LATENCY_BUCKETS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# gRPC status codes by number, spelled as go-grpc-prometheus does, so that its dashboards and alerts fit.
CODES = (
    *("OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists"),
    *("PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented"),
    *("Internal", "Unavailable", "DataLoss", "Unauthenticated"),
)

# Every way an accepted request can end, and every way one can be refused before.
END_REASONS = (
    *(reason.value for reason in FinishReason),
    *(kind.reason.lower() for kind in (Cancelled, DeadlineExceeded, Unsatisfiable, ShuttingDown, InternalFailure)),
)
REJECT_REASONS = tuple(
    kind.reason.lower() for kind in (InvalidRequest, ModelNotFound, Unsupported, Overloaded, ShuttingDown)
)


MEMORY_KINDS = ("weights", "kv_cache", "outputs")


class Rpc(NamedTuple):
    """One RPC, as its metrics are labelled."""

    type: str  # unary or server_stream
    service: str
    method: str


class ModelInfo(NamedTuple):
    """What the info metrics say about a model."""

    architecture: str
    task: str
    precision: str
    provider: str
    requested: str
    fallback: bool


class _RpcSeries(NamedTuple):
    """The series of one RPC. Finding them by their labels takes as long as counting."""

    started: Counter
    received: Counter
    handled: tuple[Counter, ...]  # by status code
    handling: Histogram
    sent: Counter


class Metrics:
    """The metrics of one server. Thread-safe.

    rpcs: all that are counted.
    """

    def __init__(self, rpcs: Iterable[Rpc] = (), *, version: str = "", commit: str = "") -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        labels = tuple(f"grpc_{name}" for name in Rpc._fields)
        self._started = self._counter("grpc_server_started", "RPCs started on the server.", *labels)
        self._handled = self._counter(
            "grpc_server_handled", "RPCs completed on the server, by status code.", *labels, "grpc_code"
        )
        self._handling = self._histogram(
            "grpc_server_handling_seconds", "Time from an RPC's start to its end on the server.", *labels
        )
        self._received = self._counter("grpc_server_msg_received", "Messages received from clients.", *labels)
        self._sent = self._counter("grpc_server_msg_sent", "Messages sent to clients.", *labels)
        self._in_flight = self._gauge(
            "glossa_requests_in_flight", "RPCs being handled now, health and reflection aside."
        )
        self._rejected = self._counter(
            "glossa_requests_rejected", "Requests refused before any work was done, by reason.", "reason"
        )
        build = self._gauge("glossa_build_info", "Always 1; its labels are the running version.", "version", "commit")
        build.labels(version, commit).set(1)
        self._rpcs = {rpc: self._prepare(rpc) for rpc in rpcs}
        for reason in REJECT_REASONS:
            self._rejected.labels(reason)
        self._models = _ModelFamilies(self)

    def _prepare(self, rpc: Rpc) -> _RpcSeries:
        """All series of an RPC exist from the start: a rate over one that appears later misses its first event."""
        return _RpcSeries(
            started=self._started.labels(*rpc),
            received=self._received.labels(*rpc),
            handled=tuple([self._handled.labels(*rpc, code) for code in CODES]),
            handling=self._handling.labels(*rpc),
            sent=self._sent.labels(*rpc),
        )

    def rpc_started(self, rpc: Rpc) -> None:
        series = self._rpcs[rpc]
        series.started.inc()
        series.received.inc()
        self._in_flight.inc()

    def rpc_handled(self, rpc: Rpc, *, code: int, seconds: float, messages: int) -> None:
        """code: the number of a gRPC status; messages: those sent."""
        series = self._rpcs[rpc]
        series.handled[code].inc()
        series.handling.observe(seconds)
        series.sent.inc(messages)
        self._in_flight.dec()

    def request_rejected(self, error: RequestError) -> None:
        self._rejected.labels(error.reason.lower()).inc()

    def model(self, name: str, info: ModelInfo) -> ModelMetrics:
        """The metrics of a model that is served from now on."""
        return ModelMetrics(self._models, name, info)

    def render(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(_WithoutCreated(self.registry))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = LATENCY_BUCKETS
    ) -> _Histogram:
        return _Histogram(name, text, labels, registry=self.registry, buckets=buckets)


class _ModelFamilies:
    """The families with a model label; made once, as a registry holds each name once."""

    def __init__(self, metrics: Metrics) -> None:
        counter, gauge, histogram = metrics._counter, metrics._gauge, metrics._histogram
        self.queued = gauge("glossa_requests_queued", "Requests waiting for a row.", "model")
        self.running = gauge("glossa_requests_running", "Requests with a row, being decoded.", "model")
        self.kv_cache = gauge(
            "glossa_kv_cache_usage_ratio", "Part of the KV cache promised to requests, 0..1.", "model"
        )
        self.memory = gauge(
            "glossa_memory_bytes",
            "Bytes that a model holds: its graphs in all sessions, its engines' caches, and what steps write to.",
            *("model", "kind"),
        )
        self.queue = histogram("glossa_queue_seconds", "Time from a request's arrival to its row.", "model")
        self.first_token = histogram(
            "glossa_time_to_first_token_seconds", "Time from a request's arrival to its first token.", "model"
        )
        self.inter_token = histogram(
            "glossa_inter_token_latency_seconds", "Time from one token of a request to its next.", "model"
        )
        self.encode = histogram(
            "glossa_prefill_seconds", "Time of encoding sources or reading prompts, a step.", "model"
        )
        self.step = histogram("glossa_decode_step_seconds", "Time of one decode step of an engine.", "model")
        self.rows = histogram("glossa_decode_step_rows", "Rows in a decode step.", "model", buckets=ROW_BUCKETS)
        self.prompt_tokens = counter("glossa_prompt_tokens", "Tokens read, of sources and prompts.", "model")
        self.looked_up_tokens = counter(
            "glossa_prefix_cache_queried_tokens", "Tokens of prompts that were looked up among recent ones.", "model"
        )
        self.prefix_hits = counter(
            "glossa_prefix_cache_hits", "Prompts whose first tokens were copied from a recent one.", "model"
        )
        self.reused_tokens = counter(
            "glossa_prefix_cache_hit_tokens", "Tokens of prompts copied from recent ones, not read.", "model"
        )
        self.draft_tokens = counter(
            "glossa_speculation_draft_tokens", "Guesses at next tokens that were read.", "model"
        )
        self.accepted_tokens = counter(
            "glossa_speculation_accepted_tokens", "Guesses at next tokens that were right.", "model"
        )
        self.generated_tokens = counter("glossa_generated_tokens", "Tokens produced.", "model")
        self.wasted_tokens = counter(
            "glossa_wasted_tokens", "Tokens produced for requests that were cancelled, late or failed.", "model"
        )
        self.finished = counter(
            "glossa_requests_finished", "Accepted requests that ended, by reason.", "model", "reason"
        )
        self.provider = gauge(
            "glossa_execution_provider_info",
            "Always 1; its labels are what runs a model, what was asked for, and whether it is a fallback (1) or not.",
            *("model", "provider", "requested", "fallback"),
        )
        self.info = gauge(
            "glossa_model_info", "Always 1; its labels describe a model.", "model", "architecture", "task", "precision"
        )


class ModelMetrics:
    """The metrics of one model. Each of its engines reports to an `engine` of its own."""

    def __init__(self, families: _ModelFamilies, name: str, info: ModelInfo) -> None:
        self._families, self._name = families, name
        self._engines: list[EngineReport] = []
        families.info.labels(name, info.architecture, info.task, info.precision).set(1)
        families.provider.labels(name, info.provider, info.requested, str(int(info.fallback))).set(1)
        families.queued.labels(name).set_function(lambda: sum(engine.queued for engine in self._engines))
        families.running.labels(name).set_function(lambda: sum(engine.running for engine in self._engines))
        families.kv_cache.labels(name).set_function(self._kv_ratio)
        for kind in MEMORY_KINDS:
            families.memory.labels(name, kind)
        for reason in END_REASONS:
            families.finished.labels(name, reason)

    def memory(self, measure: Callable[[], Mapping[str, int]]) -> None:
        """measure: bytes by MEMORY_KINDS, asked at every scrape, from its thread."""
        for kind in MEMORY_KINDS:
            self._families.memory.labels(self._name, kind).set_function(partial(_bytes_of, measure, kind))

    def engine(self) -> EngineReport:
        """What one more engine of this model reports to."""
        self._engines.append(EngineReport(self._families, self._name))
        return self._engines[-1]

    def _kv_ratio(self) -> float:
        return sum(engine.kv_ratio for engine in self._engines) / max(1, len(self._engines))


class EngineReport:
    """`service.engine.engine_metrics.EngineMetrics` of one engine: called from its thread; gauges are read from here
    at a scrape."""

    def __init__(self, families: _ModelFamilies, model: str) -> None:
        self.queued = self.running = 0
        self.kv_ratio = 0.0
        self._queue = families.queue.labels(model)
        self._prompt_tokens = families.prompt_tokens.labels(model)
        self._looked_up = families.looked_up_tokens.labels(model)
        self._prefix_hits = families.prefix_hits.labels(model)
        self._reused = families.reused_tokens.labels(model)
        self._encode = families.encode.labels(model)
        self._step = families.step.labels(model)
        self._rows = families.rows.labels(model)
        self._first_token = families.first_token.labels(model)
        self._inter_token = families.inter_token.labels(model)
        self._drafted = families.draft_tokens.labels(model)
        self._accepted = families.accepted_tokens.labels(model)
        self._generated = families.generated_tokens.labels(model)
        self._wasted = families.wasted_tokens.labels(model)
        self._finished = {reason: families.finished.labels(model, reason) for reason in END_REASONS}

    def admitted(self, queue_s: float, prompt_tokens: int) -> None:
        self._queue.observe(queue_s)
        self._prompt_tokens.inc(prompt_tokens)

    def prefilled(self, seconds: float) -> None:
        self._encode.observe(seconds)

    def looked_up(self, tokens: int, *, hits: int, reused: int) -> None:
        self._looked_up.inc(tokens)
        self._prefix_hits.inc(hits)
        self._reused.inc(reused)

    def stepped(self, seconds: float, rows: int, steps: int = 1) -> None:
        self._step.observe_many(seconds, steps)
        self._rows.observe_many(rows, steps)

    def speculated(self, drafted: int, accepted: int) -> None:
        self._drafted.inc(drafted)
        self._accepted.inc(accepted)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_tokens(self, gap_s: float, rows: int) -> None:
        self._inter_token.observe_many(gap_s, rows)

    def generated(self, tokens: int) -> None:
        self._generated.inc(tokens)

    def finished(self, reason: str, wasted_tokens: int) -> None:
        self._finished[reason].inc()
        self._wasted.inc(wasted_tokens)

    def state(self, queued: int, running: int, kv_ratio: float) -> None:
        self.queued, self.running, self.kv_ratio = queued, running, kv_ratio


def _bytes_of(measure: Callable[[], Mapping[str, int]], kind: str) -> float:
    return float(measure()[kind])


class _Histogram(Histogram):
    """A histogram that takes the same value many times at once: one for all rows of a step."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Without looking at one bucket after the other."""
        assert exemplar is None
        self.observe_many(amount, 1)

    def observe_many(self, value: float, times: int) -> None:
        self._sum.inc(value * times)
        self._buckets[bisect.bisect_left(self._upper_bounds, value)].inc(times)


class _WithoutCreated:
    """A registry without the `_created` series, a third of all otherwise. The library's own switch is a global."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
