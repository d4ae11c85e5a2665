"""The composition root: settings → a serving process, and its shutdown.

Start: ops port → gRPC port bound (but not yet answering) → engine processes of all models started, bundles opened →
answering → SERVING. Shutdown, on SIGTERM or SIGINT: NOT_SERVING → still accepting for `drain_delay_s`, until load
balancers have noticed (not on SIGINT without an open call) → refusing calls, `drain_timeout_s` for open ones →
connections closed → engines closed. A second signal ends the process at once, and its engine processes end with it.
Exactly one event loop runs gRPC. No decision about a request is made here.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import platform
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from glossa.version import VERSION
from service.adaptors.load_reports import LoadReports
from service.adaptors.selection import Adaptors
from service.edge.admission.backlog import Collapse
from service.edge.admission.connections import finish_sending, stop_listening
from service.edge.admission.preparation import Preparation
from service.edge.calls.calls import Calls
from service.edge.calls.shadows import Shadows
from service.edge.models.served_model import ServedModel
from service.edge.observability import logs
from service.edge.observability.exposition import content_type
from service.edge.observability.health import Health
from service.edge.observability.metrics import Metrics
from service.edge.observability.ops import OpsServer, check_bind
from service.edge.requests.catalog import SERVICES as SERVICES_OF_TASK
from service.edge.requests.catalog import Catalog, services_of
from service.edge.requests.glossaries import Glossaries
from service.edge.requests.request_limits import TextLimits
from service.edge.rpcs.reflection import add_reflection
from service.edge.rpcs.rpc_handlers import handlers_of
from service.edge.rpcs.servicer import RPCS, SERVICES, Servicer
from service.edge.security.access import HEALTH
from service.edge.security.checked_services import CheckedServices
from service.edge.security.grpc_options import server_options
from service.edge.security.security import Port, Security
from service.edge.versions.admin import AdminServer
from service.edge.versions.canaries import Canaries
from service.edge.versions.memory_plan import tell_memory
from service.edge.versions.open_model import ModelOpener
from service.edge.versions.reloader import OpenModel, Reloader
from service.errors import StartupError
from service.machine.process_memory import no_core_dumps, settle
from service.machine.returned_memory import give_back_what_calls_took
from service.request import Caller
from service.settings.config import ServerSettings

BEAT_S = 0.5  # how often the event loop shows that it runs
CLOSE_S = 1.0  # for clients to close their connections, at the end


def serve(settings: ServerSettings) -> None:
    """Serves until a signal and a drained server. If it cannot start, raises StartupError, or SystemExit after a log in
    JSON, whose last line has the cause and the fix."""
    no_core_dumps()
    faulthandler.enable()
    writer = logs.LogWriter(settings.log_format)
    logs.take_over_stderr()
    try:
        asyncio.run(_serve(settings, writer))
    except StartupError as error:
        if writer.is_pretty:
            raise
        cause, _, fix = str(error).partition("; fix: ")
        logs.event("start_failed", {"cause": cause, "fix": fix}, level=logs.ERROR)
        raise SystemExit(1) from None
    finally:
        writer.close()


async def _serve(settings: ServerSettings, writer: logs.LogWriter) -> None:
    server = Server(settings, log_lines_dropped=lambda: writer.dropped)
    stopping, received = asyncio.Event(), list[int]()

    def on_signal(number: int) -> None:
        logs.event("signal", {"signal": signal.Signals(number).name, "state": server.state})
        if stopping.is_set() or server.state == "starting":  # the second signal, or nothing to drain
            writer.close()
            os._exit(128 + number if stopping.is_set() else 0)
        received.append(number)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await server.start()
        settle()
        await stopping.wait()
    finally:
        await server.stop(interrupted=received == [signal.SIGINT])


class Server:
    """One serving process, without its signals. `start` and `stop` run on the event loop that has gRPC in it."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        open_model: OpenModel | None = None,
        log_lines_dropped: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: seconds, the clock of deadlines."""
        self.settings, self.state = settings, "starting"
        self.port = self.http_port = self.admin_port = 0  # those in use, once started
        self._adaptors = Adaptors(settings)
        self.metrics = Metrics((*RPCS, *self._adaptors.rpcs), version=VERSION, commit=settings.commit)
        self._log_lines_dropped = log_lines_dropped
        self._security = Security(settings, self.metrics)
        named = (*settings.tenant_weights, *settings.tenant_tokens_per_minute, *self._security.tenants)
        self.metrics.tenants.know(named)
        self.metrics.measure_state(lambda: not self.not_ready(), lambda: self.state == "draining")
        self.calls = Calls(self.metrics, settings, self._predicted_s, clock, self._security.guard)
        self._clock = clock
        self._preparation = Preparation(settings.tenant_share)
        limits = TextLimits(
            max_text_bytes=settings.max_text_bytes,
            max_stop_strings=settings.max_stop_strings,
            max_stop_bytes=settings.max_stop_bytes,
            max_document_bytes=settings.max_document_bytes,
            max_message_bytes=settings.max_message_bytes,
        )
        self._catalog, self._glossaries = Catalog(limits=limits), Glossaries(settings.glossaries)
        opener = open_model or ModelOpener(settings, self.metrics).open
        self._reloader = Reloader(self._catalog, opener, settings, self.metrics, self._show_health)
        self._admin: AdminServer | None = None
        self._predicted: list[tuple[str, bool]] = []  # of what memory was last predicted
        self._opening: dict[str, float] = {}  # since when, by model
        self.health = Health((*SERVICES, *self._adaptors.services))
        self._ops: OpsServer | None = None
        self._grpc: Any = None
        self._collapse = Collapse(settings.max_backlog_age_s)
        self._measuring: asyncio.Task[None] | None = None  # of the backlog
        self._running: list[asyncio.Task[None]] = []  # until the end
        self._beat_s = self._clock()

    async def start(self) -> None:
        """Returns when SERVING. Raises StartupError; `stop` then still has to be called."""
        began_s, settings = self._clock(), self.settings
        self._ops = OpsServer(settings.http_host, settings.http_port, self)
        self.http_port = self._ops.port
        self._running.append(asyncio.create_task(self._beat()))
        self._grpc = grpc.aio.server(options=server_options(settings))
        port = self._listen()
        self.port = port.number
        await _open_models(self._reloader, settings, self._opening)
        servicer = Servicer(
            self._catalog, self._preparation, self.calls.items, self._glossaries, log_text=settings.log_text
        )
        shadows = Shadows(self._catalog, self.calls.memory, self.metrics.traffic, self._clock)
        handlers = handlers_of(Servicer.FILE, servicer, self.calls, around=shadows.around)
        backlog = self.calls.admission.backlog
        self._grpc.add_generic_rpc_handlers((*handlers, backlog.handler()))
        guard = self._security.guard
        self._adaptors.add_to(self._grpc, guard, self.calls, servicer, self.not_ready)
        reports = LoadReports(settings, self.metrics.load, self._catalog)
        reports.add_to(self._grpc, guard)
        self.metrics.measure_backlog(lambda: backlog.age_s)
        urgent: Any = CheckedServices(self._grpc, guard, is_urgent=True)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, urgent)
        if settings.reflection:
            add_reflection(self._grpc, guard, (*SERVICES, *self._adaptors.services, *reports.services, HEALTH))
        running = (give_back_what_calls_took(), reports.run(), *self._security.watching(), *self._glossaries.watching())
        self._running += [asyncio.create_task(each) for each in running]
        if settings.has_admin:
            canaries = Canaries(self._catalog, self._reloader, shadows, self.metrics, self._clock)
            self._admin = AdminServer(self._reloader, canaries, self._security, settings)
            self.admin_port = await self._admin.start()
        await self._grpc.start()
        self._measuring = asyncio.create_task(backlog.measure(port.own_address))
        self.state = "ready"
        self._show_health()
        self._predict_memory()
        self._announce(self._clock() - began_s)
        self._security.warn(self.port)

    async def stop(self, *, interrupted: bool = False) -> None:
        """Drains and closes everything that was started, in the order that loses nothing.

        interrupted: stopped at a terminal, where no balancer has to notice; without an open call there is no delay.
        """
        was_ready, self.state = self.state == "ready", "draining"
        self.health.close()
        self._reloader.refuse()
        if was_ready:
            delay_s = 0.0 if interrupted and self.calls.is_idle else self.settings.drain_delay_s
            logs.event("draining", {"drain_delay_s": delay_s, "drain_timeout_s": self.settings.drain_timeout_s})
            await asyncio.sleep(delay_s)
            if self._measuring is not None:
                self._measuring.cancel()  # its connection would be one to drain
            if unfinished := await self.calls.drain(self.settings.drain_timeout_s):
                logs.event("unfinished_calls", {"count": unfinished}, level=logs.WARNING)
            await self._close_connections()
        if self._grpc is not None:
            await self._grpc.stop(None)
        if self._admin is not None:
            await self._admin.aclose()
        await self._reloader.aclose()
        self._preparation.close()
        for task in self._running:
            task.cancel()
        if self._ops is not None:
            await asyncio.to_thread(self._ops.close)
        await self.calls.close()
        self.state = "stopped"
        logs.event("stopped")

    async def _close_connections(self) -> None:
        """Ends the connections of clients. gRPC's `stop` comes after that: calls that it finds end as CANCELLED, which
        no client tries again; on a connection that has ended they are UNAVAILABLE."""
        await asyncio.to_thread(stop_listening, self.port)
        until_s = time.monotonic() + CLOSE_S
        while await asyncio.to_thread(finish_sending, self.port) and time.monotonic() < until_s:
            await asyncio.sleep(CLOSE_S / 100)

    def _listen(self) -> Port:
        host, port = self.settings.host, self.settings.port
        check_bind(host, port, "port")  # grpc does not report why it fails
        try:
            return self._security.listen(self._grpc, host, port)
        except RuntimeError as error:
            problem = f"port: cannot listen on {host}:{port}: {error}"
            raise StartupError(f"{problem}; fix: choose another with --port") from None

    def _predicted_s(self, caller: Caller) -> float:
        return min([model.pool.predicted_s(caller) for model in self._catalog.defaults], default=0.0)

    async def _beat(self) -> None:
        cpu_s, dropped = 0.0, 0
        while True:
            before_s, self._beat_s = self._beat_s, self._clock()
            self._note_collapse()
            cpu_s, used_s = time.thread_time(), cpu_s
            dropped, before = self._log_lines_dropped(), dropped
            self.metrics.event_loop_worked(cpu_s - used_s, max(0.0, self._beat_s - before_s - BEAT_S))
            self.metrics.log_lines_dropped(dropped - before)
            self.calls.unwritten.end_stalled()
            self._show_health()
            if self.state == "ready" and _places(self._reloader.open_models) != self._predicted:
                self._predict_memory()
            await asyncio.sleep(BEAT_S)

    def _note_collapse(self) -> None:
        collapse, was_there = self._collapse, self._collapse.is_there
        collapse.update(self.calls.admission.backlog.age_s, self._beat_s)
        if collapse.is_there != was_there:
            event = "backlog_collapsed" if collapse.is_there else "backlog_recovered"
            logs.event(event, {"age_s": round(collapse.age_s, 3)}, level=logs.WARNING)

    def _show_health(self) -> None:
        """Copies readiness to gRPC health. A service is well if all models that it serves are, and it has any.

        Calls that are refused change nothing: the server is as useful as it can be, and a balancer that left it out
        would move its whole load to others. If calls wait too long even to be refused, each is better off elsewhere.
        """
        alive = self.state == "ready" and not self.problems() and not self._collapse.is_there
        models_of = {
            name: [model for model in self._catalog.defaults if name in services_of(model)]
            for names in SERVICES_OF_TASK.values()
            for name in names
        }
        for service in (*SERVICES, *self._adaptors.services):
            models = models_of.get(service.rpartition(".")[2], self._catalog.defaults)
            self.health.set(service, alive and bool(models) and all(model.pool.is_ready for model in models))
        self.health.set("", alive and not self.not_ready())

    def _predict_memory(self) -> None:
        models = self._reloader.open_models
        self._predicted = _places(models)
        self.metrics.memory_predicted(tell_memory(self.settings, models))

    def _announce(self, seconds: float) -> None:
        settings = self.settings
        for model in self._catalog.defaults:
            choice = model.choice
            if choice.fallback:
                fields = {"model": model.name, "provider": choice.provider, "requested": choice.requested}
                logs.event("provider_fallback", {**fields, "reason": choice.reason}, level=logs.WARNING)
            if not model.is_batch_invariant:
                logs.event("not_batch_invariant", {"model": model.name}, level=logs.WARNING)
        logs.event(
            "serving",
            {
                "grpc": f"{settings.host}:{self.port}",
                "http": f"{settings.http_host}:{self.http_port}",
                "tls": self._security.tls,
                "tokens": settings.has_tokens,
                "adaptors": settings.adaptors,
                "models": {
                    model.name: f"{model.placement} of {settings.max_rows} rows" for model in self._catalog.defaults
                },
                "version": VERSION,
                "start_s": round(seconds, 3),
            },
        )

    # The threads of the ops port call the four methods that follow.
    def problems(self) -> list[str]:
        now_s, limit_s = self._clock(), self.settings.heartbeat_timeout_s
        found = []
        if now_s - self._beat_s > limit_s:
            found.append(f"the event loop has not turned for {now_s - self._beat_s:.1f} s")
        for model in self._catalog.defaults:
            found += [f"model {model.name}: {problem}" for problem in model.pool.problems()]
        return found

    def not_ready(self) -> list[str]:
        now_s, limit_s = time.monotonic(), self.settings.start_timeout_s
        waiting = [
            f"model {name}: opening {self.settings.models[name]} for {now_s - since_s:.0f} s of at most {limit_s:g} s"
            for name, since_s in list(self._opening.items())
        ]
        waiting += [
            f"model {model.name}: no engine runs" for model in self._catalog.defaults if not model.pool.is_ready
        ]
        collapse = self._collapse
        if collapse.is_there:
            most_s = self.settings.max_backlog_age_s
            waiting.append(f"calls wait {collapse.age_s:.2g} s before the server sees them, more than {most_s:g} s")
        return [*([] if self.state == "ready" else [self.state]), *self.problems(), *waiting]

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        kind = content_type(accept)
        return self.metrics.render(kind), kind

    def version(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "commit": self.settings.commit,
            "python": platform.python_version(),
            "grpc": grpc.__version__,
            "models": {model.name: model.bundle_sha256 for model in self._catalog.defaults},
        }


async def _open_models(reloader: Reloader, settings: ServerSettings, opening_since: dict[str, float]) -> None:
    """Opens all models concurrently. Raises StartupError when the first fails, or when time is up; `stop` closes
    those that opened. opening_since: shows for how long each has been opened."""
    limit_s = settings.start_timeout_s

    async def open_model(name: str, path: Path) -> None:
        logs.event("loading_model", {"model": name, "bundle": str(path)})
        opening_since[name] = time.monotonic()
        await reloader.open_first(name, path)
        del opening_since[name]

    try:
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as opening:
            for name, path in settings.models.items():
                opening.create_task(open_model(name, path))
    except TimeoutError:
        raise StartupError(
            f"{', '.join(opening_since)}: not open within {limit_s:g} s; fix: check the storage of the bundles and "
            "the machine's memory, or raise --start-timeout-s"
        ) from None
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _places(models: Sequence[ServedModel]) -> list[tuple[str, bool]]:
    return [(f"{model.name}@{model.version}", model.choice.on_device) for model in models]
