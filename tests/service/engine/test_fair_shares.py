import math
import random

import pytest

from service.engine.fair_shares import (
    GUEST_MARGIN_S,
    GUEST_ROWS,
    GUEST_SHARE,
    HALF_LIFE_S,
    MAX_TENANTS,
    ROWS_SLICE_S,
    SLICE_S,
    FairShares,
)
from service.request import Priority
from service.sequence import Sequence
from tests.fakes import search_of
from tests.scheduling import request

NORMAL, LOW, HIGH = Priority.NORMAL, Priority.LOW, Priority.HIGH
A, B, C = (NORMAL, "a"), (NORMAL, "b"), (NORMAL, "c")


def live(tenant="", rows=1, **more):
    """A sequence that has so many rows."""
    sequence = Sequence(one := request(tenant=tenant, **more), search_of(one))
    sequence.rows, sequence.width = tuple(range(rows)), rows
    return sequence


def shares(now_s=0.0):
    found = FairShares()
    found.at(now_s)
    return found


def guests(found, lanes):
    found.meet(lanes)
    return found.guests


def test_a_turn_is_charged_to_the_tenants_by_their_rows():
    found = shares()
    found.record(0.8, [live("a", rows=6), live("b"), live("b")], {})
    assert found.used_s("a") == pytest.approx(0.6)
    assert found.used_s("b") == pytest.approx(0.2)
    assert found.row_s == pytest.approx(0.1)


def test_a_tenant_of_twice_the_weight_is_charged_half():
    found = shares()
    found.record(1.0, [live("a", weight=2.0), live("b")], {})
    assert found.used_s("a") == pytest.approx(found.used_s("b") / 2)


def test_half_of_what_was_used_is_forgotten_after_a_while():
    found = shares(100.0)
    found.record(1.0, [live("a")], {})
    found.at(100.0 + HALF_LIFE_S)
    assert found.used_s("a") == pytest.approx(0.5)
    found.record(1.0, [live("a")], {})
    assert found.used_s("a") == pytest.approx(1.5)


def test_a_long_time_neither_overflows_nor_keeps_idle_tenants():
    found = shares()
    for day in range(400):
        found.at(day * 86_400.0)
        found.record(1.0, [live("a" if day % 2 else "b")], {})
    assert found.used_s("a") == pytest.approx(1.0)
    assert found.used_s("b") == 0.0


def test_the_number_of_remembered_tenants_is_bounded():
    found = shares()
    found.record(5.0, [live("heavy")], {})
    for number in range(5 * MAX_TENANTS):
        found.record(0.01, [live(str(number))], {})
        assert len(found._used) <= MAX_TENANTS
    assert found.used_s("heavy") == pytest.approx(5.0)


def test_lanes_go_by_class_and_then_by_what_their_tenants_used():
    found = shares()
    found.record(0.3, [live("a"), live("a"), live("b")], {})
    lanes = [(LOW, "c"), A, B, C, (HIGH, "a")]
    assert found.order(lanes) == [(HIGH, "a"), C, B, A, (LOW, "c")]


def test_who_used_much_more_than_the_mean_is_a_guest_of_the_others():
    found = shares()
    found.record(1.0, [live("a", rows=8), live("b"), live("c")], {})
    assert guests(found, [A, B, C]) == {A}
    assert guests(found, [B, C]) == frozenset()
    assert guests(found, [A]) == frozenset(), "nobody is there whose guest it could be"


def test_tenants_with_equal_shares_are_nobodys_guests():
    found = shares()
    found.record(1.0, [live("a", rows=5), live("b", rows=4)], {})
    assert guests(found, [A, B]) == frozenset()
    assert guests(shares(), [A, B]) == frozenset(), "nobody has used anything"


def test_a_few_requests_make_nobody_a_guest():
    found = shares()
    found.record(GUEST_MARGIN_S, [live("a")], {})
    assert guests(found, [A, B]) == frozenset()


def test_one_that_begins_to_send_much_is_soon_a_guest():
    found, victims = shares(), [live(str(number)) for number in range(20)]
    lanes, turn_s = [(NORMAL, str(number)) for number in range(20)], 0.002
    for turn in range(2000):  # each turn has rows of four of them
        found.at(turn * turn_s)
        found.record(turn_s, victims[turn % 5 * 4 :][:4], {})
    began_s, turn = found.used_s("0"), 2000
    assert began_s == pytest.approx(HALF_LIFE_S / math.log(2) / 20, rel=0.1)
    while A not in guests(found, [A, *lanes]):
        found.at(turn * turn_s)
        found.record(turn_s, [*victims[turn % 5 * 4 :][:4], live("a", rows=12)], {})
        turn += 1
    assert (turn - 2000) * turn_s < 0.2


