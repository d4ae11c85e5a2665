"""The real thing: tiny exported bundles on ONNX Runtime, against PyTorch, against themselves alone, against dirt."""

import asyncio
import random
import shutil
import threading
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

from export.bundle import load_bundle
from model.architectures import SourceModel
from model.reference.beam import BeamOptions, beam_search
from model.reference.greedy import cross_attention, greedy, score
from model.tokenizer import Tokenizer
from service.decoding.search import advance, search_for
from service.encoder_request import EncoderRequest
from service.engine.engine import Engine, EngineConfig
from service.engine.golden_check import check_golden_decode, decode_single, is_batch_invariant
from service.engine.invariants import check_invariants
from service.engine.pool import EnginePool
from service.engine.scheduler import Scheduler, SchedulerConfig
from service.errors import InternalFailure, StartupError
from service.options import DecodingOptions
from service.request import Request
from service.runtime.memory import CudaMemory, HostBlock, HostMemory
from service.runtime.runner import MOST_GRAPHS, SINGLE_ENGINE_ROWS, OnnxModel, OnnxRunner
from service.runtime.sessions import CPU, CUDA, LAZY_ROLES, open_session, open_single_engine_sessions
from service.runtime.step_outputs import FEW_LINES
from service.sequence import Sequence
from service.step import RankedOutput
from tests.fakes import EveryDraft, FakeCuda, RandomDrafts, ask, bytes_at, drain
from tests.tiny import tiny_config, tiny_model

BUNDLES = ["tiny_translation_bundle", "tiny_generation_bundle", "tiny_recurrent_bundle"]


SCORED = DecodingOptions(token_logprobs=True)


@pytest.fixture(params=BUNDLES)
def path(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def model(path):
    return OnnxModel.open(path, load_bundle(path), device="cpu")


def requests_for(model, count, seed=1):
    """Mixed lengths; prompts of one token and of many, also for a model with a source. Log-probabilities are wanted."""
    rng, limits = random.Random(seed), model.manifest.limits

    def tokens(most):
        return tuple(rng.randrange(4, limits.vocab_size) for _ in range(rng.randrange(most)))

    made = []
    for number in range(count):
        source = (*tokens(limits.max_source_len - 1), 2) if limits.max_source_len else ()
        prompt = (1, *tokens(rng.choice([1, 4, 40])))
        room = limits.max_target_len - len(prompt) + 1
        made.append(
            Request(
                request_id=str(number),
                source=source,
                prompt=prompt,
                max_tokens=rng.randrange(1, room + 1),
                options=SCORED,
            )
        )
    return made


def reference(model, requests):
    torch_model = tiny_model(tiny_config(model.manifest.architecture))
    return [greedy(torch_model, r.prompt, source=r.source, max_tokens=r.max_tokens) for r in requests]


def sequence_for(runner, request):
    return Sequence(request, search_for(request, eos_ids=runner.eos_ids))


def logprobs_of(runner, requests, *, arrivals=(), **config):
    """Every request's distribution at every position, (steps, V); `arrivals`: the turn in which each one comes."""
    scheduler = Scheduler(SchedulerConfig(**config), runner.limits, runner.layout)
    todo = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True))
    said: dict[str, list[np.ndarray]] = {}
    turn = 0
    while todo or not scheduler.is_idle:
        while todo and todo[0][0] <= turn:
            scheduler.submit(sequence_for(runner, requests[todo.pop(0)[1]]))
        plan = scheduler.plan(0.0)
        if plan.live:
            outputs = runner.run(plan.step)
            for sequence in plan.live:
                if sequence not in plan.prefill.unfinished:
                    said.setdefault(sequence.request.request_id, []).append(outputs.logprobs(sequence.rows[0]).copy())
            advance(scheduler.commit(plan), outputs)
        assert check_invariants(scheduler) == []
        turn += 1
    return {name: np.stack(lines) for name, lines in said.items()}


def alone(model, requests):
    logprobs: dict[str, np.ndarray] = {}
    for request in requests:
        logprobs |= logprobs_of(model.runner(max_rows=1), [request])
    return logprobs


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not np.array_equal(one[name], other[name])]
    assert not different, f"{len(different)} of {len(one)} requests differ"


# ---- right


@pytest.mark.parametrize("options", [SCORED, DecodingOptions()])
def test_tokens_are_those_of_the_uncached_reference(model, options):
    requests = [replace(request, options=options) for request in requests_for(model, 12)]
    runner = model.runner(max_rows=4)
    assert [decode_single(runner, request) for request in requests] == reference(model, requests)


class Gated(OnnxRunner):
    """Computes nothing before the gate is open, however fast its engine is."""

    def __init__(self, model, *, max_rows):
        super().__init__(model, HostMemory(), max_rows=max_rows)
        self.gate = threading.Event()

    def run(self, plan):
        self.gate.wait()
        return super().run(plan)


async def test_many_clients_at_once_get_the_answers_they_get_alone(path, model):
    requests = requests_for(model, 64)
    expected = [decode_single(model.runner(max_rows=1), request) for request in requests]
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    runner = Gated(model, max_rows=64)
    engine = EnginePool([Engine(runner, tokenizer, EngineConfig(checks_invariants=True))])
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
    assert engine.snapshots[0].steps <= longest + 64 * 80 // 512 + 3, (
        "about the longest, plus the turns that read sources"
    )


async def test_engines_share_the_sessions_of_a_model(path, model):
    requests = requests_for(model, 30, seed=3)
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    settings = EngineConfig(scheduler=SchedulerConfig(max_rows=8))
    pool = EnginePool([Engine(model.runner(max_rows=8), tokenizer, settings) for _ in range(2)])
    pool.start()
    try:
        sinks = await ask(pool, *requests)
    finally:
        pool.close()
    assert [sink.tokens for sink in sinks] == reference(model, requests)
    assert all(engine.snapshot.tokens for engine in pool.engines)


