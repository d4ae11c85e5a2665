import asyncio
import contextlib
import errno
import itertools
import os
import socket

import numpy as np
import pytest

from service.answer_pace import MIN_RETRY_S
from service.edge.models.engine_link import MODULE, READS_AT_ONCE, EngineLink
from service.edge.observability.metrics import Metrics
from service.errors import EngineUnavailable, InvalidRequest, StartupError
from service.measurements import Admitted, Generated, RequestEnded
from service.request import AttentionResult, Finished, FinishReason, TextDelta
from service.settings.engine_settings import EngineSettings
from service.wire.channel import receive
from service.wire.messages import (
    VERSION,
    Close,
    Log,
    Refused,
    Rejected,
    Start,
    Turn,
    Work,
    decode_to_engine,
    encode,
    failure_of,
)
from tests.engine_processes import WITHIN_S, ScriptedPeer, beat, opened, state
from tests.engines import request
from tests.fakes import Sink

START = Start(program="1", model="m", path="/m", settings=EngineSettings(), first_engine=0)
END = Finished(FinishReason.LENGTH, "b", (5,))


def turn(engine=0, deltas=(), ends=(), failures=(), measurements=(), **changes):
    return Turn(engine, state(**changes), list(deltas), list(ends), list(failures), list(measurements))


def fields_of(caplog, event):
    return [record.fields for record in caplog.records if record.getMessage() == event]


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def peer():
    peer = ScriptedPeer()
    yield peer
    peer.close()


@pytest.fixture
async def link(peer, metrics):
    """A link whose peer has got `Start` and opened one engine."""
    with os.fdopen(os.memfd_create("table")) as table:
        link = EngineLink("m-0", START, table.fileno(), metrics.model("m").open(""), {}, peer.start_child)
        assert await peer.received() == START
        peer.send(opened(), beat(state()))
        await link.wait_opened(WITHIN_S)
        yield link
        link.end("closed")


@pytest.fixture
async def closed_link(peer, metrics):
    """A link whose peer has not opened anything."""
    with os.fdopen(os.memfd_create("table")) as table:
        link = EngineLink("m-0", START, table.fileno(), metrics.model("m").open(""), {}, peer.start_child)
        yield link
        link.end("closed")


async def asked(link, peer, *names):
    """Sinks of requests that have reached the peer, whose tickets count from 0."""
    sinks = [Sink(asyncio.get_running_loop()) for _ in names]
    for ticket, (name, sink) in enumerate(zip(names, sinks, strict=True)):
        link.submit(ticket, request(name), sink)
    await peer.received()
    return sinks


async def ended(link):
    await asyncio.wait_for(link.ended.wait(), WITHIN_S)
    return link.end_reason


async def test_the_program_inherits_its_socket_and_the_table(link, peer):
    name, module, arguments, files = peer.arguments
    assert (name, module) == ("m-0", MODULE)
    assert arguments == [str(files[0]), str(files[1]), str(os.getpid())]


async def test_without_descriptors_for_a_connection_nothing_starts(peer, metrics):
    def none_left():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.raises(StartupError, match=r"cannot be started: .*Too many open files; fix: "):
        EngineLink("m-0", START, 0, metrics.model("m").open(""), {}, peer.start_child, connect=none_left)
    assert peer.arguments == ()
    peer.end, other = socket.socketpair()  # which the fixture closes
    other.close()


async def test_requests_of_one_turn_leave_as_one_message(link, peer):
    for ticket in range(5):
        link.submit(ticket, request(str(ticket)), Sink())
    work = await peer.received()
    assert [(ticket, asked.request_id) for ticket, asked in work.requests] == [(t, str(t)) for t in range(5)]
    link.submit(5, request(), Sink())
    assert await peer.received() == Work([(5, request())], [])


async def test_a_cancellation_leaves_before_the_turn_ends_and_after_its_request(link, peer):
    link.submit(0, request("a"), Sink())
    link.cancel(0)
    link.submit(1, request("b"), Sink())
    first = decode_to_engine(receive(peer.end))  # the event loop has not turned
    assert first == Work([(0, request("a"))], [0])
    link.cancel(1)
    link.cancel(0)
    assert [await peer.received() for _ in range(2)] == [Work([(1, request("b"))], [1]), Work([], [0])]
    link.submit(2, request("c"), Sink())
    assert await peer.received() == Work([(2, request("c"))], []), "nothing empty came before"


async def test_a_cancellation_of_a_request_that_has_ended_is_not_sent(link, peer):
    (sink,) = await asked(link, peer, "a")
    peer.send(turn(ends=[(0, END)]))
    await sink.done
    link.cancel(0)
    link.cancel(77)
    link.submit(1, request("b"), Sink())
    assert await peer.received() == Work([(1, request("b"))], [])


