"""Whole runners on tiny exported bundles: against PyTorch, in different batches, with dirty memory."""

import asyncio
import random
import threading
import weakref
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
import pytest

from bench.engine_pool import EnginePool
from export.bundle.manifest import SOURCE_MULTIPLE
from model.reference.beam import beam_search, search
from model.reference.greedy import score
from model.tokenizer import Tokenizer
from service.engine.engine import Engine
from service.engine.golden_check import decode_single
from service.engine.scheduler import Scheduler
from service.errors import InternalFailure
from service.options import DecodingOptions
from service.request import Priority
from service.runtime.memory import HostBlock, HostMemory
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import OnnxRunner
from service.step import PrefillCost
from tests.engines import engine_limits
from tests.fakes import CheckedEngine, RandomShares, ask
from tests.runner_requests import (
    SCORED,
    CountingSession,
    alone,
    assert_same_bits,
    decode,
    decode_together,
    logprobs_of,
    reference,
    requests_for,
    sequence_for,
)
from tests.tiny import tiny_config, tiny_model


def test_tokens_equal_the_uncached_reference(model):
    requests = requests_for(model, 12)
    expected = reference(model, requests)
    for options in (SCORED, DecodingOptions()):
        runner = model.runner(max_rows=4)
        assert [decode_single(runner, replace(request, options=options)) for request in requests] == expected, options


def test_tokens_that_only_fill_a_batch_are_counted_apart(model):
    turns = list[tuple[int, int, int]]()

    class Recording(OnnxRunner):
        def run(self, plan):
            turn = super().run(plan)
            texts = [new.source for new in plan.new_rows] + [chunk.tokens for chunk in plan.prompts.chunks]
            assert bool(turn.prefill) == bool(texts)
            if cost := turn.prefill:
                turns.append((sum(map(len, texts)), cost.tokens, cost.padding_tokens))
            return turn

    decode_together(Recording(model, HostMemory(), max_rows=12), requests_for(model, 12))
    assert all(own == tokens - padding and tokens % SOURCE_MULTIPLE == 0 for own, tokens, padding in turns)
    assert sum(padding for *_, padding in turns) > 0


def test_the_time_of_the_encoder_is_part_of_the_prefill_of_turns_with_new_rows(model):
    costs = list[PrefillCost | None]()

    class Recording(OnnxRunner):
        def run(self, plan):
            output = super().run(plan)
            costs.append(output.prefill)
            return output

    runner = Recording(model, HostMemory(), max_rows=4)
    decode_together(runner, requests_for(model, 4))
    has_encoder = model.manifest.limits.max_source_len > 0
    assert all((0 < cost.encode_s < cost.seconds) == has_encoder for cost in costs if cost)
    assert {cost is None for cost in costs} == {False, True}


class Counting(HostMemory):
    """Host memory that knows the blocks in use."""

    def __init__(self):
        self.blocks: weakref.WeakSet[HostBlock] = weakref.WeakSet()

    def allocate(self, size):
        block = super().allocate(size)
        self.blocks.add(block)
        return block


class Gated(OnnxRunner):
    """Computes nothing before the gate is open, however fast its engine is, and counts its runs."""

    def __init__(self, model, *, max_rows):
        super().__init__(model, HostMemory(), max_rows=max_rows)
        self.gate, self.runs = threading.Event(), 0

    def run(self, plan):
        self.gate.wait()
        self.runs += 1
        return super().run(plan)


async def test_concurrent_clients_get_the_answers_of_single_requests(path, model):
    requests = requests_for(model, 64)
    expected = [decode_single(model.runner(max_rows=1), request) for request in requests]
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    runner = Gated(model, max_rows=64)
    engine = EnginePool([CheckedEngine(runner, tokenizer)])
    engine.start()
    try:
        answers = asyncio.create_task(ask(engine, *requests))
        await asyncio.sleep(0)
        runner.gate.set()  # all requests are in the engine's hands now
        sinks = await answers
    finally:
        engine.close()
    assert [sink.tokens for sink in sinks] == expected
    for sink, tokens in zip(sinks, expected, strict=True):
        assert sink.text == tokenizer.decode(tokens)
    longest = max(len(tokens) + len(request.prompt) for tokens, request in zip(expected, requests, strict=True))
    assert runner.runs <= longest + 64 * 80 // 512 + 3, "about the longest, plus the turns that read sources"


