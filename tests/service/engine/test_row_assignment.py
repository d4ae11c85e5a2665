from service.options import DecodingOptions
from service.step import Copy, NewRow
from tests.fakes import ScriptedRunner
from tests.scheduling import Bench, never_ends, request


def test_new_rows_are_the_next_ones_and_the_last_row_moves_into_a_hole():
    bench = Bench(ScriptedRunner(rule=never_ends))
    a, b, c = bench.submit(request("a"), request("b", max_tokens=1), request("c"))
    plan = bench.turn()
    assert [sequence.rows for sequence in (a, b, c)] == [(0,), (1,), (2,)]
    assert plan.step.new_rows == tuple(NewRow(row, (5, 6, 2)) for row in range(3))
    plan = bench.turn()
    assert plan.step.moves.copies == (Copy(source=2, target=1, start=0, stop=1, source_len=3),)
    assert (a.rows, c.rows) == ((0,), (1,))


def test_the_shortlist_of_a_row_moves_with_it():
    bench = Bench(ScriptedRunner(rule=never_ends))
    own = (2, 3, 9)
    bench.submit(request("a"), request("b", max_tokens=1), request("c", shortlist=own))
    step = bench.turn().step
    assert [join.shortlist for join in step.new_rows] == [(), (), own]
    assert (step.shortlist_rows, step.shape.shortlist_len) == ({2}, 3)
    step = bench.turn().step
    assert step.moves.copies == (Copy(source=2, target=1, start=0, stop=1, source_len=3, shortlist_len=3),)
    assert (step.shortlist_rows, step.shape.shortlist_len) == ({1}, 3)


def test_every_hypothesis_of_a_request_has_its_shortlist():
    bench = Bench(ScriptedRunner(rule=never_ends))
    bench.submit(request("a", shortlist=(2, 3, 9), options=DecodingOptions(beam_size=3)), request("b"))
    bench.turn()
    step = bench.turn().step
    assert step.shape.rows == 4
    assert len(step.shortlist_rows) == 3
    bench.drain()


def test_the_last_row_leaves_without_a_move():
    bench = Bench(ScriptedRunner(rule=never_ends))
    bench.submit(request("a"), request("b", max_tokens=1))
    bench.turn()
    assert bench.turn().step.moves.copies == ()


def test_a_row_that_ends_in_the_same_turn_is_not_moved():
    bench = Bench(ScriptedRunner(rule=never_ends))
    bench.submit(request("a", max_tokens=1), request("b"), request("c"), request("d", max_tokens=1))
    bench.turn()
    plan = bench.turn()
    assert plan.step.moves.copies == (Copy(source=2, target=0, start=0, stop=1, source_len=3),)
    assert [sequence.request.request_id for sequence, _ in bench.scheduler.rows] == ["c", "b"]


def test_a_row_is_reused_in_the_turn_in_which_it_becomes_free():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=2)
    bench.submit(request("a", max_tokens=1), request("b"), request("c"))
    bench.turn()
    plan = bench.turn()
    assert [sequence.request.request_id for sequence, _ in bench.scheduler.rows] == ["c", "b"]
    assert plan.step.new_rows == (NewRow(0, (5, 6, 2)),)
    assert plan.step.moves.copies == (), "no row moves for it"
    assert plan.step.rows_after_copies == 2


def test_new_requests_take_free_rows_and_then_rows_at_the_end():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=6)
    bench.submit(*[request(name, max_tokens=1 if name in "bd" else 9) for name in "abcde"])
    bench.turn()
    bench.submit(request("f", source=(5, 2)), request("g", source=(2,)), request("h"))
    plan = bench.turn()
    assert [sequence.request.request_id for sequence, _ in bench.scheduler.rows] == list("agcfeh")
    assert [join.row for join in plan.step.new_rows] == [1, 3, 5]
    assert plan.step.moves.copies == ()
    assert plan.step.rows_after_copies == 5


def test_free_rows_that_no_new_request_takes_are_filled_from_the_end():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=6)
    bench.submit(*[request(name, max_tokens=1 if name in "abd" else 9) for name in "abcdef"])
    bench.turn()
    bench.submit(request("g"))
    plan = bench.turn()
    assert [sequence.request.request_id for sequence, _ in bench.scheduler.rows] == list("efcg")
    assert sorted(copy[:2] for copy in plan.step.moves.copies) == [(4, 0), (5, 1)]
    assert [join.row for join in plan.step.new_rows] == [3]
