"""The composition root: settings in, a serving process out, and its way down again.

Up: ops port → gRPC port taken (but not yet answering) → bundles checked, sessions made, golden decode repeated →
answering → SERVING. Down, on SIGTERM or SIGINT: NOT_SERVING → still accepting for `drain_delay_s`, until balancers have
noticed → accepting nothing, `drain_timeout_s` for what runs → engines closed. A second signal ends the process at once.
Exactly one event loop has gRPC in it; engines are threads. No decision about a request is made here.
"""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import math
import os
import platform
import signal
import socket
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from export.bundle import MANIFEST, TOKENIZER, BundleError, load_bundle, load_shortlist
from model.tokenizer import Tokenizer, TokenizerError
from service.config import MAX_SINGLE_ENGINE_THREADS, ServerSettings, effective_cpus
from service.edge import logs
from service.edge.catalog import SERVICES as SERVICES_OF_TASK
from service.edge.catalog import Catalog, Provider, ServedModel, TextLimits
from service.edge.health import Health
from service.edge.metrics import CONTENT_TYPE, Metrics, ModelInfo
from service.edge.ops import OpsServer, explain_bind
from service.edge.servicer import RPCS, SERVICES, Servicer, generic_handlers
from service.engine.engine import Engine, EngineConfig
from service.engine.golden_check import check_golden_decode, is_batch_invariant
from service.engine.pool import EnginePool
from service.engine.scheduler import SchedulerConfig
from service.errors import StartupError
from service.options import MAX_WIDTH
from service.runtime.busy_engines import BusyEngines
from service.runtime.runner import SINGLE_ENGINE_MIN_BYTES, OnnxModel, OnnxRunner
from service.runtime.sessions import CPU, give_back_memory

BEAT_S = 0.5  # how often the event loop shows that it turns
MAX_PENDING = 1 << 16  # calls that no handler has yet; beyond 1,000 grpc would end some as CANCELLED, without a word
SETTLE_S = 5.0  # for handlers that grpc has aborted to come to their end

OpenModel = Callable[[str, Path, ServerSettings, Metrics], ServedModel]


def serve(settings: ServerSettings) -> None:
    """Serves until a signal and a drained server. Raises StartupError if it cannot start."""
    faulthandler.enable()
    writer = logs.LogWriter(settings.log_format)
    try:
        asyncio.run(_serve(settings, writer))
    finally:
        writer.close()


async def _serve(settings: ServerSettings, writer: logs.LogWriter) -> None:
    server = Server(settings)
    stopping = asyncio.Event()

    def on_signal(number: int) -> None:
        logs.event("signal", {"signal": signal.Signals(number).name, "state": server.state})
        if stopping.is_set() or server.state == "starting":  # nothing is lost, or somebody is in a hurry
            writer.close()
            os._exit(128 + number if stopping.is_set() else 0)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await server.start()
        await stopping.wait()
    finally:
        await server.stop()


