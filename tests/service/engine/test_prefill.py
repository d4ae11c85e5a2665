import pytest

from service.memory.cache_layout import CacheLayout
from service.request import FinishReason
from service.step import Copy, PrefillChunk, PrefillCost
from tests.fakes import ScriptedRunner
from tests.scheduling import Bench, chunks_of, generation, never_ends, prefill_bench, tokens_of


def test_a_prompt_is_prefilled_up_to_its_last_token_which_is_a_step():
    bench = prefill_bench()
    (row,) = bench.submit(generation(prompt=(1, 7, 8)))
    plan = bench.turn()
    assert plan.step.prompts.chunks == (PrefillChunk(0, 0, (1, 7)),)
    assert (plan.step.decode.tokens, plan.step.decode.starts) == ((8,), (2,))
    assert plan.step.shape.target_len == 16, "a chunk is padded"
    assert len(tokens_of(row)) == 1
    assert bench.turn().step.decode.starts == (3,)


def test_a_prompt_of_one_token_is_a_step():
    bench = prefill_bench()
    bench.submit(generation(prompt=(1,)))
    plan = bench.turn()
    assert (plan.step.prompts.chunks, plan.step.decode.tokens, plan.step.decode.starts) == ((), (1,), (0,))


def test_first_chunks_are_ordered_by_padded_length():
    bench = prefill_bench()
    bench.submit(*(generation(str(n), prompt=(1,) * n) for n in (20, 3, 40, 16)))
    assert chunks_of(bench.turn()) == [(0, 0, 2), (1, 0, 15), (2, 0, 19), (3, 0, 39)]


@pytest.mark.parametrize("length", [31, 32, 33, 34, 48, 49, 150])
def test_a_prompt_is_split_into_the_same_chunks_whatever_the_load(length):
    splits = set()
    for others, max_prefill_tokens in ((0, 1000), (0, 1), (3, 16), (3, 64), (9, 40)):
        bench = prefill_bench(
            chunk_tokens=32, max_prefill_tokens=max_prefill_tokens, max_idle_prefill_tokens=max_prefill_tokens
        )
        bench.submit(*(generation(f"other {n}", prompt=(1, 5, 9) * (n + 1), max_tokens=30) for n in range(others)))
        bench.turn()
        (row,) = bench.submit(generation("it", prompt=(1,) * length, max_tokens=2))
        blocks = []
        while row.outcome is None:
            plan = bench.turn()
            blocks += [one for one in plan.step.prompts.chunks if one.row in row.rows]
        splits.add(tuple((block.start, len(block.tokens)) for block in blocks))
        bench.drain()
    expected = [(start, min(32, length - 1 - start)) for start in range(0, length - 1, 32)]
    assert splits == {tuple(expected)}


def test_running_rows_step_in_every_turn_while_a_long_prompt_is_prefilled_in_bounded_pieces():
    bench = prefill_bench(chunk_tokens=32, max_prefill_tokens=64)
    (early,) = bench.submit(generation("early", max_tokens=60))
    bench.turn()
    (late,) = bench.submit(generation("late", prompt=(1,) * 300, max_tokens=9))
    turns = 0
    while not tokens_of(late):
        before, plan = len(tokens_of(early)), bench.turn()
        assert len(tokens_of(early)) == before + 1
        assert sum(length for _, _, length in chunks_of(plan)) <= 64
        turns += 1
    assert turns == 5, "299 tokens, 64 in a turn"


def test_short_prompts_overtake_a_long_one_which_still_advances():
    bench = prefill_bench(chunk_tokens=32, max_prefill_tokens=96)
    bench.submit(generation("running", max_tokens=99))
    bench.turn()
    (long,) = bench.submit(generation("long", prompt=(1,) * 330))
    for turn in range(1, 9):
        (short,) = bench.submit(generation("short", prompt=(1,) * 60, max_tokens=1))
        bench.turn()
        assert long.num_computed == 32 * turn, "a chunk of the long one"
        assert short.outcome is not None, "and both of the short one"


def test_nothing_steps_while_all_rows_are_in_prefill():
    bench = prefill_bench(chunk_tokens=32, max_prefill_tokens=32, max_idle_prefill_tokens=64)
    (row,) = bench.submit(generation(prompt=(1,) * 100))
    plan = bench.turn()
    assert (chunks_of(plan), plan.step.decode) == ([(0, 0, 32), (0, 32, 32)], None)
    assert plan.prefill.unfinished == {row}
    assert chunks_of(bench.turn()) == [(0, 64, 32), (0, 96, 3)]
    assert len(tokens_of(row)) == 1


@pytest.mark.parametrize(("seconds", "chunks"), [(0.0, 8), (0.1, 8), (4.0, 4), (30.0, 2)])
def test_a_turn_without_steps_has_the_chunks_that_two_seconds_suffice_for(seconds, chunks):
    """seconds: that a turn of 8 chunks took; two chunks fit beside steps."""
    bench = prefill_bench(chunk_tokens=32, max_prefill_tokens=64, max_idle_prefill_tokens=256)
    bench.submit(generation(prompt=(1,) * 390))
    bench.scheduler.prefill.record(PrefillCost(seconds, 0.0, 256, 0))
    assert len(chunks_of(bench.turn())) == chunks


