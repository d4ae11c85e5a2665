"""Every metric of the server, in a registry of its own. The only module that knows prometheus_client.

A metric is one attribute of `_ServerSeries`, `_RpcSeries` or `_ModelSeries`, and one line in docs/metrics.md. `Metrics`
belongs to a server, `ModelMetrics` to a model. All label values are fixed when the server
starts: no name, text or address of a client becomes one. Nothing here opens a port: `ops` calls `render()`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.process_collector import ProcessCollector

from export.manifest import Manifest
from service.errors import ENDS, REJECTIONS, RequestError
from service.execution_choice import ExecutionChoice
from service.request import FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# 1-2-5 from 100 µs to 60 s: a small model's steps take less than the 10 ms where default buckets start.
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

# Every reason for which an accepted request can end, and for which a request can be rejected.
END_REASONS = (*(reason.value for reason in FinishReason), *(kind.reason.lower() for kind in ENDS))
REJECT_REASONS = tuple(kind.reason.lower() for kind in REJECTIONS)
MEMORY_KINDS = ("weights", "kv_cache", "outputs")
PROCESS_ENDS = ("killed", "exited", "device_lost", "hung", "engine_failed", "bad_message", "not_started")
"""Why a process was started again."""


class Rpc(NamedTuple):
    """One RPC, as its metrics are labelled."""

    type: str  # unary or server_stream
    service: str
    method: str


class _Histogram(Histogram):
    """A histogram that counts one value for all rows of a step in one call."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Counts one value; by bisection, where the library searches bucket by bucket."""
        assert exemplar is None
        self.observe_many(amount, 1)

    def observe_many(self, value: float, times: int) -> None:
        """Counts a value `times` times."""
        self._sum.inc(value * times)
        self._buckets[bisect.bisect_left(self._upper_bounds, value)].inc(times)


class _Definition(NamedTuple):
    """A metric, before its series are bound to label values."""

    kind: type[Any]
    name: str
    text: str
    labels: tuple[str, ...]  # after those of the whole class; the bound attribute is a function of their values
    options: dict[str, Any]


def _metric(kind: type[Any], name: str, text: str, *labels: str, **options: Any) -> Any:
    return _Definition(kind, name, text, labels, options)


def _histogram(name: str, text: str, *, buckets: Sequence[float] = LATENCY_BUCKETS) -> Any:
    return _metric(_Histogram, name, text, buckets=buckets)


_Series = TypeVar("_Series", "_ServerSeries", "_RpcSeries", "_ModelSeries")


def _families(kind: type[Any], registry: CollectorRegistry, *labels: str) -> dict[str, Any]:
    """The metrics of a class of series by attribute; made once, as a registry holds each name once."""
    return {
        attribute: metric.kind(metric.name, metric.text, labels + metric.labels, registry=registry, **metric.options)
        for attribute, metric in vars(kind).items()
        if isinstance(metric, _Definition)
    }


def _bind(series: _Series, families: Mapping[str, Any], *values: str) -> _Series:
    """Sets the attributes of `series` for these label values. Finding a series by labels takes as long as counting."""
    for attribute, family in families.items():
        if getattr(type(series), attribute).labels:
            family = partial(family.labels, *values)
        elif values:
            family = family.labels(*values)
        setattr(series, attribute, family)
    return series


class _ServerSeries:
    in_flight: Gauge = _metric(Gauge, "glossa_requests_in_flight", "RPCs in progress, except health and reflection.")
    rejected: Callable[..., Counter] = _metric(
        Counter, "glossa_requests_rejected", "Requests rejected before any work, by reason.", "reason"
    )
    connections_closed: Counter = _metric(
        Counter,
        "glossa_connections_closed",
        "Connections closed because most of their calls were reset or had no message.",
    )
    log_lines: Counter = _metric(
        Counter, "glossa_log_lines_dropped", "Lines of the log that nobody read in time, or could not be written."
    )
    predicted_memory: Gauge = _metric(
        Gauge, "glossa_memory_predicted_peak_bytes", "Resident memory of all processes at most, as predicted."
    )
    backlog_age: Gauge = _metric(
        Gauge, "glossa_backlog_age_seconds", "How long calls wait until the server sees them; 0 without calls."
    )
    event_loop_cpu: Counter = _metric(
        Counter, "glossa_event_loop_cpu_seconds", "Processor time of the event loop's thread."
    )
    build: Callable[..., Gauge] = _metric(
        Gauge, "glossa_build_info", "Always 1; labels are the running version.", "version", "commit"
    )


