"""Canaries on fake pools and a clock that a test moves: what is counted, and what a verdict does."""

import asyncio
import contextlib
import dataclasses
import itertools

import pytest

from service.edge.admission.request_memory import RequestMemory
from service.edge.calls.shadows import Shadows
from service.edge.models.watched_pool import unwatched
from service.edge.requests.traffic import NO_TRAFFIC, Key, Traffic
from service.edge.versions.canaries import Canaries, CanaryOrder
from service.edge.versions.canary_judge import Bounds
from service.edge.versions.evaluation import EvaluationSet
from service.errors import InternalFailure, InvalidRequest, ModelNotFound, Unsupported, VersionRefused
from service.wire.messages import Beat
from tests.edge import ANSWER, RESULT, answered, decoding_request
from tests.fakes import FakeClock
from tests.service.edge.versions.test_reloader import NEW, OLD, TEXT, World, name

OLD_NAME, NEW_NAME = name(OLD), name(NEW)
FAILS = (InternalFailure("r"),)


SIZES = itertools.count(100, 100)


def growing():
    """The heartbeat of a process that needs more memory whenever it is asked."""
    return [Beat(states=[], measurements=[], memory={}, cpu_s=0.0, resident_bytes=next(SIZES))]


class Trial:
    """Canaries of the model m, whose default is OLD and which serves NEW too. `tick` lets a third of the patience of 30
    seconds pass, after requests that take `slow_s` on NEW."""

    def __init__(self, world):
        self.world, self.clock = world, FakeClock()
        self._due: asyncio.Event = asyncio.Event()
        self._asleep = asyncio.Event()
        self._number = itertools.count()
        shadows = Shadows(world.catalog, RequestMemory(1 << 24, 0.8), world.metrics.traffic, self.clock)
        self.shadows = shadows
        self.canaries = Canaries(world.catalog, world.reloader, shadows, world.metrics, self.clock, self.sleep)

    async def sleep(self, seconds):
        self._asleep.set()
        await self._due.wait()
        self._due.clear()

    def start(self, **changes):
        order = {"share": 30, "duration_s": 90.0, "patience_s": 30.0, "unload_loser": True}
        return self.canaries.start(CanaryOrder(**{"model": "m", "version": NEW_NAME, **order, **changes}))

    async def tick(self, requests=200, slow_s=0.0):
        await self._asleep.wait()
        self._asleep.clear()
        for _ in range(requests):
            default = self.world.catalog.default("m")
            model = self.world.catalog.spread(default, Key(f"request-{next(self._number)}"))
            ended = asyncio.Event()
            request = decoding_request(model, TEXT)
            sink = lambda event, ended=ended: ended.set()  # noqa: E731
            model.pool.submit(request, asyncio.get_running_loop(), sink)
            self.clock.advance(slow_s if model.version == NEW_NAME else 0.01)
            await ended.wait()
        self.clock.advance(max(0.0, 10.0 - requests * 0.01))
        self._due.set()
        async with asyncio.timeout(10):
            while not (self._asleep.is_set() or self.canary.state != "running"):
                await asyncio.sleep(0)

    @property
    def canary(self):
        (found,) = self.canaries.canaries()
        return found

    def ended(self, outcome):
        return self.world.value("glossa_canaries_total", outcome=outcome)


@contextlib.asynccontextmanager
async def trial():
    made = World()
    await made.reloader.open_first("m", OLD)
    await made.load(NEW, keep_default=True)
    it = Trial(made)
    yield it
    await it.canaries.aclose()
    await made.reloader.aclose()


@pytest.fixture(autouse=True)
def single_events(monkeypatch):
    """Requests end with one event, so that all of it is one moment."""
    monkeypatch.setattr("tests.service.edge.versions.test_reloader.ANSWER", answered(RESULT))
    assert ANSWER


