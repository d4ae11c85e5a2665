"""What the RPCs of all protocols share between a message and its response: the model, the request and its answer.

What a message means, and what a response looks like, is in the servicer of each protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message

from export.bundle.manifest import Task
from service.edge.admission.preparation import Preparation
from service.edge.admission.request_memory import answer_bytes
from service.edge.calls.call import Call
from service.edge.models.answer_cache import directives
from service.edge.models.event_stream import EventStream
from service.edge.models.served_model import ServedModel
from service.edge.requests.catalog import Catalog
from service.edge.requests.prompt_encoder import INLINE_BYTES, LanguagePair
from service.edge.requests.request_builder import RequestBuilder
from service.edge.requests.request_limits import answer_size
from service.edge.requests.traffic import Key
from service.errors import DeadlineTooSoon, EngineUnavailable, MemoryLimit, Overloaded, TenantLimit, TokensSpent
from service.options import DecodingOptions
from service.request import Cancel, EventSink, Finished, Request

FULL = (Overloaded, TenantLimit, TokensSpent, MemoryLimit, DeadlineTooSoon)  # what an item of a call waits out
TRIES = 4  # of an item whose engine's process ends: if the item is the cause, fewer than make a process pause for long
INLINE_SIZE = 48_000  # bytes converted to messages on the event loop, in about a millisecond

T = TypeVar("T")


class ModelCalls:
    """Calls to the models of one server. Event-loop thread only."""

    def __init__(self, catalog: Catalog, preparation: Preparation, *, log_text: bool = False) -> None:
        """log_text: texts of requests and answers are logged."""
        self.catalog, self.preparation, self.log_text = catalog, preparation, log_text

    def find(
        self,
        name: str,
        call: Call,
        *tasks: Task,
        can: Callable[[ServedModel], bool] = lambda _: True,
        by_prompt: bool = False,
    ) -> ServedModel:
        """The model of that name, of the version that the traffic gives the call if it names none, noted in the call's
        log line and in use until the call ends. Raises as `Catalog.find`."""
        model = call.budget.pinned
        if model is None:
            model = self.catalog.find(name, *tasks, can=can, by_prompt=by_prompt)
            if "@" not in name:
                model = self.spread(model, call)
        call.use(model)
        return model

    def spread(self, model: ServedModel, call: Call) -> ServedModel:
        """The version of a default model that the traffic gives a call."""
        return self.catalog.spread(model, Key(call.rpc.request_id, call.rpc.caller.tenant))

    def find_for(
        self,
        request: Any,
        call: Call,
        *tasks: Task,
        can: Callable[[ServedModel], bool] = lambda _: True,
        by_prompt: bool = False,
    ) -> ServedModel:
        """The model that a message names, whose texts are noted for the log. See `find`."""
        if self.log_text:
            call.record.note(**{name: getattr(request, name) for name in ("text", "target") if hasattr(request, name)})
        return self.find(request.model, call, *tasks, can=can, by_prompt=by_prompt)

    def builder(self, model: ServedModel, call: Call) -> RequestBuilder:
        """What builds the request of a call."""
        limits, rpc = self.catalog.limits_of(model), call.rpc
        return RequestBuilder(model, limits, rpc.request_id, rpc.deadline_s, rpc.trace_id, rpc.caller)

    async def built(self, build: Callable[[], T], message: Message, call: Call, *, is_slow: bool = False) -> T:
        """`build()`, in a thread unless the message is small enough for the event loop."""
        self.preparation.see(call.rpc.caller)
        if not is_slow and message.ByteSize() <= INLINE_BYTES:
            return build()
        while True:
            try:
                return await self.preparation.prepare(call.rpc.caller, build)
            except FULL as error:
                await call.wait_for_room(error)

    @staticmethod
    async def answered(
        model: ServedModel,
        request: Request,
        call: Call,
        *,
        has_memory: bool = False,
        asked: Request | None = None,
    ) -> tuple[str, tuple[int, ...], Finished]:
        """The text, the token ids and the end of the answer to a request that is not streamed, which is one piece. An
        item whose engine is lost is begun again, up to TRIES times: it has no effect before its answer. has_memory,
        asked: see `submitted`."""
        for _ in range(TRIES - 1):
            try:
                return await _answered(model, request, call, has_memory=has_memory, asked=asked)
            except EngineUnavailable as error:
                await call.wait_for_room(error)
                has_memory = True
        return await _answered(model, request, call, has_memory=has_memory, asked=asked)

    async def finished(self, model: ServedModel, request: Request, call: Call) -> Finished:
        """The end of a request, without its text."""
        return (await self.answered(model, request, call))[-1]


async def _answered(
    model: ServedModel, request: Request, call: Call, *, has_memory: bool, asked: Request | None
) -> tuple[str, tuple[int, ...], Finished]:
    async with submitted(model, request, call, has_memory=has_memory, asked=asked) as events:
        text, tokens, finished = await events.piece()
    assert finished is not None
    call.record.finish(finished)
    return text, tokens, finished


class submitted:  # noqa: N801 - a context manager, which as a generator takes twice the time
    """The events of a request in an engine, or those of the answer that was kept of an equal one: one event. Leaving
    before the end cancels it: its rows are free one step later.

    has_memory: the answer takes the place of another one of the call, of the same size. asked: the request as its
    client made it, where more is computed for the server's own use; answers are kept by that."""

    def __init__(
        self,
        model: ServedModel,
        request: Request,
        call: Call,
        *,
        has_memory: bool = False,
        asked: Request | None = None,
    ) -> None:
        self._model, self._request, self._call, self._has_memory = model, request, call, has_memory
        self._asked = asked or request

    async def __aenter__(self) -> EventStream:
        model, request, call, events = self._model, self._request, self._call, EventStream()
        if not self._has_memory:
            await call.reserve(answer_bytes(*answer_size(model.manifest, request)))
        sink: EventSink = events
        self._events = events
        if model.kept_answers is not None and (key := model.kept_answers.key(self._asked)) is not None:
            allowed = directives(call.rpc.cache)
            if allowed.reads and (kept := model.kept_answers.find(key)) is not None:
                call.record.reuse(kept.age_s)
                call.record.note_unknown(model.count_unknown(request.source, request.prompt))
                self._cancel = _nothing
                events(kept.finished)
                return events
            if allowed.stores:
                sink = model.kept_answers.keeping(key, events)
        self._cancel = await _submit(model, request, call, sink)
        call.record.accept()
        call.record.note_unknown(model.count_unknown(request.source, request.prompt))
        if call.record.trace is not None:
            events.on_end = call.record.trace.expect(model.name, request, time.monotonic())
        return events

    async def __aexit__(self, *_: object) -> None:
        if self._events.finished is None:
            self._cancel()
            record = self._call.record
            record.finish(record.finished or self._events.unread)  # computed, if for nobody


def _nothing() -> None:
    """Cancels nothing."""


async def _submit(model: ServedModel, request: Request, call: Call, sink: EventSink) -> Cancel:
    """Hands a request to an engine. An item waits for room, for tokens, and for an engine."""
    quota = call.budget.quota
    while True:
        submit = partial(model.pool.submit, request, asyncio.get_running_loop())
        try:
            return submit(sink) if quota is None else quota.submit(request, sink, submit)
        except (*FULL, EngineUnavailable) as error:
            await call.wait_for_room(error)


async def convert_off_loop(
    preparation: Preparation, model: ServedModel, request: Request, convert: Callable[[], T]
) -> T:
    """`convert()`, in a thread when the response may be too large to convert on the event loop."""
    size = answer_size(model.manifest, request)
    return convert() if sum(size) <= INLINE_SIZE else await preparation.convert(request.caller, convert)


def is_slow(model: ServedModel, options: DecodingOptions) -> bool:
    """Whether the request for a short text to translate may take long to build. A template may take as long as its
    bounds allow."""
    return (options.use_shortlist and bool(options.phrases)) or model.translation is not None


def languages_of(message: Any) -> LanguagePair:
    """The languages that a message names."""
    return LanguagePair(message.source_language, message.target_language)
