"""When a request is refused: every gate that it passes, in order (`GATES`), and the first of them (`Admission`).

A call passes the gates of its stage "call" before its message is read, and the others on its way to an engine. Each
gate knows one reason. Those who ask hold the state: a server's calls, the memory of its requests, the threads that
prepare them, and an engine process's queue. Nothing here knows gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, NamedTuple

from service.answer_pace import AnswerPace, too_late
from service.edge.admission.backlog import Backlog
from service.edge.admission.idle_calls import IdleCalls
from service.edge.admission.message_waits import MessageWaits
from service.edge.admission.preparation import Preparation
from service.edge.admission.request_memory import RequestMemory
from service.edge.admission.tenant_paces import TenantPaces
from service.edge.admission.tenant_shares import TenantShares
from service.edge.admission.token_quotas import TokenQuota, TokenQuotas
from service.errors import (
    Backlogged,
    DeadlineTooSoon,
    EngineUnavailable,
    InvalidRequest,
    MemoryLimit,
    MessagesMissing,
    Overloaded,
    RequestError,
    ShuttingDown,
    TenantLimit,
    TokensSpent,
)
from service.request import Caller, Request

RETRY_WHEN_FULL_S = 0.5  # when the whole server, not one queue, is full
RETRY_WITHOUT_ENGINE_S = 1.0  # about as long as a process takes to open a small model

NOBODY = Caller()

Metadata = Iterable[tuple[str, str | bytes]]
Stage = Literal["call", "caller", "message", "preparation", "answer", "queue"]


class Arrival(NamedTuple):
    """A call whose message has not been read. needs_engine: the time that requests wait for engines matters to it."""

    metadata: Metadata
    peer: str
    now_s: float
    remaining_s: float
    needs_engine: bool


class EngineQueue(NamedTuple):
    """The requests of one engine process. rows: of all its engines. queued: more requests that it may hold."""

    shares: TenantShares
    pace: AnswerPace
    paces: TenantPaces
    rows: int
    queued: int

    def predicted_s(self, caller: Caller, now_s: float, max_tokens: int = 0) -> float:
        """Seconds until the answer to one more request of a caller. max_tokens: of the answer, 0 if not known."""
        self.pace.observe(self.shares.total, self.rows, now_s)
        return self.paces.predicted_s(caller, self.shares, self.rows, max_tokens)


class Entry(NamedTuple):
    """A request on its way to an engine of a model. queue: of the least busy process; None while none runs."""

    model: str
    is_closing: bool
    queue: EngineQueue | None
    request: Request
    now_s: float


class Admission:
    """The gates before a message is read. Event-loop thread only.

    identify: returns whose a call with some metadata from a peer is, or raises. predicted_s: see `Pool.predicted_s`; of
    the model that would answer soonest.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        message_timeout_s: float,
        tenant_share: float,
        identify: Callable[[Metadata, str], Caller],
        predicted_s: Callable[[Caller], float],
        clock: Callable[[], float],
        quotas: TokenQuotas | None = None,
    ) -> None:
        self.quotas = quotas or TokenQuotas({}, clock)
        self._max_requests, self._identify, self._predicted_s = max_requests, identify, predicted_s
        self.backlog = Backlog(clock)
        self.waits = MessageWaits(max_requests, message_timeout_s)
        self.idle = IdleCalls(max_requests, clock)
        self.shares = TenantShares(tenant_share)
        self.is_draining = False

    def admit(self, arrival: Arrival) -> tuple[Caller, RequestError | None]:
        """Whose call it is, nobody's if that is not known, and why it is refused before its message has been read."""
        for gate in _OF_STAGE["call"]:
            if refusal := gate.check(self, arrival):
                return NOBODY, refusal
        try:
            caller = self._identify(arrival.metadata, arrival.peer)
        except RequestError as error:
            return NOBODY, error
        for gate in _OF_STAGE["caller"]:
            if refusal := gate.check(self, arrival, caller):
                return caller, refusal
        return caller, None

    def drain(self) -> None:
        """Refuses every call from now on."""
        self.is_draining = True

    def draining(self, _arrival: Arrival) -> ShuttingDown | None:
        """The server ends."""
        return ShuttingDown() if self.is_draining else None

    def messages_missing(self, arrival: Arrival) -> MessagesMissing | None:
        """Many calls wait for their messages, and the connection has its share of them."""
        self.backlog.called()
        return self.waits.refusal(arrival.peer)

    def backlogged(self, arrival: Arrival) -> Backlogged | None:
        """Calls wait long before the server sees them."""
        return self.backlog.refusal(arrival.peer, arrival.remaining_s)

    def server_full(self, arrival: Arrival, caller: Caller) -> Overloaded | TenantLimit | None:
        """The server or the tenant's share of it is full. A full server first ends calls whose messages are late."""
        is_full = self.shares.total >= self._max_requests
        if is_full or self.waits.are_many:
            self.waits.make_room()
        if is_full:
            self.idle.make_room()
        retry_after_s = RETRY_WHEN_FULL_S
        return self.shares.refusal(
            caller, self._max_requests, arrival.now_s, retry_after_s=retry_after_s, full=self._full
        )

    def answered_late(self, arrival: Arrival, caller: Caller) -> DeadlineTooSoon | None:
        """An engine is not expected to answer in time."""
        return too_late(self._predicted_s(caller), arrival.remaining_s) if arrival.needs_engine else None

    def _full(self) -> Overloaded:
        problem = f"the server already handles {self._max_requests} requests"
        return Overloaded(problem, retry_after_s=RETRY_WHEN_FULL_S, limit=self._max_requests)


