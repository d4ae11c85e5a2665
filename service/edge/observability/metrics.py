"""Every metric of the server, in a registry of its own. `metric_series` defines them.

`Metrics` belongs to a server, `ModelMetrics` to a model. All label values are fixed when the server
starts: no name, text or address of a client becomes one. Nothing here opens a port: `ops` calls `render()`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector

from export.bundle.manifest import Manifest
from service.edge.observability.cache_metrics import CacheMetrics
from service.edge.observability.exposition import TEXT, Exposition
from service.edge.observability.metric_series import ModelSeries, RpcSeries, ServerSeries, bind, families
from service.edge.observability.tenant_metrics import TenantMetrics
from service.errors import CHANGES, ENDS, REJECTIONS, RequestError
from service.machine.execution_choice import ExecutionChoice
from service.measurements import Measurement
from service.request import FinishReason

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
UNKNOWN_MODEL = ""
ITEM_METHODS = ("TranslateBatch", "TranslateDocument", "ScoreBatch", "EmbedBatch", "ClassifyBatch")
ITEM_CODES = (0, 1, 3, 4, 8, 9, 13, 14)  # those of the errors that an item can have
FILE_KINDS, FILE_OUTCOMES = ("certificate", "tokens"), ("taken", "refused")
LOADED = "loaded"
LOAD_OUTCOMES = (LOADED, *(kind.reason.lower() for kind in CHANGES), "other")
PROCESS_ENDS = ("killed", "exited", "device_lost", "hung", "engine_failed", "bad_message", "not_started")
"""Why a process was started again."""


class Method(NamedTuple):
    """A method of a service, as its metrics are labelled."""

    type: str  # unary, server_stream or bidi_stream
    service: str
    name: str

    @property
    def path(self) -> str:
        """The method's full name, without the first slash."""
        return f"{self.service}/{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        """Its labels of the gRPC metrics."""
        return {"grpc_type": self.type, "grpc_service": self.service, "grpc_method": self.name}


class Metrics:
    """The metrics of one server. Thread-safe.

    methods: all that are counted.
    """

    def __init__(self, methods: Iterable[Method] = (), *, version: str = "", commit: str = "") -> None:
        # A third of all series. It holds for the process, which has no other metrics.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry(auto_describe=True)
        process = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=process)
        rpc_families = families(RpcSeries, registry, "grpc_type", "grpc_service", "grpc_method")
        self._models = families(ModelSeries, registry, "model")
        server = families(ServerSeries, registry)
        self._server = bind(ServerSeries(), server)
        every = (*rpc_families.values(), *self._models.values(), *server.values())
        self._answered: dict[str, ModelMetrics] = {}
        self._exposition = Exposition(every, process)
        self._server.build(version, commit).set(1)
        # All series exist from the start: a rate over one that appears later misses its first event.
        self._rpcs = {method: bind(RpcSeries(), rpc_families, *method) for method in methods}
        self._handled = {method: [series.handled(code) for code in CODES] for method, series in self._rpcs.items()}
        self._items = {
            (method.name, code): self._server.items(method.name, CODES[code])
            for method in self._rpcs
            if method.name in ITEM_METHODS
            for code in ITEM_CODES
        }
        for reason in REJECT_REASONS:
            self._server.rejected(UNKNOWN_MODEL, reason)
        self.tenants, self.answer_cache = TenantMetrics(self._server, CODES), CacheMetrics(self._server)
        for kind in FILE_KINDS:
            for outcome in FILE_OUTCOMES:
                self._server.files_changed(kind, outcome)
        self._server.certificate_expiry.set(math.inf)

    def rpc_started(self, method: Method) -> None:
        """An RPC and its message arrived."""
        series = self._rpcs[method]
        series.started.inc()
        series.received.inc()
        self._server.in_flight.inc()

    def rpc_received(self, method: Method) -> None:
        """One more message of an RPC arrived."""
        self._rpcs[method].received.inc()

    def rpc_handled(self, method: Method, *, code: int, seconds: float, messages: int) -> None:
        """An RPC ended. code: the number of a gRPC status; messages: the number sent."""
        series = self._rpcs[method]
        self._handled[method][code].inc()
        series.handling.observe(seconds)
        series.sent.inc(messages)
        self._server.in_flight.dec()

    def item_ended(self, method: Method, *, code: int) -> None:
        """One of the items of an RPC ended. code: the number of a gRPC status."""
        self._items[method.name, code].inc()

    def rpcs_refused(self, method: Method, tenant: str, *, code: int, reason: str, seconds: float, count: int) -> None:
        """`count` RPCs ended unread after `seconds` each: together, as ten series for each would take as long as the
        rest of a refusal."""
        series = self._rpcs[method]
        series.started.inc(count)
        self._handled[method][code].inc(count)
        series.handling.observe_many(seconds, count)
        self._server.rejected(UNKNOWN_MODEL, reason.lower()).inc(count)
        self.tenants.ended(tenant, code, count)

    def tokens_wasted(self, model: str, tokens: int) -> None:
        """Tokens of an answer that an engine completed, and that no client got in time."""
        self._models["wasted"].labels(model).inc(tokens)

    def memory_predicted(self, peak_bytes: int) -> None:
        """How much memory all processes have at most."""
        self._server.predicted_memory.set(peak_bytes)

    def certificate_read(self, expires_s: float) -> None:
        """The server has a certificate, which expires so many seconds after 1970."""
        self._server.certificate_expiry.set(expires_s)

    def files_changed(self, kind: str, *, is_taken: bool) -> None:
        """Files of a kind changed, and the server has taken them over, or refused them."""
        self._server.files_changed(kind, FILE_OUTCOMES[not is_taken]).inc()

    def measure_backlog(self, age_s: Callable[[], float]) -> None:
        """age_s: called at every scrape, on its thread."""
        self._server.backlog_age.set_function(age_s)

    def request_rejected(self, error: RequestError, model: str = "") -> None:
        """A request was rejected before any work. model: empty where it was not known."""
        self._server.rejected(model, error.reason.lower()).inc()

    def request_answered(
        self,
        model: str,
        tenant: str,
        *,
        seconds: float,
        first_token_s: float,
        prompt_tokens: int,
        generated_tokens: int,
        trace_id: str,
    ) -> None:
        """A request was answered, so many seconds after it came."""
        model_metrics, shown = self._answered[model], {"trace_id": trace_id} if trace_id else None
        model_metrics.answered(seconds, prompt_tokens, generated_tokens, shown)
        self.tenants.answered(
            tenant,
            seconds=seconds,
            first_token_s=first_token_s,
            prompt_tokens=prompt_tokens,
            generated_tokens=generated_tokens,
        )

    def measure_state(self, is_ready: Callable[[], bool], is_draining: Callable[[], bool]) -> None:
        """Called at every scrape, on its thread."""
        self._server.ready.set_function(lambda: float(is_ready()))
        self._server.draining.set_function(lambda: float(is_draining()))

    def connection_closed(self) -> None:
        """A connection was closed because most of its calls came to nothing."""
        self._server.connections_closed.inc()

    def terms_translated(self, model: str, terms: int, met: int) -> None:
        """A text with so many terms of a glossary was translated, and its answer meets some of them."""
        self._models["terms"].labels(model).inc(terms)
        self._models["terms_met"].labels(model).inc(met)

    def model(self, name: str) -> ModelMetrics:
        """The metrics of a model, of all its versions together."""
        if found := self._answered.get(name):
            return found
        for reason in REJECT_REASONS:
            self._server.rejected(name, reason)
        self.answer_cache.know_model(name)
        model = ModelMetrics(name, bind(ModelSeries(), self._models, name), self._models)
        self._answered[name] = model
        return model

    def event_loop_worked(self, cpu_s: float, late_s: float) -> None:
        """The event loop has used so much more processor time, and its beat was so late."""
        self._server.event_loop_cpu.inc(cpu_s)
        self._server.event_loop_lag.set(late_s)

    def log_lines_dropped(self, count: int) -> None:
        """So many more lines of the log were dropped."""
        self._server.log_lines.inc(count)

    def render(self, kind: str = TEXT) -> bytes:
        """All metrics as text. kind: see `Exposition.render`."""
        return self._exposition.render(kind)


class ModelMetrics:
    """The metrics of one model. The event loop's thread counts."""

    def __init__(self, name: str, series: ModelSeries, families: Mapping[str, Any]) -> None:
        self._name, self._series, self._families = name, series, families
        self._description: dict[str, tuple[str, ...]] = {}
        self._measured: tuple[_Measured, ...] = ()  # one of each version that is open
        series.finished = {reason: series.finished(reason) for reason in END_REASONS}.__getitem__  # no other reason
        for kind in MEMORY_KINDS:
            series.memory(kind)
        self._processes_ended = {reason: series.processes_ended(reason) for reason in PROCESS_ENDS}
        self._loads = {outcome: series.loads(outcome) for outcome in LOAD_OUTCOMES}

    def load_ended(self, outcome: str) -> None:
        """A version was to be loaded; outcome: one of LOAD_OUTCOMES."""
        self._loads[outcome].inc()

    def describe(self, manifest: Manifest, choice: ExecutionChoice, version: str = "", bundle_sha256: str = "") -> None:
        """Sets the labels of a version that is the default from now on, or from now on runs elsewhere."""
        for attribute, labels in self._description.items():
            self._families[attribute].remove(self._name, *labels)
        self._description = {
            "info": (manifest.architecture, manifest.task, choice.precision, version, bundle_sha256),
            "provider": (choice.provider, choice.requested, str(int(choice.fallback))),
        }
        for attribute, labels in self._description.items():
            self._families[attribute].labels(self._name, *labels).set(1)

    def describe_move(self, manifest: Manifest, choice: ExecutionChoice, version: str, bundle_sha256: str) -> None:
        """A version runs elsewhere: `describe` if it is the default, or the first one."""
        if not self._description or self._description["info"][-2:] == (version, bundle_sha256):
            self.describe(manifest, choice, version, bundle_sha256)

    def measure(
        self,
        engines: Callable[[], Sequence[Any]],
        memory: Callable[[], Mapping[str, int]],
        processes: Callable[[], Mapping[str, Any]],
        limits: Callable[[], tuple[int, int]] = lambda: (0, 0),
        clock: Callable[[], float] = time.monotonic,
    ) -> Callable[[], None]:
        """Adds what is called at every scrape, on its thread, for one version. Returns what removes it again.

        engines: the state of each; memory: bytes by MEMORY_KINDS; processes: the last `Beat` of each by name, None of
        one that is not open; limits: rows, and requests that may wait. clock: seconds, that of heartbeats."""
        series, names = self._series, tuple(processes())
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
                    self._families[attribute].remove(self._name, name)

        return remove

    def _measure_all(self) -> None:
        """Sums over all versions, of those that are open at a scrape."""
        series = self._series

        def engines() -> list[Any]:
            return [engine for one in self._measured for engine in one.engines()]

        series.versions.set_function(lambda: len(self._measured))
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
        self._series.answered.observe(seconds, shown)
        self._series.prompt_length.observe(prompt_tokens)
        self._series.answer_length.observe(generated_tokens)

    def measured(self, measurements: Iterable[Measurement]) -> None:
        """Counts what engines measured. Raises ValueError and KeyError for what none measures."""
        for measurement in measurements:
            measurement.apply(self._series)

    def process_worked(self, process: str, cpu_s: float) -> None:
        """An engine process has used so much more processor time."""
        self._series.process_cpu(process).inc(cpu_s)

    def process_ended(self, reason: str) -> None:
        """An engine process ended; reason: one of PROCESS_ENDS."""
        self._processes_ended[reason].inc()


class _Measured(NamedTuple):
    """What is called at every scrape for one version. See `ModelMetrics.measure`."""

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
