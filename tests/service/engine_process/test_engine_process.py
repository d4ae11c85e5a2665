"""The conversation of an engine process with the edge, with an engine whose answers are scripted."""

import threading
import time
from typing import Any

import pytest

from service.engine.engine import Engine
from service.engine_process.engine_process import Connection, EngineProcess
from service.engine_process.measurements import Measurements
from service.engine_process.open_engines import OpenedEngines
from service.measurements import RequestEnded
from service.options import DecodingOptions
from service.step import DeviceLost
from service.wire import channel, messages
from service.wire.channel import receive, send, socket_pair
from service.wire.messages import Beat, Close, Rejected, Turn, Work, decode_from_engine, encode
from tests.engine_processes import CHOICE, DIGEST
from tests.engines import engine_limits, request, spell
from tests.fakes import LetterTokenizer, ScriptedRunner

WITHIN_S = 60


class Edge:
    """The edge's end. prepared: set when the first attention request is being prepared; it waits for `gate`."""

    def __init__(self, **runner):
        self.end, theirs = socket_pair()
        self.end.settimeout(WITHIN_S)
        self.gate, self.prepared = threading.Event(), threading.Semaphore(0)
        measurements = Measurements()
        tokenizer: Any = LetterTokenizer()
        self.runner = ScriptedRunner(rule=spell(*"ab"), **runner)
        config = engine_limits(max_rows=self.runner.max_rows, max_prefill_tokens=1 << 16)
        engine = Engine(self.runner, tokenizer, config, measurements.append)
        opened = OpenedEngines(
            engines=[engine],
            choice=CHOICE,
            bundle_sha256=DIGEST,
            is_batch_invariant=True,
            open_attention=self._open_attention,
            memory_bytes=dict,
        )
        self.process = EngineProcess(Connection(theirs), opened, [measurements])
        self.thread = threading.Thread(target=self._run)
        self.has_lost_device = False
        self.thread.start()
        self._theirs = theirs
        self.finished: list[object] = []  # reasons, as measured

    def _run(self):
        try:
            self.process.run()
        except DeviceLost:
            self.has_lost_device = True

    def _open_attention(self):
        self.prepared.release()
        assert self.gate.wait(WITHIN_S)

    def send(self, *requests, cancels=()):
        send(self.end, encode(Work(list(requests), list(cancels))))

    def ends(self, *tickets):
        """How these requests end, by ticket: the reason of a failure, or OK."""
        found: dict[int, str] = {}
        until_s = time.monotonic() + WITHIN_S
        while not set(tickets) <= set(found):
            assert time.monotonic() < until_s, f"only {found} of {tickets} have ended"
            match decode_from_engine(receive(self.end)):
                case Rejected(ticket=ticket, failure=failure):
                    found[ticket] = failure.reason
                case Turn(ends=ends, failures=failures):
                    found |= {ticket: "OK" for ticket, _ in ends}
                    found |= {ticket: failure.reason for ticket, failure in failures}
                case Beat() as beat:
                    self._note(beat)
        return found

    def reasons(self):
        """Of all ends so far, as measured; those of the last beat at the latest."""
        while not self.finished:
            message = decode_from_engine(receive(self.end))
            assert isinstance(message, Beat)
            self._note(message)
        return self.finished

    def _note(self, beat):
        self.finished += [one.reason for one in beat.measurements if isinstance(one, RequestEnded)]

    def close(self):
        self.gate.set()
        send(self.end, encode(Close()))
        self.thread.join(WITHIN_S)
        assert not self.thread.is_alive()
        self.end.close()
        self._theirs.close()


@pytest.fixture
def edge():
    found = Edge()
    yield found
    found.close()


def attention(name="r", tenant="", **more):
    """A request that takes as long to prepare as the gate is closed."""
    return request(name, attention_kinds=("cross",), forced_target=(1, 5), tenant=tenant, **more)


def test_requests_are_answered_while_others_are_prepared(edge):
    edge.send((1, attention()))
    assert edge.prepared.acquire(timeout=WITHIN_S)
    edge.send((2, request("plain")))
    assert edge.ends(2) == {2: "OK"}


def test_one_tenant_leaves_a_thread_to_others(edge):
    edge.send((1, request("plain", tenant="victim")), *((ticket, attention(tenant="abuser")) for ticket in range(2, 8)))
    assert edge.prepared.acquire(timeout=WITHIN_S)
    edge.send((8, attention(tenant="victim")))
    assert edge.prepared.acquire(timeout=WITHIN_S), "the victim's is prepared beside the first of the abuser"
    assert edge.ends(1) == {1: "OK"}
    edge.gate.set()
    edge.ends(*range(2, 9))


def test_a_request_that_is_cancelled_while_it_waits_is_not_prepared(edge):
    edge.send((1, request(tenant="victim")), (2, attention(tenant="abuser")), (3, attention(tenant="abuser")))
    assert edge.prepared.acquire(timeout=WITHIN_S)
    edge.send(cancels=[3])
    assert edge.ends(3)[3] == "CANCELLED"
    edge.gate.set()
    edge.ends(2)
    assert not edge.prepared.acquire(blocking=False)


def test_one_whose_deadline_has_passed_is_not_prepared(edge):
    edge.send((1, attention(deadline_s=time.monotonic())))
    assert edge.ends(1) == {1: "DEADLINE_EXCEEDED"}
    assert not edge.prepared.acquire(blocking=False)
    assert edge.reasons() == ["deadline_exceeded"]


def test_a_process_ends_itself_when_its_device_is_lost(edge):
    edge.runner.fail_on, edge.runner.has_lost_device = {1}, True
    edge.send((0, request("a")), (1, request("b")))
    assert edge.ends(0, 1) == {0: "ENGINE_UNAVAILABLE", 1: "ENGINE_UNAVAILABLE"}
    edge.thread.join(WITHIN_S)
    assert edge.has_lost_device


def aligned(name, source_len):
    """A request whose answer of three tokens has 24 bytes of attention for each position of its source."""
    return request(name, source=(*(5,) * (source_len - 1), 2), options=DecodingOptions(alignment="hard"))


@pytest.fixture
def roomy(monkeypatch):
    """An edge and an engine with room for long sources, between which a message has at most 100,000 bytes."""
    for module in (channel, messages):
        monkeypatch.setattr(module, "MAX_MESSAGE_BYTES", 100_000)
    found = Edge(max_len=1 << 14)
    yield found
    found.close()


def test_answers_of_one_turn_come_in_several_messages_where_one_cannot_hold_them(roomy):
    roomy.send(*((ticket, aligned("r", 3000)) for ticket in range(5)))
    assert roomy.ends(*range(5)) == dict.fromkeys(range(5), "OK")
    assert roomy.runner.runs == 3, "they ended in the same turn"


def test_an_answer_that_no_message_can_hold_fails_alone(roomy, caplog):
    roomy.send((1, request("a")), (2, aligned("large", 5000)), (3, request("b")))
    assert roomy.ends(1, 2, 3) == {1: "OK", 2: "INTERNAL", 3: "OK"}
    assert "request large: its answer has" in caplog.text
    roomy.send((4, request("c")))
    assert roomy.ends(4) == {4: "OK"}
