import random

import pytest

from bench.simulation.invariants import check_invariants
from service.decoding.search import advance
from service.errors import InternalFailure, RequestError
from service.options import DecodingOptions
from service.request import FinishReason, Request
from service.sequence import Sequence
from service.step import Copy
from tests.fakes import EOS, EveryDraft, RandomDrafts, ScriptedRunner, scripted_answer
from tests.scheduling import Bench, generation, never_ends, prefill_bench, request, tokens_of


def test_an_idle_scheduler_plans_nothing():
    plan = Bench().turn()
    assert (plan.live, plan.admitted, plan.ended, plan.step.shape.rows) == ((), (), (), 0)


def test_a_prompt_is_fed_token_by_token_where_the_decoder_takes_one():
    bench = Bench(ScriptedRunner(rule=never_ends))
    (row,) = bench.submit(request(prompt=(1, 7, 8), max_tokens=2))
    fed = [bench.turn().step.decode.tokens for _ in range(4)]
    assert fed[:3] == [(1,), (7,), (8,)]
    assert fed[3] == (tokens_of(row)[0],)
    assert len(tokens_of(row)) == 2


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


def test_a_failed_turn_drops_all_rows_and_the_queue_goes_on():
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=2)
    a, b, c = bench.submit(request("a"), request("b"), request("c"))
    bench.turn()
    assert bench.scheduler.drop_live() == [a, b]
    bench.runner.reset()
    assert bench.scheduler.capacity.reserved_bytes == 0
    bench.drain()
    assert tokens_of(c) == [never_ends(c.request.source, (1, *tokens_of(c)[:n]), 24) for n in range(5)]


# ---- extra greedy steps


def whole(name="r", **more):
    return request(name, is_streamed=False, **more)


def extra_steps(bench):
    bench.drain()
    steps = [plan.decode for plan in bench.runner.plans]
    return [step.extra.most if step and step.extra else 0 for step in steps]


def test_a_single_request_without_streaming_makes_several_steps_in_a_turn():
    bench = Bench(ScriptedRunner(rule=never_ends), greedy_steps_per_turn=4, greedy_turn_s=0.25)
    (row,) = bench.submit(whole(max_tokens=10))
    assert extra_steps(bench) == [3, 3, 1]
    assert tokens_of(row) == [never_ends(row.request.source, [1] * count, 24) for count in range(1, 11)]
    assert row.num_generated == row.steps == 10
    last = [(plan.shape.target_len, plan.decode.starts[0] + 1 + plan.decode.extra.most) for plan in bench.runner.plans]
    assert [size for size, _ in last] == [end for _, end in last]
    assert {plan.decode.extra.max_s for plan in bench.runner.plans} == {0.25}


def test_an_end_token_ends_the_extra_steps_of_a_turn():
    bench = Bench(ScriptedRunner(rule=lambda source, fed, vocab_size: EOS if len(fed) == 3 else 9))
    (row,) = bench.submit(whole(max_tokens=30))
    bench.turn()
    assert tokens_of(row) == [9, 9, EOS]
    assert (row.outcome, row.num_computed) == (FinishReason.END_OF_SEQUENCE, 3)


def test_streams_several_rows_and_waiting_requests_allow_no_extra_steps():
    for asked in ([request(max_tokens=6)], [whole("a", max_tokens=6), whole("b", max_tokens=6)]):
        bench = Bench()
        bench.submit(*asked)
        assert not any(extra_steps(bench))
    bench = Bench(ScriptedRunner(rule=never_ends), max_rows=1)
    bench.submit(whole("a", max_tokens=9), whole("b", max_tokens=9))
    assert extra_steps(bench) == [*[0] * 9, 8], "no request waits for the second one"


@pytest.mark.parametrize(
    "more",
    [
        {"options": DecodingOptions(beam_size=2)},
        {"options": DecodingOptions(temperature=0.7)},
        {"prefix": (5, 6, 7, 8, 9, 10)},
    ],
)
def test_requests_that_are_not_plain_greedy_make_no_extra_steps(more):
    bench = Bench()
    bench.submit(whole(max_tokens=6, **more))
    assert not any(extra_steps(bench))


def test_a_row_makes_extra_steps_only_after_its_forced_prefix():
    bench = Bench(ScriptedRunner(rule=never_ends))
    bench.submit(whole(max_tokens=6, prefix=(5, 6)))
    assert extra_steps(bench) == [0, 0, 3]


def test_a_row_makes_extra_steps_only_after_its_prompt():
    for runner, before in (
        (ScriptedRunner(has_source=False, max_block=0, rule=never_ends), [0, 0]),  # blocks
        (ScriptedRunner(rule=never_ends), [0] * 40),  # steps
    ):
        bench = Bench(runner, chunk_tokens=16, max_prefill_tokens=16, max_idle_prefill_tokens=16)
        make = generation if not runner.limits.max_source_len else request
        (row,) = bench.submit(make(prompt=(1, *[5] * 40), max_tokens=9, is_streamed=False))
        assert extra_steps(bench) == [*before, 8]
        assert row.steps == 9


# ---- drafts


def going_round(period):
    """Every answer repeats itself after so many tokens."""
    return lambda source, fed, vocab_size: 3 + len(fed) % period


def drafting(rule, *, drafts=None, **config):
    """A bench where every draft is verified."""
    bench = prefill_bench(
        ScriptedRunner(has_source=False, max_block=0, rule=rule, max_len=400), draft_tokens=4, **config
    )
    bench.scheduler.draft_proposer = drafts or EveryDraft(4)
    return bench


