"""A bundle → a served model: its engine processes started, and what the edge itself reads of it.

The edge reads the manifest first, to plan the processes, and the tokenizer when they have opened the bundle: a process
that a damaged file brings down is theirs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from export.bundle.directory import BundleError, CheckedBundle, check_bundle, load_shortlist, verify_files
from export.bundle.manifest import TOKENIZER
from glossa.version import VERSION
from model.prompts.chat_tokens import ChatTokens
from model.prompts.template_files import TEMPLATES
from model.prompts.templates import NO_TEMPLATES, Templates, TemplatesError
from model.prompts.translation_prompts import TranslationPrompts
from model.prompts.translation_template import TranslationTemplateError
from model.tokenizer import Tokenizer, TokenizerError
from service.edge.models.answer_cache import AnswerCache
from service.edge.models.answer_confidence import words_per_token
from service.edge.models.engine_link import EngineLink
from service.edge.models.process_plan import ProcessMemory, ProcessPlan, engine_settings, plan_processes
from service.edge.models.process_pool import PoolLimits, ProcessPool
from service.edge.models.served_model import VERSION_DIGITS, ServedModel
from service.edge.observability import logs
from service.edge.observability.metrics import Metrics
from service.edge.observability.version_metrics import VersionMetrics
from service.edge.versions.memory_plan import process_memory
from service.errors import StartupError
from service.machine.huge_pages import with_huge_pages
from service.machine.processors import processors
from service.options import MAX_WIDTH
from service.settings.config import ServerSettings
from service.wire.messages import Start

T = TypeVar("T")
EXPECTED = (BundleError, TokenizerError, TemplatesError, StartupError, OSError)  # OSError: no open files left
MOVED = "its engine processes run, or have run, on different devices"
MAX_MORE_VERSIONS = 16  # open beside one of each model, those that drain included


class ModelOpener:
    """Opens the models of one server, and versions of them. Event-loop thread only.

    Each version has places of its own in the table of busy engines, and its processes have numbers that no other open
    version of the model has: the lowest free ones, so that there are never many different names.
    """

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self._settings, self._metrics, self._processors = settings, metrics, processors()
        engines = settings.engines or self._processors.usable
        self._most_engines = 2 * (engines + len(settings.cuda_devices.split(",")))  # of one version
        versions = len(settings.models) + (MAX_MORE_VERSIONS if settings.has_admin else 0)
        most = self._most_engines * versions
        self._free = list(range(versions))
        self._cache = _answer_cache(settings, metrics)
        self._numbers: dict[str, set[int]] = {name: set() for name in settings.models}  # of open processes, by model
        self._table_file = os.memfd_create("glossa-busy", os.MFD_CLOEXEC)  # see `BusyEngines`
        weakref.finalize(self, os.close, self._table_file)
        os.ftruncate(self._table_file, most)
        self._table = mmap.mmap(self._table_file, most)
        self._environment = with_huge_pages(os.environ) if settings.huge_pages else dict(os.environ)

    async def open(self, name: str, path: Path, version: str = "") -> ServedModel:
        """A model that answers. version: its name; empty for the first digits of the bundle's digest. Raises
        StartupError naming the model; none of its processes is left then."""
        if not self._free:
            raise StartupError(f"model {name}: {MAX_MORE_VERSIONS} more versions are open; fix: stop one of them first")
        numbers = self._numbers.setdefault(name, set())
        place, mine = self._free.pop(0), list[int]()
        first = self._most_engines * place

        def give_back() -> None:
            self._table[first : first + self._most_engines] = bytes(
                self._most_engines
            )  # marks that ended processes left
            self._free.append(place)
            numbers.difference_update(mine)

        with contextlib.ExitStack() as held:
            held.callback(give_back)
            try:
                model = await self._open(name, path, version, first, mine, held)
            except EXPECTED as error:
                raise StartupError(f"model {name}: {error}") from error
            model.on_closed = held.pop_all().close
            return model

    async def _open(
        self, name: str, path: Path, version: str, first: int, numbers: list[int], held: contextlib.ExitStack
    ) -> ServedModel:
        """first: the first of its engines in the table. numbers: gets its processes'. held: what ends with it."""
        settings = self._settings
        bundle = await in_thread(check_bundle, path, only=())
        manifest, digest = bundle.manifest, bundle.sha256
        plan = plan_processes(settings, manifest, self._processors)
        engines = {"processes": plan.processes, "engines_per_process": plan.engines_per_process}
        logs.event("starting_engines", {"model": name, **engines})
        metrics = self._metrics.model(name).open(version or digest[:VERSION_DIGITS])
        held.callback(metrics.close)
        free = (number for number in itertools.count() if number not in self._numbers[name])
        numbers += itertools.islice(free, plan.processes)
        self._numbers[name].update(numbers)
        memory = process_memory(settings, manifest, plan, self._processors)
        start = partial(self._start, name, path, plan, memory, metrics, first, numbers)
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
            read = await in_thread(_read, bundle)
        except BaseException:
            await pool.aclose()
            raise
        held.callback(
            metrics.measure(
                lambda: pool.states,
                lambda: pool.memory_bytes,
                lambda: pool.processes,
                lambda: (settings.max_rows * pool.engines, settings.max_queue),
            )
        )
        model = ServedModel(
            name=name,
            manifest=manifest,
            choice=pool.choice,
            bundle_sha256=digest,
            pool=pool,
            max_hypotheses=min(MAX_WIDTH, settings.max_rows),
            draft_tokens=settings.draft_tokens if manifest.limits.max_block != 1 else 0,
            is_batch_invariant=opened.is_batch_invariant,
            processes=plan.processes,
            engines=pool.engines,
            version=version,
            beats=lambda: pool.beats,
            **read,
        )
        follow_choice(model, pool, metrics)
        keep_answers(model, pool, self._cache, metrics)
        held.callback(setattr, pool, "on_move", lambda: None)  # or both would wait for a collection of garbage
        return model

    def _start(
        self,
        name: str,
        path: Path,
        plan: ProcessPlan,
        memory: ProcessMemory,
        metrics: VersionMetrics,
        first: int,
        numbers: Sequence[int],
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
            settings=engine_settings(self._settings, plan, place, memory),
            first_engine=first,
            bundle_sha256=digest,
            checks_batches=place == 0 and not digest,
        )
        return EngineLink(
            f"{name}-{numbers[place]}",
            start,
            self._table_file,
            metrics,
            self._environment,
            tenant_share=self._settings.tenant_share,
        )


