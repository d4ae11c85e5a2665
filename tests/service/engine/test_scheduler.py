import random

import pytest

from service.cache_layout import CacheLayout
from service.decoding.search import advance, search_for
from service.engine.invariants import check_invariants
from service.engine.scheduler import Scheduler, SchedulerConfig
from service.errors import Cancelled, DeadlineExceeded, InternalFailure, InvalidRequest, RequestError
from service.options import DecodingOptions
from service.request import FinishReason, Request
from service.sequence import Sequence
from service.step import Copy, NewRow, PrefillChunk
from tests.fakes import EOS, EveryDraft, RandomDrafts, ScriptedRunner, scripted_answer


def request(name="r", source=(5, 6, 2), prompt=(1,), max_tokens=5, **more):
    return Request(request_id=name, source=source, prompt=prompt, max_tokens=max_tokens, **more)


def generation(name="r", prompt=(1, 5), max_tokens=5, **more):
    return request(name, source=(), prompt=prompt, max_tokens=max_tokens, **more)


class Bench:
    """A scheduler with a scripted runner, turned by hand; invariants are checked after every turn."""

    def __init__(self, runner=None, **config):
        self.runner = runner or ScriptedRunner()
        self.scheduler = Scheduler(SchedulerConfig(**config), self.runner.limits, self.runner.layout)

    def submit(self, *requests):
        sequences = [Sequence(request, search_for(request, eos_ids=(EOS,))) for request in requests]
        for sequence in sequences:
            self.scheduler.check(sequence.request)
            self.scheduler.submit(sequence)
        return sequences

    def turn(self, now_s=0.0):
        plan = self.scheduler.plan(now_s)
        if plan.live:
            model = self.runner.run(plan.step)
            advance(self.scheduler.commit(plan), model)
            self.scheduler.record_drafts(plan, model)
        assert check_invariants(self.scheduler) == []
        return plan

    def drain(self):
        while not self.scheduler.is_idle:
            self.turn()


def tokens_of(sequence):
    """What a sequence of one hypothesis has produced."""
    return sequence.committed_tokens


def never_ends(source, fed, vocab_size):
    return 3 + (len(fed) + sum(source)) % (vocab_size - 3)


# ---- rows


def test_joins_take_the_next_rows_and_leaving_moves_the_last_row_into_the_hole():
    bench = Bench(ScriptedRunner(rule=never_ends))
    a, b, c = bench.submit(request("a"), request("b", max_tokens=1), request("c"))
    plan = bench.turn()
    assert [sequence.rows for sequence in (a, b, c)] == [(0,), (1,), (2,)]
    assert plan.step.new_rows == tuple(NewRow(row, (5, 6, 2)) for row in range(3))
    plan = bench.turn()
    assert plan.step.copies == (Copy(source=2, target=1, start=0, stop=1, source_len=3),)
    assert (a.rows, c.rows) == ((0,), (1,))


def test_words_of_a_row_come_with_it_and_move_with_it():
    bench = Bench(ScriptedRunner(rule=never_ends))
    own = (2, 3, 9)
    bench.submit(request("a"), request("b", max_tokens=1), request("c", shortlist=own))
    step = bench.turn().step
    assert [join.shortlist for join in step.new_rows] == [(), (), own]
    assert (step.shortlist_rows, step.max_shortlist_len) == ({2}, 3)
    step = bench.turn().step
    assert step.copies == (Copy(source=2, target=1, start=0, stop=1, source_len=3, shortlist_len=3),)
    assert (step.shortlist_rows, step.max_shortlist_len) == ({1}, 3)


def test_every_hypothesis_of_a_request_with_words_has_them():
    bench = Bench(ScriptedRunner(rule=never_ends))
    bench.submit(request("a", shortlist=(2, 3, 9), options=DecodingOptions(beam_size=3)), request("b"))
    bench.turn()
    step = bench.turn().step
    assert step.rows == 4
    assert len(step.shortlist_rows) == 3
    bench.drain()


