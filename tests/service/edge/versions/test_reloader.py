"""Versions exchanged on fake pools: what may change, what must not, and when the one before is closed."""

import asyncio
import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from export.bundle.directory import CheckedBundle, NotABundleError
from service.edge.observability.metrics import Metrics
from service.edge.observability.version_metrics import LOAD_OUTCOMES
from service.edge.requests.catalog import Catalog
from service.edge.versions.evaluation import EvaluationSet
from service.edge.versions.reloader import Order, Reloader
from service.errors import (
    InvalidRequest,
    ModelNotFound,
    NoRoomForVersion,
    ShuttingDown,
    StartupError,
    Unsupported,
    VersionConflict,
    VersionRefused,
)
from tests.edge import ANSWER, CHOICE, LIMITS, FakePool, answered, manifest, served, settings

OLD, NEW, NEWER = Path("/old"), Path("/new"), Path("/newer")
DIGESTS = {OLD: "01" * 32, NEW: "02" * 32, NEWER: "03" * 32}
TEXT = "the small red house"


class World:
    """A reloader with the model m, whose bundle is OLD, and what it opened."""

    def __init__(self, limit_bytes=None, max_deadline_s=600.0):
        self.catalog, self.metrics = Catalog(limits=LIMITS), Metrics()
        self.opened: list[Any] = []
        self.exchanges = 0
        self.task, self.choice, self.problem = "translation", CHOICE, ""
        self.unreadable: OSError | None = None
        self.digests, self.answer = dict(DIGESTS), ANSWER
        self.going_on: Any = None  # an Event that opening waits for
        self.reloader = Reloader(
            self.catalog,
            self.open_model,
            settings(max_deadline_s=max_deadline_s),
            self.metrics,
            self.exchanged,
            read_bundle=self.read_bundle,
            limit_bytes=lambda: limit_bytes,
        )

    def exchanged(self):
        self.exchanges += 1

    def read_bundle(self, path):
        if self.unreadable is not None:
            raise self.unreadable
        if path not in self.digests:
            raise NotABundleError(path, "has no manifest")
        return CheckedBundle(path, manifest(self.task), self.digests[path], {})

    async def open_model(self, name, path, version=""):
        if self.going_on is not None:
            await self.going_on.wait()
        if self.problem:
            raise StartupError(self.problem)
        pool = FakePool(answer=self.answer)
        model = dataclasses.replace(served(name, pool), bundle_sha256=DIGESTS[path], version="", choice=self.choice)
        self.opened.append(model)
        model.on_closed = self.metrics.model(name).open(version or model.version).close
        return model

    async def load(self, path=NEW, **more):
        return await self.reloader.load(Order(model="m", path=path, **more))

    def states(self):
        return [(one.version, one.state, one.is_default) for one in self.reloader.statuses()]

    def loads(self):
        """How many loads there were, by outcome."""
        counts = {one: self.value("glossa_model_loads_total", outcome=one) for one in LOAD_OUTCOMES}
        return {outcome: count for outcome, count in counts.items() if count}

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, {"model": "m", **labels})


@contextlib.asynccontextmanager
async def world(**changes):
    made = World(**changes)
    await made.reloader.open_first("m", OLD)
    yield made
    await made.reloader.aclose()
    assert all(model.pool.closed for model in made.opened)


def name(path):
    return DIGESTS[path][:12]


