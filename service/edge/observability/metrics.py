"""Every metric of the server, in a registry of its own. `metric_series` defines them.

`Metrics` belongs to a server, `version_metrics` has those of its models. Label values are fixed when the server starts,
but for names of open versions: no name, text or address of a client becomes one. Nothing here opens a port: `ops` calls
`render()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector

from service.edge.observability.cache_metrics import CacheMetrics
from service.edge.observability.exposition import TEXT, Exposition
from service.edge.observability.load_meter import LoadMeter
from service.edge.observability.metric_series import (
    ModelSeries,
    RpcSeries,
    ServerSeries,
    VersionSeries,
    bind,
    families,
)
from service.edge.observability.tenant_metrics import TenantMetrics
from service.edge.observability.traffic_series import TrafficMetrics
from service.edge.observability.version_metrics import REJECT_REASONS, ModelMetrics, VersionMetrics
from service.errors import RequestError

# gRPC status codes by number, spelled as go-grpc-prometheus does, so that its dashboards and alerts fit.
CODES = (
    *("OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists"),
    *("PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented"),
    *("Internal", "Unavailable", "DataLoss", "Unauthenticated"),
)

UNKNOWN = ""
ITEM_METHODS = ("TranslateBatch", "TranslateDocument", "ScoreBatch", "EmbedBatch", "ClassifyBatch")
ITEM_CODES = (0, 1, 3, 4, 8, 9, 13, 14)  # those of the errors that an item can have
FILE_KINDS, FILE_OUTCOMES = ("certificate", "tokens", "jwks"), ("taken", "refused")


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
        self._model_families = families(ModelSeries, registry, "model")
        self._version_families = families(VersionSeries, registry, "model", "version")
        server = families(ServerSeries, registry)
        self._server = bind(ServerSeries(), server)
        every = (*rpc_families.values(), *self._version_families.values(), *self._model_families.values())
        self.traffic = TrafficMetrics(registry)
        every += (*server.values(), *self.traffic.families)
        self._models: dict[str, ModelMetrics] = {}
        self.load = LoadMeter()
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
            self._rejected(UNKNOWN, reason)
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
        self.load.count(code)
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
        self.load.count(code, count)
        series.handling.observe_many(seconds, count)
        self._rejected(UNKNOWN, reason.lower()).inc(count)
        self.tenants.ended(tenant, code, count)

    def tokens_wasted(self, model: str, version: str, tokens: int) -> None:
        """Tokens of an answer that an engine completed, and that no client got in time."""
        if metrics := self._version(model, version):
            metrics.series.wasted.inc(tokens)

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

    def request_rejected(self, error: RequestError, model: str = "", version: str = "") -> None:
        """A request was rejected before any work. model, version: empty where they were not known."""
        reason, metrics = error.reason.lower(), self._version(model, version)
        (metrics.series.rejected(reason) if metrics else self._rejected(model, reason)).inc()

    def request_answered(
        self,
        model: str,
        version: str,
        tenant: str,
        *,
        seconds: float,
        first_token_s: float,
        prompt_tokens: int,
        generated_tokens: int,
        trace_id: str,
    ) -> None:
        """A request was answered, so many seconds after it came."""
        if metrics := self._version(model, version):
            metrics.answered(seconds, prompt_tokens, generated_tokens, {"trace_id": trace_id} if trace_id else None)
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

    def terms_translated(self, model: str, version: str, terms: int, met: int) -> None:
        """A text with so many terms of a glossary was translated, and its answer meets some of them."""
        if metrics := self._version(model, version):
            metrics.series.terms.inc(terms)
            metrics.series.terms_met.inc(met)

    def traffic_seen(self, model: str, version: str, unknown_tokens: int, confidences: Iterable[float]) -> None:
        """An answered request had so many unknown tokens, and its answers such confidences as are known."""
        if metrics := self._version(model, version):
            metrics.series.unknown_tokens.inc(unknown_tokens)
            for confidence in confidences:
                metrics.series.confidence.observe(confidence)

    def model(self, name: str) -> ModelMetrics:
        """The metrics of a model."""
        if (found := self._models.get(name)) is None:
            series = bind(ModelSeries(), self._model_families, name)
            found = self._models[name] = ModelMetrics(name, series, self._version_families)
        return found

    def _version(self, model: str, version: str) -> VersionMetrics | None:
        """The metrics of a version; None if it is not open, any more or yet: it must not get series again."""
        found = self._models.get(model)
        return found.versions.get(version) if found else None

    def _rejected(self, model: str, reason: str) -> Any:
        return self._version_families["rejected"].labels(model, UNKNOWN, reason)

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