class _RpcSeries:
    started: Counter = _metric(Counter, "grpc_server_started", "RPCs started on the server.")
    handled: Callable[..., Counter] = _metric(
        Counter, "grpc_server_handled", "RPCs completed on the server, by status code.", "grpc_code"
    )
    handling: _Histogram = _histogram(
        "grpc_server_handling_seconds", "Time from an RPC's start to its end on the server."
    )
    received: Counter = _metric(Counter, "grpc_server_msg_received", "Messages received from clients.")
    sent: Counter = _metric(Counter, "grpc_server_msg_sent", "Messages sent to clients.")


class _ModelSeries:
    queued: Gauge = _metric(Gauge, "glossa_requests_queued", "Requests waiting for free rows.")
    running: Gauge = _metric(Gauge, "glossa_requests_running", "Requests being decoded.")
    kv_cache: Gauge = _metric(Gauge, "glossa_kv_cache_usage_ratio", "Share of the KV cache reserved, 0..1.")
    memory: Callable[..., Gauge] = _metric(
        Gauge, "glossa_memory_bytes", "Bytes allocated for a model, by kind.", "kind"
    )
    queue: _Histogram = _histogram("glossa_queue_seconds", "Queue time of a request.")
    first_token: _Histogram = _histogram("glossa_time_to_first_token_seconds", "Time to the first token of a request.")
    inter_token: _Histogram = _histogram("glossa_inter_token_latency_seconds", "Time between two tokens of a request.")
    prefill: _Histogram = _histogram("glossa_prefill_seconds", "Encoder and prefill time of an engine turn.")
    step: _Histogram = _histogram("glossa_decode_step_seconds", "Time of one decode step of an engine.")
    rows: _Histogram = _histogram("glossa_decode_step_rows", "Rows in a decode step.", buckets=ROW_BUCKETS)
    preemptions: Counter = _metric(Counter, "glossa_preemptions", "Times that a request left its rows to others.")
    prompt_tokens: Counter = _metric(Counter, "glossa_prompt_tokens", "Tokens of admitted sources and prompts.")
    prefix_queried: Counter = _metric(Counter, "glossa_prefix_cache_queried_tokens", "Prompt tokens looked up.")
    prefix_hits: Counter = _metric(Counter, "glossa_prefix_cache_hits", "Prompts with a cached prefix.")
    prefix_reused: Counter = _metric(Counter, "glossa_prefix_cache_hit_tokens", "Prompt tokens copied, not computed.")
    drafted: Counter = _metric(Counter, "glossa_speculation_draft_tokens", "Draft tokens verified by the model.")
    accepted: Counter = _metric(Counter, "glossa_speculation_accepted_tokens", "Draft tokens accepted.")
    generated: Counter = _metric(Counter, "glossa_generated_tokens", "Tokens generated.")
    wasted: Counter = _metric(
        Counter,
        "glossa_wasted_tokens",
        "Tokens of cancelled, late and failed requests, and of answers that came too late.",
    )
    finished: Callable[..., Counter] = _metric(
        Counter, "glossa_requests_finished", "Accepted requests that ended, by reason.", "reason"
    )
    processes_ended: Callable[..., Counter] = _metric(
        Counter, "glossa_engine_process_restarts", "Engine processes that ended and were started again.", "reason"
    )
    process_up: Callable[..., Gauge] = _metric(
        Gauge, "glossa_engine_process_up", "1 while an engine process takes requests, else 0.", "process"
    )
    process_cpu: Callable[..., Counter] = _metric(
        Counter,
        "glossa_engine_process_cpu_seconds",
        "Processor time of an engine process and its predecessors.",
        "process",
    )
    process_memory: Callable[..., Gauge] = _metric(
        Gauge, "glossa_engine_process_resident_memory_bytes", "Resident memory of an engine process.", "process"
    )
    provider: Callable[..., Gauge] = _metric(
        Gauge,
        "glossa_execution_provider_info",
        "Always 1; labels are the provider in use, the requested one, and 1 for a fallback.",
        *("provider", "requested", "fallback"),
    )
    info: Callable[..., Gauge] = _metric(
        Gauge, "glossa_model_info", "Always 1; labels describe a model.", *("architecture", "task", "precision")
    )


