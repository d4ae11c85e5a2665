"""Answers that engines have computed, kept for requests that ask for the same again (`AnswerCache`).

What an engine answers is a function of its bundle, of where that runs, and of the fields of a `Request`, but for those
that say who asks and until when: no other request changes a bit of it (`ServedModel.unrepeatable` tells of which models
this is not known). So the key of an answer is a digest of all these fields, as an engine would get them. What a message
has around them, such as marks, glossaries and sentences, is in them, or is applied anew to an answer that was kept.

Every open version of a model has answers of its own (`Answers`), which go with it. Nothing here knows gRPC.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import operator
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from service.edge.observability.cache_metrics import CacheMetrics, VersionCacheSeries
from service.errors import InvalidRequest, RequestError
from service.progress import Timings
from service.request import Event, EventSink, Finished, Request
from service.settings.setting_types import MAX_KEPT_BYTES
from service.wire.messages import decode_finished, encode_finished, encode_plain

CACHE = "x-glossa-cache"
NO_CACHE, NO_STORE = "no-cache", "no-store"
NOTHING = f"{NO_CACHE}, {NO_STORE}"
OF_CALL = ("request_id", "deadline_s", "trace_id", "tenant", "weight", "priority")
"""The fields of a request without an effect on its answer."""
ENTRY_BYTES = 480
"""Of an answer beside the objects of its key and its bytes: places in tables, which double when they are full, a tuple,
two numbers, rounding. 370 were measured with 150,000 answers, 400 with 12,000 (resident memory, CPython 3.11)."""
DROPPED_TOGETHER = 10_000  # answers of a version that is closed; then the event loop has its turn

_fields = operator.attrgetter(*(field.name for field in dataclasses.fields(Request) if field.name not in OF_CALL))


class Directives(NamedTuple):
    """What a call says with CACHE, in HTTP's words (RFC 9111, 5.2.1): no-cache: reads: no answer that was kept will do.
    no-store: its own answers are not kept."""

    reads: bool = True
    stores: bool = True


def directives(value: str) -> Directives:
    """What a value of CACHE says; of an empty one: nothing. Raises InvalidRequest."""
    words = {word.strip().lower() for word in value.split(",")} - {""}
    if unknown := sorted(words - {NO_CACHE, NO_STORE}):
        raise InvalidRequest(CACHE, f"must be {NO_CACHE}, {NO_STORE}, or both with a comma, got {unknown[0][:40]!r}")
    return Directives(NO_CACHE not in words, NO_STORE not in words)


class Kept(NamedTuple):
    """An answer that was kept. finished: all of it, with no time spent. age_s: since it was computed."""

    finished: Finished
    age_s: float


class _Entry(NamedTuple):
    data: bytes
    kept_s: float
    used: int  # the larger, the later


class AnswerCache:
    """The answers of one server, the least recently used of which go when `limit_bytes` are full. Event-loop thread
    only. is_shared: tenants get each other's answers. keeps_anonymous: answers of the anonymous tenant are kept; not
    where it is many tenants in one. clock: seconds."""

    def __init__(
        self,
        limit_bytes: int,
        metrics: CacheMetrics,
        *,
        is_shared: bool = False,
        keeps_anonymous: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes, self.metrics, self.clock = limit_bytes, metrics, clock
        self._is_shared, self._keeps_anonymous = is_shared, keeps_anonymous
        self.bytes = 0
        self._open: dict[Answers, None] = {}
        self._uses = itertools.count()
        metrics.measure(lambda: self.bytes, limit_bytes)

    def answers(self, series: VersionCacheSeries) -> Answers:
        """Room for the answers of one version of a model, where it runs now. series: of the version."""
        opened = Answers(self, series)
        self._open[opened] = None
        return opened

    def owner(self, tenant: str) -> str | None:
        """Whose answers a tenant gets; None: nobody's."""
        if self._is_shared:
            return ""
        return tenant if tenant or self._keeps_anonymous else None

    def next_use(self) -> int:
        """A number that is larger than all before."""
        return next(self._uses)

    def make_room(self, size: int) -> None:
        """Drops answers until `size` more bytes have room, and counts these."""
        dropped = 0
        while self.bytes + size > self.limit_bytes:
            min((one for one in self._open if one.entries), key=lambda one: one.oldest).drop_oldest()
            dropped += 1
        self.bytes += size
        if dropped:
            self.metrics.evicted(dropped)

    def give_back(self, size: int) -> None:
        """So many bytes are free again."""
        self.bytes -= size

    def leave(self, closed: Answers) -> None:
        """A version keeps no answers any longer."""
        del self._open[closed]


