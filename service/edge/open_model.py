"""A bundle → a served model: its engine processes started, and what the edge itself reads of it.

The edge reads the manifest first, to plan the processes, and the tokenizer when they have opened the bundle: a process
that a damaged file brings down is theirs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from export.bundle import BundleError, CheckedBundle, check_bundle, load_shortlist, verify_files
from export.manifest import TOKENIZER, Shortlist
from glossa.version import VERSION
from model.tokenizer import Tokenizer, TokenizerError
from service.config import ServerSettings
from service.edge import logs
from service.edge.engine_link import EngineLink
from service.edge.metrics import Metrics, ModelMetrics
from service.edge.process_plan import ProcessPlan, engine_settings, opening_bytes, plan_processes
from service.edge.process_pool import PoolLimits, ProcessPool
from service.edge.served_model import ServedModel
from service.errors import StartupError
from service.huge_pages import with_huge_pages
from service.options import MAX_WIDTH
from service.processors import processors
from service.wire.messages import Start

T = TypeVar("T")


class ModelOpener:
    """Opens the models of one server. Event-loop thread only."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings, self._metrics, self._processors = settings, metrics, processors()
        engines = settings.engines or self._processors.usable
        most = 2 * (engines + len(settings.cuda_devices.split(","))) * len(settings.models)  # engines of all models
        self._table_file = os.memfd_create("glossa-busy", os.MFD_CLOEXEC)  # see `BusyEngines`
        weakref.finalize(self, os.close, self._table_file)
        os.ftruncate(self._table_file, most)
        self._table = mmap.mmap(self._table_file, most)
        self._next_engine = 0
        self._environment = with_huge_pages(os.environ) if settings.huge_pages else dict(os.environ)

    async def open(self, name: str, path: Path) -> ServedModel:
        """A model that answers. Raises StartupError naming the model; none of its processes is left then."""
        try:
            return await self._open(name, path)
        except (BundleError, TokenizerError, StartupError) as error:
            raise StartupError(f"model {name}: {error}") from error

    async def _open(self, name: str, path: Path) -> ServedModel:
        settings = self._settings
        bundle = await _in_thread(check_bundle, path, only=())
        manifest, digest = bundle.manifest, bundle.sha256
        plan = plan_processes(settings, manifest, self._processors)
        fields = {"model": name, "processes": plan.processes, "engines_per_process": plan.engines_per_process}
        logs.event("starting_engines", fields)
        metrics = self._metrics.model(name)
        first, self._next_engine = self._next_engine, self._next_engine + plan.engines
        start = partial(self._start, name, path, plan, opening_bytes(settings, manifest), metrics, first)
        limits = PoolLimits(
            rows=settings.max_rows,
            queued=math.ceil(settings.max_queue / plan.processes),
            start_s=settings.process_start_timeout_s,
            heartbeat_s=settings.heartbeat_timeout_s,
        )
        pool = ProcessPool(name, plan.processes, start, limits, metrics)
        opened = await pool.open()
        try:
            if opened.bundle_sha256 != digest:
                raise StartupError(f"{path} changed while it was opened; fix: start again")
            tokenizer, shortlist = await _in_thread(_read, bundle)
        except BaseException:
            await pool.aclose()
            raise
        metrics.measure(lambda: pool.states, lambda: pool.memory_bytes, lambda: pool.processes)
        model = ServedModel(
            name=name,
            manifest=manifest,
            choice=pool.choice,
            bundle_sha256=digest,
            tokenizer=tokenizer,
            pool=pool,
            shortlist=shortlist,
            max_hypotheses=min(MAX_WIDTH, settings.max_rows),
            draft_tokens=settings.draft_tokens if manifest.limits.max_block != 1 else 0,
            is_batch_invariant=opened.is_batch_invariant,
            processes=plan.processes,
            engines=pool.engines,
        )
        follow_choice(model, pool, metrics)
        return model

    def _start(
        self,
        name: str,
        path: Path,
        plan: ProcessPlan,
        opening: int,
        metrics: ModelMetrics,
        first: int,
        place: int,
        digest: str,
    ) -> EngineLink:
        each = plan.engines_per_process
        first += place * each
        self._table[first : first + each] = bytes(each)  # an earlier process of this place may have left its marks
        start = Start(
            program=VERSION,
            model=name,
            path=str(path),
            settings=engine_settings(self._settings, plan, place, opening_bytes=opening),
            first_engine=first,
            bundle_sha256=digest,
            checks_batches=place == 0 and not digest,
        )
        return EngineLink(
            f"{name}-{place}",
            start,
            self._table_file,
            metrics,
            self._environment,
            tenant_share=self._settings.tenant_share,
        )


def follow_choice(model: ServedModel, pool: ProcessPool, metrics: ModelMetrics) -> None:
    """Shows where the engines of a model run, now and whenever that changes."""

    def show() -> None:
        model.choice, model.engines = pool.choice, pool.engines
        metrics.describe(model.manifest, model.choice)

    pool.on_move = show
    show()


async def _in_thread(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Calls a function that reads files, in a thread that does not hold up the end of the process: storage may hang."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(done: concurrent.futures.Future[T]) -> None:
        if result.cancelled():
            return
        if error := done.exception():
            result.set_exception(error)
        else:
            result.set_result(done.result())

    def call() -> None:
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            done.set_result(function(*arguments, **named))
        except BaseException as error:
            done.set_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, done)

    threading.Thread(target=call, name="read-bundle", daemon=True).start()
    return await result


def _read(bundle: CheckedBundle) -> tuple[Tokenizer, Shortlist | None]:
    """What the edge needs of a bundle's other files. Raises BundleError, TokenizerError."""
    path, manifest = bundle.path, bundle.manifest
    stamps = verify_files(path, manifest, only={TOKENIZER, manifest.shortlist})
    vocab_size = manifest.limits.vocab_size
    tokenizer = Tokenizer.load(path / TOKENIZER, vocab_size=vocab_size)
    shortlist = load_shortlist(path / manifest.shortlist, vocab_size=vocab_size) if manifest.shortlist else None
    bundle._replace(stamps={**bundle.stamps, **stamps}).check_unchanged()
    return tokenizer, shortlist