def test_memory_is_reserved_for_shortlists():
    layout = CacheLayout(target_bytes=1, shortlist_bytes=10)
    bench = Bench(ScriptedRunner(layout=layout), kv_cache_bytes=64 * 10 + 8)
    with pytest.raises(InvalidRequest, match="up to 1288 bytes of state, the server allows 648"):
        bench.submit(request(shortlist=tuple(range(24)) * 3))
    with pytest.raises(AssertionError, match=r"token ids must be 0\.\.23"):
        bench.submit(request(shortlist=(24,)))
    a, b = bench.submit(request("a", shortlist=(2, 3)), request("b", shortlist=(2, 4)))
    assert bench.turn().live == (a,), "there is room for the words of one row"
    bench.drain()
    assert b.outcome is FinishReason.LENGTH or b.outcome is FinishReason.END_OF_SEQUENCE


def test_the_last_row_leaves_without_a_move():
    bench = Bench(ScriptedRunner(rule=never_ends))
    bench.submit(request("a"), request("b", max_tokens=1))
    bench.turn()
    assert bench.turn().step.copies == ()


def test_nobody_is_moved_who_leaves_as_well():
    bench = Bench(ScriptedRunner(rule=never_ends))
    bench.submit(request("a", max_tokens=1), request("b"), request("c"), request("d", max_tokens=1))
    bench.turn()
    plan = bench.turn()
    assert plan.step.copies == (Copy(source=2, target=0, start=0, stop=1, source_len=3),)
    assert [sequence.request.request_id for sequence, _ in bench.scheduler.rows] == ["c", "b"]


def test_a_row_is_taken_over_in_the_turn_in_which_it_is_left():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=2)
    bench.submit(request("a", max_tokens=1), request("b"), request("c"))
    bench.turn()
    plan = bench.turn()
    assert [sequence.request.request_id for sequence, _ in bench.scheduler.rows] == ["c", "b"]
    assert plan.step.new_rows == (NewRow(0, (5, 6, 2)),)
    assert plan.step.copies == (), "nobody moves for it"
    assert plan.step.rows_after_copies == 2


def test_new_requests_take_the_rows_of_those_that_left_and_others_behind_them():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=6)
    bench.submit(*[request(name, max_tokens=1 if name in "bd" else 9) for name in "abcde"])
    bench.turn()
    bench.submit(request("f", source=(5, 2)), request("g", source=(2,)), request("h"))
    plan = bench.turn()
    assert [sequence.request.request_id for sequence, _ in bench.scheduler.rows] == list("agcfeh")
    assert [join.row for join in plan.step.new_rows] == [1, 3, 5]
    assert plan.step.copies == ()
    assert plan.step.rows_after_copies == 5


def test_what_new_requests_do_not_fill_is_filled_from_behind():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=6)
    bench.submit(*[request(name, max_tokens=1 if name in "abd" else 9) for name in "abcdef"])
    bench.turn()
    bench.submit(request("g"))
    plan = bench.turn()
    assert [sequence.request.request_id for sequence, _ in bench.scheduler.rows] == list("efcg")
    assert sorted(copy[:2] for copy in plan.step.copies) == [(4, 0), (5, 1)]
    assert [join.row for join in plan.step.new_rows] == [3]


def test_an_idle_scheduler_plans_nothing():
    plan = Bench().turn()
    assert (plan.live, plan.admitted, plan.ended, plan.step.rows) == ((), (), (), 0)


# ---- prompts


def test_a_prompt_is_fed_token_by_token_where_the_decoder_takes_one():
    bench = Bench(ScriptedRunner(rule=never_ends))
    (row,) = bench.submit(request(prompt=(1, 7, 8), max_tokens=2))
    fed = [bench.turn().step.tokens for _ in range(4)]
    assert fed[:3] == [(1,), (7,), (8,)]
    assert fed[3] == (tokens_of(row)[0],)
    assert len(tokens_of(row)) == 2


def reader(runner=None, **config):
    """A bench for a decoder that takes blocks."""
    return Bench(runner or ScriptedRunner(has_source=False, max_block=0, rule=never_ends, max_len=400), **config)


def read(plan):
    """(row, start, length) of the blocks of a turn."""
    return [(block.row, block.start, len(block.tokens)) for block in plan.step.prefill_chunks]


def test_a_prompt_is_read_as_a_block_but_for_its_last_token_which_is_a_step():
    bench = reader()
    (row,) = bench.submit(generation(prompt=(1, 7, 8)))
    plan = bench.turn()
    assert plan.step.prefill_chunks == (PrefillChunk(0, 0, (1, 7)),)
    assert (plan.step.tokens, plan.step.starts) == ((8,), (2,))
    assert plan.step.max_target_len == 16, "a block is padded"
    assert len(tokens_of(row)) == 1
    assert bench.turn().step.starts == (3,)


