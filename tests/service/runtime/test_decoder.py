"""Prefill in chunks, extra greedy steps, drafts, and captured steps, on tiny exported bundles."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from export.bundle.directory import load_bundle
from service.decoding.search import advance
from service.engine.golden_check import decode_single
from service.engine.scheduler import Scheduler
from service.machine.execution_choice import CUDA
from service.memory.cache_layout import row_capacity_for
from service.options import DecodingOptions
from service.request import Request
from service.runtime.cuda_memory import CudaRuntime, CudaStream
from service.runtime.onnx_model import OnnxModel
from service.runtime.step_outputs import FEW_LINES
from tests.engines import engine_limits
from tests.fakes import EveryDraft, FakeCuda, RandomDrafts, bytes_at
from tests.runner_requests import (
    SCORED,
    CountingSession,
    assert_same_bits,
    decode,
    logprobs_of,
    reference,
    requests_for,
    sequence_for,
)


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
def test_distributions_are_bit_identical_for_any_prefill(
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
    reused = []
    sequences = decode(
        reader.runner(max_rows=8),
        requests,
        on_run=lambda plan, output: reused.append(plan.prefix_hit_tokens),
        max_rows=8,
        chunk_tokens=16,
        prefix_cache_bytes=1 << 20,
    )
    assert [sequence.answers[0].tokens for sequence in sequences] == reference(reader, requests)
    assert sum(reused) > 100


@pytest.mark.parametrize("options", [SCORED, DecodingOptions(), DecodingOptions(top_logprobs=3)])
def test_answers_of_multi_step_turns_are_bit_identical(model, options):
    requests = [replace(request, is_streamed=False, options=options) for request in requests_for(model, 12, seed=7)]

    def answers_with(steps_at_once):
        runner = model.runner(max_rows=2)
        runs: list[Any] = []
        settings = {"max_rows": 2, "greedy_steps_per_turn": steps_at_once, "greedy_turn_s": 60.0}
        answered = [
            decode(runner, [request], on_run=lambda *turn: runs.append(turn), **settings)[0].answers[0]
            for request in requests
        ]
        return len(runs), [(answer.tokens, answer.logprobs) for answer in answered]

    turns, plain = answers_with(1)
    assert [decode_single(model.runner(max_rows=2), request) for request in requests] == [tokens for tokens, _ in plain]
    for steps_at_once in (4, 2 * FEW_LINES):
        fewer, bursts = answers_with(steps_at_once)
        assert bursts == plain
        assert fewer < 0.6 * turns, steps_at_once
        assert all(len(logprobs) == (len(tokens) if options.returns_hypotheses else 0) for tokens, logprobs in bursts)


def test_multi_step_turn_begins_no_step_after_its_time_limit(model):
    (request,) = requests_for(model, 1, seed=7)
    for seconds, taken in ((0.0, 0), (60.0, 2)):
        runner = model.runner(max_rows=1)
        settings = engine_limits(max_rows=1, greedy_steps_per_turn=3, greedy_turn_s=seconds)
        scheduler = Scheduler(settings, runner.limits, runner.layout)
        scheduler.submit(sequence_for(runner, replace(request, is_streamed=False, options=DecodingOptions())))
        assert runner.run(scheduler.plan(0.0).step).extra_steps == taken


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


def answers_with(proposer, model, requests, **config):
    draft_tokens = 0 if proposer is None else 9
    runner = model.runner(max_rows=config["max_rows"])
    sequences = decode(runner, requests, draft_proposer=proposer, draft_tokens=draft_tokens, **config)
    return [sequence.answers[0] for sequence in sequences]


@pytest.mark.parametrize("max_rows", [1, pytest.param(3, marks=pytest.mark.slow), 8])
def test_drafts_do_not_change_answers(reader, max_rows):
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
def test_prompt_lookup_is_accepted_for_repetitive_answers(reader, max_rows):
    requests = [replace(request, max_tokens=65 - len(request.prompt)) for request in repetitive_requests(reader, 24, 5)]
    drafts = EveryDraft(9)
    answers = answers_with(drafts, reader, requests, max_rows=max_rows)
    assert [answer.tokens for answer in answers] == reference(reader, requests)
    assert sum(drafts.accepted) > 50


def test_drafts_need_a_decoder_with_blocks(tiny_translation_bundle):
    model = OnnxModel.open(tiny_translation_bundle, load_bundle(tiny_translation_bundle), device="cpu")
    runner = model.runner(max_rows=2)
    assert Scheduler(engine_limits(draft_tokens=4), runner.limits, runner.layout).draft_proposer is None


def test_turn_with_only_drafts_has_no_step_and_reports_the_seconds_of_each(reader):
    requests = [Request(request_id=name, prompt=(1, 5, 6, 5, 6, 5, 6), max_tokens=20) for name in "ab"]
    runner = reader.runner(max_rows=2)
    scheduler = Scheduler(engine_limits(draft_tokens=3), runner.limits, runner.layout)
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
    assert (plan.step.decode, len(plan.step.drafts), outputs.drafts.keys()) == (None, 2, {0, 1})
    advance(scheduler.commit(plan), outputs)
    assert scheduler.record_drafts(plan, outputs) == (4, 4)
    assert [sequence.steps for sequence in scheduler.live] == [4, 4]


def test_bindings_are_made_once_for_a_row_count(model):
    decode = CountingSession(model.sessions["decode"])
    counted = OnnxModel(model.manifest, model.choice, {**model.sessions, "decode": decode})
    request = replace(requests_for(model, 1)[0], prompt=(1,), max_tokens=60)
    steps = len(logprobs_of(counted.runner(max_rows=64), [request])["0"])
    assert decode.made <= 7 < steps, "capacities 8, 16, 24, 32, 48, 64, and one prefill"


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


@pytest.fixture(autouse=True)
def own_graphs(monkeypatch):
    """Graphs that no bundle has are opened on the same device."""

    def opened(graph, _stream):
        return DeviceSession(ort.InferenceSession(graph, providers=["CPUExecutionProvider"]))

    monkeypatch.setattr("service.runtime.token_draws.open_own_graph", opened)


def as_on_cuda(model):
    """The model, its graphs on a device that is main memory under another name, and its session `decode`."""
    sessions = {role: DeviceSession(session) for role, session in model.sessions.items()}
    choice = replace(model.choice, provider=CUDA, captures=True)
    stream = CudaStream(CudaRuntime(FakeCuda()))
    return OnnxModel(model.manifest, choice, sessions, stream=stream), sessions["decode"]


@pytest.mark.parametrize("max_rows", [1, 8])
def test_replayed_steps_return_the_same_results(model, max_rows):
    requests = requests_for(model, 40, seed=3)
    device, session = as_on_cuda(model)
    runner = device.runner(max_rows=max_rows, kv_cache_bytes=1 << 24)
    captured = len(session.captured)
    answers = logprobs_of(runner, requests, max_rows=max_rows)
    assert_same_bits(answers, logprobs_of(model.runner(max_rows=max_rows), requests, max_rows=max_rows))
    assert captured == len(session.captured) > 0, "all were captured before the first request"
    uncaptured = session.runs.pop("-1", 0)
    assert sum(session.runs.values()) > 50, "steps are launches"
    assert uncaptured <= len(requests) * 3, "only prompts are not"


def test_a_failed_turn_leaves_captured_steps_in_use(model):
    device, session = as_on_cuda(model)
    runner = device.runner(max_rows=4, kv_cache_bytes=1 << 24)
    requests = requests_for(model, 6, seed=4)
    expected = logprobs_of(runner, requests, max_rows=4)
    captured = len(session.captured)
    for top_k in (2, 30):  # more best tokens move the outputs of `logprobs`
        runner.reset()
        many = [replace(request, options=DecodingOptions(top_logprobs=top_k)) for request in requests]
        logprobs_of(runner, many, max_rows=4)
        assert_same_bits(logprobs_of(runner, requests, max_rows=4), expected)
    launched = session.runs["-1"]
    logprobs_of(runner, requests[:1], max_rows=4)
    assert len(session.captured) == captured
    assert session.runs["-1"] - launched <= 3


def test_rows_beyond_those_of_a_step_have_harmless_inputs(model):
    """Whatever earlier rows left there: a longer source than the tier has room for would be read out of bounds."""
    device, _ = as_on_cuda(model)
    runner = device.runner(max_rows=8, kv_cache_bytes=1 << 24)
    padded: list[tuple[int, ...]] = []

    def check(plan, output):
        rows = plan.step.step_rows
        inputs = [runner._inputs[name][rows : row_capacity_for(rows, 8)] for name in ("starts", "source_lengths")]
        padded.extend(zip(*(array.tolist() for array in inputs), strict=True))

    decode(runner, requests_for(model, 13, seed=5), on_run=check, max_rows=8)
    assert len(padded) > 8
    assert set(padded) == {(0, 1)}
