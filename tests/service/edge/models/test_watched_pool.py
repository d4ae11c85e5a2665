import asyncio

import pytest

from service.edge.models.watched_pool import KEPT, Seen, WatchedPool, unwatched
from service.errors import Cancelled, DeadlineExceeded, InternalFailure
from service.request import Event
from tests.edge import ANSWER, FakePool, decoding_request, served
from tests.fakes import FakeClock

TEXT = "the small red house"


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (99, 99), (100, 99), (200, 198), (201, 199)])
def test_the_99th_percentile_is_the_nearest_rank(count, rank):
    seen = Seen()
    seen.seconds.extend(range(count, 0, -1))
    assert seen.p99_s == rank


def test_the_memory_of_times_is_bounded():
    seen = Seen()
    seen.seconds.extend([1.0] * (KEPT + 1))
    assert (len(seen.seconds), Seen().p99_s) == (KEPT, 0.0)


async def test_what_a_version_fails_is_told_from_what_clients_give_up():
    pool, clock = FakePool(hold=True), FakeClock()
    model = served("m", pool)
    model.pool = watched = WatchedPool(pool, clock)
    got = list[Event]()
    for end in (ANSWER, (InternalFailure("r"),), (DeadlineExceeded("late"),), (Cancelled("gone"),)):
        model.pool.submit(decoding_request(model, TEXT), asyncio.get_running_loop(), got.append)
        clock.advance(0.25)
        pool.send(pool.sinks[-1], end)
    assert (watched.seen.calls, watched.seen.failed, list(watched.seen.seconds)) == (3, 2, [0.25])
    assert len(got) == len(ANSWER) + 3, "every event reaches its sink"
    assert (model.pool.is_ready, model.pool.window) == (True, 8)
    assert unwatched(model).pool is pool
    assert unwatched(model).users is model.users
