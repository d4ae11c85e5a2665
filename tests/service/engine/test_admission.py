import pytest

from service.errors import InvalidRequest
from service.memory.cache_layout import CacheLayout
from service.options import DecodingOptions
from service.request import FinishReason
from tests.fakes import ScriptedRunner
from tests.scheduling import Bench, generation, never_ends, request, tokens_of


def test_requests_are_admitted_in_the_order_they_came():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=2)
    bench.submit(*(request(str(n), max_tokens=1 + n % 3) for n in range(9)))
    order = []
    while not bench.scheduler.is_idle:
        order += [sequence.request.request_id for sequence in bench.turn().admitted]
    assert order == [str(n) for n in range(9)]


def test_a_turn_prefills_no_more_tokens_than_allowed_but_at_least_one_request():
    bench = Bench(ScriptedRunner(rule=never_ends), max_prefill_tokens=32, max_idle_prefill_tokens=32)
    bench.submit(*(request(str(n), source=(5,) * 40) for n in range(2)), request("short"))
    assert [len(bench.turn().admitted) for _ in range(3)] == [1, 1, 1]
    bench = Bench(ScriptedRunner(rule=never_ends), max_prefill_tokens=32, max_idle_prefill_tokens=32)
    bench.submit(*(request(str(n), source=(5,) * 16) for n in range(3)))
    assert [len(bench.turn().admitted) for _ in range(2)] == [2, 1]


def test_more_is_prefilled_while_no_row_steps():
    bench = Bench(ScriptedRunner(rule=never_ends), max_prefill_tokens=32, max_idle_prefill_tokens=160)
    bench.submit(*(request(str(n), source=(5,) * 16, max_tokens=11) for n in range(20)))
    assert [len(bench.turn().admitted) for _ in range(4)] == [10, 2, 2, 2]


def test_a_request_waits_until_its_worst_case_fits_beside_all_others():
    layout = CacheLayout(target_bytes=1, source_bytes=1)  # 16 target positions + 8 source ones = 24 bytes a row
    bench = Bench(ScriptedRunner(rule=never_ends, layout=layout), kv_cache_bytes=50)
    first, second, third = bench.submit(*(request(n, max_tokens=9) for n in "abc"))
    bench.turn()
    assert bench.scheduler.capacity.reserved_bytes == 48
    assert (first.rows, second.rows, third.rows) == ((0,), (1,), ())
    bench.drain()
    assert third.outcome is FinishReason.LENGTH


def test_rows_use_what_they_have_computed_of_what_they_reserve():
    layout = CacheLayout(target_bytes=10, source_bytes=1000)
    bench = Bench(ScriptedRunner(rule=never_ends, layout=layout))
    long = request("long", source=(5,) * 7, max_tokens=9)
    bench.submit(long, request("wide", source=(5,) * 3, max_tokens=3, options=DecodingOptions(beam_size=2)))
    capacity, used = bench.scheduler.capacity, []
    while not bench.scheduler.is_idle:
        bench.turn()
        used.append(capacity.used_bytes(bench.scheduler.live))
        assert used[-1] <= capacity.reserved_bytes
    # The beam has one row in its first turn, two in its second and third, and none in the fourth.
    assert used[:4] == [7010 + 3010, 7020 + 2 * 3020, 7030 + 2 * 3030, 7040]
    assert used[-1] == 0


def test_one_long_row_makes_all_rows_wide():
    layout = CacheLayout(target_bytes=1)
    runner = ScriptedRunner(has_source=False, rule=never_ends, layout=layout)
    bench = Bench(runner, kv_cache_bytes=100)
    bench.submit(
        generation("short", max_tokens=3), generation("long", max_tokens=60), generation("short", max_tokens=3)
    )
    assert len(bench.turn().admitted) == 1, "two rows of 64 positions are 128 bytes"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (request(max_tokens=64), "needs up to 720 bytes of state, the server allows 700"),
        (request(options=DecodingOptions(beam_size=9)), "needs 9 rows, the server has 8; ask for fewer"),
    ],
)
def test_a_request_that_can_never_fit_is_refused_at_once(bad, problem):
    with pytest.raises(InvalidRequest, match=problem):
        Bench(kv_cache_bytes=700, max_rows=8).scheduler.capacity.check(bad)


def test_memory_is_reserved_for_shortlists():
    layout = CacheLayout(target_bytes=1, shortlist_bytes=10)
    bench = Bench(ScriptedRunner(layout=layout), kv_cache_bytes=64 * 10 + 8)
    with pytest.raises(InvalidRequest, match="up to 1288 bytes of state, the server allows 648"):
        bench.submit(request(shortlist=tuple(range(24)) * 3))
    a, b = bench.submit(request("a", shortlist=(2, 3)), request("b", shortlist=(2, 4)))
    assert bench.turn().live == (a,), "there is room for the words of one row"
    bench.drain()
    assert b.outcome is FinishReason.LENGTH or b.outcome is FinishReason.END_OF_SEQUENCE


def test_the_longest_possible_request_fits():
    bench = Bench(ScriptedRunner(rule=never_ends))
    (row,) = bench.submit(request(source=(5,) * 64, max_tokens=64))
    bench.drain()
    assert len(tokens_of(row)) == 64