def test_a_prompt_of_one_token_is_a_step():
    bench = reader()
    bench.submit(generation(prompt=(1,)))
    plan = bench.turn()
    assert (plan.step.prefill_chunks, plan.step.tokens, plan.step.starts) == ((), (1,), (0,))


def test_first_blocks_are_ordered_by_padded_length():
    bench = reader()
    bench.submit(*(generation(str(n), prompt=(1,) * n) for n in (20, 3, 40, 16)))
    assert read(bench.turn()) == [(0, 0, 2), (1, 0, 15), (2, 0, 19), (3, 0, 39)]


@pytest.mark.parametrize("length", [31, 32, 33, 34, 48, 49, 150])
def test_a_prompt_is_split_in_the_same_blocks_whatever_the_load(length):
    splits = set()
    for others, max_prefill_tokens in ((0, 1000), (0, 1), (3, 16), (3, 64), (9, 40)):
        bench = reader(
            chunk_tokens=32, max_prefill_tokens=max_prefill_tokens, max_idle_prefill_tokens=max_prefill_tokens
        )
        bench.submit(*(generation(f"other {n}", prompt=(1, 5, 9) * (n + 1), max_tokens=30) for n in range(others)))
        bench.turn()
        (row,) = bench.submit(generation("it", prompt=(1,) * length, max_tokens=2))
        blocks = []
        while row.outcome is None:
            plan = bench.turn()
            blocks += [one for one in plan.step.prefill_chunks if one.row in row.rows]
        splits.add(tuple((block.start, len(block.tokens)) for block in blocks))
        bench.drain()
    expected = [(start, min(32, length - 1 - start)) for start in range(0, length - 1, 32)]
    assert splits == {tuple(expected)}


def test_running_rows_step_in_every_turn_while_a_long_prompt_is_read_in_bounded_pieces():
    bench = reader(chunk_tokens=32, max_prefill_tokens=64)
    (early,) = bench.submit(generation("early", max_tokens=60))
    bench.turn()
    (late,) = bench.submit(generation("late", prompt=(1,) * 300, max_tokens=9))
    turns = 0
    while not tokens_of(late):
        before, plan = len(tokens_of(early)), bench.turn()
        assert len(tokens_of(early)) == before + 1
        assert sum(length for _, _, length in read(plan)) <= 64
        turns += 1
    assert turns == 5, "299 tokens, 64 in a turn"


def test_short_prompts_pass_a_long_one_which_goes_on_nevertheless():
    bench = reader(chunk_tokens=32, max_prefill_tokens=96)
    bench.submit(generation("running", max_tokens=99))
    bench.turn()
    (long,) = bench.submit(generation("long", prompt=(1,) * 330))
    for turn in range(1, 9):
        (short,) = bench.submit(generation("short", prompt=(1,) * 60, max_tokens=1))
        bench.turn()
        assert long.num_computed == 32 * turn, "a block of the long one"
        assert short.outcome is not None, "and both of the short one"


def test_nothing_steps_while_all_rows_are_reading():
    bench = reader(chunk_tokens=32, max_prefill_tokens=32, max_idle_prefill_tokens=64)
    (row,) = bench.submit(generation(prompt=(1,) * 100))
    plan = bench.turn()
    assert (read(plan), plan.step.tokens, plan.step.starts) == ([(0, 0, 32), (0, 32, 32)], (), ())
    assert plan.prefill.unfinished == {row}
    assert read(bench.turn()) == [(0, 64, 32), (0, 96, 3)]
    assert len(tokens_of(row)) == 1


def test_a_row_that_is_reading_moves_with_what_it_has_read():
    bench = reader(chunk_tokens=32, max_prefill_tokens=32, max_idle_prefill_tokens=32)
    short, long = bench.submit(generation("short", prompt=(1,), max_tokens=2), generation("long", prompt=(1,) * 100))
    bench.turn()
    bench.turn()
    plan = bench.turn()
    assert plan.step.copies == (Copy(1, 0, 0, 64, 0),)
    assert (short.outcome, long.rows) == (FinishReason.LENGTH, (0,))
    bench.drain()
    assert len(tokens_of(long)) == 5


# ---- beginnings of prompts


