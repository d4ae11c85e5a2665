"""Requests for tiny bundles on ONNX Runtime, and their answers from runners and from PyTorch."""

import random
import weakref
from functools import cache
from typing import Any

import numpy as np

from bench.simulation.invariants import check_invariants
from model.reference.greedy import greedy
from service.decoding.search import advance, search_for
from service.engine.scheduler import Scheduler
from service.options import DecodingOptions
from service.request import Request
from service.sequence import Sequence
from tests.engines import engine_limits
from tests.tiny import tiny_config, tiny_model

BUNDLES = ["tiny_translation_bundle", "tiny_generation_bundle", "tiny_recurrent_bundle"]


SCORED = DecodingOptions(token_logprobs=True)


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
    architecture = model.manifest.architecture
    return [[*_greedy(architecture, r.prompt, r.source, r.max_tokens)] for r in requests]


@cache
def _greedy(architecture, prompt, source, max_tokens):
    """Slow: a request that several tests ask for is answered once in each process."""
    return greedy(tiny_model(tiny_config(architecture)), prompt, source=source, max_tokens=max_tokens)


def sequence_for(runner, request):
    return Sequence(request, search_for(request, eos_ids=runner.eos_ids))


def decode(
    runner, requests, *, arrivals=(), on_run=lambda plan, output: None, draft_proposer=None, shares=None, **config
):
    """Decodes requests in one batch, and returns their sequences. Invariants are checked after every turn.

    arrivals: the turn in which each request comes. on_run: called with what a turn computed, before it is used.
    config: of the scheduler.
    """
    scheduler = Scheduler(engine_limits(**config), runner.limits, runner.layout)
    if draft_proposer is not None:
        scheduler.draft_proposer = draft_proposer
    if shares is not None:
        scheduler.shares = shares
    sequences = [sequence_for(runner, request) for request in requests]
    waiting = sorted(zip(arrivals or [0] * len(requests), range(len(requests)), strict=True))
    turn = 0
    while waiting or not scheduler.is_idle:
        while waiting and waiting[0][0] <= turn:
            scheduler.submit(sequences[waiting.pop(0)[1]])
        plan = scheduler.plan(0.0)
        if plan.live:
            output = runner.run(plan.step)
            on_run(plan, output)
            advance(scheduler.commit(plan), output)
            scheduler.record_drafts(plan, output)
            scheduler.shares.record(output.step_s, plan.live, {})
        assert check_invariants(scheduler) == []
        turn += 1
    return sequences


def logprobs_of(runner, requests, **more):
    """Every request's distribution at every position, (steps, V). more: of `decode`."""
    found: dict[str, list[np.ndarray]] = {}

    def note(plan, output):
        for sequence in plan.live:
            if sequence not in plan.prefill.unfinished:
                found.setdefault(sequence.request.request_id, []).append(
                    output.predictions.logprobs(sequence.rows[0]).copy()
                )

    decode(runner, requests, on_run=note, **more)
    return {name: np.stack(lines) for name, lines in found.items()}


def alone(model, requests):
    logprobs: dict[str, np.ndarray] = {}
    for request in requests:
        logprobs |= logprobs_of(model.runner(max_rows=1), [request])
    return logprobs


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not np.array_equal(one[name], other[name])]
    assert not different, f"{len(different)} of {len(one)} requests differ"


def decode_together(runner, requests, **config):
    """Tokens, log-probabilities and score of each answer of each request."""
    return [
        [(answer.tokens, answer.logprobs, answer.normalised if answer.logprobs else None) for answer in s.answers]
        for s in decode(runner, requests, **config)
    ]


class CountingSession:
    """A session that knows the bindings in use."""

    def __init__(self, session):
        self.session, self.made = session, 0
        self.bindings: weakref.WeakSet[Any] = weakref.WeakSet()

    def io_binding(self):
        binding = self.session.io_binding()
        self.bindings.add(binding)
        self.made += 1
        return binding

    def run_with_iobinding(self, binding, options=None):
        self.session.run_with_iobinding(binding, options)