async def test_a_good_canary_becomes_the_default_and_the_one_before_ends():
    async with trial() as it:
        it.start()
        assert [(one.version, one.weight) for one in it.world.reloader.statuses()] == [(OLD_NAME, 70), (NEW_NAME, 30)]
        assert it.world.value("glossa_traffic_weight_ratio", version=NEW_NAME) == 0.3
        while it.canary.state == "running":
            await it.tick(slow_s=0.01)
        assert (it.canary.state, it.canary.bound) == ("promoted", "")
        assert it.canary.judged_s >= 90
        assert it.world.catalog.default("m").version == NEW_NAME
        assert it.world.catalog.traffic("m") == NO_TRAFFIC
        assert [one.version for one in it.world.catalog.versions("m")] == [NEW_NAME]
        assert (it.ended("promoted"), it.ended("failed")) == (1, 0)
        assert it.world.value("glossa_traffic_weight_ratio", version=NEW_NAME) is None, "its series have ended"
        assert unwatched(it.world.catalog.default("m")) is it.world.catalog.default("m"), "nobody counts any more"


@pytest.mark.parametrize(
    ("bound", "harm", "slow_s"),
    [
        ("failed", lambda model: setattr(model.pool, "answer", FAILS), 0.01),
        ("failed", lambda model: setattr(model.pool, "is_ready", False), 0.01),
        ("p99", lambda _: None, 0.03),
        ("memory", lambda model: setattr(model, "beats", growing), 0.01),
    ],
)
async def test_a_bad_canary_goes_back_within_its_patience_and_a_part_of_it(bound, harm, slow_s, caplog):
    async with trial() as it:
        harm(it.world.catalog.version("m", NEW_NAME))
        it.start()
        ticks = 0
        while it.canary.state == "running":
            await it.tick(slow_s=slow_s)
            ticks += 1
        assert (it.canary.state, it.canary.bound) == ("sent_back", bound)
        assert it.canary.reason
        assert ticks <= 5
        assert it.ended(bound) == 1
        assert it.world.catalog.default("m").version == OLD_NAME
        assert [one.version for one in it.world.catalog.versions("m")] == [OLD_NAME]
        assert any(record.getMessage() == "canary_sent_back" for record in caplog.records) or "sent_back" in caplog.text


async def test_worse_texts_on_the_test_set_send_back():
    async with trial() as it:
        worse = it.world.catalog.version("m", NEW_NAME)
        worse.pool.answer = answered(RESULT.__class__(**{**vars(RESULT), "text": "?"}))
        it.start(test_set=EvaluationSet(examples=[(TEXT, RESULT.text)]), bounds=Bounds(chrf=1.0))
        while it.canary.state == "running":
            await it.tick(slow_s=0.01)
        assert (it.canary.bound, it.canary.state) == ("chrf", "sent_back")
        assert it.canary.calls < 1000, "the answers to the test set are no client's"


async def test_too_few_requests_send_back_at_the_end():
    async with trial() as it:
        it.start(unload_loser=False)
        while it.canary.state == "running":
            await it.tick(requests=5, slow_s=0.01)
        assert (it.canary.state, it.canary.bound) == ("sent_back", "too_few_calls")
        assert it.canary.judged_s >= 90
        assert len(it.world.catalog.versions("m")) == 2, "the version is kept unless it shall end"


async def test_another_default_or_traffic_stops_a_canary_in_one_step():
    async with trial() as it:
        it.start()
        it.world.reloader.set_default("m", NEW_NAME)
        assert (it.canary.state, it.canary.reason) == ("stopped", "another version became the default")
        assert it.world.catalog.traffic("m") == NO_TRAFFIC
        it.start(version=OLD_NAME)
        it.canaries.set_traffic("m", Traffic(weights=((NEW_NAME, 50), (OLD_NAME, 50))))
        assert (it.canary.state, it.canary.reason) == ("stopped", "the traffic was set by another call")
        assert it.world.catalog.traffic("m").weights == ((NEW_NAME, 50), (OLD_NAME, 50))
        assert it.ended("stopped") == 2