def test_a_prompt_that_begins_like_a_recent_one_is_copied_block_by_block():
    bench = reader(chunk_tokens=16, prefix_cache_bytes=10 * 16 * 20)
    prompt = tuple(3 + n % 20 for n in range(60))
    bench.submit(generation("first", prompt=prompt))
    first = bench.turn()
    assert (first.prefix_queried_tokens, first.prefix_hit_tokens) == (60, 0)
    assert [(keep.start, keep.count) for keep in first.step.prefix_stores] == [(0, 16), (16, 16), (32, 16)]
    bench.drain()
    bench.submit(generation("second", prompt=(*prompt[:40], 4, 4, 4, 4)))
    second = bench.turn()
    assert (second.prefix_queried_tokens, second.prefix_hit_tokens) == (44, 32)
    assert [(keep.start, keep.slot) for keep in second.step.prefix_loads] == [(0, 0), (16, 1)]
    assert read(second) == [(0, 32, 11)]
    bench.drain()


def test_the_last_token_of_a_prompt_is_never_copied():
    bench = reader(chunk_tokens=16, prefix_cache_bytes=10 * 16 * 20)
    prompt = tuple(range(3, 3 + 17))
    for expected in (0, 16, 16):
        (row,) = bench.submit(generation(prompt=prompt))
        assert bench.turn().prefix_hit_tokens == expected
        bench.drain()
        assert len(tokens_of(row)) == 5


def test_nothing_is_kept_where_nothing_may_be_or_rows_hold_more_than_positions_of_the_prompt():
    layouts = [CacheLayout(target_bytes=10, row_bytes=4), CacheLayout(target_bytes=10, source_bytes=4)]
    for layout, prefix_cache_bytes in ((None, 0), *((layout, 10_000) for layout in layouts)):
        runner = ScriptedRunner(has_source=False, max_block=0, rule=never_ends, layout=layout)
        bench = reader(runner, chunk_tokens=16, prefix_cache_bytes=prefix_cache_bytes)
        for _ in range(2):
            bench.submit(generation(prompt=(1,) * 40))
            plan = bench.turn()
            assert (plan.prefix_queried_tokens, plan.prefix_hit_tokens, plan.step.prefix_stores) == (0, 0, ())
            bench.drain()


def test_what_was_kept_is_forgotten_when_a_turn_fails():
    bench = reader(chunk_tokens=16, prefix_cache_bytes=10 * 16 * 20)
    for _ in range(2):
        bench.submit(generation(prompt=(1,) * 40))
        assert bench.turn().prefix_hit_tokens == 0
        bench.scheduler.drop_live()
        bench.runner.reset()


def test_a_request_that_comes_in_mid_flight_has_its_first_token_a_turn_later():
    for runner, make in ((ScriptedRunner(), request), (ScriptedRunner(has_source=False, max_block=0), generation)):
        runner.rule = never_ends
        bench = Bench(runner)
        (early,) = bench.submit(make("early", max_tokens=20))
        for _ in range(5):
            bench.turn()
        (late,) = bench.submit(make("late"))
        bench.turn()
        assert (len(tokens_of(early)), len(tokens_of(late))) == (6, 1)


# ---- admission


def test_requests_are_admitted_in_the_order_they_came():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=2)
    bench.submit(*(request(str(n), max_tokens=1 + n % 3) for n in range(9)))
    order = []
    while not bench.scheduler.is_idle:
        order += [sequence.request.request_id for sequence in bench.turn().admitted]
    assert order == [str(n) for n in range(9)]


def test_one_turn_reads_no_more_tokens_than_allowed_but_at_least_one_request():
    bench = Bench(ScriptedRunner(rule=never_ends), max_prefill_tokens=32, max_idle_prefill_tokens=32)
    bench.submit(*(request(str(n), source=(5,) * 40) for n in range(2)), request("short"))
    assert [len(bench.turn().admitted) for _ in range(3)] == [1, 1, 1]
    bench = Bench(ScriptedRunner(rule=never_ends), max_prefill_tokens=32, max_idle_prefill_tokens=32)
    bench.submit(*(request(str(n), source=(5,) * 16) for n in range(3)))
    assert [len(bench.turn().admitted) for _ in range(2)] == [2, 1]