# ---- independent of neighbours


@pytest.mark.parametrize(
    ("max_rows", "max_prefill_tokens", "spread"), [(64, 10_000, 1), (64, 512, 1), (5, 64, 1), (16, 128, 40)]
)
def test_distributions_are_the_same_bits_alone_and_in_any_company(model, max_rows, max_prefill_tokens, spread):
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
def test_what_was_in_a_row_before_does_not_matter(model, dirt):
    """Fresh memory, and later that of idle rows, is full of dirt; rows join, grow, move and leave in it."""

    class DirtyMemory(HostMemory):
        def allocate(self, size):
            block = super().allocate(size)
            block.bytes.view(np.float32)[:] = dirt
            return block

    requests = requests_for(model, 24, seed=7)
    runner = OnnxRunner(model, DirtyMemory(), max_rows=16)
    clean = alone(model, requests)
    assert_same_bits(clean, logprobs_of(runner, requests, max_rows=16))
    for block in (*(buffer.block for buffer in runner._states.buffers), *runner._scratch.values()):
        assert isinstance(block, HostBlock)
        block.bytes.view(np.float32)[:] = dirt
    assert_same_bits(clean, logprobs_of(runner, requests, max_rows=16))


# ---- prompts in blocks, and beginnings that were read before


@pytest.fixture
def reader(tiny_generation_bundle):
    return OnnxModel.open(tiny_generation_bundle, load_bundle(tiny_generation_bundle), device="cpu")


def prompts_that_begin_alike(model, count, seed):
    """Long prompts with one of three beginnings, cut at every length."""
    rng, words = random.Random(seed), model.manifest.limits.vocab_size
    beginnings = [tuple(rng.randrange(4, words) for _ in range(48)) for _ in range(3)]
    made = []
    for number in range(count):
        end = tuple(rng.randrange(4, words) for _ in range(rng.randrange(9)))
        prompt = (1, *rng.choice(beginnings)[: rng.randrange(10, 49)], *end)
        made.append(Request(request_id=str(number), prompt=prompt, max_tokens=rng.randrange(1, 8), options=SCORED))
    return made


@pytest.mark.parametrize(("max_rows", "max_prefill_tokens", "spread"), [(64, 10_000, 1), (5, 16, 1), (16, 48, 30)])
@pytest.mark.parametrize("prefix_cache_bytes", [0, 1 << 20, 40_000])
def test_distributions_are_the_same_bits_however_prompts_are_read(
    reader, max_rows, max_prefill_tokens, spread, prefix_cache_bytes
):
    """Block by block over many turns beside running rows, or copied from others; against all blocks at once, alone."""
    requests = prompts_that_begin_alike(reader, 40, seed=max_rows)
    rng = random.Random(spread)
    together = logprobs_of(
        reader.runner(max_rows=max_rows),
        requests,
        arrivals=[rng.randrange(spread) for _ in requests],
        max_rows=max_rows,
        max_prefill_tokens=max_prefill_tokens,
        max_idle_prefill_tokens=max_prefill_tokens,
        chunk_tokens=16,
        prefix_cache_bytes=prefix_cache_bytes,
    )
    apart: dict[str, np.ndarray] = {}
    for request in requests:
        apart |= logprobs_of(reader.runner(max_rows=1), [request], chunk_tokens=16)
    assert_same_bits(apart, together)


def test_tokens_are_those_of_the_reference_when_prompts_are_read_in_blocks(reader):
    requests = prompts_that_begin_alike(reader, 20, seed=5)
    settings = SchedulerConfig(max_rows=8, chunk_tokens=16, prefix_cache_bytes=1 << 20)
    runner = reader.runner(max_rows=8)
    scheduler = Scheduler(settings, runner.limits, runner.layout)
    sequences = [sequence_for(runner, request) for request in requests]
    reused = []
    for sequence in sequences:
        scheduler.submit(sequence)
    drain(scheduler, runner, on_turn=lambda plan: reused.append(plan.prefix_hit_tokens))
    assert [sequence.answers[0].tokens for sequence in sequences] == reference(reader, requests)
    assert sum(reused) > 100


# ---- steps that a row makes by itself


@pytest.mark.parametrize("steps_at_once", [4, 2 * FEW_LINES])
@pytest.mark.parametrize("options", [SCORED, DecodingOptions()])
def test_answers_of_rows_that_go_on_by_themselves_are_the_same_bits(model, options, steps_at_once):
    requests = [replace(request, is_streamed=False, options=options) for request in requests_for(model, 12, seed=7)]
    told = []
    for greedy_steps_per_turn in (1, steps_at_once):
        runner, runs = model.runner(max_rows=2), 0
        for request in requests:
            settings = SchedulerConfig(max_rows=2, greedy_steps_per_turn=greedy_steps_per_turn, greedy_turn_s=60.0)
            scheduler = Scheduler(settings, runner.limits, runner.layout)
            scheduler.submit(sequence := sequence_for(runner, request))
            while not scheduler.is_idle:
                plan = scheduler.plan(0.0)
                if plan.live:
                    runs += 1
                    advance(scheduler.commit(plan), runner.run(plan.step))
            told.append((runs, sequence.answers[0].tokens, sequence.answers[0].logprobs))
    plain, bursts = told[: len(requests)], told[len(requests) :]
    assert [tokens for _, tokens, _ in plain] == reference(model, requests)
    assert [answer for _, *answer in bursts] == [answer for _, *answer in plain]
    assert bursts[-1][0] < 0.6 * plain[-1][0], "turns"
    assert all(len(logprobs) == (len(tokens) if options is SCORED else 0) for _, tokens, logprobs in bursts)


