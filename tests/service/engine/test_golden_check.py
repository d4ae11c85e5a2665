"""The server's own check, against scripted runners. Real models: tests/service/runtime."""

import contextlib
import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from export.bundle.manifest import Golden, GoldenVector
from service.decoding.search import search_for
from service.engine.golden_check import (
    MAX_RAGGED_S,
    check_golden_decode,
    decode_single,
    is_batch_invariant,
)
from service.engine.scheduler import Scheduler
from service.errors import StartupError
from service.options import DecodingOptions
from service.request import Request
from service.sequence import Sequence
from tests.engines import engine_limits
from tests.fakes import EOS, FakeClock, ScriptedRunner, doubtful, drain

SCORED = DecodingOptions(token_logprobs=True)
GOLDEN_TOKENS = 12


def golden_request(runner):
    """With an encoder it is a source of three tokens, without one a prompt of five."""
    source, prompt = ((5, 6, 2), (1,)) if runner.limits.max_source_len else ((), (1, 7, 9, 4, 5))
    return Request(request_id="r", source=source, prompt=prompt, max_tokens=GOLDEN_TOKENS, options=SCORED)


def manifest(golden) -> Any:
    """A manifest, as far as the check uses it."""
    return SimpleNamespace(golden=golden)


def manifest_for(runner):
    asked = golden_request(runner)
    output = tuple(decode_single(runner, asked))
    return manifest(Golden(source=asked.source, prompt=asked.prompt, output=output))


def runner_with(change=lambda runner, logprobs_V, source, fed: None, *, has_source=True, max_rows=64):
    """A runner whose log-probabilities are changed in place by `change`, which sees all rows in `runner.rows`."""

    def rule(source, fed, vocab_size):
        logprobs_V = doubtful(source, fed, vocab_size)
        logprobs_V[EOS] = -50.0  # answers have their full length
        change(runner, logprobs_V, source, fed)
        return logprobs_V

    runner = ScriptedRunner(rule=rule, has_source=has_source, max_block=1 if has_source else 0)
    runner.max_rows = max_rows
    return runner


@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize("max_rows", [1, 2, 3, 8, 64, 100])
def test_rows_that_do_not_see_each_other_are_invariant(max_rows, has_source):
    runner = runner_with(max_rows=max_rows, has_source=has_source)
    assert is_batch_invariant(runner, manifest_for(runner), clock=lambda: 0.0)
    assert not runner.rows, "the runner is left without rows"
    assert max(plan.shape.rows for plan in runner.plans) == min(max_rows, 64)


def padding_leaks(runner, logprobs_V, source, fed):
    """What a kernel does that reads the padding of a shorter row: one bit in one row of unequal ones."""
    own = len(source) or len(fed)
    if any((len(other) or len(tokens)) > own for other, tokens in runner.rows):
        logprobs_V[:] = np.nextafter(logprobs_V, np.float32(0))


@pytest.mark.parametrize("has_source", [True, False])
def test_a_runner_that_mixes_rows_is_caught_by_ragged_neighbours_alone(has_source):
    honest = runner_with(has_source=has_source)
    mixing = runner_with(padding_leaks, has_source=has_source)
    asked = golden_request(mixing)
    answers = []
    for runner, copies in ((honest, 1), (mixing, 1), (mixing, 3)):
        scheduler = Scheduler(engine_limits(), runner.limits, runner.layout)
        sequences = [Sequence(asked, search_for(asked, eos_ids=(EOS,))) for _ in range(copies)]
        for sequence in sequences:
            scheduler.submit(sequence)
        drain(scheduler, runner)
        runner.reset()
        answers += [(one.answers[0].tokens, one.answers[0].logprobs) for one in sequences]
    assert all(answer == answers[0] for answer in answers), "equal rows show nothing"
    assert not is_batch_invariant(mixing, manifest_for(mixing))


def test_a_difference_in_the_last_token_of_the_golden_decode_is_noticed():
    def late(runner, logprobs_V, source, fed):
        if len(fed) == GOLDEN_TOKENS and len(runner.rows) > 1:
            logprobs_V[:] = np.nextafter(logprobs_V, np.float32(0))

    runner = runner_with(late)
    assert not is_batch_invariant(runner, manifest_for(runner))