def test_more_is_read_while_nothing_runs():
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
        Bench(kv_cache_bytes=700, max_rows=8).scheduler.check(bad)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (request(max_tokens=65), "max_tokens: 65"),
        (request(source=(5,) * 65), "source: 65 tokens"),
        (request(source=()), "source: 0 tokens"),
        (request(source=(24,)), r"token ids must be 0\.\.23"),
        (request(prompt=(-1,)), r"token ids must be 0\.\.23"),
    ],
)
def test_a_request_beyond_the_models_limits_is_a_defect_of_the_edge(bad, problem):
    with pytest.raises(AssertionError, match=problem):
        Bench().scheduler.check(bad)


def test_a_prompt_longer_than_the_decoder_takes_at_once_is_read_in_blocks_that_it_takes():
    bench = Bench(ScriptedRunner(has_source=False, max_block=16, rule=never_ends))
    (row,) = bench.submit(generation(prompt=(1,) * 40))
    assert [len(block.tokens) for block in bench.turn().step.prefill_chunks] == [16, 16, 7]
    bench.drain()
    assert len(tokens_of(row)) == 5


def test_the_longest_possible_request_fits():
    bench = Bench(ScriptedRunner(rule=never_ends))
    (row,) = bench.submit(request(source=(5,) * 64, max_tokens=64))
    bench.drain()
    assert len(tokens_of(row)) == 64


@pytest.mark.parametrize(
    "field", ["max_rows", "kv_cache_bytes", "max_prefill_tokens", "max_idle_prefill_tokens", "chunk_tokens"]
)
def test_limits_below_one_are_refused(field):
    with pytest.raises(ValueError, match=f"{field}: must be at least 1, got 0"):
        SchedulerConfig(**{field: 0})


def test_blocks_are_of_a_length_that_does_not_change_bits():
    with pytest.raises(ValueError, match="chunk_tokens: must be a multiple of 16, got 40"):
        SchedulerConfig(chunk_tokens=40)
    with pytest.raises(ValueError, match=r"greedy_turn_s: must be at least 0, got -0\.5"):
        SchedulerConfig(greedy_turn_s=-0.5)
    with pytest.raises(ValueError, match="prefix_cache_bytes: must be at least 0, got -1"):
        SchedulerConfig(prefix_cache_bytes=-1)


# ---- leaving early


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


def test_a_cancelled_request_leaves_at_the_next_turn_and_is_reported_once():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=1)
    live, waiting = bench.submit(request("live"), request("waiting"))
    bench.turn()
    bench.scheduler.cancel(live)
    bench.scheduler.cancel(waiting)
    assert set(bench.turn().ended) == {live, waiting}
    assert isinstance(live.outcome, Cancelled)
    assert bench.turn().ended == ()
    assert bench.scheduler.is_idle


def test_a_cancellation_after_the_end_changes_nothing():
    bench = Bench(ScriptedRunner(rule=never_ends))
    (row,) = bench.submit(request(max_tokens=1))
    bench.turn()
    bench.scheduler.cancel(row)
    assert bench.turn().ended == ()
    assert row.outcome is FinishReason.LENGTH


def test_a_failed_turn_drops_all_rows_and_the_queue_goes_on():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=2)
    a, b, c = bench.submit(request("a"), request("b"), request("c"))
    bench.turn()
    assert bench.scheduler.drop_live() == [a, b]
    bench.runner.reset()
    assert bench.scheduler.capacity.reserved_bytes == 0
    bench.drain()
    assert tokens_of(c) == [never_ends(c.request.source, (1, *tokens_of(c)[:n]), 24) for n in range(5)]


def test_invariants_notice_broken_state():
    def broken(change):
        bench = Bench(ScriptedRunner(rule=never_ends))
        bench.submit(request("a"), request("b"))
        bench.turn()
        change(bench.scheduler)
        return check_invariants(bench.scheduler)

    assert broken(lambda scheduler: None) == []
    assert broken(lambda scheduler: scheduler.waiting.append(scheduler.live[0]))
    assert broken(lambda scheduler: scheduler.live.append(scheduler.live[0]))
    assert broken(lambda scheduler: scheduler.live[0].hypotheses[0].tokens.append(3))
    assert broken(lambda scheduler: scheduler.live.pop())
    assert broken(lambda scheduler: setattr(scheduler.live[0], "num_computed", 99))
    assert broken(lambda scheduler: setattr(scheduler.live[0], "rows", (1,)))
    assert broken(lambda scheduler: setattr(scheduler.live[0].hypotheses[0], "row", 1))
    assert broken(lambda scheduler: setattr(scheduler.live[0], "committed_tokens", [99]))
    assert broken(lambda scheduler: setattr(scheduler.live[0], "width", 0))
    assert broken(lambda scheduler: scheduler.live[0].hypotheses.clear())