async def test_versions_are_watched_by_the_canary_that_runs_and_by_no_other():
    async with trial() as it:
        default = it.world.catalog.default("m")
        it.start()
        it.canaries.set_traffic("m", Traffic())
        assert unwatched(default) is default, "also of one whose task has not begun"
        it.start()
        await asyncio.sleep(0)
        it.canaries.set_traffic("m", Traffic())
        it.start()
        for _ in range(5):
            await asyncio.sleep(0)
        assert unwatched(default) is not default, "the end of the one before is not the end of this one"
        assert unwatched(unwatched(default)).pool is unwatched(default).pool, "watched once"


async def test_an_encoder_with_a_test_set_is_refused():
    async with trial() as it:
        model = it.world.catalog.default("m")
        limits = dataclasses.replace(model.manifest.limits, max_target_len=0)
        model.manifest = dataclasses.replace(model.manifest, limits=limits)
        with pytest.raises(Unsupported, match="gives no texts to compare"):
            it.start(test_set=EvaluationSet(examples=[(TEXT, RESULT.text)]), bounds=Bounds(chrf=1.0))
        assert (it.canaries.canaries(), it.world.catalog.traffic("m")) == ([], NO_TRAFFIC)


async def test_a_server_that_drains_stops_a_canary_that_was_to_be_promoted():
    async with trial() as it:
        it.start()
        for _ in range(8):
            await it.tick(slow_s=0.01)
        it.world.reloader.refuse()
        for _ in range(2):
            await it.tick(slow_s=0.01)
        assert it.canary.state == "running"
        await it.canaries.aclose()
        assert (it.canary.state, it.canary.reason, it.ended("stopped")) == ("stopped", "the server ends", 1)


async def test_a_default_version_that_fails_everything_does_not_make_the_canary_slow():
    async with trial() as it:
        it.world.catalog.default("m").pool.answer = FAILS
        it.start()
        while it.canary.state == "running":
            await it.tick(slow_s=0.01)
        assert it.canary.state == "promoted"


async def test_a_version_with_all_of_the_traffic_becomes_the_default():
    async with trial() as it:
        it.canaries.set_traffic("m", Traffic(weights=((OLD_NAME, 0), (NEW_NAME, 100))))
        assert it.world.catalog.default("m").version == NEW_NAME
        assert it.world.catalog.traffic("m") == NO_TRAFFIC


async def test_what_is_refused_changes_nothing():
    async with trial() as it:
        running = Traffic(weights=((OLD_NAME, 90), (NEW_NAME, 10)))
        it.canaries.set_traffic("m", running)
        with pytest.raises(InvalidRequest, match="must add up to 100"):
            it.canaries.set_traffic("m", Traffic(weights=((OLD_NAME, 90),)))
        with pytest.raises(ModelNotFound):
            it.canaries.set_traffic("x", Traffic())
        with pytest.raises(VersionRefused, match="has a share of the traffic"):
            it.world.reloader.unload("m", NEW_NAME)
        with pytest.raises(VersionRefused, match="is spread already"):
            it.start()
        assert it.world.catalog.traffic("m") == running
        it.canaries.set_traffic("m", Traffic())
        for changes, problem in (
            ({"share": 100}, r"share: must be 1..99"),
            ({"share": -5}, r"share: must be 1..99"),
            ({"version": OLD_NAME}, "must not be the default"),
            ({"version": "gone"}, "^version: must be .* that serves"),
            ({"bounds": Bounds(disagreement=0.1)}, "shadow_share is 0"),
            ({"bounds": Bounds(chrf=1.0)}, "needs a test set"),
            ({"patience_s": 31.0}, "patience"),
        ):
            with pytest.raises(InvalidRequest, match=problem):
                it.start(**changes)
        assert it.canaries.canaries() == []
        assert it.world.catalog.traffic("m") == NO_TRAFFIC
