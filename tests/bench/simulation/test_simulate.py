"""The simulated server keeps its promises; one that breaks any of them is found; seeds replay."""

import asyncio
import gc
import logging
from typing import Any, cast

import pytest

import service.edge.models.process_pool
import service.edge.rpcs.item_calls
from bench.simulation.loop import SimulatedLoop, Stuck, connection
from bench.simulation.simulate import ENDS, missing_ends, run_seeds, summary
from bench.simulation.world import simulate_seed
from service.answer_pace import AnswerPace
from service.edge.calls.batches import response_of
from service.edge.calls.calls import Calls
from service.edge.calls.items import ItemRunner
from service.edge.models.engine_link import EngineLink, deliver
from service.edge.models.process_pool import ProcessPool
from service.edge.rpcs.documents import Document
from service.engine.admission import Capacity
from service.engine.core import EngineCore
from service.engine.waiting_queue import WaitingQueue
from service.errors import ShuttingDown
from service.wire.channel import receive, send

REQUESTS = 60


@pytest.fixture(autouse=True)
def quiet():
    """Failures are meant; the state of logging is the process's."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def violations(seeds):
    return [found for seed in seeds for found in simulate_seed(seed, REQUESTS).violations]


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 90), marks=pytest.mark.slow)], ids=str)
def test_no_promise_is_broken(seeds):
    outcomes = [simulate_seed(seed, REQUESTS) for seed in seeds]
    assert [outcome.violations for outcome in outcomes if outcome.violations] == []
    figures, (verdict,) = summary(outcomes, 1.0)
    assert verdict.met
    assert figures["accepted requests"] > 500
    ends = sum((outcome.ends for outcome in outcomes), start=type(outcomes[0].ends)())
    assert len(missing_ends(ends)) < len(ENDS) / 3, "most ends happen even here"


@pytest.mark.parametrize("seed", [2, 5, 8])
def test_a_seed_replays_to_the_last_event(seed):
    first, second = list[str](), list[str]()
    outcomes = [simulate_seed(seed, REQUESTS, trace.append) for trace in (first, second)]
    assert first == second
    assert len(first) > REQUESTS
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].digest != simulate_seed(seed + 1, REQUESTS).digest


def lost_cancellations(patch):
    patch.setattr(EngineLink, "cancel", lambda self, ticket: None)


def ignored_deadlines(patch):
    expire = WaitingQueue.expire
    patch.setattr(WaitingQueue, "expire", lambda self, now_s, live: expire(self, -1.0, live))


def last_come_first_served(patch):
    def first(self, lane):
        waiting = self._lanes.get(lane)
        return max(waiting.heap)[2] if waiting else None

    def take(self, lane):
        waiting = self._lanes[lane]
        last = max(waiting.heap)
        self.remove([last[2]])
        return last[2]

    patch.setattr(WaitingQueue, "first", first)
    patch.setattr(WaitingQueue, "take", take)


def memory_beyond_the_limit(patch):
    def reserve(self, sequence):
        self.reserved = self.reserved.with_more(sequence.max_shape)
        return True

    patch.setattr(Capacity, "reserve", reserve)


def two_ends(patch):
    def fail(self, link, error):
        receivers, link.receivers = link.receivers, {}
        for sink in receivers.values():
            deliver(sink, error, link.name)
            deliver(sink, error, link.name)
        return len(receivers)

    patch.setattr(ProcessPool, "_fail", fail)


def requests_lost_in_a_failed_turn(patch):
    def fail(self, plan):
        self.scheduler.drop_live()
        self._reset_runner()

    patch.setattr(EngineCore, "_fail", fail)


def tokens_of_a_neighbour(patch):
    emit = EngineCore._emit

    def emit_swapped(self, advanced, output):
        for one, other in zip(advanced[::2], advanced[1::2], strict=False):
            if len(one.committed_tokens) == len(other.committed_tokens):
                one.committed_tokens, other.committed_tokens = other.committed_tokens, one.committed_tokens
        emit(self, advanced, output)

    patch.setattr(EngineCore, "_emit", emit_swapped)


def calls_that_stay(patch):
    patch.setattr(Calls, "_end", lambda self, call, error: None)


def an_endless_drain(patch):
    patch.setattr(service.edge.models.process_pool, "CLOSE_S", 50.0)


def a_pool_that_closes_at_once(patch):
    async def aclose(self):
        self._is_closing = True

    patch.setattr(ProcessPool, "aclose", aclose)


def a_wrong_error(patch):
    patch.setattr(AnswerPace, "overloaded", lambda self, waiting: RuntimeError("no"))


def shutting_down_instead_of_running(patch):
    def end(self, reason):
        for sink in self.receivers.values():
            deliver(sink, ShuttingDown(), self.name)
        close(self, reason)

    close = EngineLink.end
    patch.setattr(EngineLink, "end", end)


def changed_results(patch, change):
    """Outcomes of items, changed before they are sent."""
    patch.setattr(
        service.edge.rpcs.item_calls, "response_of", lambda kind, outcomes: response_of(kind, change(list(outcomes)))
    )


def a_result_lost(patch):
    changed_results(patch, lambda outcomes: outcomes[:-1] if len(outcomes) > 2 else outcomes)


def a_result_twice(patch):
    changed_results(patch, lambda outcomes: [*outcomes, outcomes[0]])


def answers_of_other_items(patch):
    changed_results(
        patch,
        lambda outcomes: [
            one._replace(response=other.response) if one.response and other.response else one
            for one, other in zip(outcomes, outcomes[::-1], strict=True)
        ],
    )


def results_in_any_order(patch):
    run = ItemRunner.run
    patch.setattr(ItemRunner, "run", lambda self, *given, **named: run(self, *given, **{**named, "in_order": False}))


def a_segment_lost(patch):
    ready = Document._ready
    patch.setattr(Document, "_ready", lambda self: ready(self)[1:])


def a_segment_of_the_source(patch):
    segment = Document._segment

    def untranslated(self, pending):
        found = segment(self, pending)
        found.text = self._text[found.source.start : found.source.end]
        return found

    patch.setattr(Document, "_segment", untranslated)


MUTATIONS = {
    lost_cancellations: "computed for a client that had gone",
    ignored_deadlines: "computed after its deadline",
    last_come_first_served: "overtook one of tenant",
    memory_beyond_the_limit: "bytes reserved of",
    two_ends: "after its end",
    requests_lost_in_a_failed_turn: "neither live nor waiting",
    tokens_of_a_neighbour: "instead of",
    calls_that_stay: "open calls are left",
    an_endless_drain: "the drain took",
    a_pool_that_closes_at_once: "are left",
    a_wrong_error: "ended with INTERNAL",
    shutting_down_instead_of_running: "after its end",
    a_result_lost: "without the results of",
    a_result_twice: "got a result twice",
    answers_of_other_items: "of call-",
    results_in_any_order: "before an earlier one",
    a_segment_lost: "does not continue at",
    a_segment_of_the_source: "document call-",
}

RARE = {  # the first seed that finds those which the first seeds do not
    memory_beyond_the_limit: 4,
    two_ends: 12,
    an_endless_drain: 15,
    a_wrong_error: 5,
    shutting_down_instead_of_running: 12,
    a_segment_lost: 6,
    a_segment_of_the_source: 6,
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_broken_promise_is_found(monkeypatch, mutation):
    mutation(monkeypatch)
    found: list[str] = []
    for seed in range(RARE.get(mutation, 0), 60):
        found += violations([seed])
        if any(MUTATIONS[mutation] in each for each in found):
            return
    pytest.fail(f"not found: {MUTATIONS[mutation]!r}, but {found[:3]}")


def test_a_seed_does_not_depend_on_those_before_it():
    thresholds = gc.get_threshold()
    outcomes = run_seeds(range(4), 20)
    gc.set_threshold(*thresholds)
    assert outcomes == [simulate_seed(seed, 20) for seed in (3, 2, 1, 0)][::-1]


def test_waiting_for_nothing_is_an_error():
    loop = SimulatedLoop()
    with pytest.raises(Stuck):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_a_connection_is_full_in_order_and_tells_its_end():
    loop, fulls = SimulatedLoop(), []
    one, other = cast(Any, connection(loop, 10, 2, lambda: 0.5, on_full=lambda: fulls.append(loop.time())))
    send(one, b"a")
    send(one, b"b")
    with pytest.raises(BlockingIOError):
        send(one, b"c")
    with pytest.raises(BlockingIOError):
        receive(other)
    one.close()

    loop.run_until_complete(asyncio.sleep(1.0))
    assert [receive(other) for _ in range(3)] == [b"a", b"b", b""]
    assert (fulls, loop.time()) == ([0.0], 1.0)
    with pytest.raises(BrokenPipeError):
        send(other, b"d")
    loop.close()