# ---- steps that a row makes by itself


def whole(name="r", **more):
    return request(name, is_streamed=False, **more)


def further(bench):
    bench.drain()
    return [plan.extra_greedy_steps for plan in bench.runner.plans]


def test_an_answer_alone_that_nobody_streams_goes_several_steps_in_a_turn():
    bench = Bench(ScriptedRunner(rule=never_ends), greedy_steps_per_turn=4, greedy_turn_s=0.25)
    (row,) = bench.submit(whole(max_tokens=10))
    assert further(bench) == [3, 3, 1]
    assert tokens_of(row) == [never_ends(row.request.source, [1] * count, 24) for count in range(1, 11)]
    assert row.num_generated == row.steps == 10
    assert all(plan.max_target_len == plan.starts[0] + 1 + plan.extra_greedy_steps for plan in bench.runner.plans)
    assert {plan.extra_greedy_s for plan in bench.runner.plans} == {0.25}


def test_an_end_token_ends_the_steps_of_a_turn():
    bench = Bench(ScriptedRunner(rule=lambda source, fed, vocab_size: EOS if len(fed) == 3 else 9))
    (row,) = bench.submit(whole(max_tokens=30))
    bench.turn()
    assert tokens_of(row) == [9, 9, EOS]
    assert (row.outcome, row.num_computed) == (FinishReason.END_OF_SEQUENCE, 3)


def test_a_stream_and_two_rows_and_whoever_waits_go_step_by_step():
    for asked in ([request(max_tokens=6)], [whole("a", max_tokens=6), whole("b", max_tokens=6)]):
        bench = Bench()
        bench.submit(*asked)
        assert not any(further(bench))
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=1)
    bench.submit(whole("a", max_tokens=9), whole("b", max_tokens=9))
    assert further(bench) == [*[0] * 9, 8], "nobody waits for the second one"


@pytest.mark.parametrize(
    "more",
    [
        {"options": DecodingOptions(beam_size=2)},
        {"options": DecodingOptions(temperature=0.7)},
        {"options": DecodingOptions(top_logprobs=2)},
        {"prefix": (5, 6, 7, 8, 9, 10)},
    ],
)
def test_what_the_likeliest_token_does_not_decide_goes_step_by_step(more):
    bench = Bench()
    bench.submit(whole(max_tokens=6, **more))
    assert not any(further(bench))


def test_a_row_goes_on_by_itself_behind_its_prefix():
    bench = Bench(ScriptedRunner(rule=never_ends))
    bench.submit(whole(max_tokens=6, prefix=(5, 6)))
    assert further(bench) == [0, 0, 3]


def test_a_prompt_is_read_before_a_row_goes_on_by_itself():
    for runner, before in (
        (ScriptedRunner(has_source=False, max_block=0, rule=never_ends), [0, 0]),  # blocks
        (ScriptedRunner(rule=never_ends), [0] * 40),  # steps
    ):
        bench = Bench(runner, chunk_tokens=16, max_prefill_tokens=16, max_idle_prefill_tokens=16)
        make = generation if not runner.limits.max_source_len else request
        (row,) = bench.submit(make(prompt=(1, *[5] * 40), max_tokens=9, is_streamed=False))
        assert further(bench) == [*before, 8]
        assert row.steps == 9


# ---- drafts


def going_round(period):
    """Every answer repeats itself after so many tokens."""
    return lambda source, fed, vocab_size: 3 + len(fed) % period


def drafting(rule, *, drafts=None, **config):
    """A bench where whatever was found is drafted."""
    bench = reader(ScriptedRunner(has_source=False, max_block=0, rule=rule, max_len=400), draft_tokens=4, **config)
    bench.scheduler.draft_proposer = drafts or EveryDraft(4)
    return bench


def drafted(plan):
    return [(draft.row, draft.start, draft.tokens) for draft in plan.step.drafts]


