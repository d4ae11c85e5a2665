"""Each gate refuses for its own reason, with its status, and lets pass what no gate refuses."""

import asyncio
import time
from typing import Any

import grpc
import pytest

from service.answer_pace import AnswerPace
from service.edge.admission.admission import (
    GATES,
    RETRY_WHEN_FULL_S,
    Admission,
    Arrival,
    EngineQueue,
    Entry,
    check_entry,
)
from service.edge.admission.message_waits import MIN_WAITING, SHARE_OF_PEER
from service.edge.admission.preparation import Preparation
from service.edge.admission.request_memory import RequestMemory
from service.edge.admission.tenant_paces import TenantPaces
from service.edge.admission.tenant_shares import TenantShares
from service.edge.admission.token_quotas import TokenQuotas
from service.edge.observability.status import STATUS
from service.errors import RequestError, Unauthenticated
from service.progress import Timings
from service.request import Caller, Finished, FinishReason
from tests.engines import request
from tests.fakes import FakeClock

A, B = Caller("a"), Caller("b")
AGAIN, GONE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE
REFUSALS = {  # by gate: reasons and statuses
    "draining": {"SHUTTING_DOWN": GONE},
    "messages_missing": {"MESSAGES_MISSING": AGAIN},
    "backlogged": {"BACKLOG": AGAIN},
    "server_full": {"QUEUE_FULL": AGAIN, "TENANT_LIMIT": AGAIN},
    "answered_late": {"DEADLINE_TOO_SOON": AGAIN},
    "message_memory": {"MEMORY_LIMIT": AGAIN},
    "preparing": {"QUEUE_FULL": AGAIN, "TENANT_LIMIT": AGAIN},
    "answer_memory": {"MEMORY_LIMIT": AGAIN},
    "tokens_spent": {"TENANT_TOKENS": AGAIN, "INVALID_FIELD": grpc.StatusCode.INVALID_ARGUMENT},
    "pool_closed": {"SHUTTING_DOWN": GONE},
    "no_engine": {"ENGINE_UNAVAILABLE": GONE},
    "queue_full": {"QUEUE_FULL": AGAIN, "TENANT_LIMIT": AGAIN},
    "queue_late": {"DEADLINE_TOO_SOON": AGAIN},
}


class Server:
    """The admission of a server for four calls, and what a test sets."""

    def __init__(self):
        self.clock, self.predicted_s = FakeClock(0.0), 0.0
        self.identity: Caller | RequestError = A
        self.admission = Admission(
            max_requests=4,
            message_timeout_s=10.0,
            tenant_share=0.5,
            identify=self._identify,
            predicted_s=lambda _: self.predicted_s,
            clock=self.clock,
        )

    def _identify(self, _metadata, _peer):
        if isinstance(self.identity, RequestError):
            raise self.identity
        return self.identity

    def admit(self, remaining_s=1.0, *, needs_engine=True):
        caller, refusal = self.admission.admit(Arrival((), "peer", self.clock(), remaining_s, needs_engine))
        return refusal or caller


class Queue:
    """The queue of an engine process with two rows, that holds two more requests."""

    def __init__(self):
        pace, shares = AnswerPace(0.0), TenantShares(0.5)
        self.queue = EngineQueue(shares, pace, TenantPaces(pace), rows=2, queued=2)

    def refusal(self, deadline_s=None, *, is_closing=False, has_engine=True):
        asked = request("r", tenant="a", deadline_s=deadline_s)
        with pytest.raises(RequestError) as caught:
            check_entry(Entry("m", is_closing, self.queue if has_engine else None, asked, 0.0))
        return caught.value


def learned(seconds):
    """The end of an answer that took so long."""
    timings = Timings(queue_s=0.0, prefill_s=0.0, first_token_s=0.0, total_s=seconds)
    return Finished(FinishReason.LENGTH, generated_tokens=8, timings=timings)


def shares_of(*callers, now_s=0.0):
    """The shares of a place where these callers have requests."""
    found = TenantShares(0.5)
    for caller in callers:
        found.has_room(caller, 99, now_s)  # it is present
        found.enter(caller)
    return found


