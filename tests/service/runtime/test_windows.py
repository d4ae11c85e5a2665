"""Caches that hold the window alone: whole runners on a bundle whose layers have windows of 16 and 12 tokens and of the
whole context, with answers several times as long as such a cache, against the same graphs with caches of all positions
and against PyTorch."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from export.bundle.directory import load_bundle
from export.bundle.windows import LARGEST_BLOCK, SLACK, places_of
from service.options import DecodingOptions
from service.request import Priority, Request
from service.runtime.onnx_model import OnnxModel
from tests.fakes import RandomDrafts, RandomShares
from tests.runner_requests import SCORED, assert_same_bits, decode, decode_together, logprobs_of
from tests.tiny import tiny_config, tiny_model

WINDOW = 16
LENGTHS = (500, 1, 300, 127, 128, 256)  # of prompts without their start token
CONFIG = tiny_config(
    "decoder",
    positions="rotary",
    max_target_len=1024,
    num_decoder_layers=3,
    num_kv_heads=2,
    layer_groups=(
        {"layers": (0,), "sliding_window": WINDOW, "rotary_base": 100.0},
        {"layers": (1,), "sliding_window": 12},
    ),
)


@pytest.fixture(scope="module")
def path(exported):
    return exported(tiny_model(CONFIG))


@pytest.fixture(scope="module")
def model(path):
    return OnnxModel.open(path, load_bundle(path), device="cpu")


@pytest.fixture(scope="module")
def whole(path):
    """The same graphs with caches of all positions."""
    manifest = load_bundle(path)
    variants = tuple(variant.without_windows() for variant in manifest.variants)
    return OnnxModel.open(path, replace(manifest, variants=variants), device="cpu")


def requests_of(lengths=LENGTHS, max_tokens=140, **options):
    """Prompts of random tokens, and answers that do not end early."""
    rng = random.Random(1)
    chosen = DecodingOptions(token_logprobs=True, min_tokens=max_tokens, **options)
    return [
        Request(
            request_id=str(number),
            prompt=(1, *(rng.randrange(4, CONFIG.vocab_size) for _ in range(length))),
            max_tokens=max_tokens,
            options=chosen,
        )
        for number, length in enumerate(lengths)
    ]


def test_layers_with_a_window_hold_it_and_what_a_block_needs(model, whole):
    places = places_of(WINDOW)
    assert places == WINDOW + SLACK + LARGEST_BLOCK
    states = [(state.name, state.window) for state in model.variant.states if "key" in state.name]
    assert states == [("self_key.0", WINDOW), ("self_key.1", WINDOW), ("self_key.2", 0)]
    layer = whole.layout.target_bytes // 3
    assert model.layout.bytes_per(1024) == layer * (1024 + 2 * places)
    assert model.layout.bytes_per(9) == whole.layout.bytes_per(9)
    runners = model.runner(max_rows=1), whole.runner(max_rows=1)
    for runner in runners:
        logprobs_of(runner, requests_of([800], 2))
    held, all_positions = (runner.memory_bytes()["kv_cache"] for runner in runners)
    assert all_positions - held >= 2 * layer * (800 - places)


def test_answers_are_those_of_whole_caches_and_of_pytorch(model, whole):
    requests = requests_of()
    found = logprobs_of(model.runner(max_rows=16), requests, max_rows=16)
    expected = logprobs_of(whole.runner(max_rows=16), requests, max_rows=16)
    assert found.keys() == expected.keys()
    for name, lines in found.items():
        assert lines == pytest.approx(expected[name], abs=1e-4), name
    torch_model = tiny_model(CONFIG)
    (answered,) = decode(model.runner(max_rows=1), requests[:1])
    request = requests[0]
    tokens = (*request.prompt, *answered.answers[0].tokens)
    with torch.inference_mode():
        states = torch_model(torch.tensor([tokens[:-1]]))
        logits = torch_model.decoder.unembedding(states)[0, len(request.prompt) - 1 :]
    for lines in (found["0"], logprobs_of(model.runner(max_rows=1), [request])["0"]):
        assert lines == pytest.approx(logits.log_softmax(-1).numpy(), abs=1e-3)


@pytest.mark.parametrize(
    ("max_rows", "max_prefill_tokens", "chunk_tokens", "prefix_cache_bytes"),
    [(16, 10_000, 128, 1 << 20), (3, 128, 16, 1 << 20), (3, 128, 128, 0)],
)
def test_bits_do_not_depend_on_the_batch(model, max_rows, max_prefill_tokens, chunk_tokens, prefix_cache_bytes):
    """Beside other rows, in rows that others left, with chunks of a turn or over many, copied from other prompts."""
    first = requests_of()
    again = [replace(one, request_id=f"again {one.request_id}", prompt=(*one.prompt, 7)) for one in first]
    arrivals = [0] * len(first) + [40] * len(again)
    reused = []
    runner = model.runner(max_rows=max_rows)
    together: dict[str, list[np.ndarray]] = {}

    def note(plan, output):
        reused.append(plan.prefix_hit_tokens)
        for sequence in plan.live:
            if sequence not in plan.prefill.unfinished:
                lines = together.setdefault(sequence.request.request_id, [])
                lines.append(output.predictions.logprobs(sequence.rows[0]).copy())

    decode(
        runner,
        [*first, *again],
        arrivals=arrivals,
        on_run=note,
        max_rows=max_rows,
        max_prefill_tokens=max_prefill_tokens,
        chunk_tokens=chunk_tokens,
        prefix_cache_bytes=prefix_cache_bytes,
    )
    apart: dict[str, np.ndarray] = {}
    for request in [*first, *again]:
        apart |= logprobs_of(model.runner(max_rows=1), [request], chunk_tokens=chunk_tokens)
    assert_same_bits(apart, {name: np.stack(lines) for name, lines in together.items()})
    assert (sum(reused) > 1000) == (prefix_cache_bytes > 0)


def test_parked_rows_go_on_with_the_same_bits(model):
    requests = [
        replace(request, tenant="abc"[place % 3], priority=Priority(1 + place % 2))
        for place, request in enumerate(requests_of((*LENGTHS, 260, 400, 3)))
    ]
    requests[3] = replace(requests[3], options=replace(requests[3].options, beam_size=3))
    shares, runner, plans = RandomShares(seed=3), model.runner(max_rows=12), []
    settings = {"max_rows": 12, "parking_bytes": 1 << 24}
    together = decode_together(
        runner, requests, shares=shares, on_run=lambda plan, _: plans.append(plan.step), **settings
    )
    assert together == [decode_together(model.runner(max_rows=3), [one], max_rows=3)[0] for one in requests]
    parked = [parked for step in plans for parked in step.moves.parked]
    assert max(one.target_len for one in parked) > places_of(WINDOW) + SLACK
    assert max(len(one.rows) for one in parked) == 3


def test_beams_keep_their_bits_beside_others(model, whole):
    requests = requests_of((300, 2, 260), 150, beam_size=3, num_hypotheses=2)
    together = decode_together(model.runner(max_rows=9), requests, max_rows=9)
    assert together == [decode_together(model.runner(max_rows=3), [one], max_rows=3)[0] for one in requests]
    assert [tokens for one in together for tokens, *_ in one] == [
        tokens for one in decode_together(whole.runner(max_rows=9), requests, max_rows=9) for tokens, *_ in one
    ]


def test_drafts_do_not_change_answers(model):
    requests = requests_of((300, 2, 260, 130), 200)
    plain = decode(model.runner(max_rows=4), requests, max_rows=4)
    right = {one.request.request_id: one.answers[0].tokens for one in plain}
    drafts = RandomDrafts(right, CONFIG.vocab_size, seed=2)
    drafted = decode(model.runner(max_rows=4), requests, draft_proposer=drafts, draft_tokens=9, max_rows=4)
    assert [one.answers[0].tokens for one in drafted] == [one.answers[0].tokens for one in plain]
    assert sum(drafts.accepted) > 100


def test_multi_step_turns_have_the_same_bits(model):
    found, turns = [], []
    for steps in (1, 16):
        runner = model.runner(max_rows=1)
        requests = [replace(one, is_streamed=False, options=SCORED) for one in requests_of((300, 140), 300)]
        seconds: list[float] = []
        settings = {"max_rows": 1, "greedy_steps_per_turn": steps, "greedy_turn_s": 60.0}

        def note(plan, output, seconds=seconds):
            seconds.append(output.step_s)

        found.append(decode_together(runner, requests, on_run=note, **settings))
        turns.append(len(seconds))
    assert found[0] == found[1]
    assert max(len(tokens) for one in found[0] for tokens, *_ in one) > SLACK
    assert turns[1] < turns[0] - 100