def pool_closed(entry: Entry) -> ShuttingDown | None:
    """The model is closed: the server ends, or the version was replaced."""
    return ShuttingDown() if entry.is_closing else None


def no_engine(entry: Entry) -> EngineUnavailable | None:
    """No engine process of the model runs."""
    if entry.queue is not None:
        return None
    return EngineUnavailable(f"no engine of model {entry.model} runs", retry_after_s=RETRY_WITHOUT_ENGINE_S)


def queue_full(entry: Entry) -> Overloaded | TenantLimit | None:
    """The least busy engine process holds as many requests as it may, or the tenant has its share of them."""
    assert entry.queue is not None
    shares, pace, _, rows, queued = entry.queue
    full = partial(pace.overloaded, queued)
    retry_after_s = pace.retry_after_s(rows)
    return shares.refusal(entry.request.caller, rows + queued, entry.now_s, retry_after_s=retry_after_s, full=full)


def queue_late(entry: Entry) -> DeadlineTooSoon | None:
    """The answer is expected after the request's deadline."""
    assert entry.queue is not None
    request = entry.request
    if request.deadline_s is None:
        return None
    predicted_s = entry.queue.predicted_s(request.caller, entry.now_s, request.max_tokens)
    return too_late(predicted_s, request.deadline_s - entry.now_s)


def check_entry(entry: Entry) -> None:
    """Raises what a gate before an engine refuses a request with."""
    for gate in _OF_STAGE["queue"]:
        if refusal := gate.check(entry):
            raise refusal


class Gate(NamedTuple):
    """One reason to refuse a request, at one moment of its way. errors: with which it refuses, each with its reason and
    status. rule: when it refuses, as a sentence of docs/RELIABILITY.md. check: returns the error, or None."""

    stage: Stage
    name: str
    errors: tuple[type[RequestError], ...]
    rule: str
    check: Callable[..., RequestError | None]


_SHARE = "or its tenant has its share of them"
GATES = (
    Gate("call", "draining", (ShuttingDown,), "The server drains.", Admission.draining),
    Gate(
        "call",
        "messages_missing",
        (MessagesMissing,),
        "A quarter of `max_requests` calls wait for their messages, and its connection has an eighth of them.",
        Admission.messages_missing,
    ),
    Gate(
        "call",
        "backlogged",
        (Backlogged,),
        "Calls wait before the server sees them, for more than a twentieth of the time that this one has left.",
        Admission.backlogged,
    ),
    Gate(
        "caller",
        "server_full",
        (Overloaded, TenantLimit),
        f"The server handles `max_requests` calls, {_SHARE}.",
        Admission.server_full,
    ),
    Gate(
        "caller",
        "answered_late",
        (DeadlineTooSoon,),
        "It needs an engine, and no model of the server is expected to answer 1.7 times as fast as its deadline asks.",
        Admission.answered_late,
    ),
    Gate(
        "message",
        "message_memory",
        (MemoryLimit,),
        f"Its message may take more memory than `request_memory_bytes` leave, {_SHARE}.",
        RequestMemory.refusal,
    ),
    Gate(
        "preparation",
        "preparing",
        (Overloaded, TenantLimit),
        f"Its text is long, and 256 long requests are being prepared, {_SHARE}.",
        Preparation.refusal,
    ),
    Gate(
        "answer",
        "answer_memory",
        (MemoryLimit,),
        f"Its answer may take more memory than `request_memory_bytes` leave, {_SHARE}.",
        RequestMemory.refusal,
    ),
    Gate(
        "answer",
        "tokens_spent",
        (TokensSpent, InvalidRequest),
        "Its prompt and its longest answer have more tokens than `tenant_tokens_per_minute` leave its tenant now, or "
        "than a whole minute has.",
        TokenQuota.refusal,
    ),
    Gate("queue", "pool_closed", (ShuttingDown,), "The version of the model is being closed.", pool_closed),
    Gate("queue", "no_engine", (EngineUnavailable,), "No engine process of the model runs.", no_engine),
    Gate(
        "queue",
        "queue_full",
        (Overloaded, TenantLimit),
        f"The least busy engine process holds its rows and `max_queue` more requests, {_SHARE}.",
        queue_full,
    ),
    Gate(
        "queue",
        "queue_late",
        (DeadlineTooSoon,),
        "That process is not expected to answer 1.7 times as fast as the deadline asks.",
        queue_late,
    ),
)
_OF_STAGE = {stage: [gate for gate in GATES if gate.stage == stage] for stage in ("call", "caller", "queue")}