def test_lower_classes_are_guests_of_higher_ones():
    assert guests(shares(), [(LOW, "a"), (NORMAL, "a"), (LOW, "b")]) == {(LOW, "a"), (LOW, "b")}
    assert guests(shares(), [(LOW, "a"), (LOW, "b")]) == frozenset()


def test_many_rows_of_guests_run_a_tenth_of_the_time():
    found, guest, host = shares(), live("a", rows=32), live("b", rows=2)
    found.record(10.0, [guest], {})
    together = alone = 0.0
    for _ in range(3000):
        assert guests(found, [A, B]) == {A}
        if found.rows_for_guests == math.inf:
            found.record(0.004, [guest, host], {})
            together += 0.004
        else:
            assert found.rows_for_guests == GUEST_ROWS
            found.record(0.0015, [host], {})
            alone += 0.0015
        found._used["a"] = 1e6  # it stays a guest
    assert 0.08 < together / (together + alone) < 0.1


def test_guests_that_meet_hosts_first_let_them_go_ahead():
    found, host = shares(), live("b")
    found.record(10.0, [live("a", rows=32)], {})
    assert guests(found, [A, B]) == {A}
    assert found.rows_for_guests == GUEST_ROWS
    saved = 0
    while found.rows_for_guests == GUEST_ROWS:
        found.meet([A, B])
        found.record(0.001, [host], {})
        saved += 1
    assert saved == pytest.approx(SLICE_S / GUEST_SHARE / 0.001, abs=2)
    found.meet([A])
    found.meet([A, B])
    assert found.rows_for_guests == GUEST_ROWS, "credit is not kept for other hosts"


def test_few_rows_of_guests_cost_no_credit():
    found = shares()
    found.guests = frozenset([A])
    for _ in range(round(1.1 * SLICE_S / GUEST_SHARE / 0.001)):
        found.record(0.001, [live("a", rows=GUEST_ROWS), live("b")], {})
    assert found.rows_for_guests == math.inf


def test_many_rows_are_left_to_smaller_requests_after_a_slice():
    found, wide, even, small = shares(), live(rows=4), live(rows=2), live()
    for _ in range(2):
        assert not found.makes_room(wide, small)
        found.record(ROWS_SLICE_S * 5 / 8, [wide, small], {})
    assert found.makes_room(wide, small)
    assert found.makes_room(wide, even)
    wide.width = 3
    assert not found.makes_room(wide, even), "more than half as large"
    assert not found.makes_room(wide, live(priority=LOW))
    wide.row_s = found.row_s
    assert not found.makes_room(wide, small), "it got its rows just now"


def test_the_mean_is_that_of_the_remembered_tenants():
    rng, found = random.Random(3), shares()
    for turn in range(3000):
        found.at(turn * 0.9)
        tenants = [str(rng.randrange(3000) if turn % 2 else rng.randrange(9)) for _ in range(3)]
        found.record(rng.random(), [live(tenant, weight=rng.choice([0.5, 1.0, 4.0])) for tenant in tenants], {})
    assert len(found._used) > 20
    assert found._total == pytest.approx(sum(found._used.values()))
    assert found._weight == pytest.approx(sum(found._weights.values()))
    assert found._weights.keys() == found._used.keys()


def test_what_choosing_tokens_took_is_charged_to_the_request_alone():
    found, plain, costly = shares(), live("a"), live("b")
    found.record(0.2, [plain, costly], {plain: 0.0, costly: 0.5})
    assert found.used_s("a") == pytest.approx(0.1)
    assert found.used_s("b") == pytest.approx(0.6)


def test_rows_whose_tokens_take_long_count_as_many():
    found, plain, costly = shares(), live("a"), live("b")
    for _ in range(60):
        found.record(0.002, [plain, costly], {plain: 0.0, costly: 0.009})
    assert found.rows_of(plain) == pytest.approx(1.0)
    assert found.rows_of(costly) == pytest.approx(10.0, rel=0.01)
    assert found.rows_of(live("new")) == 1.0
