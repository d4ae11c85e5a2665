import math
from typing import Any

import pytest

from service.engine.engine_group import EngineGroup
from service.errors import Cancelled, InternalFailure, ShuttingDown
from service.request import TextDelta
from tests.engines import engine_limits, never_ends, request
from tests.fakes import CheckedEngine, FakeClock, LetterTokenizer, ScriptedRunner
from tests.scheduling import generation


class Turned(EngineGroup):
    """Engines that a test turns. events: of each engine."""

    def __init__(self, *runners, **config):
        tokenizer: Any = LetterTokenizer()
        self.clocks = [FakeClock(100.0 + number) for number in range(len(runners))]
        super().__init__(
            [
                CheckedEngine(runner, tokenizer, engine_limits(**config), clock=clock)
                for runner, clock in zip(runners, self.clocks, strict=True)
            ]
        )
        self.events: list[list[Any]] = [[] for _ in runners]
        self.start(lambda index, events: self.events[index].extend(events), is_manual=True)

    def finals(self, index):
        return [(ticket, type(event)) for ticket, event in self.events[index] if not isinstance(event, TextDelta)]


def endless(count):
    return [ScriptedRunner(rule=never_ends) for _ in range(count)]


def test_a_request_goes_to_the_engine_with_the_fewest_unfinished_ones():
    group = Turned(*endless(3))
    for ticket in range(7):
        group.submit(ticket, request())
    for engine in group.engines:
        engine.turn()
    assert [{ticket for ticket, _ in events} for events in group.events] == [{0, 3, 6}, {1, 4}, {2, 5}]
    group.cancel(1)
    group.cancel(4)
    group.engines[1].turn()
    group.submit(7, request())
    assert [engine.inbox.unfinished for engine in group.engines] == [3, 1, 2]


def test_a_request_goes_to_the_engine_that_has_its_prompt_if_it_is_not_busier():
    group = Turned(
        *(ScriptedRunner(has_source=False, max_block=0) for _ in range(2)), chunk_tokens=16, prefix_cache_bytes=10_000
    )
    prompt = tuple(3 + n % 20 for n in range(40))

    def taken_by(ticket, prompt):
        before = [engine.inbox.unfinished for engine in group.engines]
        group.submit(ticket, generation(prompt=prompt, max_tokens=2))
        return next(i for i, engine in enumerate(group.engines) if engine.inbox.unfinished > before[i])

    def turn_until_idle():
        while any(engine.inbox.unfinished for engine in group.engines):
            for engine in group.engines:
                engine.turn()

    assert (taken_by(0, (1, 2)), taken_by(1, prompt)) == (0, 1)
    turn_until_idle()
    assert taken_by(2, (*prompt[:33], 9)) == 1
    assert taken_by(3, prompt) == 0, "the other one is busier"
    turn_until_idle()
    assert taken_by(4, (1, 2)) == 0


def test_a_cancellation_ends_its_request_alone_whatever_engine_has_it():
    group = Turned(*endless(2))
    for ticket in range(4):
        group.submit(ticket, request())
    group.cancel(2)
    group.cancel(77)
    for engine in group.engines:
        engine.turn()
    assert (group.finals(0), group.finals(1)) == ([(2, Cancelled)], [])


def test_an_engine_that_fails_gets_no_request_while_another_is_healthy():
    bad, good = endless(2)
    bad.fail_on = {1}
    group = Turned(bad, good, failures_until_unhealthy=1)
    group.submit(0, request())
    group.engines[0].turn()
    assert group.finals(0) == [(0, InternalFailure)]
    assert [engine.is_healthy for engine in group.engines] == [False, True]
    for ticket in (1, 2):
        group.submit(ticket, request())
    assert [engine.inbox.unfinished for engine in group.engines] == [0, 2]


def test_without_a_healthy_engine_requests_are_tried_all_the_same():
    (bad,) = endless(1)
    bad.fail_on = {1}
    group = Turned(bad, failures_until_unhealthy=1)
    group.submit(0, request())
    group.engines[0].turn()
    group.submit(1, request())
    group.engines[0].turn()
    assert all(engine.is_healthy for engine in group.engines), "one turn that works is enough"
    assert group.finals(0) == [(0, InternalFailure)]


@pytest.mark.parametrize("engines", [1, 2, 3])
@pytest.mark.parametrize("queued", [0, 1, 4, 5])
def test_the_most_that_the_edge_sends_to_a_process_leaves_no_engine_with_more_than_its_share(engines, queued):
    group = Turned(*endless(engines))
    rows = group.engines[0].limits.max_rows
    for ticket in range(engines * rows + queued):  # the limit of `service.edge.models.process_pool`
        group.submit(ticket, request())
    assert max(engine.inbox.unfinished for engine in group.engines) == rows + math.ceil(queued / engines)


def test_closing_ends_the_requests_of_all_engines_and_refuses_new_ones():
    group = Turned(*endless(2))
    for ticket in range(3):
        group.submit(ticket, request())
    group.close()
    assert [group.finals(0), group.finals(1)] == [[(0, ShuttingDown), (2, ShuttingDown)], [(1, ShuttingDown)]]
    with pytest.raises(ShuttingDown):
        group.submit(3, request())