def test_a_difference_between_many_rows_and_few_is_noticed():
    def crowded(runner, logprobs_V, source, fed):
        if len(runner.rows) > 60:
            logprobs_V[:] = np.nextafter(logprobs_V, np.float32(0))

    assert not is_batch_invariant(runner_with(crowded), manifest_for(runner_with(crowded)))
    few = runner_with(crowded, max_rows=60)
    assert is_batch_invariant(few, manifest_for(few)), "this server never has so many"


def test_rows_leave_and_move_during_the_check():
    runner = runner_with()
    bundle = manifest_for(runner)
    runner.plans.clear()
    is_batch_invariant(runner, bundle)
    assert any(plan.moves.copies for plan in runner.plans)
    assert len(runner.plans) <= 2 * GOLDEN_TOKENS + 1, "the golden rows alone decide how long it takes"


@pytest.mark.parametrize("steps", [1, 5])
def test_the_check_ends_when_it_has_taken_long_enough(steps):
    runner, clock = runner_with(max_rows=8), FakeClock()
    bundle = manifest_for(runner)
    runner.plans.clear()
    runner.before_run = lambda: clock.advance(0.1 + MAX_RAGGED_S / steps if len(runner.plans) > GOLDEN_TOKENS else 0.0)
    assert is_batch_invariant(runner, bundle, clock)
    assert len(runner.plans) == GOLDEN_TOKENS + steps
    mixing = runner_with(padding_leaks, max_rows=8)
    mixing.before_run = lambda: clock.advance(MAX_RAGGED_S)
    assert not is_batch_invariant(mixing, bundle, clock), "what was computed until then is compared"


@pytest.mark.parametrize("kv_cache_bytes", [600, 6000])
def test_the_check_reserves_what_the_server_allows(kv_cache_bytes):
    runner = runner_with()
    bundle = manifest_for(runner)
    runner.plans.clear()
    assert is_batch_invariant(runner, bundle, kv_cache_bytes=kv_cache_bytes)
    reserved = [runner.layout.bytes_for(*plan.allocation_shape, max_rows=64) for plan in runner.plans]
    assert max(reserved) <= kv_cache_bytes
    assert max(plan.shape.rows for plan in runner.plans) > 1


def test_the_check_reserves_what_its_largest_request_needs():
    runner = runner_with()
    assert is_batch_invariant(runner, manifest_for(runner), kv_cache_bytes=1)
    assert 1 < max(plan.shape.rows for plan in runner.plans) < 5, "smaller requests share that"


def test_a_model_without_a_decoder_is_not_decoded():
    runner = ScriptedRunner(has_decoder=False)
    assert is_batch_invariant(runner, manifest(Golden(source=(5, 2), prompt=(), output=())))
    assert runner.runs == 0


def test_the_golden_decode_is_compared_token_by_token():
    runner = runner_with()
    bundle = manifest_for(runner)
    check_golden_decode(runner, bundle)
    *output, last = bundle.golden.output
    bundle.golden = dataclasses.replace(bundle.golden, output=(*output, last + 1))
    with pytest.raises(StartupError, match=r"this machine decodes .*, the bundle was verified with .*; fix: export"):
        check_golden_decode(runner, bundle)


@pytest.mark.parametrize(("value", "is_right"), [(6.0, True), (6.05, True), (6.2, False), (math.nan, False)])
def test_a_golden_vector_may_differ_by_its_tolerance(value, is_right):
    """The scripted runner's vector of a source is its tokens."""
    golden = Golden(
        source=(5, 6, 2), prompt=(), output=(), vectors={"fp32": GoldenVector(values=(5.0, value, 2.0), tolerance=0.01)}
    )
    runner = ScriptedRunner(has_decoder=False)
    with contextlib.nullcontext() if is_right else pytest.raises(StartupError, match="off the bundle's, more than"):
        check_golden_decode(runner, manifest(golden))


def test_outputs_that_are_no_numbers_are_told_from_wrong_ones():
    """Larger values than float16 holds become infinite, and what is computed from them no number."""

    def overflow(runner, logprobs_V, source, fed):
        logprobs_V[:] = np.nan

    expected = manifest_for(runner_with())
    with pytest.raises(StartupError, match=r"larger than fp16 can hold.*; fix: serve it in fp32 or int8 on the CPU"):
        check_golden_decode(runner_with(overflow), expected, "fp16")
