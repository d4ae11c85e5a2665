import random

import pytest

from service.edge.admission.tenant_shares import PRESENT_S, TenantShares
from service.errors import Overloaded, TenantLimit
from service.request import Caller, Priority

A, B = Caller("a"), Caller("b")
FULL = Overloaded("full", retry_after_s=1.0, limit=0)


def refusal(shares, caller, capacity, now_s):
    return shares.refusal(caller, capacity, now_s, retry_after_s=0.5, full=lambda: FULL)


def has_room(shares, caller, capacity, now_s):
    return refusal(shares, caller, capacity, now_s) is None


def entered(shares, caller, capacity, now_s=0.0):
    """How many requests of a caller in a row find room."""
    count = 0
    while has_room(shares, caller, capacity, now_s):
        shares.enter(caller)
        count += 1
    return count


def test_a_tenant_that_is_alone_may_fill_the_place():
    shares = TenantShares(0.8)
    assert entered(shares, A, 100) == 100
    assert not has_room(shares, B, 100, 0.0), "it is full"


def test_one_that_is_not_alone_leaves_room_for_others():
    shares = TenantShares(0.8)
    assert has_room(shares, B, 100, 0.0)
    assert entered(shares, A, 100) == 80
    assert entered(shares, B, 100) == 16, "four fifths of what was free"
    assert entered(shares, A, 100) == 0


def test_a_refusal_names_the_tenant_or_the_full_place():
    shares = TenantShares(0.8)
    assert has_room(shares, B, 10, 0.0)
    entered(shares, A, 10)
    error = refusal(shares, A, 10, 0.0)
    assert isinstance(error, TenantLimit)
    assert (error.tenant, error.limit, error.retry_after_s) == ("a", 10, 0.5)
    entered(shares, B, 10)
    entered(shares, Caller("c"), 10)
    assert refusal(shares, A, 10, 0.0) is refusal(shares, Caller("d"), 10, 0.0) is FULL


def test_amounts_count_as_that_many_requests():
    shares = TenantShares(0.8)
    assert shares.has_room(B, 100, 0.0)
    shares.enter(A, 40)
    assert shares.has_room(A, 100, 0.0, 60)
    assert not shares.has_room(A, 100, 0.0, 61)
    shares.enter(A, 50)
    assert not shares.has_room(A, 100, 0.0, 1), "10 are free, it may have 40"
    assert shares.has_room(B, 100, 0.0, 10), "it has none"
    assert not shares.has_room(B, 100, 0.0, 11), "so many are not free"
    shares.leave(A, 90)
    assert shares.total == 0


def test_an_idle_share_is_lent_again_when_the_others_have_been_away():
    shares = TenantShares(0.8)
    assert has_room(shares, B, 100, 0.0)
    assert entered(shares, A, 100, PRESENT_S) == 80
    assert entered(shares, A, 100, 2 * PRESENT_S) == 20


def test_room_is_divided_by_weight():
    draw, shares, heavy = random.Random(0), TenantShares(0.5), Caller("heavy", weight=3.0)
    there = [A] * entered(shares, A, 500)
    for _ in range(20_000):  # requests end in any order, and both tenants have more of them
        if there and draw.random() < 0.4:
            shares.leave(there.pop(draw.randrange(len(there))))
        caller = draw.choice((A, heavy))
        if has_room(shares, caller, 500, 0.0):
            shares.enter(caller)
            there.append(caller)
    assert (there.count(A), there.count(heavy)) == pytest.approx((100, 300), abs=10)


def test_a_tenant_without_a_request_is_refused_only_by_a_full_place():
    shares = TenantShares(0.1)
    assert sum(entered(shares, Caller(f"t{number}", weight=0.01), 50) for number in range(50)) == 50
    assert not has_room(shares, Caller("t50"), 50, 0.0)


def test_tenants_without_requests_are_forgotten():
    shares = TenantShares(0.8)
    for number in range(10_001):
        caller = Caller(f"t{number}", priority=Priority(number % 3))
        assert has_room(shares, caller, 64, float(number))
        shares.enter(caller)
        shares.leave(caller)
    assert shares.total == 0
    assert not any(one.open or one._sizes for one in shares._classes.values())


def test_others_count_as_far_as_their_shares():
    shares = TenantShares(0.8)
    for _ in range(100):
        shares.enter(B)
    assert shares.before(A) == 1
    shares.enter(A)
    shares.enter(A)
    assert shares.before(A) == 2 + 3
    assert shares.before(B) == 100 + 2
    assert shares.before(Caller("heavy", weight=4.0)) == 2, "one of each: a part of a turn is a turn"
    assert shares.before(Caller("light", weight=0.1)) == 10 + 2


def test_higher_classes_go_first_and_lower_ones_do_not_count():
    shares = TenantShares(0.8)
    for _ in range(5):
        shares.enter(Caller("b", priority=Priority.HIGH))
        shares.enter(Caller("b", priority=Priority.LOW))
    assert shares.before(A) == 5
    assert shares.before(A._replace(priority=Priority.LOW)) == 6
    assert shares.before(A._replace(priority=Priority.HIGH)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_the_rule_is_that_of_a_sum_over_all_tenants(seed):
    draw, shares, weights = random.Random(seed), TenantShares(0.8), [0.5, 1.0, 1.0, 2.0, 3.0]
    there: list[Caller] = []
    for _ in range(300):
        if there and draw.random() < 0.4:
            shares.leave(there.pop(draw.randrange(len(there))))
        else:
            place = draw.randrange(len(weights))
            there.append(Caller(str(place), weights[place]))
            shares.enter(there[-1])
        for place, weight in enumerate(weights):
            counts = [sum(one.tenant == str(other) for one in there) for other in range(len(weights))]
            turns = (counts[place] + 1) / weight
            expected = counts[place] + sum(
                min(count, -(-turns * weights[other] // 1)) for other, count in enumerate(counts) if other != place
            )
            assert shares.before(Caller(str(place), weight)) == expected
