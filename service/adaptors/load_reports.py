"""Load reports in the form of ORCA, by which the weighted round robin of gRPC and of Envoy choose replicas.

Two ways, as gRPC's proposals A51 and A58 have them: a stream of reports (`StreamCoreMetrics`), and a report in the
trailing metadata of calls, of those that ask (`load_reports` asked) or of all. The protocol has no way to ask for the
latter; ASKS_LOAD of `service.edge.calls.calls` is the header by which clients of other model servers do. While nobody
asks, nothing is measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from service.adaptors.orca import load_report_pb2, load_service_pb2
from service.edge.models.served_model import ServedModel
from service.edge.observability.load_meter import Load, LoadMeter, Sample, Trailers
from service.edge.requests.catalog import Catalog
from service.edge.security.access import Guard
from service.edge.security.checked_services import CheckedServices
from service.machine.cgroups import memory_limit
from service.machine.process_memory import resident_bytes
from service.machine.processors import processors
from service.settings.config import ServerSettings

TRAILER = "endpoint-load-metrics-bin"
LOOK_S = 0.1
UNASKED_S = 60.0  # without a stream and a call that asks, until nothing is measured any more
MAX_STREAMS = 512  # as of watchers of health: a report each second costs the event loop some 0.1 ms
SERVICE = load_service_pb2.DESCRIPTOR.services_by_name["OpenRcaService"].full_name


class LoadReports:
    """The reports of one server. Event-loop thread only."""

    def __init__(
        self,
        settings: ServerSettings,
        meter: LoadMeter,
        catalog: Catalog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: seconds."""
        self._mode, self._least_s = settings.load_reports, settings.min_load_report_interval_s
        self._rows, self._meter, self._catalog, self._clock = settings.max_rows, meter, catalog, clock
        found = processors()
        self._processors = min(found.allowed, found.quota or found.allowed)
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._memory_bytes = min(machine_bytes, memory_limit() or machine_bytes)
        self._streams, self._asked_s = 0, -UNASKED_S
        self._asked = asyncio.Event()
        self._trailers: Trailers = ()  # of the last look
        meter.measure = self._sample
        if self._mode != "none":
            meter.trailers = self._trailers_for

    @property
    def services(self) -> tuple[str, ...]:
        """The full names of the services that are added."""
        return (SERVICE,) if self._mode != "none" else ()

    def add_to(self, server: Any, guard: Guard) -> None:
        """Adds the service to a gRPC server that has not started, unless no reports are wanted."""
        handler = grpc.unary_stream_rpc_method_handler(
            self.StreamCoreMetrics,
            request_deserializer=load_service_pb2.OrcaLoadReportRequest.FromString,
            response_serializer=load_report_pb2.OrcaLoadReport.SerializeToString,
        )
        for service in self.services:
            CheckedServices(server, guard).add_registered_method_handlers(service, {"StreamCoreMetrics": handler})

    async def run(self) -> None:
        """Measures as long as somebody asks."""
        while True:
            await self._asked.wait()
            while self._streams or self._clock() - self._asked_s < UNASKED_S:
                self._look()
                await asyncio.sleep(LOOK_S)
            self._asked.clear()
            self._meter.forget()
            self._trailers = ()

    async def StreamCoreMetrics(
        self, request: load_service_pb2.OrcaLoadReportRequest, context: Any
    ) -> AsyncIterator[load_report_pb2.OrcaLoadReport]:
        asked = request.report_interval
        interval_s = asked.seconds + asked.nanos / 1e9
        if interval_s < 0:
            rule = "must be 0 for the shortest one, or positive"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"report_interval: {rule}, got {interval_s:g} s")
        if self._streams >= MAX_STREAMS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MAX_STREAMS} concurrent streams of load reports"
            )
        self._streams += 1
        try:
            self._ask()
            while True:
                yield report_of(self._meter.load, self._processors)
                await asyncio.sleep(max(interval_s, self._least_s))
        finally:
            self._streams -= 1

    def _ask(self) -> None:
        self._asked_s = self._clock()
        if not self._asked.is_set():
            self._asked.set()
            self._look()

    def _trailers_for(self, asked: bool) -> Trailers:
        if asked or self._mode == "all":
            self._ask()
            return self._trailers
        return ()

    def _look(self) -> None:
        self._meter.look(self._clock())
        self._trailers = ((TRAILER, report_of(self._meter.load, self._processors).SerializeToString()),)

    def _sample(self) -> Sample:
        models = self._catalog.defaults
        states = [(model, model.states()) for model in models]
        beats = [beat for model in models for beat in model.beats()]
        memory = resident_bytes() + sum(beat.resident_bytes for beat in beats)
        return Sample(
            fullness=max([self._fullness(model) for model in models], default=0.0),
            waiting=sum(state.queued for _, found in states for state in found),
            running=sum(state.rows for _, found in states for state in found),
            kv_cache=max([state.kv_ratio for _, found in states for state in found], default=0.0),
            memory=min(1.0, memory / self._memory_bytes),
            cpu_s=time.process_time() + sum(beat.cpu_s for beat in beats),
        )

    def _fullness(self, model: ServedModel) -> float:
        wanted = sum(state.hypotheses + state.queued for state in model.states())
        return wanted / (self._rows * max(1, model.engines))


def report_of(load: Load, processors: float) -> load_report_pb2.OrcaLoadReport:
    """The message. processors: that the server may use."""
    return load_report_pb2.OrcaLoadReport(
        application_utilization=load.fullness,
        cpu_utilization=load.cpu / processors,
        mem_utilization=load.memory,
        rps_fractional=load.calls,
        eps=load.failures,
        # Named as vLLM's reports name them, of which balancers of inference servers know.
        named_metrics={
            "num_requests_waiting": load.waiting,
            "num_requests_running": load.running,
            "kv_cache_usage_perc": load.kv_cache,
        },
    )
