"""Parts of `python -m bench gpu-check` that time steps, copies of rows, and encoders. On the fake CUDA their figures
only show that they can be measured."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from bench.gpu.bundles import LARGE, path_of
from bench.gpu.decoding import decode, open_model, questions, runner_for
from bench.gpu.findings import Findings, Setting
from bench.measure import interleaved
from service.memory.cache_layout import CacheShape, row_capacity_for
from service.runtime import decoder as decoder_module
from service.runtime.cuda_memory import CudaMemory
from service.runtime.cuda_runner import CudaRunner
from service.runtime.runner import OnnxRunner
from service.runtime.sessions import run_options
from service.settings.engine_settings import Device
from service.step import DecodeStep, NewRow, StepPlan

DEVICES: tuple[Device, ...] = ("cuda", "cpu")
BY_ROWS = (1, 8, 32, 64, 256)
CONTEXT, SOURCE_TOKENS = 64, 24
SHAPES = ((1, 16), (8, 32), (32, 64))  # sources, and tokens of each
BEAM, BEAM_REQUESTS = 4, 16
SMALL_ONE, SMALL_OTHER = "translation", "rotary, heads of 64"  # of smoke runs


def _timed_models(setting: Setting) -> dict[str, Path]:
    names = setting.pick((SMALL_ONE, SMALL_OTHER), tuple(LARGE))
    return {name: path_of(setting.models, name) for name in names}


def _synchronizing(graph_id: int | None) -> Any:
    """Run options with which ONNX Runtime waits for the device at the end of a run."""
    options = run_options(graph_id)
    options.add_run_config_entry("disable_synchronize_execution_providers", "0")
    return options


def _runner(path: Path, rows: int, *, captures: bool, synchronizes: bool = False) -> OnnxRunner:
    model = open_model(path, "cuda", captures=captures)
    if not synchronizes:
        return runner_for(model, rows)
    model.run_options = _synchronizing(None)
    with mock.patch.object(decoder_module, "run_options", _synchronizing):  # of captured steps
        return runner_for(model, rows)


def _tokens(runner: OnnxRunner, count: int, seed: int = 1) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(4, runner.limits.vocab_size) for _ in range(count))


def _new_rows(runner: OnnxRunner, rows: int, source_tokens: int) -> tuple[NewRow, ...]:
    return tuple(NewRow(row=row, source=_tokens(runner, source_tokens, row)) for row in range(rows))


def _stepper(runner: OnnxRunner, rows: int, context: int) -> Callable[[], float]:
    """Starts rows; the function makes a step of them and returns its microseconds, with reading the best tokens."""
    has_source = bool(runner.limits.max_source_len)
    shape, tokens = CacheShape(rows, context + 1, SOURCE_TOKENS if has_source else 0), _tokens(runner, rows)
    plan = StepPlan(rows, shape, decode=DecodeStep(tokens, (context,) * rows))
    runner.reset()
    joins = _new_rows(runner, rows, SOURCE_TOKENS) if has_source else ()
    runner.run(StepPlan(0, shape, new_rows=joins, decode=DecodeStep(tokens, (0,) * rows)))

    def step() -> float:
        began_s = time.perf_counter()
        runner.run(plan)
        return 1e6 * (time.perf_counter() - began_s)

    return step


def steps(setting: Setting, found: Findings) -> None:
    """microseconds of a decode step: rows, captured or eager, ONNX Runtime's own synchronizations off or on"""
    count, by_rows = setting.pick(2, 300), setting.pick((1, 2), BY_ROWS)
    context = setting.pick(8, CONTEXT)
    ways = {
        f"{'captured' if captures else 'eager'}, synchronizations {'on' if synchronizes else 'off'}": (
            captures,
            synchronizes,
        )
        for captures in (True, False)
        for synchronizes in (False, True)
    }
    for name, path in _timed_models(setting).items():
        runners = {
            way: _runner(path, max(by_rows), captures=captures, synchronizes=synchronizes)
            for way, (captures, synchronizes) in ways.items()
        }
        for rows in by_rows:
            steppers = {way: _stepper(runner, rows, context) for way, runner in runners.items()}
            jobs = {way: _median_of(step, count) for way, step in steppers.items()}
            for way, spread in interleaved(jobs, setting.pick(1, 5)).items():
                found.time(f"{name}, {rows} rows, {way}: µs a step", spread)
            captured = next(iter(runners.values()))
            replays = {
                part: _replays(captured, run, setting.pick(2, 100)) for part, run in _parts(captured, rows).items()
            }
            for part, spread in interleaved(replays, setting.pick(1, 5)).items():
                found.time(f"{name}, {rows} rows, captured, on the device alone: µs of {part}", spread)