class Metrics:
    """The metrics of one server. Thread-safe.

    rpcs: all RPCs that are counted.
    """

    def __init__(self, rpcs: Iterable[Rpc] = (), *, version: str = "", commit: str = "") -> None:
        # A third of all series. It holds for the process, which has no other metrics.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        families = _families(_RpcSeries, self.registry, *(f"grpc_{name}" for name in Rpc._fields))
        self._models = _families(_ModelSeries, self.registry, "model")
        self._server = _bind(_ServerSeries(), _families(_ServerSeries, self.registry))
        self._server.build(version, commit).set(1)
        # All series exist from the start: a rate over one that appears later misses its first event.
        self._rpcs = {rpc: _bind(_RpcSeries(), families, *rpc) for rpc in rpcs}
        self._handled = {rpc: [series.handled(code) for code in CODES] for rpc, series in self._rpcs.items()}
        for reason in REJECT_REASONS:
            self._server.rejected(reason)

    def rpc_started(self, rpc: Rpc) -> None:
        """An RPC and its message arrived."""
        series = self._rpcs[rpc]
        series.started.inc()
        series.received.inc()
        self._server.in_flight.inc()

    def rpc_handled(self, rpc: Rpc, *, code: int, seconds: float, messages: int) -> None:
        """An RPC ended. code: the number of a gRPC status; messages: the number sent."""
        series = self._rpcs[rpc]
        self._handled[rpc][code].inc()
        series.handling.observe(seconds)
        series.sent.inc(messages)
        self._server.in_flight.dec()

    def rpcs_refused(self, rpc: Rpc, *, code: int, reason: str, seconds: float, count: int) -> None:
        """`count` RPCs ended unread after `seconds` each: together, as ten series for each would take as long as the
        rest of a refusal."""
        series = self._rpcs[rpc]
        series.started.inc(count)
        self._handled[rpc][code].inc(count)
        series.handling.observe_many(seconds, count)
        self._server.rejected(reason.lower()).inc(count)

    def tokens_wasted(self, model: str, tokens: int) -> None:
        """Tokens of an answer that an engine completed, and that no client got in time."""
        self._models["wasted"].labels(model).inc(tokens)

    def memory_predicted(self, peak_bytes: int) -> None:
        """How much memory all processes have at most."""
        self._server.predicted_memory.set(peak_bytes)

    def measure_backlog(self, age_s: Callable[[], float]) -> None:
        """age_s: called at every scrape, on its thread."""
        self._server.backlog_age.set_function(age_s)

    def request_rejected(self, error: RequestError) -> None:
        """A request was rejected before any work."""
        self._server.rejected(error.reason.lower()).inc()

    def connection_closed(self) -> None:
        """A connection was closed because most of its calls came to nothing."""
        self._server.connections_closed.inc()

    def model(self, name: str) -> ModelMetrics:
        """The metrics of a model."""
        return ModelMetrics(name, _bind(_ModelSeries(), self._models, name), self._models)

    def event_loop_worked(self, cpu_s: float) -> None:
        """The event loop has used so much more processor time."""
        self._server.event_loop_cpu.inc(cpu_s)

    def log_lines_dropped(self, count: int) -> None:
        """So many more lines of the log were dropped."""
        self._server.log_lines.inc(count)

    def render(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """The metrics of one model, and the `EngineMetrics` of its engines, which are called from their threads."""

    def __init__(self, name: str, series: _ModelSeries, families: Mapping[str, Any]) -> None:
        self._name, self._series, self._families = name, series, families
        self._description: dict[str, tuple[str, ...]] = {}
        self._finished = {reason: series.finished(reason) for reason in END_REASONS}
        for kind in MEMORY_KINDS:
            series.memory(kind)
        self._processes_ended = {reason: series.processes_ended(reason) for reason in PROCESS_ENDS}

    def describe(self, manifest: Manifest, choice: ExecutionChoice) -> None:
        """Sets the labels of a model that is served from now on, or from now on elsewhere."""
        for attribute, labels in self._description.items():
            self._families[attribute].remove(self._name, *labels)
        self._description = {
            "info": (manifest.architecture, manifest.task, choice.precision),
            "provider": (choice.provider, choice.requested, str(int(choice.fallback))),
        }
        for attribute, labels in self._description.items():
            self._families[attribute].labels(self._name, *labels).set(1)

    def measure(
        self,
        engines: Callable[[], Sequence[Any]],
        memory: Callable[[], Mapping[str, int]],
        processes: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Sets what is called at every scrape, on its thread. engines: the state of each; memory: bytes by
        MEMORY_KINDS; processes: the last `Beat` of each by name, None of one that is not open."""
        series = self._series
        series.queued.set_function(lambda: sum(engine.queued for engine in engines()))
        series.running.set_function(lambda: sum(engine.rows for engine in engines()))
        series.kv_cache.set_function(lambda: fmean([engine.kv_ratio for engine in engines()] or [0.0]))
        for name in processes():
            series.process_memory(name).set_function(partial(_resident, processes, name))
            series.process_up(name).set_function(partial(_is_up, processes, name))
            series.process_cpu(name)
        for kind in MEMORY_KINDS:
            series.memory(kind).set_function(partial(_bytes_of, memory, kind))

    def admitted(self, queue_s: float, prompt_tokens: int) -> None:
        """A request left the queue."""
        self._series.queue.observe(queue_s)
        self._series.prompt_tokens.inc(prompt_tokens)

    def preempted(self, count: int) -> None:
        """So many requests left their rows to others."""
        self._series.preemptions.inc(count)

    def prefilled(self, seconds: float) -> None:
        """One turn's encoder and prefill work."""
        self._series.prefill.observe(seconds)

    def looked_up(self, tokens: int, hits: int, reused: int) -> None:
        """New prompts were looked up in the prefix cache."""
        self._series.prefix_queried.inc(tokens)
        self._series.prefix_hits.inc(hits)
        self._series.prefix_reused.inc(reused)

    def stepped(self, seconds: float, rows: int, steps: int = 1) -> None:
        """Decode steps of `seconds` each."""
        self._series.step.observe_many(seconds, steps)
        self._series.rows.observe_many(rows, steps)

    def speculated(self, drafted: int, accepted: int) -> None:
        """Draft tokens were verified."""
        self._series.drafted.inc(drafted)
        self._series.accepted.inc(accepted)

    def first_token(self, seconds: float) -> None:
        """A request got its first token."""
        self._series.first_token.observe(seconds)

    def next_tokens(self, gap_s: float, rows: int) -> None:
        """Each of `rows` requests got its next token."""
        self._series.inter_token.observe_many(gap_s, rows)

    def generated(self, tokens: int) -> None:
        """Tokens of one turn."""
        self._series.generated.inc(tokens)

    def process_worked(self, process: str, cpu_s: float) -> None:
        """An engine process has used so much more processor time."""
        self._series.process_cpu(process).inc(cpu_s)

    def process_ended(self, reason: str) -> None:
        """An engine process ended; reason: one of PROCESS_ENDS."""
        self._processes_ended[reason].inc()

    def finished(self, reason: str, wasted_tokens: int) -> None:
        """A request ended; reason: one of END_REASONS."""
        self._finished[reason].inc()
        self._series.wasted.inc(wasted_tokens)


def _resident(processes: Callable[[], Mapping[str, Any]], name: str) -> float:
    beat = processes()[name]
    return 0.0 if beat is None else float(beat.resident_bytes)


def _is_up(processes: Callable[[], Mapping[str, Any]], name: str) -> float:
    return float(processes()[name] is not None)


def _bytes_of(measure: Callable[[], Mapping[str, int]], kind: str) -> float:
    return float(measure().get(kind, 0))
