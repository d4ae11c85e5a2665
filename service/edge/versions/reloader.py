"""Exchanges the models of a server while it runs: opens versions of them, makes one the default, ends others.

A version is opened in engine processes of its own, which verify its bundle and repeat the golden decode; until then,
and if anything fails, nothing changes. Traffic moves in one step on the event loop. A version that is left gets no more
requests, and is closed when the last call that has found it ends: no answer comes from two versions.
Event-loop thread only. Nothing here knows gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from export.bundle.directory import BundleError, CheckedBundle, check_bundle
from export.bundle.manifest import Manifest
from service.edge.models.served_model import VERSION_DIGITS, ServedModel
from service.edge.observability import logs
from service.edge.observability.metrics import Metrics
from service.edge.observability.version_metrics import LOAD_OUTCOMES, LOADED
from service.edge.requests.catalog import Catalog
from service.edge.versions.evaluation import EvaluationSet
from service.edge.versions.open_model import in_thread
from service.edge.versions.version_checks import Scores, check_fit, compare
from service.errors import (
    CHANGES,
    InvalidRequest,
    RequestError,
    ShuttingDown,
    StartupError,
    VersionConflict,
    VersionRefused,
)
from service.machine.cgroups import memory_limit
from service.settings.config import ServerSettings
from service.settings.setting_types import MODEL_NAME

OpenModel = Callable[..., Awaitable[ServedModel]]  # of a name, a path and, but for the first one, a version
OPENING, SERVING, DRAINING = "opening", "serving", "draining"
SHARE_OF_ITEMS = 0.5  # of the time until a version that is left must be closed: calls may begin items


@dataclass(frozen=True, kw_only=True)
class Order:
    """A version to load. path: of its bundle; None: that of the default version. version: empty: by the bundle's
    digest. bundle_sha256: what it must be; empty: anything. test_set: see `EvaluationSet`."""

    model: str
    path: Path | None = None
    version: str = ""
    keep_default: bool = False
    keep_previous: bool = False
    test_set: EvaluationSet | None = None
    bundle_sha256: str = ""


class Loaded(NamedTuple):
    """A version that serves, and how it compares."""

    model: ServedModel
    scores: Scores | None = None


class Status(NamedTuple):
    """One version, as `Reloader.statuses` reports it. model: None while it is being opened."""

    name: str
    version: str
    state: str
    path: Path
    is_default: bool = False
    model: ServedModel | None = None
    weight: int = 0  # of a hundred requests that name no version
    shadow_share: int = 0


@dataclass
class _Change:
    """A model that is being changed, and what of it is known."""

    version: str = ""
    path: Path = Path()
    manifest: Manifest | None = None


class _Previous(NamedTuple):
    """The default before the present one."""

    version: str
    path: Path
    bundle_sha256: str


class Reloader:
    """Opens and closes all models of one server, in its catalog."""

    def __init__(
        self,
        catalog: Catalog,
        open_model: OpenModel,
        settings: ServerSettings,
        metrics: Metrics,
        on_exchange: Callable[[], object],
        *,
        read_bundle: Callable[[Path], CheckedBundle] = lambda path: check_bundle(path, only=()),
        limit_bytes: Callable[[], int | None] = memory_limit,
    ) -> None:
        """on_exchange: called when other versions serve than before. read_bundle: reads the manifest alone.
        limit_bytes: of the server's memory; None: there is none."""
        self._catalog, self._open_model, self._settings, self._metrics = catalog, open_model, settings, metrics
        self._on_exchange, self._read_bundle, self._limit_bytes = on_exchange, read_bundle, limit_bytes
        self._changes: dict[str, _Change] = {}  # by model
        self._draining: list[tuple[ServedModel, asyncio.Task[None]]] = []
        self._previous: dict[str, _Previous] = {}
        self._is_closing, self._closing = False, asyncio.Event()

    @property
    def open_models(self) -> list[ServedModel]:
        """All versions that have engines, those that drain included."""
        return [*self._catalog, *(model for model, _ in self._draining)]

    async def open_first(self, name: str, path: Path) -> None:
        """Opens a model at the start. Raises StartupError."""
        model = await self._open_model(name, path)
        model.path = path.absolute()  # `roll_back` loads it from there again
        self._catalog.add(model)
        self._metrics.model(name).make_default(model.version)

    async def load(self, order: Order) -> Loaded:
        """Opens a version and gives it its place; nothing changes if that fails. Raises RequestError."""
        default = self._catalog.default(order.model)
        outcome = LOAD_OUTCOMES[-1]
        try:
            loaded = await self._load(order, default)
            outcome = LOADED
        except RequestError as error:
            outcome = error.reason.lower() if isinstance(error, CHANGES) else outcome
            raise
        finally:
            self._metrics.model(order.model).load_ended(outcome)
        return loaded

    async def _load(self, order: Order, default: ServedModel) -> Loaded:
        path = order.path or default.path
        if not path.is_absolute() and order.path is not None:
            raise InvalidRequest("path", f"must be an absolute path on the server, got {path}")
        if order.version and not MODEL_NAME.fullmatch(order.version):
            problem = "must be 1..63 letters, digits, '.', '_', '-', a letter or digit first"
            raise InvalidRequest("version", f"{problem}, got {order.version!r}")
        if order.test_set is not None:
            order.test_set.check()
        fields = {"model": order.model, "version": order.version, "bundle": str(path)}
        with self._changing(order.model, _Change(order.version, path)) as change:
            logs.event("loading_version", fields)
            try:
                loaded = await self._loaded(order, change)
            except RequestError as error:
                logs.event("version_refused", {**fields, "reason": str(error)}, level=logs.ERROR)
                raise
            except asyncio.CancelledError:
                logs.event("version_refused", {**fields, "reason": "the call was cancelled"}, level=logs.ERROR)
                raise
        fields |= {"version": loaded.model.version, "bundle_sha256": loaded.model.bundle_sha256}
        scores = loaded.scores._asdict() if loaded.scores else {}
        logs.event("version_loaded", {**fields, "is_default": self._catalog.is_default(loaded.model), **scores})
        return loaded

    async def roll_back(self, name: str, *, keep_previous: bool = False) -> ServedModel:
        """Makes the default before the present one the default again. Raises RequestError."""
        self._catalog.default(name)
        previous = self._previous.get(name)
        if previous is None:
            raise VersionRefused(f"model {name} has had no other default since the server started")
        version, path, digest = previous
        return (
            await self.load(
                Order(model=name, path=path, version=version, keep_previous=keep_previous, bundle_sha256=digest)
            )
        ).model

    def set_default(self, name: str, version: str) -> ServedModel:
        """Makes a version that is served the default. Raises RequestError."""
        model = self._catalog.version(name, version)
        with self._changing(name, _Change(version, model.path)):
            if not self._catalog.is_default(model):
                self._exchange(model, keep_previous=True)
        return model

    def unload(self, name: str, version: str) -> ServedModel:
        """Ends a version when its last request has ended. Raises RequestError."""
        model = self._catalog.version(name, version)
        with self._changing(name, _Change(version, model.path)):
            if self._catalog.is_default(model):
                problem = f"version {version} is the default of model {name}; make another one the default first"
                raise VersionRefused(problem)
            if version in self._catalog.traffic(name).versions:
                problem = f"version {version} has a share of the traffic of model {name}; `glossa admin split` it first"
                raise VersionRefused(problem)
            self._end(model)
            self._on_exchange()
        return model

    def statuses(self, name: str = "") -> list[Status]:
        """All versions of a model, or of all models. Raises ModelNotFound."""
        if name:
            self._catalog.default(name)
        found = [self._status(one) for one in self._catalog]
        found += [Status(one.name, one.version, DRAINING, one.path, model=one) for one, _ in self._draining]
        found += [Status(model, change.version, OPENING, change.path) for model, change in self._changes.items()]
        return sorted((one for one in found if name in ("", one.name)), key=lambda one: (one.name, one.version))

    def _status(self, model: ServedModel) -> Status:
        """Of one that serves."""
        is_default, traffic = self._catalog.is_default(model), self._catalog.traffic(model.name)
        weight = traffic.weight(model.version, is_default=is_default)
        share = traffic.shadow_share if traffic.shadow == model.version else 0
        return Status(model.name, model.version, SERVING, model.path, is_default, model, weight, share)

    def refuse(self) -> None:
        """Nothing is changed from now on: the server drains."""
        self._is_closing = True

    async def aclose(self) -> None:
        """Ends all models. Returns when nothing of them is left."""
        self._is_closing = True
        self._closing.set()
        await asyncio.gather(*[model.aclose() for model in self._catalog])
        while self._draining:
            await asyncio.gather(*[task for _, task in self._draining])

    @contextlib.contextmanager
    def _changing(self, name: str, change: _Change) -> Iterator[_Change]:
        """One change of a model at a time. Raises VersionConflict."""
        if self._is_closing:
            raise ShuttingDown
        if other := self._changes.get(name):
            raise VersionConflict(
                f"model {name} is being changed: {other.path} is loaded; try again when `glossa admin versions` does "
                "not show it any more"
            )
        self._changes[name] = change
        try:
            yield change
        finally:
            del self._changes[name]

    async def _loaded(self, order: Order, change: _Change) -> Loaded:
        served = _version(self._catalog, order.model, order.version)
        if served is not None and served.bundle_sha256 == order.bundle_sha256:
            return self._served_already(order, served, served.bundle_sha256)  # whatever its path has become
        try:
            bundle = await in_thread(self._read_bundle, change.path)
        except (BundleError, OSError) as error:
            raise VersionRefused(str(error)) from error
        digest = bundle.sha256
        if order.bundle_sha256 not in ("", digest):
            raise VersionRefused(
                f"{change.path} has another bundle than the one to return to, {order.bundle_sha256}; fix: put that one "
                "back, or load it from where it is now"
            )
        change.version = order.version or digest[:VERSION_DIGITS]
        served = _version(self._catalog, order.model, change.version)
        if served is not None:
            return self._served_already(order, served, digest)
        others = [other.manifest for other in self._changes.values() if other.manifest is not None]
        default = self._catalog.default(order.model)
        check_fit(self._settings, default, self.open_models, bundle.manifest, others, self._limit_bytes())
        change.manifest = bundle.manifest
        model = await self._opened(order.model, change, digest)
        try:
            scores = None
            if order.test_set is not None:
                scores = await compare(
                    model, self._catalog.default(order.model), order.test_set, self._catalog.limits_of(model)
                )
        except BaseException:
            self._drain(model)
            raise
        self._catalog.add(model, is_default=False)
        if not order.keep_default:
            self._exchange(model, keep_previous=order.keep_previous)
        self._on_exchange()
        return Loaded(model, scores)

    def _served_already(self, order: Order, served: ServedModel, digest: str) -> Loaded:
        if served.bundle_sha256 != digest:
            raise VersionRefused(
                f"version {served.version} of model {served.name} is another bundle, {served.bundle_sha256}; choose "
                "another name, or stop that version first"
            )
        if order.test_set is not None:
            raise VersionRefused(
                f"version {served.version} of model {served.name} is served already and not compared again; make it "
                "the default, or stop it and load it again"
            )
        if not (order.keep_default or self._catalog.is_default(served)):
            self._exchange(served, keep_previous=order.keep_previous)
        return Loaded(served)

    async def _opened(self, name: str, change: _Change, digest: str) -> ServedModel:
        try:
            model = await self._open_model(name, change.path, change.version)
        except StartupError as error:
            raise VersionRefused(str(error)) from error
        model.version, model.path = change.version, change.path
        problem, default = "", self._catalog.default(name)
        if model.bundle_sha256 != digest:
            problem = f"{change.path} changed while it was opened; fix: load it again"
        elif self._is_closing:
            self._drain(model)
            raise ShuttingDown
        elif model.choice.fallback and not default.choice.fallback:
            problem = f"it would run on {model.choice.provider}, not as the default version: {model.choice.reason}"
        if problem:
            self._drain(model)
            raise VersionRefused(f"model {name}: {problem}")
        return model

    def _exchange(self, model: ServedModel, *, keep_previous: bool) -> None:
        """Makes a version of the catalog the default, in one step."""
        previous = self._catalog.default(model.name)
        self._catalog.set_default(model)
        self._previous[model.name] = _Previous(previous.version, previous.path, previous.bundle_sha256)
        self._metrics.model(model.name).make_default(model.version)
        if not keep_previous:
            self._end(previous)
        self._on_exchange()

    def _end(self, model: ServedModel) -> None:
        self._catalog.remove(model)
        self._drain(model)

    def _drain(self, model: ServedModel) -> None:
        """Closes a version when nobody uses it any more."""
        self._draining.append((model, asyncio.create_task(self._close(model))))

    async def _close(self, model: ServedModel) -> None:
        fields = {"model": model.name, "version": model.version, "calls": model.users.count}
        logs.event("draining_version", fields)
        limit_s, users = self._settings.max_deadline_s, model.users
        users.closes_at_s = time.monotonic() + limit_s
        waits = [asyncio.create_task(wait) for wait in (users.all_left(), self._closing.wait())]
        done, _ = await asyncio.wait(waits, timeout=SHARE_OF_ITEMS * limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            users.end_items()
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await model.aclose()
        self._draining = [(one, task) for one, task in self._draining if one is not model]
        logs.event("version_closed", {"model": model.name, "version": model.version})


def _version(catalog: Catalog, name: str, version: str) -> ServedModel | None:
    return next((one for one in catalog.versions(name) if one.version == version), None)