async def settle(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def test_calls_begin_items_for_half_of_the_time_until_a_version_must_be_closed():
    async with world(max_deadline_s=0.02) as it:
        old, ended = it.catalog.find("m"), asyncio.Event()
        old.users.enter()
        with old.users.with_items(ended.set):
            now_s = time.monotonic()
            await it.load()
            await asyncio.wait_for(ended.wait(), 60)
            assert now_s < old.users.closes_at_s <= time.monotonic() + 0.02
            assert not old.pool.closed
        old.users.leave()
        await settle(lambda: old.pool.closed)


async def test_a_version_takes_over_and_the_one_before_closes_with_its_last_call():
    async with world() as it:
        old = it.catalog.find("m")
        old.users.enter()
        old.users.enter()
        loaded = await it.load()
        assert it.catalog.find("m") is loaded.model
        assert it.states() == [(name(OLD), "draining", False), (name(NEW), "serving", True)]
        assert it.reloader.open_models == [loaded.model, old]
        assert [it.value("glossa_version_default", version=name(one)) for one in (OLD, NEW)] == [0, 1]
        old.users.leave()
        await asyncio.sleep(0)
        assert not old.pool.closed
        old.users.leave()
        await settle(lambda: old.pool.closed and len(it.states()) == 1)
        assert it.exchanges
        assert it.loads() == {"loaded": 1}
        assert [it.value("glossa_version_default", version=name(one)) for one in (OLD, NEW)] == [None, 1]


async def test_versions_stay_beside_each_other_when_they_shall():
    async with world() as it:
        old = it.catalog.find("m")
        new = (await it.load(version="next", keep_default=True)).model
        assert (it.catalog.find("m"), it.catalog.find("m@next")) == (old, new)
        newer = (await it.load(NEWER, keep_previous=True)).model
        assert it.catalog.find("m") is newer
        assert it.states() == [
            (name(OLD), "serving", False),
            (name(NEWER), "serving", True),
            ("next", "serving", False),
        ]
        assert it.reloader.set_default("m", "next") is new
        assert it.catalog.find("m") is new
        assert it.reloader.unload("m", name(OLD)) is old
        await settle(lambda: old.pool.closed)
        assert [version for version, _, _ in it.states()] == [name(NEWER), "next"]


async def test_the_default_and_what_is_not_there_cannot_be_stopped():
    async with world() as it:
        with pytest.raises(VersionRefused, match=f"version {name(OLD)} is the default of model m; make another"):
            it.reloader.unload("m", name(OLD))
        for model, version in (("m", "x"), ("x", name(OLD))):
            for change in (it.reloader.unload, it.reloader.set_default):
                with pytest.raises(ModelNotFound):
                    change(model, version)
        with pytest.raises(ModelNotFound):
            await it.reloader.load(Order(model="x", path=NEW))
        assert it.states() == [(name(OLD), "serving", True)]


async def test_a_return_opens_the_bundle_before_again_and_only_that_one():
    async with world() as it:
        with pytest.raises(VersionRefused, match="model m has had no other default"):
            await it.reloader.roll_back("m")
        await it.load()
        await settle(lambda: len(it.states()) == 1)
        model = await it.reloader.roll_back("m")
        assert (model.path, it.catalog.find("m")) == (OLD, model)
        assert len(it.opened) == 3
        await settle(lambda: len(it.states()) == 1)
        it.digests[NEW] = "04" * 32
        with pytest.raises(VersionRefused, match="/new has another bundle than the one to return to, 0202"):
            await it.reloader.roll_back("m")
        assert it.catalog.find("m") is model


async def test_a_return_finds_a_bundle_again_that_was_named_by_a_relative_path(monkeypatch):
    relative = OLD.relative_to("/")
    monkeypatch.chdir("/")
    monkeypatch.setitem(DIGESTS, relative, DIGESTS[OLD])
    it = World()
    await it.reloader.open_first("m", relative)
    await it.load()
    await settle(lambda: len(it.states()) == 1)
    assert (await it.reloader.roll_back("m")).path == OLD
    await it.reloader.aclose()


async def test_a_return_to_a_version_that_serves_opens_nothing():
    async with world() as it:
        old = it.catalog.find("m")
        await it.load(keep_previous=True)
        assert await it.reloader.roll_back("m", keep_previous=True) is old
        assert len(it.opened) == 2
        assert (await it.reloader.roll_back("m")).path == NEW
        await settle(lambda: old.pool.closed)


@pytest.mark.parametrize("digests", [{}, {OLD: "04" * 32}])
async def test_a_return_to_a_version_that_serves_does_not_need_its_path(digests):
    async with world() as it:
        old = it.catalog.find("m")
        await it.load(keep_previous=True)
        it.digests = digests
        assert await it.reloader.roll_back("m") is old
        assert it.catalog.find("m") is old
        await settle(lambda: len(it.states()) == 1)
        assert it.loads() == {"loaded": 2}
        with pytest.raises(VersionRefused, match="has no manifest"):
            await it.reloader.roll_back("m")


async def test_a_bundle_that_serves_is_not_opened_again():
    async with world() as it:
        await it.load(keep_default=True)
        assert (await it.load()).model is it.catalog.find("m")
        assert len(it.opened) == 2
        with pytest.raises(VersionRefused, match=f"version {name(NEW)} of model m is another bundle, 0202"):
            await it.load(NEWER, version=name(NEW))


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"problem": "self-check failed"}, VersionRefused, "self-check failed"),
        ({"task": "generation"}, Unsupported, "model m serves translation, and the bundle generation"),
        ({"digests": {NEW: "04" * 32}}, VersionRefused, "/new changed while it was opened; fix: load it again"),
        ({"digests": {}}, VersionRefused, "has no manifest"),
        ({"unreadable": OSError(24, "Too many open files")}, VersionRefused, "Too many open files"),
        (
            {"choice": dataclasses.replace(CHOICE, fallback=True, reason="no GPU")},
            VersionRefused,
            "not as the default version: no GPU",
        ),
    ],
)
async def test_a_version_that_cannot_serve_leaves_everything_as_it_was(change, error, problem, caplog):
    async with world() as it:
        old = it.catalog.find("m")
        old.choice = dataclasses.replace(CHOICE, fallback=False)
        for field, value in change.items():
            setattr(it, field, value)
        with pytest.raises(error, match=problem):
            await it.load()
        await settle(lambda: len(it.states()) == 1)
        assert (it.catalog.find("m"), it.exchanges) == (old, 0)
        assert [model.pool.closed for model in it.opened] == [False, *[True] * (len(it.opened) - 1)]
        assert sum(it.loads().values()) == 1
        assert "loaded" not in it.loads()
        (line,) = [record.fields for record in caplog.records if record.getMessage() == "version_refused"]
        assert problem in line["reason"]


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ({"path": Path("new")}, "path: must be an absolute path on the server, got new"),
        ({"version": "a@b"}, "version: must be 1..63 letters"),
        ({"test_set": EvaluationSet(examples=[])}, "evaluation.examples: must be 1..10000"),
    ],
)
async def test_an_invalid_order_is_refused_before_anything_is_read(order, problem):
    async with world() as it:
        with pytest.raises(InvalidRequest, match=problem):
            await it.load(**order)
        assert len(it.opened) == 1