def test_what_repeats_itself_is_read_ahead_and_kept_as_far_as_it_is_right():
    bench = drafting(going_round(4))
    (row,) = bench.submit(generation(prompt=(3, 4, 5, 6, 3, 4), max_tokens=30))
    assert drafted(bench.turn()) == [], "the prompt's last token is a step"
    assert tokens_of(row) == [5]
    plan = bench.turn()
    assert drafted(plan) == [(0, 6, (5, 6, 3, 4, 5))]
    assert (plan.step.tokens, plan.step.max_target_len) == ((), 11)
    assert (tokens_of(row), row.num_computed) == ([5, 6, 3, 4, 5, 6], 11)
    bench.drain()
    assert tokens_of(row) == [3 + place % 4 for place in range(6, 36)]
    assert len(bench.runner.plans) < 10


def test_a_wrong_guess_gives_the_right_token_and_is_forgotten():
    def rule(source, fed, vocab_size):
        return 3 + (len(fed) + (len(fed) >= 8)) % 4  # out of step from the ninth token on

    bench = drafting(rule)
    (row,) = bench.submit(generation(prompt=(3, 4, 5, 6, 3, 4), max_tokens=9))
    bench.turn()
    assert drafted(bench.turn()) == [(0, 6, (5, 6, 3, 4, 5))]
    assert (tokens_of(row), row.num_computed) == ([5, 6, 4], 8)
    bench.drain()
    assert bench.scheduler.draft_proposer.accepted[0] == 1
    assert tokens_of(row) == [5, 6, 4, 5, 6, 3, 4, 5, 6]


def test_a_draft_of_which_nothing_is_right_costs_no_token():
    bench = drafting(lambda source, fed, vocab_size: 9 if fed[-1] != 9 else 8)
    (row,) = bench.submit(generation(prompt=(9, 8, 4, 9), max_tokens=3))
    bench.turn()
    assert drafted(bench.turn()) == [(0, 4, (8, 4))]
    assert (tokens_of(row), row.num_computed, bench.scheduler.draft_proposer.accepted) == ([8, 9], 5, [0])


def test_an_end_token_inside_a_draft_ends_the_answer_there():
    bench = drafting(lambda source, fed, vocab_size: EOS if len(fed) == 9 else 3 + len(fed) % 4)
    (row,) = bench.submit(generation(prompt=(3, 4, 5, 6, 3, 4), max_tokens=30))
    bench.drain()
    assert tokens_of(row) == [5, 6, 3, EOS]
    assert row.outcome is FinishReason.END_OF_SEQUENCE
    assert row.num_generated == row.steps == 4


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_an_answer_is_never_longer_than_it_may_be(max_tokens):
    bench = drafting(going_round(4))
    (row,) = bench.submit(generation(prompt=(3, 4, 5, 6, 3, 4), max_tokens=max_tokens))
    while not bench.scheduler.is_idle:
        plan = bench.turn()
        assert plan.step.max_target_len <= max(16, 6 + max_tokens - 1)
    assert (row.outcome, len(tokens_of(row))) == (FinishReason.LENGTH, max_tokens)


def test_rows_without_a_draft_step_beside_those_with_one():
    bench = drafting(lambda source, fed, vocab_size: 3 + (len(fed) % 4 if fed[0] == 3 else len(fed) % 20))
    one, other = bench.submit(
        generation("one", prompt=(3, 4, 5, 6, 3, 4), max_tokens=20), generation("other", prompt=(1, 7), max_tokens=20)
    )
    bench.turn()
    plan = bench.turn()
    assert drafted(plan) == [(0, 6, (5, 6, 3, 4, 5))]
    assert (plan.step.tokens, plan.step.starts) == ((5, 5), (6, 2))
    assert (len(tokens_of(one)), len(tokens_of(other))) == (6, 2)
    bench.drain()
    assert tokens_of(other) == [3 + place % 20 for place in range(2, 22)]


def test_a_row_moves_without_its_wrong_guesses():
    bench = drafting(lambda source, fed, vocab_size: 3 + (len(fed) + (len(fed) >= 8)) % 4)
    short, long = bench.submit(
        generation("short", prompt=(3, 4, 5, 6, 3, 4), max_tokens=2),
        generation("long", prompt=(3, 4, 5, 6, 3, 4), max_tokens=20),
    )
    bench.turn()
    bench.turn()
    assert short.outcome is FinishReason.LENGTH
    assert bench.turn().step.copies == (Copy(1, 0, 0, 8, 0),)
    bench.drain()
    assert len(tokens_of(long)) == 20


