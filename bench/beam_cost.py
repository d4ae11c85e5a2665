"""Step time of beam search against greedy search with as many rows: 8 requests with beams of 4, 32 greedy requests.


The same scheduler, runner and searches as in an engine, without threads or texts. Rounds of both kinds alternate; a
step's time is the median over rounds, and steps are compared at the same number of rows and cached positions. At most
1.15 times a greedy step is allowed, reordering included.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench.case import case
from bench.engine_overhead import RANDOM_BUNDLE, SOURCE_TOKENS, random_bundle
from bench.measure import machine
from export.bundle.directory import load_bundle
from service.decoding.search import advance, search_for
from service.engine.scheduler import Scheduler, SchedulerConfig
from service.options import DecodingOptions
from service.request import Request
from service.runtime.memory import HostMemory
from service.runtime.runner import OnnxModel, OnnxRunner
from service.sequence import Sequence

LIMIT = 1.15


class TimedMemory(HostMemory):
    """Notes the seconds of row copies."""

    copying_s = 0.0

    def copy_rows(self, *arguments: Any, **place: Any) -> None:
        began_s = time.perf_counter()
        super().copy_rows(*arguments, **place)
        self.copying_s += time.perf_counter() - began_s


def decode(model: OnnxModel, requests: list[Request], rows: int) -> list[tuple[float, float, float]]:
    """Seconds of every turn with all rows: the whole, in the graph, in copies."""
    memory = TimedMemory()
    runner = OnnxRunner(model, memory, max_rows=rows)
    settings = SchedulerConfig(max_rows=rows, max_prefill_tokens=1 << 20)
    scheduler = Scheduler(settings, runner.limits, runner.layout)
    for request in requests:
        scheduler.submit(Sequence(request, search_for(request, eos_ids=())))
    turns = []
    while not scheduler.is_idle:
        began_s = time.perf_counter()
        plan = scheduler.plan(0.0)
        if plan.live:
            memory.copying_s = 0.0
            outputs = runner.run(plan.step)
            advance(scheduler.commit(plan), outputs)
            if plan.step.rows == rows and not plan.step.new_rows:
                turns.append((time.perf_counter() - began_s, outputs.turn.step_s, memory.copying_s))
    return turns


def requests_of(count: int, tokens: int, vocabulary: int, options: DecodingOptions) -> list[Request]:
    rng = random.Random(1)
    sources = [(*(rng.randrange(4, vocabulary) for _ in range(SOURCE_TOKENS)), 2) for _ in range(count)]
    return [
        Request(request_id=str(n), source=source, prompt=(1,), max_tokens=tokens, options=options)
        for n, source in enumerate(sources)
    ]


def measure(path: Path, count: int, beam: int, tokens: int, rounds: int) -> dict[str, object]:
    model = OnnxModel.open(path, load_bundle(path), device="cpu")
    words = model.manifest.limits.vocab_size
    kinds = {
        "greedy": requests_of(count * beam, tokens, words, DecodingOptions()),
        "beam": requests_of(count, tokens, words, DecodingOptions(beam_size=beam)),
    }
    turns: dict[str, list[list[tuple[float, float, float]]]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind, requests in kinds.items():
            found = decode(model, requests, count * beam)
            if number:  # the first round touches memory and code
                turns[kind].append(found[-(tokens - 2) :])  # the same lengths for both
    figures: dict[str, object] = {
        "processor": machine()["model"],
        "requests": count,
        "beam_size": beam,
        "tokens": tokens,
    }
    medians = {}
    for kind, found_rounds in turns.items():
        columns = [[statistics.median(step) for step in zip(*part, strict=True)] for part in _columns(found_rounds)]
        whole, inside, copying = (1e3 * statistics.mean(column) for column in columns)
        medians[kind] = columns[0]
        figures[kind] = {"step_ms": round(whole, 3), "graph_ms": round(inside, 3), "copies_ms": round(copying, 3)}
    ratios = [b / g for b, g in zip(medians["beam"], medians["greedy"], strict=True)]
    figures["ratio"] = round(sum(medians["beam"]) / sum(medians["greedy"]), 4)
    figures["ratio_median"] = round(statistics.median(ratios), 4)
    return figures


def _columns(rounds: list[list[tuple[float, float, float]]]) -> list[list[list[float]]]:
    """Whole, graph and copies apart: for each, its rounds."""
    return [[[turn[part] for turn in turns] for turns in rounds] for part in range(3)]


@case(
    requests=8,
    beam=4,
    tokens=30,
    rounds=5,
    **RANDOM_BUNDLE,
)
def beam_cost(options: argparse.Namespace) -> None:
    with random_bundle(options) as path:
        figures = measure(path, options.requests, options.beam, options.tokens, options.rounds)
    print(json.dumps(figures) if options.json else "\n".join(f"{name:14}{value}" for name, value in figures.items()))
    ratio = figures["ratio"]
    assert isinstance(ratio, float)
    sys.exit(ratio > LIMIT)
