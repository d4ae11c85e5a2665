import weakref

import pytest

from service.engine.fair_shares import GUEST_ROWS, ROWS_SLICE_S
from service.engine.parking import Parking
from service.errors import InternalFailure
from service.memory.cache_layout import CacheLayout
from service.options import DecodingOptions
from service.request import Priority
from tests.fakes import ScriptedRunner, doubtful
from tests.scheduling import Bench, never_ends, request, tokens_of

WIDE = DecodingOptions(num_sequences=12)


def bench(rule=never_ends, **config):
    return Bench(ScriptedRunner(rule=rule), **{"max_rows": 16, **config})


TURN_S = 0.01


def run(made, turns=1):
    """Turns that take TURN_S longer than those of a script."""
    plans = []
    for _ in range(turns):
        plans.append(made.turn())
        made.scheduler.shares.record(TURN_S, plans[-1].live, {})
    return plans


def answers(*requests, **config):
    """Of each request alone."""
    found = []
    for one in requests:
        alone = bench(**config)
        (sequence,) = alone.submit(one)
        alone.drain()
        found.append(result(sequence))
    return found


def result(sequence):
    return [(answer.tokens, answer.logprobs) for answer in sequence.answers]


def test_a_sequence_of_many_rows_leaves_them_to_smaller_ones_after_its_slice():
    made = bench()
    first, second = made.submit(request("1", max_tokens=20, options=WIDE), request("2", max_tokens=20, options=WIDE))
    run(made)
    assert first.rows
    assert not second.rows, "there is room for one"
    plain = made.submit(*[request(str(number), max_tokens=4) for number in range(5)])
    turns = 0
    while not plain[-1].rows:
        run(made)
        turns += 1
    assert turns <= ROWS_SLICE_S / TURN_S + 1
    assert first.rows == ()
    assert first.slot is not None
    assert made.scheduler.parking.count == 1
    made.drain()
    expected = answers(first.request, second.request, plain[0].request)
    assert [result(one) for one in (first, second, plain[0])] == expected


def test_sequences_of_the_same_size_never_displace_each_other():
    made = bench()
    made.submit(*[request(str(number), max_tokens=12, options=WIDE) for number in range(4)])
    while not made.scheduler.is_idle:
        run(made)
    assert made.scheduler.parking.count == 0


def test_rows_of_a_lower_class_are_parked_as_soon_as_a_higher_one_waits_for_them():
    made = bench()
    low = made.submit(*[request(str(n), max_tokens=30, priority=Priority.LOW) for n in range(16)])
    made.turn()
    made.turn()
    (high,) = made.submit(request("high", max_tokens=3))
    made.turn()
    assert high.rows
    assert sum(bool(one.rows) for one in low) == GUEST_ROWS, "few rows beside it cost nothing"
    made.drain()
    assert [result(one) for one in low] == answers(*[one.request for one in low])


def test_a_tenant_that_used_much_makes_room_for_others_and_gets_it_back():
    made = bench()
    heavy = made.submit(*[request(str(n), max_tokens=30, tenant="heavy", options=WIDE) for n in range(3)])
    run(made, 5)
    made.scheduler.shares.record(1.0, made.scheduler.live, {})
    (light,) = made.submit(request("light", max_tokens=5, tenant="light"))
    plans = run(made, 2)
    assert plans[0].parked == (heavy[0],)
    assert plans[0].live == (light,)
    while light.outcome is None:
        run(made)
    (plan,) = run(made)
    assert plan.live == (heavy[0],), "the parked one is before others of its tenant"
    assert not heavy[1].steps
    made.drain()
    assert [result(one) for one in heavy] == answers(*[one.request for one in heavy])


def test_without_room_for_what_is_stored_nothing_is_parked():
    layout = CacheLayout(target_bytes=10, source_bytes=10)
    made = bench(parking_bytes=100)
    assert made.runner.layout == layout
    heavy, light = made.submit(
        request("1", max_tokens=20, tenant="heavy", options=WIDE), request("2", max_tokens=5, tenant="light")
    )
    run(made, 8)
    assert heavy.rows
    assert made.scheduler.parking.count == 0
    assert not made.scheduler.parking.can_take(heavy)
    assert Parking(layout, 12 * 10 * heavy.num_computed + 3 * 10).can_take(heavy)
    assert not Parking(layout, 12 * 10 * heavy.num_computed + 3 * 10 - 1).can_take(heavy)
    assert light.outcome is not None
    made.drain()


def test_one_that_has_no_token_yet_is_not_parked():
    made = bench()
    (one,) = made.submit(request())
    assert not made.scheduler.parking.can_take(one)
    made.turn()
    assert made.scheduler.parking.can_take(one)


def parked_bench():
    """One sequence parked, one live."""
    made = bench()
    (heavy,) = made.submit(request("heavy", max_tokens=30, tenant="heavy", options=WIDE))
    run(made, 3)
    made.scheduler.shares.record(1.0, made.scheduler.live, {})
    (light,) = made.submit(request("light", max_tokens=30, tenant="light"))
    run(made)
    assert heavy.slot is not None
    assert light.rows
    return made, heavy, light


@pytest.mark.parametrize("way", ["cancelled", "late"])
def test_a_parked_sequence_can_end(way):
    made, heavy, _ = parked_bench()
    if way == "cancelled":
        made.scheduler.waiting.cancel(heavy)
        plan = made.turn()
    else:
        made.scheduler.waiting._deadlines.append((5.0, 99, weakref.ref(heavy)))
        plan = made.turn(now_s=6.0)
    assert plan.ended == (heavy,)
    assert heavy.slot is None
    assert plan.step.moves.slots == frozenset()
    assert made.runner.parked == {}
    made.drain()


def test_a_failed_turn_ends_parked_sequences_with_the_live_ones():
    made, heavy, light = parked_bench()
    dropped = made.scheduler.drop_live()
    assert set(dropped) == {heavy, light}
    for one in dropped:
        one.finish(InternalFailure("r"))
    made.runner.reset()
    assert made.scheduler.is_idle
    assert made.scheduler.parking.slots == frozenset()
    (after,) = made.submit(request("after", max_tokens=4))
    made.drain()
    assert len(tokens_of(after)) == 4 or after.outcome is not None


def test_beams_whose_hypotheses_share_a_row_are_stored_once_and_continue_alike():
    beams = DecodingOptions(beam_size=6, num_hypotheses=6)
    made = bench(doubtful, max_rows=8)
    wide = made.submit(*[request(str(n), source=(5, 6 + n, 2), max_tokens=16, options=beams) for n in range(6)])
    shared = 0
    number = 0
    while not made.scheduler.is_idle:
        if number < 40 and number % 6 == 3:
            made.submit(request(f"plain {number}", max_tokens=3), request(f"more {number}", max_tokens=2))
            made.submit(request(f"third {number}", max_tokens=2))
        number += 1
        (plan,) = run(made)
        shared += any(len(set(one.lines.values())) < len(one.lines) for one in plan.step.moves.resumed)
    assert made.scheduler.parking.count > 3
    assert shared
    assert [result(one) for one in wide] == answers(*[one.request for one in wide], rule=doubtful, max_rows=8)
