"""Traffic of the versions of all models, and canaries that are judged while they serve (`Canaries`).

What is good is decided in `canary_judge`. Here figures are collected, and verdicts carried out: promoted or sent back,
in one step of the event loop. Event-loop thread only. Nothing here knows gRPC; nothing of it outlives the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from service.edge.calls.shadows import Shadows
from service.edge.models.watched_pool import Seen, WatchedPool, unwatched
from service.edge.observability import logs
from service.edge.observability.metrics import Metrics
from service.edge.observability.traffic_series import DIFFERENT, PROMOTED, SAME, STOPPED
from service.edge.requests.catalog import Catalog
from service.edge.requests.traffic import NO_TRAFFIC, WHOLE, Traffic, check_shares, checked
from service.edge.versions.canary_judge import MIN_CALLS, SLICES, Bounds, Slice, Verdict, check_times, judge
from service.edge.versions.evaluation import EvaluationSet, chrf_of, together
from service.edge.versions.reloader import Reloader
from service.edge.versions.version_checks import check_texts
from service.errors import InvalidRequest, RequestError, ShuttingDown, VersionConflict, VersionRefused

RUNNING, SENT_BACK = "running", "sent_back"


@dataclass(frozen=True, kw_only=True)
class CanaryOrder:
    """A canary to start. share, shadow_share: of a hundred requests. unload_loser: see `StartCanaryRequest`."""

    model: str
    version: str
    share: int
    duration_s: float
    patience_s: float
    bounds: Bounds = field(default_factory=Bounds)
    shadow_share: int = 0
    test_set: EvaluationSet | None = None
    unload_loser: bool = False


@dataclass
class Canary:
    """One that runs or has ended. state: running, promoted, sent_back or stopped. bound, reason: why it has ended."""

    order: CanaryOrder
    began_s: float
    state: str = RUNNING
    bound: str = ""
    reason: str = ""
    judged_s: float = 0.0
    calls: int = 0
    failed: int = 0


class Canaries:
    """The traffic and the canaries of one server."""

    def __init__(
        self,
        catalog: Catalog,
        reloader: Reloader,
        shadows: Shadows,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """clock, sleep: seconds."""
        self._catalog, self._reloader, self._shadows = catalog, reloader, shadows
        self._metrics, self._clock, self._sleep = metrics, clock, sleep
        self._last: dict[str, Canary] = {}  # by model
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by model, of canaries that run
        self._watches: dict[str, _Watch] = {}  # theirs
        catalog.on_traffic_end = self._default_changed

    def set_traffic(self, model: str, traffic: Traffic) -> None:
        """Spreads the requests to a model from now on, and ends its canary. Raises RequestError; then nothing
        changes."""
        default = self._catalog.default(model)
        traffic = checked(traffic, model, self._loaded(model), default.version)
        if len(traffic.weights) == 1:
            ((version, _),) = traffic.weights
            if traffic.shadow == version:
                raise InvalidRequest("shadow.version", f"must not be the version with all requests, {version!r}")
            self._reloader.set_default(model, version)
            traffic = Traffic(shadow=traffic.shadow, shadow_share=traffic.shadow_share)
        self._stop(model, "the traffic was set by another call")
        self._set(model, traffic)

    def start(self, order: CanaryOrder) -> Canary:
        """Starts a canary. Raises RequestError; then nothing changes."""
        name, default = order.model, self._catalog.default(order.model)
        if not 1 <= order.share < WHOLE:
            raise InvalidRequest("share", f"must be 1..{WHOLE - 1} of {WHOLE} requests, got {order.share}")
        check_shares("", [(order.version, order.share)], name, self._loaded(name))
        if not 0 <= order.shadow_share <= WHOLE:
            raise InvalidRequest("shadow_share", f"must be 0..{WHOLE} of {WHOLE} requests, got {order.shadow_share}")
        check_times(order.duration_s, order.patience_s)
        order.bounds.check(has_test_set=order.test_set is not None, has_shadow=order.shadow_share > 0)
        if order.test_set is not None:
            order.test_set.check()
            check_texts(default)
        if order.version == default.version:
            raise InvalidRequest("version", f"must not be the default of model {name}, got {order.version!r}")
        if self._catalog.traffic(name).versions:
            raise VersionRefused(
                f"the traffic of model {name} is spread already; `glossa admin split {name}` ends that"
            )
        traffic = Traffic(
            weights=((default.version, WHOLE - order.share), (order.version, order.share)),
            shadow=order.version if order.shadow_share else "",
            shadow_share=order.shadow_share,
        )
        canary = self._last[name] = Canary(order, self._clock())
        self._metrics.traffic.canary_started(name)
        self._set(name, traffic)
        logs.event("canary_started", {"model": name, "version": order.version, "share": order.share})
        watch = self._watches[name] = _Watch(canary, self._catalog, self._shadows, self._clock)
        self._tasks[name] = asyncio.create_task(self._run(canary, watch))
        return canary

    def canaries(self, model: str = "") -> list[Canary]:
        """The last one of each model, or of one."""
        return [self._last[name] for name in sorted(self._last) if model in ("", name)]

    async def aclose(self) -> None:
        """Ends all."""
        tasks = list(self._tasks.values())
        for name in list(self._tasks):
            self._stop(name, "the server ends")
        await asyncio.gather(*tasks, return_exceptions=True)

    def _loaded(self, model: str) -> list[str]:
        return [one.version for one in self._catalog.versions(model)]

    def _set(self, model: str, traffic: Traffic) -> None:
        self._catalog.set_traffic(model, traffic)
        self._show(model, traffic)

    def _show(self, model: str, traffic: Traffic) -> None:
        self._shadows.forget(model)
        weights = dict(traffic.weights)
        self._metrics.traffic.show(model, weights, traffic.shadow)
        fields = {"model": model, "weights": weights, "shadow": traffic.shadow, "shadow_share": traffic.shadow_share}
        logs.event("traffic", fields)

    def _default_changed(self, model: str) -> None:
        self._stop(model, "another version became the default")
        self._show(model, NO_TRAFFIC)

    def _stop(self, model: str, reason: str) -> None:
        if task := self._tasks.get(model):
            self._end(self._last[model], STOPPED, Verdict(reason=reason))
            task.cancel()

    def _end(self, canary: Canary, state: str, verdict: Verdict) -> None:
        """What has become of a canary, in its status, the log and the metrics."""
        order, bound = canary.order, verdict.outcome if state == SENT_BACK else ""
        canary.state, canary.bound, canary.reason = state, bound, verdict.reason
        canary.judged_s = self._clock() - canary.began_s
        self._tasks.pop(order.model, None)
        self._watches.pop(order.model).close()  # in the same step: the next canary's may begin before the task ends
        self._metrics.traffic.canary_ended(order.model, bound or state)
        fields: dict[str, Any] = {"model": order.model, "version": order.version, "bound": bound}
        fields |= {"reason": verdict.reason, "judged_s": round(canary.judged_s, 3)}
        fields |= {"calls": canary.calls, "failed": canary.failed}
        if state == SENT_BACK:
            logs.event("canary_sent_back", fields, level=logs.WARNING)
        else:
            logs.event(f"canary_{state}", fields)

    async def _run(self, canary: Canary, watch: _Watch) -> None:
        order = canary.order
        measuring = asyncio.create_task(watch.compare()) if order.test_set else None
        try:
            while True:
                await self._sleep(order.patience_s / SLICES)
                watch.cut(order.patience_s / SLICES)
                left_s = canary.began_s + order.duration_s - self._clock()
                verdict = watch.problem or judge(watch.slices, order.bounds, left_s=left_s, patience_s=order.patience_s)
                if verdict.outcome and self._carry_out(canary, verdict):
                    return
        finally:
            if measuring is not None:
                measuring.cancel()

    def _carry_out(self, canary: Canary, verdict: Verdict) -> bool:
        """Moves the traffic. Returns whether it has ended: a default that is being changed is changed later, and a
        server that drains ends it."""
        order, loser = canary.order, canary.order.version
        if verdict.outcome == PROMOTED:
            loser, task = self._catalog.default(order.model).version, self._tasks.pop(order.model)
            try:
                self._reloader.set_default(order.model, order.version)
            except (VersionConflict, ShuttingDown):
                self._tasks[order.model] = task
                return False
        else:
            self._set(order.model, NO_TRAFFIC)
        self._end(canary, PROMOTED if verdict.outcome == PROMOTED else SENT_BACK, verdict)
        if order.unload_loser:
            try:
                self._reloader.unload(order.model, loser)
            except RequestError as error:
                fields = {"model": order.model, "version": loser, "reason": str(error)}
                logs.event("version_not_unloaded", fields, level=logs.WARNING)
        return True


class _Watch:
    """Collects the figures of a canary and of the default version. problem: a verdict that needs no more figures."""

    def __init__(self, canary: Canary, catalog: Catalog, shadows: Shadows, clock: Callable[[], float]) -> None:
        order = canary.order
        self._canary, self._shadows, self._clock = canary, shadows, clock
        self.model, self.default = catalog.version(order.model, order.version), catalog.default(order.model)
        self._limits = catalog.limits_of(self.model)
        self._pools = [WatchedPool(each.pool, clock) for each in (self.model, self.default)]
        for each, pool in zip((self.model, self.default), self._pools, strict=True):
            each.pool = pool
        self.slices = list[Slice]()
        self.problem: Verdict | None = None
        self._began_s, self._is_down = clock(), False
        self._compared = self._different = 0
        self._first_bytes = 0
        self._chrf_loss: float | None = None

    async def compare(self) -> None:
        """Has both versions answer the test set."""
        test_set = self._canary.order.test_set
        assert test_set is not None
        try:
            versions = (unwatched(self.model), unwatched(self.default))
            mine, theirs = await together(chrf_of(each, test_set, self._limits) for each in versions)
        except RequestError as error:
            self.problem = Verdict("chrf", str(error))
        else:
            self._chrf_loss = theirs - mine

    def cut(self, least_s: float) -> None:
        """Ends a slice, if it is long enough and has enough requests."""
        mine, theirs = (pool.seen for pool in self._pools)
        self._is_down |= not self.model.pool.is_ready
        if self._clock() < self._began_s + 0.99 * least_s:
            return
        if not self._is_down and min(mine.calls, theirs.calls) < MIN_CALLS:
            return
        resident = sum(beat.resident_bytes for beat in self.model.beats())
        self._first_bytes = self._first_bytes or resident
        limit_s = self._canary.order.bounds.p99 * theirs.p99_s
        key = self._canary.order.model, self._canary.order.version
        same, different = (self._shadows.compared[(*key, outcome)] for outcome in (SAME, DIFFERENT))
        self.slices.append(
            Slice(
                calls=mine.calls,
                failed=mine.failed,
                timed=len(mine.seconds) if theirs.seconds else 0,
                slow=sum(seconds > limit_s for seconds in mine.seconds),
                p99_s=mine.p99_s,
                default_calls=theirs.calls,
                default_failed=theirs.failed,
                default_p99_s=theirs.p99_s,
                is_down=self._is_down,
                compared=same + different - self._compared,
                different=different - self._different,
                memory=resident / self._first_bytes - 1 if self._first_bytes else 0.0,
                chrf_loss=self._chrf_loss,
            )
        )
        self._compared, self._different = same + different, different
        self._began_s, self._is_down = self._clock(), False
        self._canary.calls += mine.calls
        self._canary.failed += mine.failed
        for pool in self._pools:
            pool.seen = Seen()

    def close(self) -> None:
        """The versions are no longer watched."""
        for each, pool in zip((self.model, self.default), self._pools, strict=True):
            each.pool = pool.pool