def _parts(runner: OnnxRunner, rows: int) -> dict[str, Callable[[], None]]:
    """The captured parts of a step of so many rows, which the one before has run for."""
    assert isinstance(runner, CudaRunner)
    assert runner._shared.decoder is not None
    assert runner._draws is not None
    room, draws = row_capacity_for(rows, runner.max_rows), runner._draws

    def ranked(top_k: int) -> Callable[[], None]:
        def rank() -> None:
            runner._logits.ensure(room, top_k)
            runner._logits.rank(room)

        return rank

    return {
        "a step": runner._shared.decoder._step(room, 0, room).run,
        "the best token's log-probability": ranked(2),
        "those of 64": ranked(draws.count),
        "draws from these": lambda: draws.run(room),
    }


def _replays(runner: OnnxRunner, run: Callable[[], None], count: int) -> Callable[[], float]:
    """Runs something on the device for which nobody waits, and returns the microseconds of each run."""
    memory = runner.memory
    assert isinstance(memory, CudaMemory)
    wait = memory.stream.wait

    def replays() -> float:
        wait()
        began_s = time.perf_counter()
        for _ in range(count):
            run()
        wait()
        return 1e6 * (time.perf_counter() - began_s) / count

    return replays


def _median_of(step: Callable[[], float], count: int) -> Callable[[], float]:
    return lambda: statistics.median(step() for _ in range(count))


def copies(setting: Setting, found: Findings) -> None:
    """what the copies of rows take of a beam search"""
    beams, requests = BEAM, setting.pick(2, BEAM_REQUESTS)
    name, path = next(iter(_timed_models(setting).items()))
    runner, plans = _runner(path, beams * requests, captures=True), list[StepPlan]()
    asked = questions(runner.model.manifest, requests, tokens=setting.pick(4, 32), beam_size=beams)
    decode(runner, asked, seed=None, on_plan=plans.append)
    # First copies give rows their sources, and stay. What the caches hold does not change the time of a step.
    first = [tuple(copy for copy in plan.moves.copies if copy.source_len) for plan in plans]
    without = [plan._replace(moves=plan.moves._replace(copies=kept)) for plan, kept in zip(plans, first, strict=True)]
    jobs = {"with copies": _replay(runner, plans), "without copies": _replay(runner, without)}
    spreads = interleaved(jobs, setting.pick(1, 7))
    found.tell(f"{name}, {requests} requests, beam {beams}: copied rows", sum(len(plan.moves.copies) for plan in plans))
    for way, spread in spreads.items():
        found.time(f"{name}, {requests} requests, beam {beams}, {way}: µs a turn", spread)
    share = 1 - spreads["without copies"].median / spreads["with copies"].median
    found.time(f"{name}, {requests} requests, beam {beams}: share of the copies", f"{share:.1%}")


def _replay(runner: OnnxRunner, plans: list[StepPlan]) -> Callable[[], float]:
    """Runs plans again and returns the microseconds of a turn."""

    def replay() -> float:
        runner.reset()
        began_s = time.perf_counter()
        for plan in plans:
            runner.run(plan)
        return 1e6 * (time.perf_counter() - began_s) / len(plans)

    return replay


def encode(setting: Setting, found: Findings) -> None:
    """microseconds of encoding sources that arrive together"""
    name, path = next(iter(_timed_models(setting).items()))
    shapes = setting.pick(SHAPES[:1], SHAPES)
    most = max(rows for rows, _ in shapes)
    for device, runner in {device: runner_for(open_model(path, device), most) for device in DEVICES}.items():
        for rows, width in shapes:
            spread = interleaved({"": _encoder(runner, rows, width)}, setting.pick(1, 20 if device == "cuda" else 3))[
                ""
            ]
            found.time(f"{name}, {rows} sources of {width} tokens, {device}: µs", spread)


def _encoder(runner: OnnxRunner, rows: int, width: int) -> Callable[[], float]:
    plan = StepPlan(0, CacheShape(rows, 1, width), new_rows=_new_rows(runner, rows, width))

    def run() -> float:
        runner.reset()
        began_s = time.perf_counter()
        runner.run(plan)
        runner.memory.check_device()  # waits for it
        return 1e6 * (time.perf_counter() - began_s)

    return run