def open_model(
    name: str, path: Path, settings: ServerSettings, metrics: Metrics, *, busy_engines: BusyEngines | None = None
) -> ServedModel:
    """A model that answers: files checked, sessions made, golden decode repeated, engines started. Blocks.

    busy_engines: of all engines that share the processors, when other models have some, too.
    Raises StartupError naming the model and what is wrong with it.
    """
    try:
        manifest = load_bundle(path)
        words = manifest.limits.vocab_size
        tokenizer = Tokenizer.load(path / TOKENIZER, vocab_size=words)
        shortlist = load_shortlist(path / manifest.shortlist, vocab_size=words) if manifest.shortlist else None
        cpus = effective_cpus()
        model = OnnxModel.open(
            path,
            manifest,
            device=settings.device,
            precision=settings.precision,
            single_engine_threads=settings.single_engine_threads or min(cpus, MAX_SINGLE_ENGINE_THREADS),
            single_engine_min_bytes=0 if settings.single_engine_threads else SINGLE_ENGINE_MIN_BYTES,
            single_engine_eagerly=settings.single_engine_threads > 1,
            busy_engines=busy_engines,
        )
        choice = model.choice
        engines = (settings.engines or cpus) if choice.provider == CPU else 1
        runners = [model.runner(max_rows=settings.max_rows) for _ in range(engines)]
        _check_answers(model, runners[0])
        is_apart = is_batch_invariant(runners[0], manifest)
    except (BundleError, TokenizerError, StartupError) as error:
        raise StartupError(f"model {name}: {error}") from error
    except Exception as error:  # what a device's libraries raise has no common class
        raise StartupError(
            f"model {name}: a first answer could not be computed: {error}; fix: free memory, or ask for --device cpu"
        ) from error
    draft_tokens = settings.draft_tokens if manifest.limits.max_block != 1 else 0
    config = EngineConfig(
        scheduler=SchedulerConfig(
            max_rows=settings.max_rows,
            kv_cache_bytes=max(1, settings.kv_cache_bytes // engines),
            max_prefill_tokens=settings.max_prefill_tokens,
            prefix_cache_bytes=settings.prefix_cache_bytes // engines,
            draft_tokens=draft_tokens,
        ),
        max_queue=math.ceil(settings.max_queue / engines),
    )
    report = metrics.model(
        name,
        ModelInfo(
            architecture=manifest.architecture,
            task=manifest.task,
            precision=choice.precision,
            provider=choice.provider,
            requested=choice.requested,
            fallback=choice.fallback,
        ),
    )
    report.memory(partial(_memory_bytes, model, runners))
    pool = EnginePool(
        [
            Engine(runner, tokenizer, config, report.engine(), name=f"engine-{name}-{place}")
            for place, runner in enumerate(runners)
        ]
    )
    pool.start()
    give_back_memory()
    return ServedModel(
        name=name,
        manifest=manifest,
        precision=choice.precision,
        bundle_sha256=hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest(),
        tokenizer=tokenizer,
        pool=pool,
        provider=Provider(
            name=choice.provider, requested=choice.requested, fallback=choice.fallback, reason=choice.reason
        ),
        shortlist=shortlist,
        max_hypotheses=min(MAX_WIDTH, settings.max_rows),
        draft_tokens=draft_tokens,
        is_batch_invariant=is_apart,
        open_attention=model.open_attend if manifest.attention_maps else None,
    )


_open_model = open_model  # `Server.__init__` has an argument of this name


def _memory_bytes(model: OnnxModel, runners: Sequence[OnnxRunner]) -> dict[str, int]:
    total = Counter({"weights": model.weight_bytes})
    for runner in runners:
        total.update(runner.memory_bytes())
    return dict(total)


def _check_answers(model: OnnxModel, runner: OnnxRunner) -> None:
    """Repeats the golden decode in all sessions: in those of an engine alone, and in those it shares."""
    check_golden_decode(
        runner, model.manifest, model.choice.precision
    )  # it is alone, unless other models answer already
    if model.single_engine_sessions:
        model.busy_engines.mark_busy(model)
        check_golden_decode(runner, model.manifest, model.choice.precision)
        model.busy_engines.mark_idle(model)


class Server:
    """One serving process, without its signals. `start` and `stop` run on the event loop that has gRPC in it."""

    def __init__(self, settings: ServerSettings, *, open_model: OpenModel | None = None) -> None:
        self.settings, self.state = settings, "starting"
        self.port = self.http_port = 0  # those in use, once started
        self._open_model = open_model or partial(_open_model, busy_engines=BusyEngines())
        self._version = version()
        self._metrics = Metrics(RPCS, version=self._version, commit=settings.commit)
        self._models: list[ServedModel] = []
        self._health = Health(SERVICES)
        self._ops: OpsServer | None = None
        self._grpc: Any = None
        self._servicer: Servicer | None = None
        self._beating: asyncio.Task[None] | None = None
        self._beat_s = time.monotonic()

    async def start(self) -> None:
        """Returns when SERVING. Raises StartupError; `stop` then still has to be called."""
        began_s, settings = time.monotonic(), self.settings
        self._ops = OpsServer(settings.http_host, settings.http_port, self)
        self.http_port = self._ops.port
        self._beating = asyncio.create_task(self._beat())
        self._grpc = grpc.aio.server(options=server_options(settings))
        self.port = self._listen()
        for name, path in settings.models.items():
            logs.event("loading_model", {"model": name, "bundle": str(path)})
            self._models.append(await asyncio.to_thread(self._open_model, name, path, settings, self._metrics))
        self._servicer = Servicer(
            Catalog(self._models, _text_limits(settings)),
            self._metrics,
            max_requests=settings.max_requests,
            default_deadline_s=settings.default_deadline_s,
            max_deadline_s=settings.max_deadline_s,
            stall_timeout_s=settings.stall_timeout_s,
            log_text=settings.log_text,
        )
        self._grpc.add_generic_rpc_handlers(tuple(generic_handlers(self._servicer)))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        if settings.reflection:
            names = (*SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._grpc)
        await self._grpc.start()
        self.state = "ready"
        self._show_health()
        self._announce(time.monotonic() - began_s)

    async def stop(self) -> None:
        """Drains and closes everything that was started, in the order that loses nothing."""
        was_ready, self.state = self.state == "ready", "draining"
        self._health.close()
        if was_ready:
            settings = self.settings
            logs.event("draining", {"drain_delay_s": settings.drain_delay_s, "timeout_s": settings.drain_timeout_s})
            await asyncio.sleep(settings.drain_delay_s)
        if self._grpc is not None:
            await self._grpc.stop(self.settings.drain_timeout_s if was_ready else None)
        if self._servicer is not None:
            try:
                await asyncio.wait_for(self._servicer.idle(), SETTLE_S)
            except TimeoutError:
                logs.event("unfinished_handlers", level=logs.WARNING)
        for model in self._models:
            await asyncio.to_thread(model.pool.close)
        if self._beating is not None:
            self._beating.cancel()
        if self._ops is not None:
            await asyncio.to_thread(self._ops.close)
        self.state = "stopped"
        logs.event("stopped")

    def _listen(self) -> int:
        host, port = self.settings.host, self.settings.port
        try:
            if port:  # the operating system says why; grpc does not
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((host, port))
            bound: int = self._grpc.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except OSError as error:
            raise StartupError(explain_bind(host, port, "port", error)) from None
        except RuntimeError as error:
            raise StartupError(f"port: cannot listen on {host}:{port}: {error}; choose another with --port") from None
        return bound

    async def _beat(self) -> None:
        while True:
            self._beat_s = time.monotonic()
            self._show_health()
            await asyncio.sleep(BEAT_S)

    def _show_health(self) -> None:
        """Tells gRPC health what the ops port says."""
        alive = self.state == "ready" and not self.problems()
        served = {name for model in self._models for name in SERVICES_OF_TASK[model.manifest.task]}
        known = {name for names in SERVICES_OF_TASK.values() for name in names}
        for service in SERVICES:
            name = service.rpartition(".")[2]
            self._health.set(service, alive and (name in served or name not in known))
        self._health.set("", alive)

    def _announce(self, seconds: float) -> None:
        settings = self.settings
        for model in self._models:
            provider = model.provider
            if provider.fallback:
                fields = {"model": model.name, "provider": provider.name, "requested": provider.requested}
                logs.event("provider_fallback", {**fields, "reason": provider.reason}, level=logs.WARNING)
            if not model.is_batch_invariant:
                logs.event("not_batch_invariant", {"model": model.name}, level=logs.WARNING)
        logs.event(
            "serving",
            {
                "grpc": f"{settings.host}:{self.port}",
                "http": f"{settings.http_host}:{self.http_port}",
                "models": {model.name: f"{model.precision} on {model.provider.name}" for model in self._models},
                "version": self._version,
                "start_s": round(seconds, 3),
            },
        )

    # ---- what the ops port asks, from its threads

    def problems(self) -> list[str]:
        now_s, limit_s = time.monotonic(), self.settings.heartbeat_timeout_s
        found = []
        if now_s - self._beat_s > limit_s:
            found.append(f"the event loop has not turned for {now_s - self._beat_s:.1f} s")
        for model in list(self._models):
            age_s = now_s - model.pool.heartbeat_s
            if not model.pool.is_healthy:
                found.append(f"model {model.name}: an engine failed")
            elif age_s > limit_s:
                found.append(f"model {model.name}: an engine has not turned for {age_s:.1f} s")
        return found

    def not_ready(self) -> list[str]:
        return [*([] if self.state == "ready" else [self.state]), *self.problems()]

    def exposition(self) -> tuple[bytes, str]:
        return self._metrics.render(), CONTENT_TYPE

    def version(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "commit": self.settings.commit,
            "python": platform.python_version(),
            "grpc": grpc.__version__,
            "models": {model.name: model.bundle_sha256 for model in list(self._models)},
        }


def server_options(settings: ServerSettings) -> list[tuple[str, int]]:
    """gRPC's own limits. Its default for each is none, or far too long for a server that strangers can reach."""

    def ms(seconds: float) -> int:
        return max(1, round(seconds * 1000))

    return [
        ("grpc.so_reuseport", 0),  # or a second server on the same port would start, and take half of the calls
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        # It counts calls that have ended and refuses new ones for them: of 1,000 at once on a connection, two thirds.
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_metadata_size", settings.max_metadata_bytes),
        ("grpc.server_handshake_timeout_ms", ms(settings.handshake_timeout_s)),
        ("grpc.keepalive_time_ms", ms(settings.keepalive_time_s)),
        ("grpc.keepalive_timeout_ms", ms(settings.keepalive_timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", ms(settings.min_ping_interval_s)),
        ("grpc.max_connection_age_ms", ms(settings.max_connection_age_s)),
        ("grpc.max_connection_age_grace_ms", ms(settings.max_connection_age_grace_s)),
    ]


def version() -> str:
    """The version of Glossa: of the installed package, or of the source tree this file is in."""
    try:
        return metadata.version("glossa")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parent.parent / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"]) if project.is_file() else "unknown"


def _text_limits(settings: ServerSettings) -> TextLimits:
    return TextLimits(
        max_text_bytes=settings.max_text_bytes,
        max_stop_strings=settings.max_stop_strings,
        max_stop_bytes=settings.max_stop_bytes,
    )