async def test_events_reach_the_sinks_of_their_requests_in_order(link, peer):
    first, second, third = await asked(link, peer, "a", "b", "c")
    delta = TextDelta("a", (4,))
    failure = failure_of(InvalidRequest("text", "is empty"))
    peer.send(turn(deltas=[(0, delta)]), turn(deltas=[(0, delta)], ends=[(0, END)], failures=[(1, failure)]))
    peer.send(Rejected(2, failure))
    await asyncio.wait_for(asyncio.gather(first.done, second.done, third.done), WITHIN_S)
    assert (first.text, first.tokens, len(first.finals)) == ("aab", [4, 4, 5], 1)
    for sink in (second, third):
        assert [(type(error), error.field, error.problem) for error in sink.events] == [
            (InvalidRequest, "text", "is empty")
        ]
    assert link.receivers == {}
    assert link.end_reason is None


async def test_an_answer_above_the_size_of_a_packet_arrives_whole(link, peer):
    weights = np.random.default_rng(1).random((2, 4, 80, 80), np.float32)
    (sink,) = await asked(link, peer, "a")
    answer = Finished(FinishReason.ATTENTION, attention=AttentionResult((1, 2), {"encoder": weights}))
    peer.send(turn(ends=[(0, answer)]))
    await asyncio.wait_for(sink.done, WITHIN_S)
    assert np.array_equal(sink.events[0].attention.weights["encoder"], weights)


async def test_a_sink_that_raises_costs_no_other_request_its_events(link, peer, caplog):
    def broken(event):
        raise RuntimeError("no")

    link.submit(0, request("a"), broken)
    sink = Sink(asyncio.get_running_loop())
    link.submit(1, request("b"), sink)
    await peer.received()
    peer.send(turn(deltas=[(0, TextDelta("a", (4,)))], ends=[(0, END), (1, END)]))
    await asyncio.wait_for(sink.done, WITHIN_S)
    assert sink.text == "b"
    assert fields_of(caplog, "sink_failed") == [{"process": "m-0"}] * 2
    assert link.end_reason is None


@pytest.mark.parametrize(
    "message",
    [
        turn(ends=[(7, END)]),
        turn(deltas=[(7, TextDelta("a", (4,)))]),
        turn(failures=[(7, failure_of(InvalidRequest("text", "no")))]),
        turn(ends=[(0, END), (0, END)]),
        Rejected(7, failure_of(InvalidRequest("text", "no"))),
        turn(1),
        turn(-1),
        turn(measurements=[[3]]),
        turn(measurements=[[3, "soon", 1, 1]]),
        turn(measurements=[Generated(-1)]),
        turn(measurements=[RequestEnded("no reason", 0)]),
        beat(state(), measurements=[[5, 0.1, 1, 1, 1]]),
        opened(version=VERSION + 1),
        START,
        b"\xc1 garbage",
        b"\x93",
    ],
)
async def test_a_message_that_breaks_the_protocol_ends_the_process(link, peer, caplog, message):
    sink, _ = await asked(link, peer, "a", "b")
    peer.end.send(message if isinstance(message, bytes) else encode(message))
    assert await ended(link) == "bad_message"
    assert peer.child.was_killed
    (fields,) = fields_of(caplog, "bad_message")
    assert fields["process"] == "m-0"
    assert fields["problem"]
    assert 1 in link.receivers, "what has not ended is left to the pool"
    assert len(sink.finals) <= 1


async def test_nothing_is_read_after_a_message_that_breaks_the_protocol(link, peer):
    (sink,) = await asked(link, peer, "a")
    peer.end.send(b"garbage")
    peer.send(turn(ends=[(0, END)]))
    await ended(link)
    assert sink.events == []


async def test_messages_wait_for_a_full_socket_and_leave_in_order_while_the_loop_turns(link, peer):
    size, count = 15_000, 300  # tokens: 5 to 50 KB; far more than a socket holds
    for ticket in range(count):
        link.submit(ticket, request(str(ticket), source=tuple(range(2, size))), Sink())
        await asyncio.sleep(0)
    link.cancel(count - 1)
    tickets = []
    for _ in range(count):
        work = await peer.received()
        tickets += [ticket for ticket, _ in work.requests]
    assert tickets == list(range(count))
    assert work.cancels == [] or work.cancels == [count - 1]
    if not work.cancels:
        assert await peer.received() == Work([], [count - 1])
    link.submit(count, request(), Sink())
    assert (await peer.received()).requests == [(count, request())]


async def test_a_message_that_cannot_be_sent_ends_the_process(link, peer, caplog, monkeypatch):
    def fails(end, message):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("service.edge.models.engine_link.send", fails)
    link.submit(0, request(), Sink())
    assert await ended(link) == "exited"
    assert "Too many open files" in fields_of(caplog, "message_not_sent")[0]["problem"]


async def test_many_messages_of_one_process_leave_others_their_turn(link, peer):
    count = 2 * READS_AT_ONCE
    sinks = await asked(link, peer, *map(str, range(count)))
    peer.send(*[turn(ends=[(ticket, END)]) for ticket in range(count)])
    seen = [0]
    async with asyncio.timeout(WITHIN_S):
        while seen[-1] < count:
            await asyncio.sleep(0)
            seen.append(sum(bool(sink.finals) for sink in sinks))
    assert max(after - before for before, after in itertools.pairwise(seen)) <= READS_AT_ONCE