def test_rows_with_drafts_leave_at_once_when_they_are_cancelled_or_late():
    bench = drafting(going_round(4))
    first, second = bench.submit(
        generation("a", prompt=(3, 4, 5, 6, 3, 4), max_tokens=90),
        generation("b", prompt=(3, 4, 5, 6, 3, 4), max_tokens=90, deadline_s=5.0),
    )
    bench.turn()
    bench.turn()
    bench.scheduler.cancel(first)
    plan = bench.turn(now_s=5.0)
    assert set(plan.ended) == {first, second}
    assert "after 6 tokens" in str(second.outcome)
    assert bench.scheduler.is_idle


def test_drafts_are_counted():
    bench = drafting(lambda source, fed, vocab_size: 3 + (len(fed) + (len(fed) >= 8)) % 4)
    bench.submit(generation(prompt=(3, 4, 5, 6, 3, 4), max_tokens=20))
    bench.turn()
    plan = bench.scheduler.plan(0.0)
    model = bench.runner.run(plan.step)
    advance(bench.scheduler.commit(plan), model)
    assert bench.scheduler.record_drafts(plan, model) == (4, 1)


def test_invariants_notice_drafts_that_nobody_allowed():
    bench = Bench(ScriptedRunner(rule=never_ends))
    (row,) = bench.submit(request())
    bench.turn()
    row.draft_tokens = (5,)
    assert check_invariants(bench.scheduler) == ["r: drafts 1 tokens in rows (0,)"]


# ---- everything at once


@pytest.mark.parametrize("seed", range(6))
def test_random_traffic_keeps_every_promise(seed):
    """Arrivals, cancellations, deadlines, failed turns; every answer is the one that the request gets alone."""
    rng = random.Random(seed)
    has_source = seed % 2 == 0
    runner = ScriptedRunner(has_source=has_source, max_block=1 if has_source else 0)
    bench = Bench(
        runner,
        max_rows=rng.choice([1, 3, 8]),
        kv_cache_bytes=rng.choice([1300, 8000]),
        max_prefill_tokens=rng.choice([16, 48]),
        max_idle_prefill_tokens=48,
        chunk_tokens=16,
        prefix_cache_bytes=rng.choice([0, 160, 1600]),
        draft_tokens=9,
    )
    scheduler, failures = bench.scheduler, 0
    right: dict[str, list[int]] = {}
    drafts = RandomDrafts(right, 24, seed)
    if not has_source:
        scheduler.draft_proposer = drafts
    sequences: list[Sequence] = []
    ended: list[Sequence] = []
    for turn in range(1500):
        for _ in range(rng.choice([0, 0, 1, 3]) if len(scheduler.waiting) < 12 else 0):
            tokens = [rng.randrange(3, 24) for _ in range(rng.randrange(1, 30))]
            if not has_source:  # some begin alike
                tokens = [*[5] * rng.choice([0, 15, 20, 31]), *tokens][:34]
            asked = Request(
                request_id=str(len(sequences)),
                source=tuple(tokens) if has_source else (),
                prompt=(1, *tokens[: rng.choice([0, 0, 3])]) if has_source else (1, *tokens),
                max_tokens=rng.randrange(1, 30),
                deadline_s=rng.choice([None, None, turn + rng.randrange(40)]),
            )
            right[asked.request_id] = scripted_answer(asked)
            sequences += bench.submit(asked)
        if rng.random() < 0.05 and sequences:
            bench.scheduler.cancel(rng.choice(sequences[-20:]))
        if rng.random() < 0.02:
            runner.fail_on.add(runner.runs + 1)
        try:
            plan = bench.turn(now_s=turn)
        except RuntimeError:
            failures += 1
            for sequence in scheduler.drop_live():
                sequence.finish(InternalFailure(sequence.request.request_id))
            runner.reset()
            assert check_invariants(scheduler) == []
        else:
            ended += plan.ended
    runner.fail_on.clear()
    bench.drain()
    assert failures > 5
    assert all(sequence.outcome is not None for sequence in sequences)
    assert len(ended) == len(set(ended))
    good = [sequence for sequence in sequences if isinstance(sequence.outcome, FinishReason)]
    assert len(good) > len(sequences) // 3
    assert has_source or sum(drafts.accepted) > len(sequences)
    for sequence in sequences:
        answer = scripted_answer(sequence.request)
        tokens = tokens_of(sequence)
        assert tokens == answer[: len(tokens)]
        assert tokens == answer or isinstance(sequence.outcome, RequestError)