async def test_engines_share_the_sessions_of_a_model(path, model):
    requests = requests_for(model, 30, seed=3)
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    settings = engine_limits(max_rows=8)
    runners = [Gated(model, max_rows=8) for _ in range(2)]
    pool = EnginePool([Engine(runner, tokenizer, settings) for runner in runners])
    pool.start()
    for runner in runners:
        runner.gate.set()
    try:
        sinks = await ask(pool, *requests)
    finally:
        pool.close()
    assert [sink.tokens for sink in sinks] == [decode_single(model.runner(max_rows=1), request) for request in requests]
    assert all(runner.runs for runner in runners)


@pytest.mark.parametrize(
    ("max_rows", "max_prefill_tokens", "spread"), [(64, 10_000, 1), (64, 512, 1), (5, 64, 1), (16, 128, 40)]
)
def test_distributions_are_bit_identical_in_any_batch(model, max_rows, max_prefill_tokens, spread):
    requests = requests_for(model, 40, seed=max_rows + spread)
    rng = random.Random(spread)
    arrivals = [rng.randrange(spread) for _ in requests]
    together = logprobs_of(
        model.runner(max_rows=max_rows),
        requests,
        arrivals=arrivals,
        max_rows=max_rows,
        max_prefill_tokens=max_prefill_tokens,
    )
    assert_same_bits(alone(model, requests), together)


def test_distributions_do_not_depend_on_capacity(model):
    short = replace(requests_for(model, 1)[0], prompt=(1,), max_tokens=6)
    long = replace(short, request_id="long", max_tokens=model.manifest.limits.max_target_len)
    both = logprobs_of(model.runner(max_rows=64), [long, short], arrivals=[0, 40])
    assert_same_bits(alone(model, [short]), {"0": both["0"]})