class Answers:
    """Those of one open version of a model, the least recently used first."""

    def __init__(self, cache: AnswerCache, series: VersionCacheSeries) -> None:
        self._cache, self._series = cache, series
        self.entries = OrderedDict[bytes, _Entry]()
        self._is_open = True

    @property
    def oldest(self) -> int:
        """When the answer that was not used for the longest time was last used, see `AnswerCache.next_use`."""
        return next(iter(self.entries.values())).used

    def key(self, request: Request) -> bytes | None:
        """The key of a request's answer; None if its answer is not kept: it samples without a seed of its own, or has
        no tenant that could have it."""
        owner, options = self._cache.owner(request.tenant), request.options
        if owner is None or (options.is_sampling and options.seed is None):
            return None
        if len(bias := options.logit_bias) > 1:  # the one mapping there is: it has no order of its own
            options = dataclasses.replace(options, logit_bias=dict(sorted(bias.items())))
            request = dataclasses.replace(request, options=options)
        return hashlib.blake2b(encode_plain((owner, _fields(request))), digest_size=32).digest()

    def find(self, key: bytes) -> Kept | None:
        """The answer of this key, if it is there."""
        entry = self.entries.get(key)
        if entry is None:
            self._series.cache_misses.inc()
            return None
        self._series.cache_hits.inc()
        self.entries[key] = entry._replace(used=self._cache.next_use())
        self.entries.move_to_end(key)
        now_s = self._cache.clock()
        finished = dataclasses.replace(decode_finished(entry.data), timings=Timings(arrived_s=now_s))
        return Kept(finished, now_s - entry.kept_s)

    def keeping(self, key: bytes, sink: EventSink) -> EventSink:
        """A sink that keeps the answer that comes, and passes every event on."""
        texts, tokens = list[str](), list[int]()

        def take(event: Event) -> None:
            if not isinstance(event, RequestError):
                texts.append(event.text)
                tokens.extend(event.tokens)
            sink(event)
            if isinstance(event, Finished):
                self._keep(key, dataclasses.replace(event, text="".join(texts), tokens=tuple(tokens)))

        return take

    def _keep(self, key: bytes, finished: Finished) -> None:
        if not self._is_open or _array_bytes(finished) > MAX_KEPT_BYTES:
            return
        data = encode_finished(dataclasses.replace(finished, timings=Timings()))
        if (size := _size(key, data)) <= MAX_KEPT_BYTES:
            if (before := self.entries.pop(key, None)) is not None:  # computed anew: its age is less
                self._cache.give_back(_size(key, before.data))
            self._cache.make_room(size)
            self.entries[key] = _Entry(data, self._cache.clock(), self._cache.next_use())

    def drop_oldest(self) -> None:
        """Drops the answer that was not used for the longest time."""
        key, entry = self.entries.popitem(last=False)
        self._cache.give_back(_size(key, entry.data))

    async def aclose(self) -> None:
        """Keeps no answer from now on. Returns when those that were kept are gone."""
        if not self._is_open:
            return
        self._is_open = False
        self._cache.leave(self)
        while self.entries:
            for _ in range(min(DROPPED_TOGETHER, len(self.entries))):
                self.drop_oldest()
            await asyncio.sleep(0)


def _size(key: bytes, data: bytes) -> int:
    return sys.getsizeof(key) + sys.getsizeof(data) + ENTRY_BYTES


def _array_bytes(finished: Finished) -> int:
    """Of the arrays, which are most of a large answer. An answer that is too large need not be encoded to know it."""
    arrays = [one.attention for one in finished.hypotheses]
    if (output := finished.encoder_output) is not None:
        arrays += [output.vector, output.label_logits, output.token_weights, output.states, output.token_label_logits]
    if finished.attention is not None:
        arrays += finished.attention.weights.values()
    return sum(array.nbytes for array in arrays if array is not None)