def test_a_row_that_goes_on_by_itself_begins_no_step_when_the_time_is_over(model):
    (request,) = requests_for(model, 1, seed=7)
    for seconds, taken in ((0.0, 0), (60.0, 2)):
        runner = model.runner(max_rows=1)
        settings = SchedulerConfig(max_rows=1, greedy_steps_per_turn=3, greedy_turn_s=seconds)
        scheduler = Scheduler(settings, runner.limits, runner.layout)
        scheduler.submit(sequence_for(runner, replace(request, is_streamed=False, options=DecodingOptions())))
        assert len(runner.run(scheduler.plan(0.0).step).turn.extra_tokens) == taken


# ---- drafts


def repetitive_requests(model, count, seed):
    """Prompts of which some repeat themselves, and long answers, which sooner or later do."""
    rng, words = random.Random(seed), model.manifest.limits.vocab_size
    made = []
    for number in range(count):
        part = tuple(rng.randrange(4, words) for _ in range(rng.randrange(1, 7)))
        prompt = (1, *(part * 8)[: rng.randrange(1, 24)])
        most = rng.randrange(1, 66 - len(prompt))
        made.append(Request(request_id=str(number), prompt=prompt, max_tokens=most, options=SCORED))
    return made


def answers_with(speculation, model, requests, **config):
    runner = model.runner(max_rows=config["max_rows"])
    scheduler = Scheduler(SchedulerConfig(draft_tokens=9, **config), runner.limits, runner.layout)
    scheduler.draft_proposer = speculation
    sequences = [sequence_for(runner, request) for request in requests]
    for sequence in sequences:
        scheduler.submit(sequence)
    drain(scheduler, runner)
    return [sequence.answers[0] for sequence in sequences]


@pytest.mark.parametrize("max_rows", [1, 3, 8])
def test_answers_are_those_without_drafts_whatever_is_drafted(reader, max_rows):
    requests = repetitive_requests(reader, 24, seed=max_rows)
    expected = reference(reader, requests)
    right = {request.request_id: tokens for request, tokens in zip(requests, expected, strict=True)}
    drafts = RandomDrafts(right, reader.manifest.limits.vocab_size, seed=max_rows)
    config = {"max_rows": max_rows, "chunk_tokens": 16, "prefix_cache_bytes": 1 << 16}
    answers = answers_with(drafts, reader, requests, **config)
    plain = answers_with(None, reader, requests, **config)
    assert [answer.tokens for answer in answers] == expected
    assert sum(drafts.accepted) > 100
    for answer, other in zip(answers, plain, strict=True):
        assert answer.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert answer.reason is other.reason


@pytest.mark.parametrize("max_rows", [1, 4])
def test_what_was_looked_up_is_right_where_answers_repeat_themselves(reader, max_rows):
    requests = [replace(request, max_tokens=65 - len(request.prompt)) for request in repetitive_requests(reader, 24, 5)]
    drafts = EveryDraft(9)
    answers = answers_with(drafts, reader, requests, max_rows=max_rows)
    assert [answer.tokens for answer in answers] == reference(reader, requests)
    assert sum(drafts.accepted) > 50


def test_drafts_need_a_decoder_that_reads_blocks(tiny_translation_bundle):
    model = OnnxModel.open(tiny_translation_bundle, load_bundle(tiny_translation_bundle), device="cpu")
    runner = model.runner(max_rows=2)
    assert Scheduler(SchedulerConfig(draft_tokens=4), runner.limits, runner.layout).draft_proposer is None


def test_a_turn_of_drafts_alone_has_no_step_and_tells_the_seconds_of_each(reader):
    requests = [Request(request_id=name, prompt=(1, 5, 6, 5, 6, 5, 6), max_tokens=20) for name in "ab"]
    runner = reader.runner(max_rows=2)
    scheduler = Scheduler(SchedulerConfig(draft_tokens=3), runner.limits, runner.layout)
    right = {request.request_id: tokens for request, tokens in zip(requests, reference(reader, requests), strict=True)}

    class Always(RandomDrafts):
        def propose(self, stepping, rows):
            return {one: tuple(self.right[one.request.request_id][one.steps :][:2]) for one in stepping}

    scheduler.draft_proposer = Always(right, 0, 0)
    for request in requests:
        scheduler.submit(sequence_for(runner, request))
    advance(scheduler.commit(plan := scheduler.plan(0.0)), runner.run(plan.step))
    plan = scheduler.plan(0.0)
    outputs = runner.run(plan.step)
    assert (plan.step.tokens, len(plan.step.drafts), len(outputs.turn.draft_s)) == ((), 2, 2)
    advance(scheduler.commit(plan), outputs)
    assert scheduler.record_drafts(plan, outputs) == (4, 4)
    assert [sequence.steps for sequence in scheduler.live] == [4, 4]


# ---- every strategy on real graphs


STRATEGIES: list[dict[str, Any]] = [
    {},
    {"token_logprobs": True},
    {"beam_size": 2},
    {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.6},
    {"beam_size": 6, "num_hypotheses": 2, "num_beam_groups": 2, "diversity_penalty": 0.7},
    {"beam_size": 3, "early_stopping": "never", "patience": 2.0},
    {"num_sequences": 3, "top_p": 0.9},
    {"temperature": 1.5},
    {"num_hypotheses": 3, "return_alternatives": True},
]


