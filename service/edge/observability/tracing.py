"""Spans on their way to a collector (`Tracing`): OTLP over gRPC, by the exporter of OpenTelemetry.

The only home of that library, which is loaded only with --otlp-endpoint. The event loop appends an ended call to a
bounded queue; a thread makes spans of it and sends them, so that a collector that is slow or down costs spans and
nothing else. Not the library's BatchSpanProcessor: it counts no lost spans, and its shutdown may take 30 s.
Certificates, headers, compression and timeout come from the exporter's own variables, OTEL_EXPORTER_OTLP_….
"""

from __future__ import annotations

import collections
import logging
import re
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from glossa.version import VERSION
from service.edge.observability import logs
from service.edge.observability.call_trace import CallTrace, Sampler, Span, state_of
from service.edge.observability.metrics import Method
from service.errors import StartupError
from service.settings.config import ServerSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

MAX_CALLS = 4096  # ended calls that wait to be sent, some 5 MB
BATCH = 128  # calls in one message to the collector
GATHER_S = 1.0  # for further calls, before a message
CLOSE_S = 2.0  # for what still waits, at the end
REPORTED_S = 60.0  # between two log lines about lost spans


class Exporter(Protocol):
    """Sends spans. Blocks until they have arrived or never will; `close`, from another thread, cuts that short."""

    def export(self, calls: Sequence[CallTrace]) -> str:
        """Why the spans were not sent, or empty."""

    def close(self) -> None: ...


class Tracing:
    """Which calls are traced, and the thread that sends their spans. Event-loop thread only, but for `close`."""

    def __init__(self, exporter: Exporter, ratio: float) -> None:
        """ratio: the share of calls without a parent that are traced."""
        self._exporter, self._sampler = exporter, Sampler(ratio)
        self._waiting = collections.deque[CallTrace]()
        self._dropped = 0  # calls, since the last line about them
        self._counting = threading.Lock()
        self._problem = ""
        self._reported_s = -REPORTED_S
        self._some, self._closing = threading.Event(), threading.Event()
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._send, name="tracing", daemon=True)
        self._thread.start()

    def begin(
        self,
        method: Method,
        request_id: str,
        parent: re.Match[str] | None,
        metadata: Iterable[tuple[str, str | bytes]],
        began_s: float,
    ) -> CallTrace | None:
        """The trace of a call, or None if it is not sampled. parent: of `call_trace.PARENT`."""
        if not self._sampler.samples(parent):
            return None
        state = state_of(metadata) if parent else ""
        return CallTrace(method, request_id, parent, state, began_s, self._ended)

    def _ended(self, call: CallTrace) -> None:
        if len(self._waiting) >= MAX_CALLS or self._closing.is_set():
            self._lost(1, f"{MAX_CALLS} calls wait already")
            return
        self._waiting.append(call)
        if not self._some.is_set():
            self._some.set()

    def close(self) -> None:
        """Sends what waits, for at most CLOSE_S, and ends the thread. A second call changes nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._some.set()
        self._thread.join(CLOSE_S)
        self._is_abandoned = True
        self._exporter.close()
        self._thread.join(CLOSE_S)
        if self._waiting:
            self._lost(len(self._waiting), self._problem or "the server ended")
        self._report()

    def _send(self) -> None:
        is_last = False
        while not is_last:
            self._some.wait()
            self._closing.wait(GATHER_S)
            self._some.clear()
            is_last = self._closing.is_set()
            while self._waiting and not self._is_abandoned:
                calls = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                if problem := self._exporter.export(calls):
                    self._lost(len(calls), problem)

    def _lost(self, calls: int, problem: str) -> None:
        with self._counting:
            self._dropped += calls
            self._problem = problem
        if time.monotonic() - self._reported_s >= REPORTED_S:
            self._report()

    def _report(self) -> None:
        with self._counting:
            count, self._dropped = self._dropped, 0
        if count:
            self._reported_s = time.monotonic()
            logs.event("traces_lost", {"count": count, "problem": self._problem}, level=logs.WARNING)


class OtlpExporter:
    """The exporter of OpenTelemetry, for calls."""

    def __init__(self, endpoint: str) -> None:
        """endpoint: http://HOST:PORT, or https:// for TLS. Raises ModuleNotFoundError where it is not installed."""
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        service = {"service.name": "glossa", "service.version": VERSION}
        self._resource = Resource.create(service)
        self._scope = InstrumentationScope("glossa", VERSION)
        self._exporter, self._success = OTLPSpanExporter(endpoint=endpoint), SpanExportResult.SUCCESS
        self._problems = _Problems()

    def export(self, calls: Sequence[CallTrace]) -> str:
        """See Exporter."""
        try:
            spans = [self._readable(call, span) for call in calls for span in call.spans()]
            return "" if self._exporter.export(spans) is self._success else self._problems.last
        except Exception as error:  # whatever the library raises must not end the thread
            return f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """See Exporter."""
        self._exporter.shutdown()

    def _readable(self, call: CallTrace, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

        trace_id, sampled = int(call.trace_id, 16), TraceFlags(TraceFlags.SAMPLED)
        state = TraceState.from_header([call.state]) if call.state else TraceState()
        parent = None
        if span.parent_id:
            parent = SpanContext(trace_id, span.parent_id, span.is_server, sampled, state)
        return ReadableSpan(
            span.name,
            context=SpanContext(trace_id, span.span_id, False, sampled, state),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if span.is_error else StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


class _Problems(logging.Handler):
    """What the library logs, which is a line for every attempt: the last one becomes the reason for lost spans."""

    def __init__(self) -> None:
        super().__init__()
        self.last = "unknown"
        library = logging.getLogger("opentelemetry")
        library.handlers[:] = [self]
        library.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.args:  # a line without any is about the end of retries, not about its cause
            self.last = record.getMessage()


def open_tracing(settings: ServerSettings) -> Tracing | None:
    """What sends spans to the endpoint of the settings; None without one. Raises StartupError."""
    if not settings.otlp_endpoint:
        return None
    try:
        exporter = OtlpExporter(settings.otlp_endpoint)
    except ModuleNotFoundError as error:
        raise StartupError(
            f"otlp_endpoint: needs OpenTelemetry, which is not installed ({error}); fix: pip install 'glossa[otel]', "
            "or leave out --otlp-endpoint"
        ) from None
    except Exception as error:
        raise StartupError(f"otlp_endpoint: the exporter cannot start: {error}; check OTEL_EXPORTER_OTLP_…") from None
    logs.event("tracing", {"endpoint": settings.otlp_endpoint, "sample_ratio": settings.trace_sample_ratio})
    return Tracing(exporter, settings.trace_sample_ratio)
