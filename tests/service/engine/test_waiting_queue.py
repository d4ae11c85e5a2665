import random
import weakref

import pytest

from service.engine.waiting_queue import MAX_LANES, WaitingQueue
from service.errors import Cancelled, DeadlineExceeded, DeadlineTooSoon
from service.options import DecodingOptions
from service.progress import Timings
from service.request import Finished, FinishReason, Priority
from service.sequence import Sequence
from tests.fakes import ScriptedRunner, search_of
from tests.scheduling import Bench, never_ends, request

LANE = Priority.NORMAL, ""


def sequence(name="r", width=1, **more):
    return Sequence(one := request(name, options=DecodingOptions(num_sequences=width), **more), search_of(one))


def names(queue, lane=LANE):
    """Takes all of a lane."""
    found = []
    while queue.first(lane) is not None:
        found.append(queue.take(lane).request.request_id)
    return found


def test_requests_of_one_size_leave_in_the_order_they_came():
    queue = WaitingQueue()
    for number in range(20):
        queue.submit(sequence(str(number), max_tokens=1 + number % 5))
    assert len(queue) == 20
    assert names(queue) == [str(number) for number in range(20)]
    assert (len(queue), list(queue.lanes)) == (0, [])


def test_an_ended_sequence_is_not_kept_until_its_deadline():
    queue = WaitingQueue()
    queue.submit(sequence("r", deadline_s=600.0))
    gone = weakref.ref(queue.take(LANE))
    assert gone() is None
    assert queue.expire(1000.0, 0) == []


def test_small_requests_pass_a_large_one_but_not_for_ever():
    queue = WaitingQueue()
    queue.submit(sequence("large", width=32))
    order = []
    for number in range(200):
        queue.submit(sequence(str(number)))
        order.append(queue.take(LANE).request.request_id)
    assert 32 < order.index("large") < 80, "after small ones of as many rows as it needs, shared by those that waited"


def test_a_small_request_passes_large_ones_whatever_their_number():
    queue = WaitingQueue()
    for number in range(9):
        queue.submit(sequence(str(number), width=32))
    assert queue.take(LANE).request.request_id == "0"
    queue.submit(sequence("small"))
    assert names(queue)[0] == "small"


def test_what_gave_way_continues_before_all_that_wait_however_often():
    queue = WaitingQueue()
    for number in range(9):
        queue.submit(sequence(str(number), width=32))
    for _ in range(50):
        guest = queue.take(LANE)
        assert guest.request.request_id == "0"
        queue.put(guest, is_first=True)
    first, second = queue.take(LANE), queue.take(LANE)
    for one in (second, first):
        queue.put(one, is_first=True)
    queue.submit(sequence("small"))
    assert names(queue)[:4] == ["0", "1", "small", "2"]


def test_every_tenant_has_a_lane_in_each_class():
    queue = WaitingQueue()
    for tenant, priority in [("a", Priority.LOW), ("b", Priority.LOW), ("a", Priority.HIGH), ("a", Priority.LOW)]:
        queue.submit(sequence(tenant, tenant=tenant, priority=priority))
    assert set(queue.lanes) == {(Priority.LOW, "a"), (Priority.LOW, "b"), (Priority.HIGH, "a")}
    assert sorted(one.request.tenant for one in queue) == ["a", "a", "a", "b"]
    assert names(queue, (Priority.LOW, "a")) == ["a", "a"]
    assert queue.first((Priority.LOW, "a")) is None


def test_what_is_removed_never_leaves():
    queue, rng = WaitingQueue(), random.Random(4)
    waiting = [sequence(str(number), tenant=rng.choice("abc"), width=rng.choice([1, 4])) for number in range(50)]
    for one in waiting:
        queue.submit(one)
    queue.remove(gone := waiting[::3])
    left = {name for lane in list(queue.lanes) for name in names(queue, lane)}
    assert left == {one.request.request_id for one in waiting} - {one.request.request_id for one in gone}
    assert len(queue) == 0


# ---- early ends


def test_a_deadline_ends_waiting_and_live_requests_at_the_next_turn():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=1)
    live, waiting, patient = bench.submit(
        request("live", deadline_s=10.0), request("waiting", deadline_s=10.0), request("patient", deadline_s=99.0)
    )
    bench.turn(now_s=9.9)
    plan = bench.turn(now_s=10.0)
    assert set(plan.ended) == {live, waiting}
    assert isinstance(live.outcome, DeadlineExceeded)
    assert "after 1 tokens" in str(live.outcome)
    assert isinstance(waiting.outcome, DeadlineExceeded)
    assert plan.live == (patient,)


def test_a_waiting_request_ends_when_too_little_time_is_left_for_its_answer():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=1)
    timings = Timings(queue_s=5.0, total_s=7.0)  # two seconds from its row on, for ten tokens
    bench.scheduler.waiting.learn(LANE, Finished(FinishReason.LENGTH, generated_tokens=10, timings=timings))
    live, long, short, free = bench.submit(
        request("live", max_tokens=10, deadline_s=11.5),
        request("long", max_tokens=20, deadline_s=11.5),
        request("short", max_tokens=5, deadline_s=11.5),  # half as long
        request("free", max_tokens=20),
    )
    assert bench.turn(now_s=10.0).ended == (), "an idle engine tries"
    assert bench.turn(now_s=10.0).ended == (long,)
    assert isinstance(long.outcome, DeadlineTooSoon)
    assert long.outcome.retry_after_s == pytest.approx(2.0)
    assert bench.turn(now_s=10.6).ended == (short,)
    assert (live.outcome, free.outcome) == (None, None)
    assert list(bench.scheduler.waiting) == [free]


def test_slow_answers_of_a_tenant_do_not_end_the_requests_of_others():
    queue, slow = WaitingQueue(), Timings(total_s=60.0)
    queue.learn((Priority.NORMAL, "slow"), Finished(FinishReason.LENGTH, generated_tokens=4, timings=slow))
    queue.submit(sequence(deadline_s=1.0))
    queue.submit(sequence(deadline_s=1.0, tenant="slow"))
    assert [one.request.tenant for one in queue.expire(0.0, live=1)] == ["slow"]
    for number in range(MAX_LANES):
        queue.learn((Priority.NORMAL, str(number)), Finished(FinishReason.LENGTH, timings=slow))
    queue.submit(sequence(deadline_s=1.0, tenant="slow"))
    assert queue.expire(0.0, live=1) == [], "forgotten"


def test_a_cancelled_request_leaves_at_the_next_turn_and_is_reported_once():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=1)
    live, waiting = bench.submit(request("live"), request("waiting"))
    bench.turn()
    bench.scheduler.waiting.cancel(live)
    bench.scheduler.waiting.cancel(waiting)
    assert set(bench.turn().ended) == {live, waiting}
    assert isinstance(live.outcome, Cancelled)
    assert bench.turn().ended == ()
    assert bench.scheduler.is_idle


def test_a_cancellation_after_the_end_changes_nothing():
    bench = Bench(ScriptedRunner(rule=never_ends))
    (row,) = bench.submit(request(max_tokens=1))
    bench.turn()
    bench.scheduler.waiting.cancel(row)
    assert bench.turn().ended == ()
    assert row.outcome is FinishReason.LENGTH