def test_a_row_in_prefill_moves_with_what_is_computed_of_it():
    bench = prefill_bench(chunk_tokens=32, max_prefill_tokens=32, max_idle_prefill_tokens=32)
    short, long = bench.submit(generation("short", prompt=(1,), max_tokens=2), generation("long", prompt=(1,) * 100))
    bench.turn()
    bench.turn()
    plan = bench.turn()
    assert plan.step.moves.copies == (Copy(1, 0, 0, 64, 0),)
    assert (short.outcome, long.rows) == (FinishReason.LENGTH, (0,))
    bench.drain()
    assert len(tokens_of(long)) == 5


def test_chunks_are_no_longer_than_the_decoder_takes():
    bench = Bench(ScriptedRunner(has_source=False, max_block=16, rule=never_ends))
    (row,) = bench.submit(generation(prompt=(1,) * 40))
    assert [len(block.tokens) for block in bench.turn().step.prompts.chunks] == [16, 16, 7]
    bench.drain()
    assert len(tokens_of(row)) == 5


# ---- prefix cache


def test_the_cached_prefix_of_a_prompt_is_copied_chunk_by_chunk():
    bench = prefill_bench(chunk_tokens=16, prefix_cache_bytes=10 * 16 * 20)
    prompt = tuple(3 + n % 20 for n in range(60))
    bench.submit(generation("first", prompt=prompt))
    first = bench.turn()
    assert (first.prefix_queried_tokens, first.prefix_hit_tokens) == (60, 0)
    assert [(keep.start, keep.count) for keep in first.step.prompts.stores] == [(0, 16), (16, 16), (32, 16)]
    bench.drain()
    bench.submit(generation("second", prompt=(*prompt[:40], 4, 4, 4, 4)))
    second = bench.turn()
    assert (second.prefix_queried_tokens, second.prefix_hit_tokens) == (44, 32)
    assert [(keep.start, keep.slot) for keep in second.step.prompts.loads] == [(0, 0), (16, 1)]
    assert chunks_of(second) == [(0, 32, 11)]
    bench.drain()


def test_the_last_token_of_a_prompt_is_never_copied():
    bench = prefill_bench(chunk_tokens=16, prefix_cache_bytes=10 * 16 * 20)
    prompt = tuple(range(3, 3 + 17))
    for expected in (0, 16, 16):
        (row,) = bench.submit(generation(prompt=prompt))
        assert bench.turn().prefix_hit_tokens == expected
        bench.drain()
        assert len(tokens_of(row)) == 5


def test_nothing_is_cached_without_memory_for_it_or_where_state_has_no_positions():
    layouts = [CacheLayout(target_bytes=10, row_bytes=4), CacheLayout(target_bytes=10, source_bytes=4)]
    for layout, prefix_cache_bytes in ((None, 0), *((layout, 10_000) for layout in layouts)):
        runner = ScriptedRunner(has_source=False, max_block=0, rule=never_ends, layout=layout)
        bench = prefill_bench(runner, chunk_tokens=16, prefix_cache_bytes=prefix_cache_bytes)
        for _ in range(2):
            bench.submit(generation(prompt=(1,) * 40))
            plan = bench.turn()
            assert (plan.prefix_queried_tokens, plan.prefix_hit_tokens, plan.step.prompts.stores) == (0, 0, ())
            bench.drain()


def test_the_prefix_cache_is_cleared_when_a_turn_fails():
    bench = prefill_bench(chunk_tokens=16, prefix_cache_bytes=10 * 16 * 20)
    for _ in range(2):
        bench.submit(generation(prompt=(1,) * 40))
        assert bench.turn().prefix_hit_tokens == 0
        bench.scheduler.drop_live()
        bench.runner.reset()


def test_rows_that_were_left_in_mid_prompt_are_named_in_the_next_turn_that_is_computed():
    bench = prefill_bench(chunk_tokens=16, max_prefill_tokens=16, max_idle_prefill_tokens=16)
    long = [generation(str(number), prompt=(1,) * 60) for number in range(3)]
    first, second, third = bench.submit(*long)
    bench.turn()
    bench.turn()
    (row,) = first.rows
    bench.scheduler.waiting.cancel(first)
    assert bench.turn().step.moves.abandoned_rows == (row,)
    assert bench.turn().step.moves.abandoned_rows == ()
    (last,) = second.rows
    for sequence in (second, third):
        bench.scheduler.waiting.cancel(sequence)
    assert bench.turn().live == (), "nothing is computed"
    (later,) = bench.submit(generation("later"))
    assert last in bench.turn().step.moves.abandoned_rows
    while later.outcome is None:
        assert bench.turn().step.moves.abandoned_rows == ()


def test_a_failed_turn_leaves_no_abandoned_rows():
    bench = prefill_bench(chunk_tokens=16, max_idle_prefill_tokens=16)
    (long,) = bench.submit(generation(prompt=(1,) * 60))
    bench.turn()
    bench.scheduler.waiting.cancel(long)
    assert bench.turn().live == ()
    bench.scheduler.drop_live()
    bench.submit(generation())
    assert bench.turn().step.moves.abandoned_rows == ()
