"""Rows with shortlists on tiny exported bundles: in mixed batches, against the full distribution, in beams."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from export.bundle.directory import load_bundle
from service.decoding.search import advance
from service.engine.scheduler import Scheduler
from service.options import DecodingOptions
from service.runtime.onnx_model import OnnxModel
from service.step import Ranked
from tests.engines import engine_limits
from tests.runner_requests import SCORED, decode, logprobs_of, requests_for, sequence_for


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


def answers(runner, requests, **more):
    """Tokens and log-probabilities of every request. more: of `decode`."""
    sequences = decode(runner, requests, **more)
    return {s.request.request_id: [(a.tokens, a.logprobs, a.reason) for a in s.answers] for s in sequences}


def test_shortlisted_rows_select_from_their_shortlist_in_any_batch(tiny_attention_bundle):
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


def test_shortlisted_row_reports_its_renormalized_distribution(tiny_attention_bundle):
    model = OnnxModel.open(tiny_attention_bundle, load_bundle(tiny_attention_bundle), device="cpu")
    (request,) = requests_for(model, 1)
    own = (5, 6, 11, 19)  # no end among them
    request = replace(request, prompt=(1,), max_tokens=12)
    for options in (SCORED, DecodingOptions(temperature=1.0, top_k=3), DecodingOptions()):
        narrow = replace(request, shortlist=own, options=options)
        runner = model.runner(max_rows=2)
        scheduler = Scheduler(engine_limits(max_rows=2, greedy_steps_per_turn=1), runner.limits, runner.layout)
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
            found = output.predictions
            if isinstance(found, Ranked):
                assert found.top_ids[0] == best[: len(found.top_ids[0])]
                logprobs_V = found.logprobs(0)
                assert logprobs_V[list(own)] == pytest.approx(left - np.logaddexp.reduce(left), abs=1e-5)
                assert np.isneginf(np.delete(logprobs_V, own)).all()
            else:
                assert plan.step.top_k == 0
                assert found.tokens == best[:1]
            advance(scheduler.commit(plan), output)
            fed.append((sequence.answers or sequence.hypotheses)[0].tokens[-1])
        assert len(fed) == 13


def test_beam_wider_than_a_shortlist_ends(tiny_attention_bundle):
    model = OnnxModel.open(tiny_attention_bundle, load_bundle(tiny_attention_bundle), device="cpu")
    (request,) = requests_for(model, 1)
    options = DecodingOptions(beam_size=8, num_hypotheses=8)
    narrow = replace(request, prompt=(1,), max_tokens=4, shortlist=(2, 7), options=options)
    ((found),) = answers(model.runner(max_rows=8), [narrow]).values()
    assert 0 < len(found) <= 8
    assert all(set(tokens) <= {2, 7} for tokens, *_ in found)