def drafted(plan):
    return [(draft.row, draft.start, draft.tokens) for draft in plan.step.drafts]


def test_a_right_draft_is_accepted_as_a_whole():
    bench = drafting(going_round(4))
    (row,) = bench.submit(generation(prompt=(3, 4, 5, 6, 3, 4), max_tokens=30))
    assert drafted(bench.turn()) == [], "the prompt's last token is a step"
    assert tokens_of(row) == [5]
    plan = bench.turn()
    assert drafted(plan) == [(0, 6, (5, 6, 3, 4, 5))]
    assert (plan.step.decode, plan.step.shape.target_len) == (None, 11)
    assert (tokens_of(row), row.num_computed) == ([5, 6, 3, 4, 5, 6], 11)
    bench.drain()
    assert tokens_of(row) == [3 + place % 4 for place in range(6, 36)]
    assert len(bench.runner.plans) < 10


def test_a_rejected_draft_token_is_replaced_by_the_right_one():
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


def test_a_draft_that_is_wholly_rejected_costs_no_token():
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
        assert plan.step.shape.target_len <= max(16, 6 + max_tokens - 1)
    assert (row.outcome, len(tokens_of(row))) == (FinishReason.LENGTH, max_tokens)


def test_rows_without_a_draft_step_beside_those_with_one():
    bench = drafting(lambda source, fed, vocab_size: 3 + (len(fed) % 4 if fed[0] == 3 else len(fed) % 20))
    one, other = bench.submit(
        generation("one", prompt=(3, 4, 5, 6, 3, 4), max_tokens=20), generation("other", prompt=(1, 7), max_tokens=20)
    )
    bench.turn()
    plan = bench.turn()
    assert drafted(plan) == [(0, 6, (5, 6, 3, 4, 5))]
    assert (plan.step.decode.tokens, plan.step.decode.starts) == ((5, 5), (6, 2))
    assert (len(tokens_of(one)), len(tokens_of(other))) == (6, 2)
    bench.drain()
    assert tokens_of(other) == [3 + place % 20 for place in range(2, 22)]


def test_a_row_moves_without_its_rejected_draft_tokens():
    bench = drafting(lambda source, fed, vocab_size: 3 + (len(fed) + (len(fed) >= 8)) % 4)
    short, long = bench.submit(
        generation("short", prompt=(3, 4, 5, 6, 3, 4), max_tokens=2),
        generation("long", prompt=(3, 4, 5, 6, 3, 4), max_tokens=20),
    )
    bench.turn()
    bench.turn()
    assert short.outcome is FinishReason.LENGTH
    assert bench.turn().step.moves.copies == (Copy(1, 0, 0, 8, 0),)
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
    bench.scheduler.waiting.cancel(first)
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


# ---- everything together


def random_bench(rng, has_source):
    runner = ScriptedRunner(has_source=has_source, max_block=1 if has_source else 0)
    return Bench(
        runner,
        max_rows=rng.choice([1, 3, 8]),
        kv_cache_bytes=rng.choice([1300, 8000]),
        max_prefill_tokens=rng.choice([16, 48]),
        max_idle_prefill_tokens=48,
        chunk_tokens=16,
        prefix_cache_bytes=rng.choice([0, 160, 1600]),
        draft_tokens=9,
    )


def random_request(rng, number, turn, has_source):
    tokens = [rng.randrange(3, 24) for _ in range(rng.randrange(1, 30))]
    if not has_source:  # some begin alike
        tokens = [*[5] * rng.choice([0, 15, 20, 31]), *tokens][:34]
    return Request(
        request_id=str(number),
        source=tuple(tokens) if has_source else (),
        prompt=(1, *tokens[: rng.choice([0, 0, 3])]) if has_source else (1, *tokens),
        max_tokens=rng.randrange(1, 30),
        deadline_s=rng.choice([None, None, turn + rng.randrange(40)]),
    )


def turned(bench, turn):
    """The sequences that left early in a turn; None: the turn failed, and its sequences with it."""
    try:
        return bench.turn(now_s=turn).ended
    except RuntimeError:
        for sequence in bench.scheduler.drop_live():
            sequence.finish(InternalFailure(sequence.request.request_id))
        bench.runner.reset()
        assert check_invariants(bench.scheduler) == []
        return None


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 2 else [pytest.mark.slow]) for seed in range(6)]
)
def test_random_traffic_violates_no_invariant(seed):
    """Arrivals, cancellations, deadlines, failed turns; every answer is the one that the request gets alone."""
    rng, has_source = random.Random(seed), seed % 2 == 0
    bench, right = random_bench(rng, has_source), dict[str, list[int]]()
    scheduler, runner, drafts = bench.scheduler, bench.runner, RandomDrafts(right, 24, seed)
    if not has_source:
        scheduler.draft_proposer = drafts
    sequences, ended, failures = list[Sequence](), list[Sequence](), 0
    for turn in range(1500):
        for _ in range(rng.choice([0, 0, 1, 3]) if len(scheduler.waiting) < 12 else 0):
            asked = random_request(rng, len(sequences), turn, has_source)
            right[asked.request_id] = scripted_answer(asked)
            sequences += bench.submit(asked)
        if rng.random() < 0.05 and sequences:
            scheduler.waiting.cancel(rng.choice(sequences[-20:]))
        if rng.random() < 0.02:
            runner.fail_on.add(runner.runs + 1)
        left = turned(bench, turn)
        failures += left is None
        ended += left or ()
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
