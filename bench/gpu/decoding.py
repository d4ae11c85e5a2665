"""Whole answers from a runner, with the distribution of every step; runners with room for all rows they may have.

Shapes: V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from export.bundle.directory import load_bundle
from export.bundle.manifest import Manifest
from service.decoding.search import advance, search_for
from service.engine.scheduler import Scheduler
from service.memory.engine_limits import EngineLimits
from service.options import DecodingOptions
from service.request import Request
from service.runtime.onnx_model import OnnxModel
from service.runtime.runner import OnnxRunner
from service.sequence import Sequence as DecodedSequence
from service.settings.engine_settings import Device
from service.step import Ranked, StepPlan

SCORED = DecodingOptions(token_logprobs=True)
ROWS = 16


class Decoded(NamedTuple):
    """An answer. logprobs_V: float32, the distribution that each of its tokens was chosen from."""

    tokens: Sequence[int]
    logprobs_V: list[np.ndarray]


def open_model(path: Path, device: Device, *, captures: bool = True) -> OnnxModel:
    """The sessions of a bundle, in fp32 on the CPU. captures: whether decode steps on CUDA may be captured."""
    model = OnnxModel.open(path, load_bundle(path), device=device, precision="fp32" if device == "cpu" else "auto")
    if not captures:
        model.choice = replace(model.choice, captures=False)
    return model


def runner_for(model: OnnxModel, rows: int) -> OnnxRunner:
    """A runner with room for rows of the largest size."""
    limits = model.manifest.limits
    size = model.layout.bytes_for(rows, limits.max_target_len, limits.max_source_len, max_rows=rows)
    return model.runner(max_rows=rows, kv_cache_bytes=size)


def questions(manifest: Manifest, count: int, *, seed: int = 1, tokens: int = 0, **options: Any) -> list[Request]:
    """Requests of random tokens and lengths. tokens: the most of an answer; 0: as many as the model allows."""
    rng, limits, ids = random.Random(seed), manifest.limits, manifest.tokens

    def drawn(most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(4, limits.vocab_size) for _ in range(rng.randrange(most)))

    made = []
    for number in range(count):
        source = (*drawn(min(48, limits.max_source_len) - 1), ids.eos) if limits.max_source_len else ()
        prompt = (ids.bos, *(drawn(24) if not source else ()))
        room = min(limits.max_target_len - len(prompt) + 1, tokens or 40)
        made.append(
            Request(
                request_id=str(number),
                source=source,
                prompt=prompt,
                max_tokens=room if tokens else rng.randrange(1, room + 1),
                options=replace(SCORED, **options),
            )
        )
    return made


def decode(
    runner: OnnxRunner,
    requests: Sequence[Request],
    *,
    seed: int | None = 1,
    on_plan: Callable[[StepPlan], None] = lambda plan: None,
) -> dict[str, Decoded]:
    """Decodes requests in one batch. seed: of random arrivals; None: all come at once. The runner must have no rows,
    and has none afterwards. Distributions are those of greedy answers. on_plan: called with each turn's plan."""
    limits = EngineLimits(
        max_rows=runner.max_rows, kv_cache_bytes=1 << 40, prefix_cache_bytes=0, greedy_steps_per_turn=1
    )
    scheduler = Scheduler(limits, runner.limits, runner.layout)
    waiting = [DecodedSequence(request, search_for(request, eos_ids=runner.eos_ids)) for request in requests]
    sequences, rng = list(waiting), random.Random(seed)
    steps: dict[str, list[np.ndarray]] = {request.request_id: [] for request in requests}
    while waiting or not scheduler.is_idle:
        for _ in range(len(waiting) if seed is None else min(len(waiting), rng.choice([0, 1, 2, 8]))):
            scheduler.submit(waiting.pop(0))
        plan = scheduler.plan(0.0)
        if not plan.live:
            continue
        on_plan(plan.step)
        turn = runner.run(plan.step)
        for sequence in plan.live:
            if sequence not in plan.prefill.unfinished and sequence.request.options.beam_size <= 1:
                assert isinstance(turn.predictions, Ranked)
                steps[sequence.request.request_id].append(turn.predictions.logprobs(sequence.rows[0]).copy())
        advance(scheduler.commit(plan), turn)
    runner.reset()
    answers = {sequence.request.request_id: sequence.answers[0].tokens for sequence in sequences}
    # Models that take no chunks read their prompts by steps, which come first.
    return {name: Decoded(tokens, steps[name][-len(tokens) :]) for name, tokens in answers.items()}


def sureness(decoded: Decoded) -> tuple[int, float]:
    """How well an answer shows that a computation is right: its different tokens, of which four are enough; then the
    smallest distance between the best and the second best log-probability of a step, which rounding must not close."""
    pairs = [np.partition(step_V, -2)[-2:] for step_V in decoded.logprobs_V]
    return min(4, len(set(decoded.tokens))), float(min(best - second for second, best in pairs))
