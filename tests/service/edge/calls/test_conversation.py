"""A stream of requests: each has a deadline, a place in the log, and memory of its own."""

from typing import Any

import pytest

from glossa.v1 import glossa_pb2 as pb
from service.edge.admission.request_memory import RequestMemory
from service.edge.calls.conversation import requests_of
from service.edge.observability.metrics import Method, Metrics
from service.errors import InvalidRequest, ShuttingDown
from service.request import Finished, FinishReason
from tests.edge import FakePool, a_call, served

RPC = Method("bidi_stream", "s.S", "Talk")
FINISHED = Finished(FinishReason.LENGTH, prompt_tokens=3, generated_tokens=2)


class Talk:
    """A call, a clock that a test sets, and the messages that follow the first."""

    def __init__(self, *messages, client_deadline_s=100.0):
        self.now_s, self.messages = 0.0, [*messages, None]
        self.memory = RequestMemory(1 << 24, 0.8)
        self.call = a_call(RPC, 60.0, memory=self.memory, client_deadline_s=client_deadline_s)
        self.metrics = Metrics([RPC])
        self.metrics.rpc_started(RPC)
        self.waited: list[Any] = []  # deadline and state of the call while it waited

    async def read(self):
        self.waited.append((self.call.ending.is_between_requests, self.call.rpc.deadline_s, self.memory.reserved_bytes))
        message = self.messages.pop(0)
        if isinstance(message, Exception):
            raise message
        return message

    def requests(self):
        first = pb.TranslateRequest(text="0")
        return requests_of(self.call, first, self.read, self.metrics, lambda: self.now_s, 10.0)


async def test_each_request_has_a_deadline_of_its_own_within_the_clients():
    talk, deadlines = Talk(pb.TranslateRequest(), pb.TranslateRequest(), client_deadline_s=25.0), []
    async for _ in talk.requests():
        deadlines.append(talk.call.rpc.deadline_s)
        talk.now_s += 8.0
    assert deadlines == [10.0, 18.0, 25.0]
    assert talk.waited == [(True, 25.0, 0)] * 3
    assert not talk.call.ending.is_between_requests


async def test_nothing_of_a_request_is_left_for_the_next(caplog):
    caplog.set_level("INFO", logger="glossa")
    talk = Talk(pb.TranslateRequest())
    requests = talk.requests()
    await anext(requests)
    talk.call.use(served("m", FakePool()))
    talk.call.record.finish(FINISHED)
    talk.call.record.accept()
    talk.call.budget.memory.grow(1000)
    talk.now_s = 2.0
    await anext(requests)
    assert not talk.call.record.model
    assert talk.call.record.finished is None
    assert not talk.call.record.is_accepted
    assert talk.memory.reserved_bytes == 0
    talk.call.record.fail(InvalidRequest("text", "must not be empty"))
    talk.now_s = 3.0
    with pytest.raises(StopAsyncIteration):
        await anext(requests)
    assert talk.call.record.error is None
    lines: list[Any] = [record for record in caplog.records if record.getMessage() == "request"]
    told = [(line.fields["code"], line.fields["total_s"], line.fields.get("generated_tokens")) for line in lines]
    assert told == [("OK", 2.0, 2), ("INVALID_ARGUMENT", 1.0, None)]


async def test_messages_are_counted():
    talk = Talk(pb.TranslateRequest(), pb.TranslateRequest())
    assert len([message async for message in talk.requests()]) == 3
    assert 'grpc_server_msg_received_total{grpc_method="Talk",grpc_service="s.S",grpc_type="bidi_stream"} 3.0' in (
        talk.metrics.render().decode()
    )


async def test_what_ends_the_stream_is_raised():
    talk = Talk(ShuttingDown())
    with pytest.raises(ShuttingDown):
        [message async for message in talk.requests()]
    assert not talk.call.ending.is_between_requests