async def test_one_change_of_a_model_at_a_time():
    async with world() as it:
        it.going_on = asyncio.Event()
        loading = asyncio.create_task(it.load())
        await settle(lambda: (name(NEW), "opening", False) in it.states())
        for change in (lambda: it.load(NEWER), lambda: it.reloader.roll_back("m")):
            with pytest.raises((VersionConflict, VersionRefused)):
                await change()
        with pytest.raises(VersionConflict, match="model m is being changed: /new is loaded; try again"):
            it.reloader.set_default("m", name(OLD))
        it.going_on.set()
        assert (await loading).model is it.catalog.find("m")
        assert it.loads() == {"loaded": 1, "version_conflict": 1}


async def test_a_cancelled_load_changes_nothing(caplog):
    async with world() as it:
        it.going_on = asyncio.Event()
        loading = asyncio.create_task(it.load())
        await settle(lambda: len(it.states()) == 2)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert it.states() == [(name(OLD), "serving", True)]
        assert it.loads() == {"other": 1}


async def test_both_versions_have_to_fit_into_the_memory():
    async with world(limit_bytes=1 << 28) as it:
        with pytest.raises(NoRoomForVersion) as caught:
            await it.load()
        assert (caught.value.limit, caught.value.predicted > 1 << 28) == (1 << 28, True)
        assert "model m: all 2 open versions may come to need" in str(caught.value)
        assert "and the server has 268 MB; fix: raise the limit, stop a version, or lower --" in str(caught.value)
        assert len(it.opened) == 1
    async with world(limit_bytes=1 << 40) as it:
        await it.load()


async def test_what_is_worse_than_the_default_on_its_test_set_is_refused():
    test_set = EvaluationSet(examples=[(TEXT, "zwei rote Häuser")])
    async with world() as it:
        it.answer = answered(dataclasses.replace(ANSWER[-1].hypotheses[0], text="zwei rote Autos"))
        with pytest.raises(VersionRefused, match=r"is worse than the default one: chrF [1-9].* against 100.00 on 1 "):
            await it.load(test_set=test_set)
        assert it.catalog.find("m").path == OLD
        loaded = await it.load(test_set=dataclasses.replace(test_set, max_loss=100))
        assert loaded.scores is not None
        assert (loaded.scores.examples, loaded.scores.default_chrf) == (1, pytest.approx(100))
        assert it.loads() == {"loaded": 1, "version_refused": 1}


async def test_a_server_that_drains_changes_nothing_more():
    async with world() as it:
        it.reloader.refuse()
        with pytest.raises(ShuttingDown):
            await it.load()


async def test_the_end_of_the_server_does_not_wait_for_calls():
    async with world() as it:
        it.catalog.find("m").users.enter()
        await it.load()


async def test_a_version_without_the_prompts_of_the_default_one_is_refused():
    async with world() as it:
        it.catalog.find("m").translation = object()
        with pytest.raises(Unsupported, match="m translates by its prompts, and the bundle has none; import its model"):
            await it.load()
