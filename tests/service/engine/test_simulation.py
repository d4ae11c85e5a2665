"""Requests of every kind at saturation, against a scripted runner that checks each plan: every invariant holds."""

import random
from typing import Any

import numpy as np
import pytest

from bench.simulation.invariants import check_invariants
from service.decoding.search import advance
from service.encoder_request import EncoderRequest
from service.engine.scheduler import Scheduler
from service.errors import InternalFailure, RequestError
from service.memory.cache_layout import CacheLayout
from service.options import DecodingOptions
from service.request import FinishReason, Priority, Request
from service.sequence import Sequence
from service.step import padded
from tests.engines import engine_limits
from tests.fakes import EOS, ProcessedRequest, RandomShares, ScriptedRunner, drain, search_of

VOCABULARY = 24
TABLE = np.random.default_rng(5).normal(0.0, 2.0, (1009, VOCABULARY)).astype(np.float32)
TABLE[:, EOS] += 0.8
TABLE -= np.log(np.exp(TABLE.astype(np.float64)).sum(1, keepdims=True)).astype(np.float32)


def distribution(source, fed, vocab_size):
    """A distribution that depends on every token, from a table."""
    return TABLE[hash((source, tuple(fed))) % len(TABLE)]


class Few:
    """A mask that allows a few tokens and the end."""

    is_mask = True
    allowed = (EOS, 5, 9, 11)

    def initial_state(self):
        return 0

    def next_state(self, state, token):
        assert token in self.allowed
        return state + 1

    def applies(self, state, tokens):
        assert state == len(tokens)
        return True

    def apply(self, scores_V, state, tokens):
        masked = np.ones(len(scores_V), bool)
        masked[list(self.allowed)] = False
        scores_V[masked] = -np.inf

    def excluded(self, state, tokens):
        return None


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "scored greedy": {"token_logprobs": True},
    "beam": {"beam_size": 4, "num_hypotheses": 2},
    "wide beam": {"beam_size": 7, "early_stopping": "never"},
    "groups": {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "samples": {"num_sequences": 3},
    "nucleus": {"top_p": 0.8, "temperature": 1.3},
    "alternatives": {"num_hypotheses": 3, "return_alternatives": True},
    "score": {"token_logprobs": True},
    "embed": {},
    "constrained": {},
    "constrained beam": {"beam_size": 3},
}


def draw_reading(rng, number, now_s):
    """For an encoder alone."""
    return Request(
        request_id=f"{number} embed",
        source=tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 30))),
        prompt=(),
        max_tokens=0,
        encoder_request=EncoderRequest(pooling="mean"),
        deadline_s=rng.choice([None, None, None, now_s + rng.randrange(60)]),
    )


def draw_request(rng, number, now_s, has_source, tenants=""):
    kind = rng.choice([name for name in KINDS if has_source or name != "embed"])
    max_tokens = rng.randrange(1, 24)
    length = max_tokens if kind == "score" else rng.choice([0, 0, 0, max_tokens // 3])
    return ProcessedRequest(
        request_id=f"{number} {kind}",
        source=tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 30))) if has_source else (),
        prompt=draw_prompt(rng, has_source) if kind != "embed" else (1,),
        max_tokens=max_tokens,
        prefix=() if kind.startswith("constrained") else tuple(rng.randrange(3, VOCABULARY) for _ in range(length)),
        logits_processors=(Few(),) if kind.startswith("constrained") else (),
        options=DecodingOptions(**KINDS[kind]),
        seed=number,
        encoder_request=EncoderRequest(pooling="mean") if kind == "embed" else None,
        deadline_s=rng.choice([None, None, None, now_s + rng.randrange(60)]),
        is_streamed=rng.random() < 0.5,
        tenant=rng.choice(tenants or [""]),
        priority=rng.choice(list(Priority)) if tenants else Priority.NORMAL,
    )


def draw_prompt(rng, has_source):
    """Without a source prompts are long, and often begin alike."""
    if has_source:
        return (1, *[4] * rng.choice([0, 0, 0, 2]))
    beginning = [rng.choice([5, 6])] * rng.choice([0, 14, 20, 31])
    return (1, *beginning, *(rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(8))))


def result(sequence):
    if sequence.request.encoder_request:
        return sequence.encoder_output.vector.tolist()
    return [(answer.tokens, answer.logprobs, repr(answer.normalised)) for answer in sequence.answers]


def runner_for(has_source):
    runner = ScriptedRunner(
        vocab_size=VOCABULARY, rule=distribution, has_source=has_source, max_block=1 if has_source else 0
    )
    runner.keeps_plans = False
    return runner


def alone(request):
    runner = runner_for(bool(request.source))
    scheduler = Scheduler(engine_limits(), runner.limits, runner.layout)
    sequence = Sequence(request, search_of(request))
    scheduler.submit(sequence)
    drain(scheduler, runner)
    return result(sequence)