def follow_choice(model: ServedModel, pool: ProcessPool, metrics: VersionMetrics) -> None:
    """Shows where the engines of a model run whenever that changes."""

    def show() -> None:
        if model.kept_answers is not None and pool.choice != model.choice:
            log_no_answers(model, MOVED)
            asyncio.get_running_loop().create_task(model.kept_answers.aclose())
            model.kept_answers = None
        model.choice, model.engines = pool.choice, pool.engines
        metrics.describe(model.manifest, model.choice, model.bundle_sha256)

    pool.on_move = show
    show()


def keep_answers(model: ServedModel, pool: ProcessPool, cache: AnswerCache | None, metrics: VersionMetrics) -> None:
    """Has the answers of a model kept, if there is a cache and they can be computed again, bit for bit."""
    if cache is None:
        return
    if problem := model.unrepeatable or (MOVED if pool.is_mixed else ""):
        log_no_answers(model, problem)
    else:
        model.kept_answers = cache.answers(metrics.series)


def log_no_answers(model: ServedModel, reason: str) -> None:
    """Says why answers of a model are not kept."""
    fields = {"model": model.name, "version": model.version, "reason": reason}
    logs.event("answers_not_cached", fields, level=logs.WARNING)


def _answer_cache(settings: ServerSettings, metrics: Metrics) -> AnswerCache | None:
    if not settings.answer_cache_bytes:
        return None
    return AnswerCache(
        settings.answer_cache_bytes,
        metrics.answer_cache,
        is_shared=settings.answer_cache_shared,
        keeps_anonymous=settings.unknown_tenants == "separate",
    )


async def in_thread(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
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


def _read(bundle: CheckedBundle) -> dict[str, Any]:
    """The fields of a `ServedModel` that come from a bundle's other files. Raises BundleError, TokenizerError,
    TemplatesError."""
    path, manifest = bundle.path, bundle.manifest
    stamps = verify_files(path, manifest, only={TOKENIZER, *TEMPLATES, manifest.shortlist})
    sizes = manifest.limits.vocab_sizes
    tokenizer = Tokenizer.load(path / TOKENIZER, **sizes)
    for side in (tokenizer, tokenizer.target):
        side.encode("a")  # the first text takes longer
    shortlist = load_shortlist(path / manifest.shortlist, **sizes) if manifest.shortlist else None
    chat, translation = _prompts(bundle, tokenizer)
    bundle._replace(stamps={**bundle.stamps, **stamps}).check_unchanged()
    words = words_per_token(tokenizer.target) if manifest.calibrations else 0
    return {
        "tokenizer": tokenizer,
        "shortlist": shortlist,
        "words_per_token": words,
        "chat": chat,
        "translation": translation,
    }


def _prompts(bundle: CheckedBundle, tokenizer: Tokenizer) -> tuple[ChatTokens | None, TranslationPrompts | None]:
    """What encodes chats, and texts to translate, of a model without an encoder. Raises TemplatesError."""
    path, manifest = bundle.path, bundle.manifest
    try:
        templates = Templates.read(path, manifest.files) if manifest.task == "generation" else NO_TEMPLATES
        chat = ChatTokens(tokenizer, templates.chat) if templates.chat else None
        if templates.translation is None:
            return chat, None
        return chat, TranslationPrompts(templates.translation, tokenizer, chat)
    except (TemplatesError, TranslationTemplateError) as error:
        where = "" if isinstance(error, TemplatesError) else f"{path}: "
        raise TemplatesError(f"{where}{error}; import and export the model again") from error