def decode_together(runner, requests, **config):
    """Everything that the answers of each request say."""
    scheduler = Scheduler(SchedulerConfig(**config), runner.limits, runner.layout)
    sequences = [sequence_for(runner, request) for request in requests]
    for sequence in sequences:
        scheduler.submit(sequence)
    drain(scheduler, runner)
    return [
        [(answer.tokens, answer.logprobs, answer.normalised if answer.logprobs else None) for answer in s.answers]
        for s in sequences
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


def test_answers_of_every_strategy_are_the_same_bits_alone_and_in_any_company(model):
    requests = mixed_requests(model, 48, seed=2)
    together = decode_together(model.runner(max_rows=40), requests, max_rows=40, max_prefill_tokens=256)
    runner = model.runner(max_rows=8)
    assert together == [decode_together(runner, [request], max_rows=8)[0] for request in requests]


def test_beams_are_those_of_the_uncached_reference(model):
    requests = [request for request in mixed_requests(model, 40, seed=3) if request.options.beam_size > 1]
    torch_model = tiny_model(tiny_config(model.manifest.architecture))
    names = get_type_hints(BeamOptions).keys() - {"process", "stop", "prefix"}
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


@pytest.mark.parametrize("bundle", ["tiny_translation_bundle", "tiny_recurrent_bundle"])
def test_the_mean_state_is_that_of_pytorch(bundle, request):
    path = request.getfixturevalue(bundle)
    model = OnnxModel.open(path, load_bundle(path), device="cpu")
    torch_model = tiny_model(tiny_config(model.manifest.architecture))
    assert isinstance(torch_model, SourceModel)
    requests = [
        replace(request, prompt=(1,), encoder_request=EncoderRequest(pooling="mean") if number % 2 == 0 else None)
        for number, request in enumerate(requests_for(model, 9))
    ]
    runner = model.runner(max_rows=16)
    scheduler = Scheduler(SchedulerConfig(max_rows=16), runner.limits, runner.layout)
    sequences = [sequence_for(runner, request) for request in requests]
    for sequence in sequences:
        scheduler.submit(sequence)
    drain(scheduler, runner)
    for sequence in sequences:
        source = torch.tensor([sequence.request.source])
        if sequence.request.encoder_request:
            with torch.inference_mode():
                states_1SM = torch_model.encode(source, torch.tensor([source.shape[1]]))[0]
            assert sequence.encoder_output is not None
            assert sequence.encoder_output.vector == pytest.approx(states_1SM[0].mean(0).numpy(), abs=1e-4)


def test_the_graph_that_tells_attention_is_opened_once_and_late(tiny_attention_bundle):
    opened: list[str] = []

    def open_graph(file, providers):
        opened.append(file.name)
        return open_session(file, providers)

    manifest = load_bundle(tiny_attention_bundle)
    model = OnnxModel.open(tiny_attention_bundle, manifest, device="cpu", open_graph=open_graph)
    held = model.weight_bytes
    names = ["align", "decode", "encode", "logprobs", "project_shortlist", "shortlist_logprobs"]
    assert sorted(opened) == [f"{name}.onnx" for name in names]
    assert model.open_attend() is model.open_attend()
    assert opened[len(names) :] == ["attend.onnx"]
    assert model.weight_bytes == held + manifest.files["fp32/attend.onnx"].bytes


@pytest.mark.parametrize("bundle", ["tiny_attention_bundle", "tiny_recurrent_bundle"])
def test_attention_is_that_of_pytorch_however_roomy_the_rows_are(bundle, request):
    path = request.getfixturevalue(bundle)
    model = OnnxModel.open(path, load_bundle(path), device="cpu")
    torch_model = tiny_model(tiny_config(model.manifest.architecture))
    assert isinstance(torch_model, SourceModel)
    requests = [replace(request, prompt=(1,), max_tokens=6) for request in requests_for(model, 7)]
    attention: list[dict[str, np.ndarray]] = []
    for together in (requests, *([request] for request in requests)):
        runner = model.runner(max_rows=16)
        scheduler = Scheduler(SchedulerConfig(max_rows=16), runner.limits, runner.layout)
        for request in together:
            scheduler.submit(sequence_for(runner, request))
        plan = scheduler.plan(0.0)
        outputs = runner.run(plan.step)
        attention.append(
            {s.request.request_id: outputs.turn.deferred.cross_attention(s.rows[0], (1, 7, 9, 5)) for s in plan.live}
        )
    for request, alone in zip(requests, attention[1:], strict=True):
        expected = cross_attention(torch_model, (1, 7, 9, 5), source=request.source).numpy()
        assert attention[0][request.request_id].shape == expected.shape
        assert attention[0][request.request_id] == pytest.approx(expected, abs=1e-5)
        assert np.array_equal(attention[0][request.request_id], alone[request.request_id])


# ---- memory and bindings


def test_buffers_and_bindings_stay_within_what_may_be_reserved(model, monkeypatch):
    monkeypatch.setattr("service.runtime.runner.MOST_BINDINGS", 8)
    limit = model.layout.bytes_for(6, 40, 40, max_rows=16)
    runner = model.runner(max_rows=16)
    scheduler = Scheduler(SchedulerConfig(max_rows=16, kv_cache_bytes=limit), runner.limits, runner.layout)
    for request in requests_for(model, 60, seed=9):
        scheduler.submit(sequence_for(runner, request))
    rows = set()

    def look(plan, outputs):
        assert sum(buffer.block.size for buffer in runner._states.buffers) <= limit
        assert len(runner._shared.steps) <= 8
        rows.add(plan.step.rows)

    drain(scheduler, runner, on_run=look)
    assert max(rows) > 3, "more than one row fits"


def test_bindings_are_made_once_for_a_row_count(model, monkeypatch):
    made, bind = [], OnnxRunner._bind

    def counting(self, first, rows, *, lines):
        made.append(rows)
        return bind(self, first, rows, lines=lines)

    monkeypatch.setattr(OnnxRunner, "_bind", counting)
    request = replace(requests_for(model, 1)[0], prompt=(1,), max_tokens=60)
    steps = len(logprobs_of(model.runner(max_rows=64), [request])["0"])
    assert len(made) <= 7 < steps, "capacities 8, 16, 24, 32, 48, 64, and one prefill"


def test_a_runner_goes_on_after_a_reset_in_the_middle(model):
    requests = requests_for(model, 6)
    runner = model.runner(max_rows=64)
    scheduler = Scheduler(SchedulerConfig(), runner.limits, runner.layout)
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


# ---- memory


class Counting(HostMemory):
    """Host memory that knows the blocks somebody still refers to."""

    def __init__(self):
        self.blocks: weakref.WeakSet[HostBlock] = weakref.WeakSet()

    def allocate(self, size):
        block = super().allocate(size)
        self.blocks.add(block)
        return block


def test_what_a_runner_allocated_is_told_to_the_byte(model):
    memory = Counting()
    runner = OnnxRunner(model, memory, max_rows=8)
    logprobs_of(runner, requests_for(model, 20), max_rows=8, chunk_tokens=16, prefix_cache_bytes=1 << 16)
    told = runner.memory_bytes()
    assert told["kv_cache"] > 0
    assert sum(told.values()) == sum(block.size for block in memory.blocks)


def test_weights_count_once_for_each_session(model, on_two_threads):
    size = {role: model.manifest.files[graph.file].bytes for role, graph in model.variant.graphs.items()}
    assert model.weight_bytes == sum(size.values())
    assert on_two_threads.weight_bytes == sum(size.values()) + size["decode"]


# ---- one engine alone


class Noting(OnnxRunner):
    """Notes of each run its rows, and whether all processors computed it."""

    def __init__(self, model, *, max_rows):
        super().__init__(model, HostMemory(), max_rows=max_rows)
        self.noted = []

    def run(self, plan):
        outputs = super().run(plan)
        self.noted.append((plan.rows, self._computing is self._lone))
        return outputs


@pytest.fixture
def on_two_threads(path):
    return OnnxModel.open(path, load_bundle(path), device="cpu", single_engine_threads=2)


def test_the_bits_of_an_answer_do_not_depend_on_the_threads_of_its_steps(model, on_two_threads):
    requests = requests_for(model, 24)
    runner = Noting(on_two_threads, max_rows=8)
    one = logprobs_of(model.runner(max_rows=8), requests, max_rows=8)
    assert_same_bits(logprobs_of(runner, requests, max_rows=8), one)
    assert all(used_all for _, used_all in runner.noted)


def test_all_processors_are_for_the_only_runner_that_has_rows(on_two_threads):
    (request,) = requests_for(on_two_threads, 1)
    first, second = Noting(on_two_threads, max_rows=1), Noting(on_two_threads, max_rows=1)

    def used_all(runner):
        runner.noted.clear()
        logprobs_of(runner, [request])
        return {used for _, used in runner.noted}

    assert used_all(first) == {True}
    assert used_all(second) == {False}
    assert used_all(first) == {False}
    first.mark_idle()
    assert used_all(second) == {True}
    second.reset()
    assert used_all(first) == {True}


def test_a_runner_with_many_rows_leaves_the_other_processors_alone(on_two_threads):
    requests = requests_for(on_two_threads, SINGLE_ENGINE_ROWS + 4)
    runner = Noting(on_two_threads, max_rows=SINGLE_ENGINE_ROWS + 4)
    logprobs_of(runner, requests)
    assert {used for rows, used in runner.noted if rows > SINGLE_ENGINE_ROWS} == {False}
    assert {used for rows, used in runner.noted if rows <= SINGLE_ENGINE_ROWS} == {True}


def test_one_thread_needs_no_second_session(model):
    assert model.single_engine_sessions == {}


def test_a_small_decoder_is_not_divided(path, model):
    size = model.bytes_of("decode")
    for least, roles in ((size, {"decode"}), (size + 1, set())):
        opened = OnnxModel.open(
            path, load_bundle(path), device="cpu", single_engine_threads=2, single_engine_min_bytes=least
        )
        assert set(opened.single_engine_sessions) == roles


def test_a_second_session_that_cannot_be_opened_is_a_startup_error(path, model, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr("service.runtime.sessions.open_session", refuse)
    with pytest.raises(StartupError, match=r"cannot be opened on 2 threads: no memory; fix: single_engine_threads 1"):
        open_single_engine_sessions(path, model.manifest, model.choice, threads=2)


@pytest.fixture
def opens_late(path, monkeypatch):
    monkeypatch.setattr("service.runtime.runner.SINGLE_ENGINE_STEPS", 5)
    return OnnxModel.open(path, load_bundle(path), device="cpu", single_engine_threads=2, single_engine_eagerly=False)


def opened_late(model):
    """After those who open it are done."""
    for thread in threading.enumerate():
        if thread.name == "lone-sessions":
            thread.join()
    return set(model.single_engine_sessions)


def test_sessions_of_an_engine_alone_are_opened_when_it_was_alone_often_enough(opens_late):
    runner = Noting(opens_late, max_rows=1)
    request = replace(requests_for(opens_late, 1)[0], prompt=(1,), max_tokens=4)
    weights = opens_late.weight_bytes
    first = logprobs_of(runner, [request])
    assert opened_late(opens_late) == set()
    assert {used_all for _, used_all in runner.noted} == {False}
    assert_same_bits(logprobs_of(runner, [request]), first)
    assert opened_late(opens_late) == {"decode"}
    assert opens_late.weight_bytes == weights + opens_late.bytes_of("decode")
    runner.noted.clear()
    assert_same_bits(logprobs_of(runner, [request]), first)
    assert {used_all for _, used_all in runner.noted} == {True}


def test_a_bundle_that_was_replaced_meanwhile_is_not_opened(tmp_path, path, monkeypatch, caplog):
    monkeypatch.setattr("service.runtime.runner.SINGLE_ENGINE_STEPS", 1)
    copy = tmp_path / "bundle"
    shutil.copytree(path, copy)
    model = OnnxModel.open(copy, load_bundle(copy), device="cpu", single_engine_threads=2, single_engine_eagerly=False)
    with (copy / model.variant.graphs["decode"].file).open("ab") as graph:
        graph.write(b"other")
    requests = requests_for(model, 2)
    runner = model.runner(max_rows=1)
    assert [decode_single(runner, request) for request in requests] == reference(model, requests)
    assert opened_late(model) == set()
    assert "steps go on with one thread each: " in caplog.text
    assert not model.has_single_engine_mode


# ---- where it runs


class FakeSession:
    def __init__(self, providers):
        self.providers = providers

    def get_providers(self):
        return self.providers


def with_precisions(manifest, *precisions):
    return replace(manifest, variants=tuple(replace(manifest.variants[0], precision=name) for name in precisions))


def opened(manifest, *, device, precision="auto", available=(CUDA, CPU), precisions=("fp32", "fp16"), got=None):
    """The choice made when sessions say that they run on `got`, or on what was asked for."""

    def open_graph(file, providers):
        names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        if isinstance(got, Exception) and CUDA in names:
            raise got
        return FakeSession(names if got is None or isinstance(got, Exception) else list(got))

    manifest = with_precisions(manifest, *precisions)
    model = OnnxModel.open(
        Path("bundle"), manifest, device=device, precision=precision, available=available, open_graph=open_graph
    )
    return model.choice


@pytest.fixture
def manifest(tiny_generation_bundle):
    return load_bundle(tiny_generation_bundle)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_cuda_is_taken_when_it_works(manifest, device):
    choice = opened(manifest, device=device)
    assert (choice.provider, choice.fallback, choice.precision) == (CUDA, False, "fp16")


def test_cpu_is_no_fallback_when_it_is_asked_for(manifest):
    choice = opened(manifest, device="cpu")
    assert (choice.provider, choice.fallback, choice.reason, choice.precision) == (CPU, False, "", "fp32")


OBSTACLES = [
    ({"available": [CPU]}, "no CUDA provider; fix: install onnxruntime-gpu"),
    ({"precisions": ["fp32"]}, "no fp16 graphs, .* fix: export it again with --precision fp32,fp16"),
    ({"got": [CPU]}, "installed but did not load; fix: check the driver with nvidia-smi"),
    ({"got": RuntimeError("CUDA failure 35")}, r"refused the graphs \(CUDA failure 35\); fix: check driver"),
]


def test_auto_on_an_onnxruntime_for_cpus_alone_falls_back_from_nothing(manifest):
    choice = opened(manifest, device="auto", available=[CPU])
    assert (choice.provider, choice.requested, choice.fallback, choice.reason) == (CPU, "auto", False, "")


@pytest.mark.parametrize(("circumstances", "why"), OBSTACLES[1:])
def test_auto_falls_back_and_says_why_and_how_to_fix_it(manifest, circumstances, why):
    choice = opened(manifest, device="auto", **circumstances)
    assert (choice.provider, choice.requested, choice.fallback, choice.precision) == (CPU, "auto", True, "fp32")
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(choice.reason)


@pytest.mark.parametrize(("circumstances", "why"), OBSTACLES)
def test_cuda_required_refuses_to_start_without_it(manifest, circumstances, why):
    with pytest.raises(StartupError, match="device cuda is required, but .*" + why):
        opened(manifest, device="cuda", **circumstances)


def test_a_bundle_without_graphs_for_the_cpu_is_refused(manifest):
    with pytest.raises(StartupError, match="no graphs for the CPU, only fp16; fix: export"):
        opened(manifest, device="cpu", precisions=["fp16"])


@pytest.mark.parametrize(
    ("precisions", "taken"),
    [(["fp32"], "fp32"), (["fp32", "int4"], "int4"), (["fp16", "int4", "fp32", "int8"], "int8")],
)
def test_the_cpu_takes_the_fastest_precision_there_is(manifest, precisions, taken):
    assert opened(manifest, device="cpu", precisions=precisions).precision == taken


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_precision_that_is_named_is_served_from_the_cpu(manifest, device, precision):
    choice = opened(manifest, device=device, precision=precision, precisions=["fp16", "fp32", "int8", "int4"])
    assert (choice.provider, choice.fallback, choice.precision) == (CPU, False, precision)


def test_a_named_precision_that_the_bundle_lacks_is_refused(manifest):
    with pytest.raises(StartupError, match="bundle: the bundle has no int8 graphs, only fp32, int4; fix: export it"):
        opened(manifest, device="cpu", precision="int8", precisions=["fp32", "int4"])


def test_a_precision_of_the_cpu_is_refused_where_cuda_is_required(manifest):
    with pytest.raises(StartupError, match="precision int8 is one of the CPU's, but device cuda is required"):
        opened(manifest, device="cuda", precision="int8", precisions=["int8", "fp16"])


def test_a_graph_that_cannot_be_opened_is_a_startup_error(tmp_path, manifest):
    graph = tmp_path / manifest.variants[0].graphs["decode"].file
    graph.parent.mkdir()
    graph.write_bytes(b"no graph")
    with pytest.raises(StartupError, match=r"a graph cannot be opened: .*fix: export the bundle again"):
        OnnxModel.open(tmp_path, manifest, device="cpu")


def on_cuda(manifest, monkeypatch, open_graph):
    monkeypatch.setattr(CudaMemory, "of_process", classmethod(lambda cls: cls(FakeCuda())))
    return OnnxModel.open(Path("bundle"), manifest, device="cuda", available=[CUDA], open_graph=open_graph)


def test_a_runner_on_cuda_has_its_buffers_there(manifest, monkeypatch):
    model = on_cuda(with_precisions(manifest, "fp16"), monkeypatch, lambda file, providers: FakeSession([CUDA, CPU]))
    assert model.runner(max_rows=2)._memory.device == "cuda"


def test_of_the_graphs_on_cuda_only_steps_are_captured(manifest, monkeypatch):
    asked = {}

    def open_graph(file, providers):
        asked[file.stem] = providers[0][1].get("enable_cuda_graph")
        return FakeSession([CUDA, CPU])

    model = on_cuda(with_precisions(manifest, "fp16"), monkeypatch, open_graph)
    assert model.choice.captures
    assert asked == {role: "1" if role == "decode" else None for role in model.sessions}


def test_a_graph_that_cannot_be_captured_runs_without(manifest, monkeypatch, caplog):
    def open_graph(file, providers):
        if "enable_cuda_graph" in providers[0][1]:
            raise RuntimeError("not all nodes are on the device")
        return FakeSession([CUDA, CPU])

    model = on_cuda(with_precisions(manifest, "fp16"), monkeypatch, open_graph)
    assert (model.choice.provider, model.choice.captures) == (CUDA, False)
    assert set(model.sessions) == set(model.variant.graphs) - set(LAZY_ROLES)
    assert "steps run without CUDA graphs: not all nodes are on the device" in caplog.text


class DeviceBinding:
    """A binding as a device has it: what lies in main memory is copied when it is bound."""

    def __init__(self, session):
        self.real, self.copies, self.places = session.io_binding(), [], []

    def bind_input(self, name, device, number, dtype, shape, address):
        if device == "cpu":
            self.copies.append(bytes_at(address, dtype, shape))
            address = self.copies[-1].ctypes.data
        else:
            self.places.append((name, address))
        self.real.bind_input(name, "cpu", number, dtype, shape, address)

    def bind_output(self, name, device, *place):
        assert device == "cuda" or not place, "a graph that is launched again writes to no main memory"
        if place:
            self.places.append((name, place[-1]))
        self.real.bind_output(name, "cpu", *place)

    def get_outputs(self):
        return self.real.get_outputs()


class DeviceSession:
    """A session of the CPU that behaves like one on CUDA which captures: the first run with an id is kept, with
    whatever it read of main memory, and every later one with that id is the same again, whatever is bound then."""

    def __init__(self, session):
        self.session, self.captured = session, dict[str, DeviceBinding]()
        self.runs: Counter[str] = Counter()

    def io_binding(self):
        return DeviceBinding(self.session)

    def run_with_iobinding(self, binding, options=None):
        number = options.get_run_config_entry("gpu_graph_id") if options else "-1"
        self.runs[number] += 1
        if number != "-1":
            binding = self.captured.setdefault(number, binding)
        self.session.run_with_iobinding(binding.real)


def as_on_cuda(model):
    """The model, its graphs on a device that is main memory under another name."""
    sessions = {role: DeviceSession(session) for role, session in model.sessions.items()}
    choice = replace(model.choice, provider=CUDA, captures=True)
    return OnnxModel(model.manifest, choice, sessions), sessions["decode"]


def test_steps_that_are_launched_again_say_the_same(model, monkeypatch):
    monkeypatch.setattr("service.runtime.runner.STEPS_UNTIL_CAPTURE", 2)
    requests = requests_for(model, 40, seed=3)
    captured, decode = as_on_cuda(model)
    runner = OnnxRunner(captured, CudaMemory(FakeCuda()), max_rows=8)
    assert_same_bits(
        logprobs_of(runner, requests, max_rows=8), logprobs_of(model.runner(max_rows=8), requests, max_rows=8)
    )
    launched = sum(count - 1 for number, count in decode.runs.items() if number != "-1")
    assert launched > 50, "most steps are launches"
    assert 0 < len(decode.captured) <= MOST_GRAPHS


def test_two_runners_never_take_each_others_captured_steps(model, monkeypatch):
    monkeypatch.setattr("service.runtime.runner.STEPS_UNTIL_CAPTURE", 1)
    captured, decode = as_on_cuda(model)
    requests = requests_for(model, 12, seed=4)
    expected = alone(model, requests)
    for _ in range(2):
        runner = OnnxRunner(captured, CudaMemory(FakeCuda()), max_rows=1)
        assert_same_bits({name: said for r in requests for name, said in logprobs_of(runner, [r]).items()}, expected)
    assert len(decode.captured) > 2


def test_no_more_steps_are_captured_than_may_be(model, monkeypatch):
    monkeypatch.setattr("service.runtime.runner.STEPS_UNTIL_CAPTURE", 1)
    monkeypatch.setattr("service.runtime.runner.MOST_GRAPHS", 3)
    captured, decode = as_on_cuda(model)
    requests = requests_for(model, 20)
    logprobs_of(OnnxRunner(captured, CudaMemory(FakeCuda()), max_rows=8), requests, max_rows=8)
    assert len(decode.captured) == 3


# ---- the self-check


def test_the_golden_decode_is_repeated(model):
    check_golden_decode(model.runner(max_rows=1), model.manifest)


def test_a_golden_decode_that_comes_out_differently_is_refused(model):
    golden = model.manifest.golden
    wrong = replace(golden, output=(*golden.output[:-1], (golden.output[-1] + 1) % 20 + 3))
    with pytest.raises(StartupError, match=r"self-check failed: .*fix: "):
        check_golden_decode(model.runner(max_rows=1), replace(model.manifest, golden=wrong))


@pytest.mark.parametrize("max_rows", [1, 2, 8])
def test_rows_are_kept_apart_here(model, max_rows):
    runner = model.runner(max_rows=max_rows)
    assert is_batch_invariant(runner, model.manifest)
    assert decode_single(runner, requests_for(model, 1)[0]) == reference(model, requests_for(model, 1))[0]


def test_logits_that_depend_on_how_many_rows_there_are_are_noticed(model, monkeypatch):
    """As those of kernels that compute a single row in another order."""
    rank = OnnxRunner._rank

    def off_alone(runner, first, lines):
        if lines == 1:
            logits_LV = runner._outputs._read("logits", first, lines)
            logits_LV[0, 0] += 0.001
        rank(runner, first, lines)

    monkeypatch.setattr(OnnxRunner, "_rank", off_alone)
    assert not is_batch_invariant(model.runner(max_rows=4), model.manifest)


def test_sessions_run_in_several_threads_at_once(model):
    requests = requests_for(model, 8)
    expected = reference(model, requests)
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


# ---- rows with words of their own


def narrowed(model, requests, seed=3):
    """Some of the requests with words of their own, in a random order of strategies."""
    rng, words = random.Random(seed), range(4, model.manifest.limits.vocab_size)
    kinds = [
        SCORED,
        DecodingOptions(),
        DecodingOptions(beam_size=3, num_hypotheses=2),
        DecodingOptions(temperature=1.0),
    ]
    made = []
    for number, request in enumerate(requests):
        own = tuple(sorted({2, *rng.sample(words, rng.randrange(1, len(words)))})) if number % 3 else ()
        made.append(replace(request, shortlist=own, options=kinds[number % len(kinds)], is_streamed=False))
    return made


def answers(runner, requests, *, arrivals=(), **config):
    """Tokens and log-probabilities of every request; `arrivals`: the turn in which each one comes."""
    scheduler = Scheduler(SchedulerConfig(**config), runner.limits, runner.layout)
    todo = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True))
    sequences = [sequence_for(runner, request) for request in requests]
    turn = 0
    while todo or not scheduler.is_idle:
        while todo and todo[0][0] <= turn:
            scheduler.submit(sequences[todo.pop(0)[1]])
        plan = scheduler.plan(0.0)
        if plan.live:
            advance(scheduler.commit(plan), runner.run(plan.step))
        assert check_invariants(scheduler) == []
        turn += 1
    return {s.request.request_id: [(a.tokens, a.logprobs, a.reason) for a in s.answers] for s in sequences}