@pytest.mark.parametrize("turns", [2_000])
def test_an_encoder_alone_answers_everything_in_its_first_turn(turns):
    rng = random.Random(turns)
    runner = ScriptedRunner(vocab_size=VOCABULARY, has_decoder=False, layout=CacheLayout(0))
    config = engine_limits(max_rows=24, kv_cache_bytes=1, max_prefill_tokens=96, max_idle_prefill_tokens=96)
    scheduler = Scheduler(config, runner.limits, runner.layout)
    sequences: list[Sequence] = []
    for turn in range(turns):
        while len(scheduler.waiting) < 30:
            request = draw_reading(rng, len(sequences), turn)
            scheduler.capacity.check(request)
            sequences.append(Sequence(request, search_of(request)))
            scheduler.submit(sequences[-1])
        if rng.random() < 0.05:
            scheduler.waiting.cancel(rng.choice(sequences[-20:]))
        plan = scheduler.plan(float(turn))
        assert len(plan.live) == len(plan.admitted) > 0
        assert sum(len(join.source) for join in plan.step.new_rows) <= 96
        advance(scheduler.commit(plan), runner.run(plan.step))
        assert check_invariants(scheduler) == []
        assert all(sequence.outcome is FinishReason.ENCODED for sequence in plan.live)
    drain(scheduler, runner)
    assert scheduler.rows == []
    assert all(isinstance(sequence.outcome, FinishReason | RequestError) for sequence in sequences)
    answered = [sequence for sequence in sequences if sequence.outcome is FinishReason.ENCODED]
    assert len(answered) > turns
    assert all(tuple(result(sequence)) == sequence.request.source for sequence in answered[:100])


def is_computed(scheduler, runner, plan):
    """Computes a turn in which every live row steps or is prefilled; False: it failed, and its sequences with it."""
    steps = {sequence: sequence.steps for sequence in plan.live if sequence not in plan.prefill.unfinished}
    assert sum(padded(len(block.tokens)) for block in plan.step.prompts.chunks) <= 96
    assert not plan.prefill.unfinished or plan.prefill.computed, "a prompt is unfinished, and no chunk of any computed"
    try:
        model = runner.run(plan.step)
        advance(scheduler.commit(plan), model)
    except RuntimeError:
        for sequence in scheduler.drop_live():
            sequence.finish(InternalFailure(sequence.request.request_id))
        runner.reset()
        return False
    for sequence, before in steps.items():
        is_reading = sequence.steps == 0 and len(sequence.request.prompt) > 1
        assert sequence.steps == before + 1 or is_reading, "a live request was left out of a turn"
    return True


@pytest.mark.parametrize("has_tenants", [False, True])
@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize("turns", [1_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_every_invariant_holds_at_saturation(turns, has_source, has_tenants):
    rng = random.Random(turns)
    faulty_turns = set(rng.sample(range(turns), turns // 500))
    runner = runner_for(has_source)
    config = engine_limits(
        max_rows=24,
        kv_cache_bytes=14_000,
        max_prefill_tokens=96 if has_source else 64,
        max_idle_prefill_tokens=96,
        chunk_tokens=16,
        prefix_cache_bytes=10 * 16 * 12,  # fewer slots than there are prefixes: some are evicted and cached again
    )
    scheduler = Scheduler(config, runner.limits, runner.layout)
    if has_tenants:
        scheduler.shares = RandomShares(turns)
    number = failures = finished = compared = longest_wait = reused = 0
    waited: dict[Sequence, int] = {}  # turns for which the head of the queue could have run and did not
    recent: list[Sequence] = []
    for turn in range(turns):
        while len(scheduler.waiting) < 6:
            request = draw_request(rng, number, turn, has_source, tenants="abc" if has_tenants else "")
            scheduler.capacity.check(request)
            sequence = Sequence(request, search_of(request))
            scheduler.submit(sequence)
            recent.append(sequence)
            number += 1
        if rng.random() < 0.05:
            scheduler.waiting.cancel(rng.choice(recent[-20:]))
        if turn in faulty_turns:
            runner.fail_on = {runner.runs + 1}
        plan = scheduler.plan(float(turn))
        planned = scheduler.capacity.reserved
        reused += plan.prefix_hit_tokens
        failures += not is_computed(scheduler, runner, plan)
        assert check_invariants(scheduler) == []
        if scheduler.waiting and not has_tenants:
            (lane,) = scheduler.waiting.lanes
            head = scheduler.waiting.first(lane)
            assert head is not None
            needed = planned.with_more(head.max_shape)
            fits = needed.rows <= config.max_rows and scheduler.capacity.bytes_for(needed) <= config.kv_cache_bytes
            waited[head] = waited.get(head, 0) + fits
            longest_wait = max(longest_wait, waited[head])
        if len(recent) > 60:
            done, recent = recent[:30], recent[30:]
            for sequence in done:
                if isinstance(sequence.outcome, FinishReason):
                    finished += 1
                    if finished % 40 == 0:
                        compared += 1
                        assert result(sequence) == alone(sequence.request)
            waited.clear()
    drain(scheduler, runner)
    assert scheduler.rows == []
    assert all(isinstance(sequence.outcome, FinishReason | RequestError) for sequence in recent)
    assert (reused > turns) != has_source
    if has_tenants:
        assert scheduler.parking.count > turns // 10
    else:
        assert 1 <= longest_wait <= 2, "the prefill budget delays a request by a turn or two, nothing else does"
    assert failures >= turns // 1000
    assert finished > turns // 4
    assert compared > turns // 200