def draining():
    server = Server()
    server.admission.drain()
    yield server.admit()


def messages_missing():
    class Context:
        async def read(self):
            await asyncio.Event().wait()

    async def story():
        server = Server()
        waits = server.admission.waits
        reads = [asyncio.create_task(waits.read(Context(), "peer", lambda: None)) for _ in range(MIN_WAITING)]
        await asyncio.sleep(0)
        assert len(reads) > MIN_WAITING // SHARE_OF_PEER
        try:
            return server.admit()
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    yield asyncio.run(story())


def backlogged():
    server = Server()
    for _ in range(3):
        server.admission.backlog.sent()
        server.clock.advance(0.2)
        server.admission.backlog.arrived()
    yield server.admit(3.0)


def server_full():
    for taken in (4 * [A], [A, A, B]):
        server = Server()
        server.admission.shares = shares_of(*taken)
        refusal = server.admit()
        assert refusal.retry_after_s == RETRY_WHEN_FULL_S
        yield refusal


def answered_late():
    server = Server()
    server.predicted_s = 0.6
    assert server.admit(needs_engine=False) is A
    yield server.admit(1.0)


def memory():
    found = RequestMemory(1000, 0.5, lambda: 0.0)
    found.reserve(A, 600)
    yield found.refusal(A, 500)


def tokens_spent():
    quota: Any = TokenQuotas({"a": 100}, lambda: 0.0).of("a")
    quota.submit(request("r", max_tokens=60), print, lambda _: print)
    yield quota.refusal(60)
    yield quota.refusal(101)


def preparing():
    for taken in (4 * [A], [A, A, B]):
        found = Preparation(0.5, capacity=4)
        found._shares = shares_of(*taken, now_s=time.monotonic())
        try:
            yield found.refusal(A)
        finally:
            found.close()


def queue_full():
    for taken in (4 * [A], [A, A, B]):
        one = Queue()
        one.queue = one.queue._replace(shares=shares_of(*taken))
        yield one.refusal()


def queue_late():
    one = Queue()
    one.queue.shares.enter(A)
    one.queue.paces.learn("a", learned(2.0), 1)
    yield one.refusal(deadline_s=1.0)


SCENES = {
    "draining": draining,
    "messages_missing": messages_missing,
    "backlogged": backlogged,
    "server_full": server_full,
    "answered_late": answered_late,
    "message_memory": memory,
    "preparing": preparing,
    "answer_memory": memory,
    "tokens_spent": tokens_spent,
    "pool_closed": lambda: iter([Queue().refusal(is_closing=True)]),
    "no_engine": lambda: iter([Queue().refusal(has_engine=False)]),
    "queue_full": queue_full,
    "queue_late": queue_late,
}


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_refuses_with_its_reasons_and_statuses(gate):
    found = list(SCENES[gate.name]())
    assert {error.reason: STATUS[type(error)] for error in found} == REFUSALS[gate.name]
    assert {type(error) for error in found} == set(gate.errors)


def test_a_call_that_no_gate_refuses_is_its_callers():
    assert Server().admit() is A


def test_a_call_that_nobody_may_make_passes_no_gate_after_that():
    server = Server()
    server.identity, server.predicted_s = Unauthenticated("no token"), 9.0
    assert server.admit() is server.identity


def test_the_first_gate_that_refuses_decides():
    server = Server()
    server.predicted_s = 9.0
    server.admission.shares = shares_of(*4 * [A])
    assert server.admit().reason == "QUEUE_FULL"
    server.admission.drain()
    assert server.admit().reason == "SHUTTING_DOWN"


def test_a_refusal_knows_whose_call_it_was_if_that_was_known():
    server = Server()
    arrival = Arrival((), "peer", 0.0, 1.0, needs_engine=True)
    server.predicted_s = 9.0
    assert server.admission.admit(arrival)[0] is A
    server.admission.drain()
    assert server.admission.admit(arrival)[0].tenant == ""