def test_rows_with_words_of_their_own_choose_among_them_and_answer_alike_in_any_company(tiny_attention_bundle):
    model = OnnxModel.open(tiny_attention_bundle, load_bundle(tiny_attention_bundle), device="cpu")
    requests = narrowed(model, requests_for(model, 24))
    alone: dict[str, Any] = {}
    for request in requests:
        alone |= answers(model.runner(max_rows=4), [request])
        for tokens, *_ in alone[request.request_id]:
            assert not request.shortlist or set(tokens) <= set(request.shortlist)
    rng = random.Random(8)
    for mix in range(3):
        arrivals = [rng.randrange(12) for _ in requests]
        assert answers(model.runner(max_rows=16), requests, arrivals=arrivals, max_rows=16) == alone, mix


def test_a_row_with_words_of_its_own_says_what_is_left_of_its_distribution(tiny_attention_bundle):
    model = OnnxModel.open(tiny_attention_bundle, load_bundle(tiny_attention_bundle), device="cpu")
    (request,) = requests_for(model, 1)
    own = (5, 6, 11, 19)  # no end among them
    request = replace(request, prompt=(1,), max_tokens=12)
    for options in (SCORED, DecodingOptions(temperature=1.0, top_k=3), DecodingOptions()):
        narrow = replace(request, shortlist=own, options=options)
        runner = model.runner(max_rows=2)
        scheduler = Scheduler(SchedulerConfig(max_rows=2, greedy_steps_per_turn=1), runner.limits, runner.layout)
        scheduler.submit(sequence := sequence_for(runner, narrow))
        fed = list(narrow.prompt)
        while not scheduler.is_idle:
            plan = scheduler.plan(0.0)
            if not plan.live:
                break
            output = runner.run(plan.step)
            whole = logprobs_of(model.runner(max_rows=1), [replace(request, prompt=tuple(fed), max_tokens=1)])
            (left,) = whole[request.request_id][-1:, list(own)]
            best = [own[place] for place in np.argsort(-left, kind="stable")]
            assert output.top_ids[0] == best[: len(output.top_ids[0])]
            if isinstance(output, RankedOutput):
                said = output.logprobs(0)
                assert said[list(own)] == pytest.approx(left - np.logaddexp.reduce(left), abs=1e-5)
                assert np.isneginf(np.delete(said, own)).all()
            assert isinstance(output, RankedOutput) == plan.step.is_scored
            advance(scheduler.commit(plan), output)
            fed.append((sequence.answers or sequence.hypotheses)[0].tokens[-1])
        assert len(fed) == 13


def test_a_beam_wider_than_a_rows_words_ends(tiny_attention_bundle):
    model = OnnxModel.open(tiny_attention_bundle, load_bundle(tiny_attention_bundle), device="cpu")
    (request,) = requests_for(model, 1)
    options = DecodingOptions(beam_size=8, num_hypotheses=8)
    narrow = replace(request, prompt=(1,), max_tokens=4, shortlist=(2, 7), options=options)
    ((found),) = answers(model.runner(max_rows=8), [narrow]).values()
    assert 0 < len(found) <= 8
    assert all(set(tokens) <= {2, 7} for tokens, *_ in found)
