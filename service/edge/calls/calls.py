"""The life of an RPC: `Calls.run` gives it an id, counts it, admits it, and ends it exactly once.

It ends with a response or with a status; the text of an unexpected exception stays in the log. Health and reflection do
not come through here, so they are answered while requests are rejected. Nothing here knows what an RPC does.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import random
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import Message

from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.admission import Admission, Arrival, Metadata
from service.edge.admission.connections import ResetLimit, shut_down
from service.edge.admission.refusals import Refusals
from service.edge.admission.request_memory import RequestMemory, Reservation, message_bytes
from service.edge.admission.retry_times import RetryTimes
from service.edge.admission.token_quotas import TokenQuotas
from service.edge.calls.budget import Budget
from service.edge.calls.call import Call, Ending
from service.edge.calls.conversation import has_items, messages_of, requests_of
from service.edge.calls.items import ItemLimits, ItemRunner
from service.edge.calls.message_reader import MessageReader, Parse, parsed
from service.edge.calls.record import REQUEST_ID, Record, report
from service.edge.calls.rpc import Rpc, is_late
from service.edge.calls.stall_timer import StallTimer, UnwrittenResponses
from service.edge.models.answer_cache import CACHE, directives
from service.edge.observability import logs
from service.edge.observability.call_trace import PARENT, TRACE_PARENT
from service.edge.observability.metrics import Method, Metrics
from service.edge.observability.status import abort, check_time, client_may_leave, status_code
from service.edge.observability.tracing import open_tracing
from service.edge.security.access import GOOGLE, OPEN_INFERENCE, RIVA, VLLM, Guard
from service.edge.security.tenants import Tenants
from service.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalFailure,
    InvalidRequest,
    MessagesMissing,
    RequestError,
    Retryable,
    ShuttingDown,
    TenantLimit,
    TokensSpent,
)
from service.request import Caller
from service.settings.config import ServerSettings

Trailers = tuple[tuple[str, str | bytes], ...]
SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
WITHOUT_ENGINES = frozenset(
    [
        *(
            (service.full_name, method.name)
            for service in pb.DESCRIPTOR.services_by_name.values()
            for method in service.methods
            if service.name in ("ModelService", "TokenService", "LanguageService") or method.name == "Similarity"
        ),
        *((OPEN_INFERENCE, method) for method in ("ServerMetadata", "ModelMetadata")),
        *((GOOGLE, method) for method in ("DetectLanguage", "GetSupportedLanguages")),
        (RIVA, "ListSupportedLanguagePairs"),
        *((VLLM, method) for method in ("Abort", "GetModelInfo", "GetServerInfo", "GetTokenizer")),
    ]
)
"""Methods, by their services, that are answered however long requests wait for engines: no engine has a part in them,
or, of Similarity, only in a message with texts, whose requests the pool refuses."""
WRITTEN_S = 5.0  # for statuses to be written to clients that read slowly, at the end of a drain
ASKS_LOAD = "endpoint-load-metrics-format"
"""The header of a client that asks for the load in the trailing metadata, whatever its value: gRPC has one form."""
SUSPECT_S = 0.005  # until gRPC has told that a call was reset, even one that was before its handler started

_IDS = random.Random()  # names, not secrets: random bits of the operating system take 0.1 ms


class Calls:
    """All calls of a server. Lives on the event-loop thread."""

    def __init__(
        self,
        metrics: Metrics,
        settings: ServerSettings,
        predicted_s: Callable[[Caller], float] = lambda _: 0.0,
        clock: Callable[[], float] = time.monotonic,
        guard: Guard | None = None,
    ) -> None:
        """predicted_s: see `Pool.predicted_s`; of the model that would answer soonest. clock: seconds. guard: None asks
        nobody for a token."""
        self._metrics, self._settings, self._clock = metrics, settings, clock
        guard = guard or Guard(Tenants(settings))
        self.admission = Admission(
            max_requests=settings.max_requests,
            message_timeout_s=settings.message_timeout_s,
            tenant_share=settings.tenant_share,
            identify=guard.caller,
            predicted_s=predicted_s,
            clock=clock,
            quotas=TokenQuotas(settings.tenant_tokens_per_minute, clock),
        )
        self._refusals, self._retry_times = Refusals(metrics), RetryTimes(clock())
        self._tracing = open_tracing(settings)
        self._resets = ResetLimit(settings.max_resets_per_s)
        self._open: dict[Call, None] = {}  # oldest first
        self.memory = RequestMemory(settings.request_memory_bytes, settings.tenant_share, clock)
        limits = ItemLimits(settings.max_deadline_s, settings.message_timeout_s)
        self.items = ItemRunner(metrics, limits, clock, self._idle_call)
        # Each task ends when the status of its call is written; with what the call has reserved, once it is admitted.
        self._tasks: dict[asyncio.Task[Any], Reservation | None] = {}
        self.unwritten = UnwrittenResponses(settings.stall_timeout_s, clock)
        self._reader = MessageReader(self.admission, guard, settings.message_timeout_s, clock, self._leave)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether no call is being handled."""
        return not self._open

    async def idle(self) -> None:
        """Returns when no call is being handled."""
        await self._idle.wait()

    async def drain(self, limit_s: float) -> int:
        """Refuses calls from now on, and returns when the others have ended and their statuses are written. After
        `limit_s` it ends those that are still open, as ShuttingDown. Returns how many."""
        self.admission.drain()
        _end_all([call for call in self._open if call.ending.is_between_requests])
        for call in self._open:
            call.ending.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        unfinished = list(self._open)
        _end_all(unfinished)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=WRITTEN_S)
        return len(unfinished)

    async def close(self) -> None:
        """Logs, counts and sends what has not been yet."""
        self._refusals.report()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    async def run(self, method: Method, behaviour: Callable[..., Any], context: Any, parse: Parse) -> Any:
        """Handles one RPC from start to end: admitted first, and only then is its message read, and parsed if there is
        memory for what it may become."""
        began_s, remaining_s = self._clock(), context.time_remaining()
        limit_s = self._settings.default_deadline_s if remaining_s is None else remaining_s
        limit_s = min(limit_s, self._settings.max_deadline_s)
        client_deadline_s = math.inf if remaining_s is None else began_s + remaining_s
        metadata, peer, task = context.invocation_metadata() or (), context.peer(), asyncio.current_task()
        if task is not None:
            self._tasks[task] = None
            task.add_done_callback(self._written)
        try:
            if self._resets.is_suspect(peer, began_s):
                await asyncio.sleep(SUSPECT_S)  # a call that was reset ends here, for half the processor time
            needs_engine = (method.service, method.name) not in WITHOUT_ENGINES
            caller, refusal = self.admission.admit(Arrival(metadata, peer, began_s, limit_s, needs_engine))
            request_id, parent, asks_load, cache = _read(metadata)
            trace = self._tracing.begin(method, request_id, parent, metadata, began_s) if self._tracing else None
            if refusal is not None:
                if isinstance(refusal, MessagesMissing):
                    self._count_wasted(peer)
                self._refusals.add(method, caller.tenant, refusal, self._clock() - began_s)
                if trace is not None:
                    trace.end(self._clock(), status_code(refusal).value[0], refusal)
                check_time(client_deadline_s, self._clock())
                load = self._metrics.load.trailers(asks_load)
                await self._abort(context, refusal, ((REQUEST_ID, request_id), *load))
                return None
            trace_id = trace.trace_id if trace else parent[1] if parent else ""
            # Without a sampled trace metrics refer to none, as none will be found.
            exemplar = trace_id if trace or self._tracing is None else ""
            times = began_s, began_s + limit_s, client_deadline_s
            rpc = Rpc(method, request_id, caller, *times, peer, trace_id, exemplar, cache)
            memory = Reservation(self.memory, caller)
            call = Call(rpc, Budget(memory, quota=self.admission.quotas.of(caller.tenant)), Record(trace), Ending(task))
            if task is not None:
                self._tasks[task] = memory
            self._begin(call)
            return await self._handle(call, behaviour, context, parse, asks_load=asks_load)
        except asyncio.CancelledError:
            if not is_late(self._clock(), began_s, began_s + limit_s):
                self._count_wasted(peer)
            raise  # swallowing it leaks memory inside grpc

    async def _handle(
        self, call: Call, behaviour: Callable[..., Any], context: Any, parse: Parse, *, asks_load: bool
    ) -> Any:
        error: RequestError | None = None
        response = None
        try:
            directives(call.rpc.cache)  # refuses unknown ones, whatever the call is
            data = await self._message(context, call)
            call.budget.memory.grow(message_bytes(len(data)))
            message = parsed(data, parse)
            if call.rpc.method.type == "unary":
                response = await behaviour(message, call)
                call.record.sent()
            elif call.rpc.method.type == "server_stream":
                await self._stream(behaviour, message, call, context)
            else:
                await self._converse(behaviour, message, call, context, parse)
        except RequestError as failure:
            error = failure
        except asyncio.CancelledError:
            late, ending = is_late(self._clock(), call.rpc.started_s, call.rpc.deadline_s), call.ending
            error = DeadlineExceeded("the deadline passed") if late else Cancelled("the client cancelled the call")
            if ending.error is None or ending.task is None:
                raise
            error = ending.error
            ending.task.uncancel()
        except Exception as failure:
            fields = {"request_id": call.rpc.request_id, "method": call.rpc.method.name}
            logs.event("internal_error", fields, level=logs.ERROR, exception=failure)
            error = InternalFailure(call.rpc.request_id)
        finally:
            self._end(call, error)
        # The call no longer counts: what follows may wait for a slow client, and holds none of the server's resources.
        check_time(call.rpc.client_deadline_s, self._clock())
        load = self._metrics.load.trailers(asks_load)
        trailers: Trailers = (*call.record.trailers(call.rpc.request_id), *load)
        if error is not None:
            await self._abort(context, error, trailers)
        context.set_trailing_metadata(trailers)
        if call.ending.task is not None:
            self.unwritten.add(call.ending.task)
        return response

    def _written(self, task: asyncio.Task[Any]) -> None:
        self.unwritten.discard(task)
        if (memory := self._tasks.pop(task)) is not None:
            memory.release()

    async def _abort(self, context: Any, error: RequestError, trailers: Trailers) -> None:
        """Ends the RPC. Raises. The hint for one tenant or connection stays: others do not come with it."""
        if isinstance(error, Retryable) and not isinstance(error, TenantLimit | TokensSpent | MessagesMissing):
            error.retry_after_s = self._retry_times.after_s(error.retry_after_s, self._clock())
        await abort(context, error, trailers)

    async def _converse(
        self, behaviour: Callable[..., Any], first: Message, call: Call, context: Any, parse: Parse
    ) -> None:
        if has_items(behaviour):
            call.limit(call.rpc._replace(deadline_s=call.rpc.client_deadline_s))  # its items have some of their own
            read = functools.partial(self._reader.ahead, call, context, parse)
            requests = messages_of(call, first, read, self._metrics)
        else:
            read = functools.partial(self._reader.in_turn, call, context, parse)
            requests = requests_of(call, first, read, self._metrics, self._clock, self._settings.default_deadline_s)
        async with contextlib.aclosing(requests):
            await self._stream(behaviour, requests, call, context)

    async def _stream(self, behaviour: Callable[..., Any], message: Any, call: Call, context: Any) -> None:
        timer = StallTimer(self._settings.stall_timeout_s)
        with client_may_leave():
            async with timer, contextlib.aclosing(behaviour(message, call)) as responses:
                async for response in responses:
                    timer.begin()
                    if not call.record.messages:
                        # Not before the first message: a client retries only calls without initial metadata. Unary
                        # responses carry the id in trailing metadata alone: grpc.aio would need 0.4 ms for this.
                        await context.send_initial_metadata(((REQUEST_ID, call.rpc.request_id),))
                    call.record.sent()
                    await context.write(response)
                    timer.end()

    def _begin(self, call: Call) -> None:
        self._open[call] = None
        self.admission.shares.enter(call.rpc.caller)
        self._idle.clear()
        self._metrics.rpc_started(call.rpc.method)

    def _leave(self, call: Call) -> None:
        """A call no longer counts as open."""
        if call in self._open:
            del self._open[call]
            self.admission.shares.leave(call.rpc.caller)

    def _idle_call(self, call: Call) -> contextlib.AbstractContextManager[None]:
        """A call waits for its client with nothing in flight. Others may need its place."""
        return self.admission.idle.waiting(
            call.rpc.peer, call.rpc.caller.tenant, functools.partial(self._give_up, call)
        )

    def _give_up(self, call: Call, error: RequestError) -> None:
        self._leave(call)
        call.ending.end(error)

    def _count_wasted(self, peer: str) -> None:
        """A client has reset a call, or not sent its message. The connection of one with too many of them is closed."""
        if self._resets.wasted(peer, self._clock()):
            self._metrics.connection_closed()
            fields = {"peer": peer, "max_resets_per_s": self._settings.max_resets_per_s}
            logs.event("too_many_resets", fields, level=logs.WARNING)
            asyncio.get_running_loop().run_in_executor(None, shut_down, peer)

    async def _message(self, context: Any, call: Call) -> bytes:
        """The bytes of a call's message. It counts as a request while it waits for it."""
        try:
            message: Any = await self.admission.waits.read(context, call.rpc.peer, functools.partial(self._leave, call))
        except RequestError:
            self._count_wasted(call.rpc.peer)
            raise
        if message is grpc.aio.EOF:
            raise InvalidRequest("request", "is missing: the call ended without a message")
        if self._clock() >= call.rpc.deadline_s:
            raise DeadlineExceeded("the deadline passed before the message was read")
        return message  # type: ignore[no-any-return]

    def _end(self, call: Call, error: RequestError | None) -> None:
        self._leave(call)
        call.budget.leave()
        if not self._open:
            self._idle.set()
        now_s = self._clock()
        if error is None:
            self._retry_times.answered(now_s)
            self._resets.answered(call.rpc.peer, now_s)
        elif isinstance(error, MessagesMissing):
            self._refusals.log(call.rpc.method, error)
        report(call.rpc, call.record, error, self._metrics, now_s)


def _end_all(calls: Iterable[Call]) -> None:
    for call in calls:
        call.ending.end(ShuttingDown())


def _read(metadata: Metadata) -> tuple[str, re.Match[str] | None, bool, str]:
    """The id of a request, the client's if it sent a safe one; the client's span, if it sent one; whether it asks for
    a load report; and what it says about the answer cache."""
    request_id, parent, asks_load, cache = "", None, False, ""
    for key, value in metadata:
        if key == REQUEST_ID and isinstance(value, str) and SAFE_REQUEST_ID.fullmatch(value):
            request_id = request_id or value
        elif key == TRACE_PARENT and isinstance(value, str):
            parent = PARENT.fullmatch(value)
        elif key == ASKS_LOAD:
            asks_load = True
        elif key == CACHE and isinstance(value, str):
            cache += f"{value},"
    return request_id or f"{_IDS.getrandbits(128):032x}", parent, asks_load, cache