async def test_a_process_that_ends_is_noticed_after_its_last_words(link, peer):
    first, second = await asked(link, peer, "a", "b")
    peer.send(turn(ends=[(0, END)]))
    peer.close()
    assert await ended(link) == "exited"
    assert (first.text, second.events) == ("b", [])
    assert not link.is_open
    link.submit(2, request(), Sink())
    await asyncio.sleep(0)  # nobody is there to send it to


async def test_close_asks_the_process_to_end(link, peer):
    link.close()
    assert await peer.received() == Close()
    assert link.end_reason is None


@pytest.mark.parametrize(("reason", "kills"), [("hung", True), ("closed", False)])
async def test_an_end_has_one_reason_and_kills_what_would_not_end(link, peer, reason, kills):
    link.end(reason)
    link.end("killed")
    assert link.end_reason == reason
    assert peer.child.was_killed == kills
    assert peer.end.recv(1) == b""


async def test_a_process_whose_device_is_lost_takes_nothing_more_and_leaves_its_requests_to_the_pool(link, peer):
    first, second = await asked(link, peer, "a", "b")
    lost = failure_of(EngineUnavailable("its device failed", retry_after_s=1.0))
    peer.send(turn(failures=[(0, lost)], is_healthy=False, has_lost_device=True))
    assert await ended(link) == "device_lost"
    assert (first.events, second.events, list(link.receivers)) == ([], [], [0, 1])
    assert (link.is_open, peer.child.was_killed) == (False, False)


async def test_measurements_states_and_processor_time_reach_the_metrics(link, peer, metrics):
    def value(name, **labels):
        return metrics.registry.get_sample_value(name, {"model": "m", "version": "", **labels})

    await asked(link, peer, "a")
    peer.send(beat(state(rows=1), cpu_s=2.0, measurements=[Admitted(0.5, 7)]))
    peer.send(turn(ends=[(0, END)], measurements=[RequestEnded("length", 0), Generated(3)], rows=2))
    peer.send(beat(state(rows=3), cpu_s=2.5), beat(state(rows=4), cpu_s=0.1))
    link.submit(1, request(), last := Sink(asyncio.get_running_loop()))
    peer.send(turn(ends=[(1, END)], rows=5))
    await asyncio.wait_for(last.done, WITHIN_S)
    assert value("glossa_prompt_tokens_total") == 7
    assert value("glossa_generated_tokens_total") == 3
    assert value("glossa_requests_finished_total", reason="length") == 1
    assert value("glossa_engine_process_cpu_seconds_total", process="m-0") == 2.5
    assert [one.rows for one in link.beat.states] == [5]
    assert link.beat.cpu_s == 0.1


async def test_log_lines_of_a_process_are_logged_under_its_name(link, peer, caplog):
    (sink,) = await asked(link, peer, "a")
    peer.send(Log(30, "service.engine", "a turn failed", "Traceback: x"), turn(ends=[(0, END)]))
    await sink.done
    (record,) = [record for record in caplog.records if record.getMessage() == "a turn failed"]
    assert (record.name, record.levelname, record.fields) == ("service.engine", "WARNING", {"process": "m-0"})
    assert record.exc_text == "Traceback: x"


async def test_a_process_that_refuses_says_why(closed_link, peer):
    peer.send(Refused("manifest.json: broken; fix: export it again"))
    with pytest.raises(StartupError, match=r"^manifest\.json: broken; fix: export it again$"):
        await closed_link.wait_opened(WITHIN_S)
    assert not closed_link.is_open


async def test_a_process_that_ends_before_it_has_opened_says_how(closed_link, peer):
    peer.close()
    with pytest.raises(StartupError, match=r"ended while it opened the bundle, exit status 1; fix: check the bundle"):
        await closed_link.wait_opened(WITHIN_S)
    assert closed_link.end_reason == "exited"


async def test_a_process_that_is_not_ready_in_time_is_killed(closed_link, peer):
    with pytest.raises(StartupError, match=r"not ready within 0\.01 s; fix: raise --process-start-timeout-s"):
        await closed_link.wait_opened(0.01)
    assert (closed_link.end_reason, peer.child.was_killed) == ("not_started", True)


async def test_a_program_that_cannot_be_started_leaves_no_descriptor(metrics):
    def fails(name, module, arguments, files, environment):
        raise StartupError("no process")

    before = os.listdir("/proc/self/fd")
    with contextlib.suppress(StartupError):
        EngineLink("m-0", START, 0, metrics.model("m").open(""), {}, fails)
    assert os.listdir("/proc/self/fd") == before


async def test_only_answers_make_the_pace(link, peer):
    sinks = await asked(link, peer, "a", "b", "c", "d")
    failure = failure_of(InvalidRequest("text", "is empty"))
    peer.send(turn(failures=[(0, failure), (1, failure)]))
    await asyncio.wait_for(asyncio.gather(sinks[0].done, sinks[1].done), WITHIN_S)
    assert link.pace.retry_after_s(1000) == MIN_RETRY_S, "no answer yet"
    for place in (2, 3):
        peer.send(turn(ends=[(place, END)]))
        await sinks[place].done
    assert link.pace.retry_after_s(10**9) > MIN_RETRY_S