@pytest.mark.parametrize("dirt", [np.nan, 1e9, -np.inf])
def test_earlier_contents_of_a_row_have_no_effect(model, dirt):
    """Fresh memory, and later that of idle rows, is full of dirt; rows start, grow, move and leave in it."""

    class DirtyMemory(Counting):
        def allocate(self, size):
            block = super().allocate(size)
            soil(block)
            return block

    def soil(block):
        block.bytes[: block.size // 4 * 4].view(np.float32)[:] = dirt

    requests = requests_for(model, 24, seed=7)
    memory = DirtyMemory()
    runner = OnnxRunner(model, memory, max_rows=16)
    clean = alone(model, requests)
    assert_same_bits(clean, logprobs_of(runner, requests, max_rows=16))
    for block in memory.blocks:
        soil(block)
    assert_same_bits(clean, logprobs_of(runner, requests, max_rows=16))


STRATEGIES: list[dict[str, Any]] = [
    {},
    {"token_logprobs": True},
    {"beam_size": 2},
    {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.6},
    {"beam_size": 6, "num_hypotheses": 2, "num_beam_groups": 2, "diversity_penalty": 0.7},
    {"beam_size": 3, "early_stopping": "never", "patience": 2.0},
    {"beam_size": 4, "num_hypotheses": 4, "num_beam_groups": 2, "diversity_penalty": 0.7, "patience": 1.3},
    {"num_sequences": 3, "top_p": 0.9},
    {"temperature": 1.5},
    {"num_hypotheses": 3, "return_alternatives": True},
]


def mixed_requests(model, count, seed):
    """Every strategy in turn; short answers, so that the uncached reference takes seconds."""
    return [
        replace(
            request,
            prompt=request.prompt[:5],
            max_tokens=min(request.max_tokens, 14),
            options=DecodingOptions(**STRATEGIES[number % len(STRATEGIES)]),
            seed=number,
        )
        for number, request in enumerate(requests_for(model, count, seed))
    ]


def test_answers_of_every_strategy_are_bit_identical_in_any_batch(model):
    requests = mixed_requests(model, 48, seed=2)
    together = decode_together(model.runner(max_rows=40), requests, max_rows=40, max_prefill_tokens=256)
    runner = model.runner(max_rows=8)
    assert together == [decode_together(runner, [request], max_rows=8)[0] for request in requests]


def test_answers_of_parked_requests_are_bit_identical(model):
    requests = [
        replace(request, tenant="abc"[number % 3], priority=Priority(1 + number % 2))
        for number, request in enumerate(mixed_requests(model, 48, seed=2))
    ]
    plans = []
    shares, runner = RandomShares(seed=3), model.runner(max_rows=12)

    def note(plan, output):
        plans.append(plan.step)

    together = decode_together(
        runner, requests, shares=shares, on_run=note, max_rows=12, max_prefill_tokens=256, parking_bytes=1 << 20
    )
    alone = model.runner(max_rows=8)
    assert together == [decode_together(alone, [request], max_rows=8)[0] for request in requests]
    assert sum(len(step.moves.parked) for step in plans) > 30
    assert sum(len(step.moves.resumed) for step in plans) > 30
    assert runner.memory_bytes()["kv_cache"] == runner._caches.size, "what was parked is freed"


def test_beams_equal_the_uncached_reference(model):
    requests = [request for request in mixed_requests(model, 40, seed=3) if request.options.beam_size > 1]
    torch_model = tiny_model(tiny_config(model.manifest.architecture))
    names = signature(search).parameters.keys() - {"predictor", "max_tokens", "process", "stop", "prefix", "counted"}
    for request, answers in zip(
        requests, decode_together(model.runner(max_rows=16), requests, max_rows=16), strict=True
    ):
        expected = beam_search(
            torch_model,
            request.prompt,
            source=request.source,
            max_tokens=request.max_tokens,
            **{name: getattr(request.options, name) for name in names},
        )
        assert [tuple(tokens) for tokens, _, _ in answers] == [answer.tokens for answer in expected]
        assert [score for _, _, score in answers] == pytest.approx([answer.score for answer in expected], abs=1e-4)


def test_a_target_is_scored_as_the_reference_does_and_as_it_was_when_decoded(model):
    requests = mixed_requests(model, 8, seed=5)[2:3]
    ((tokens, logprobs, _),) = decode_together(model.runner(max_rows=8), requests, max_rows=8)[0]
    scored = replace(requests[0], options=SCORED, prefix=tuple(tokens), max_tokens=len(tokens), request_id="score")
    ((again, rescored, normalised),) = decode_together(model.runner(max_rows=8), [scored], max_rows=8)[0]
    assert (again, rescored) == (tokens, logprobs)
    assert normalised == pytest.approx(sum(logprobs) / len(logprobs))
    torch_model = tiny_model(tiny_config(model.manifest.architecture))
    expected = score(torch_model, requests[0].prompt, tokens, source=requests[0].source)
    assert rescored == pytest.approx(expected, abs=1e-4)


def test_buffers_and_bindings_stay_within_what_may_be_reserved(model, monkeypatch):
    monkeypatch.setattr("service.runtime.bindings.MAX_BINDINGS", 8)
    limit = model.layout.bytes_for(6, 40, 40, max_rows=16)
    session = CountingSession(model.sessions["decode"])
    counted = OnnxModel(model.manifest, model.choice, {**model.sessions, "decode": session})
    runner = counted.runner(max_rows=16)
    rows = set()

    def check(plan, output):
        assert runner.memory_bytes()["kv_cache"] <= limit
        assert len(session.bindings) <= 8
        rows.add(plan.step.shape.rows)

    decode(runner, requests_for(model, 60, seed=9), on_run=check, max_rows=16, kv_cache_bytes=limit)
    assert max(rows) > 3, "more than one row fits"


def test_a_runner_goes_on_after_a_reset_in_the_middle(model):
    requests = requests_for(model, 6)
    runner = model.runner(max_rows=64)
    scheduler = Scheduler(engine_limits(), runner.limits, runner.layout)
    for request in requests:
        scheduler.submit(sequence_for(runner, request))
    runner.run(scheduler.plan(0.0).step)
    runner.reset()
    assert_same_bits(alone(model, requests), logprobs_of(runner, requests))


async def test_a_run_that_raises_costs_only_its_own_rows(path, model):
    class Failing(OnnxRunner):
        runs = 0

        def run(self, plan):
            self.runs += 1
            if self.runs == 3:
                raise MemoryError("scripted")
            return super().run(plan)

    (request,) = requests_for(model, 1)
    request = replace(request, prompt=(1,), max_tokens=20)
    runner = Failing(model, HostMemory(), max_rows=64)
    engine = EnginePool([Engine(runner, Tokenizer.load(path / "tokenizer.json"))])
    engine.start()
    try:
        (failed,) = await ask(engine, request)
        (good,) = await ask(engine, request)
    finally:
        engine.close()
    assert isinstance(failed.finals[0], InternalFailure)
    assert good.tokens == reference(model, [request])[0]


def test_runner_reports_its_allocations_to_the_byte(model):
    memory = Counting()
    runner = OnnxRunner(model, memory, max_rows=8)
    logprobs_of(runner, requests_for(model, 20), max_rows=8, chunk_tokens=16, prefix_cache_bytes=1 << 16)
    sizes = runner.memory_bytes()
    assert sizes["kv_cache"] > 0
    assert sum(sizes.values()) == sum(block.size for block in memory.blocks)


def test_sessions_run_in_concurrent_threads(model):
    requests = requests_for(model, 8)
    expected = [decode_single(model.runner(max_rows=2), request) for request in requests]
    answers = {}

    def work(number):
        runner = model.runner(max_rows=2)
        answers[number] = [decode_single(runner, request) for request in requests]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answers[number] == expected for number in range(3))
