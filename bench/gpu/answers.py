"""Parts of `python -m bench gpu-check` that ask whether CUDA computes the right answers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.gpu.bundles import SMALL, path_of
from bench.gpu.decoding import ROWS, Decoded, decode, open_model, questions, runner_for
from bench.gpu.device import description
from bench.gpu.findings import Findings, Setting
from bench.gpu.placement import place
from export.bundle.directory import load_bundle
from service.engine.golden_check import check_golden_decode
from service.errors import StartupError
from service.memory.cache_layout import CacheShape
from service.runtime.cuda_memory import CudaMemory
from service.runtime.runner import OnnxRunner
from service.step import DecodeStep, Ranked, StepPlan

SHAPE_ARITHMETIC = {"Cast", "Concat", "Gather", "Squeeze"}  # of a few integers, which ONNX Runtime leaves to the CPU
REQUESTS, RACE_STEPS, RACE_TOKENS = 40, 100_000, 64
LARGEST_ERROR = 0.1  # of a log-probability in fp16
ROUNDING = {"translation": 0.170, "T5": 0.265, "compression": 0.381}
"""What fp16 costs random weights that make more of it, in PyTorch: `python -m bench.gpu.rounding`."""
MARGIN = 1.5  # of other kernels, which round elsewhere
LIKELY = -10.0  # tokens that no search takes have larger errors
TIE = 2 * LARGEST_ERROR
"""Two tokens whose log-probabilities in fp32 are nearer may change places in fp16."""


def bundles(setting: Setting) -> dict[str, Path]:
    """The bundles whose answers are checked."""
    found = {name: path_of(setting.models, name) for name in SMALL}
    return {**found, "--bundle": setting.bundle} if setting.bundle else found


def machine(setting: Setting, found: Findings) -> None:
    """driver, device and libraries; the nodes of every graph"""
    for measure, figure in description().items():
        found.tell(measure, figure)
    for name, path in bundles(setting).items():
        for role, graph in load_bundle(path).variant("fp16").graphs.items():
            placed = place(path / graph.file)
            others = set(placed.cpu) - SHAPE_ARITHMETIC
            cpu = ", ".join(f"{count} {node}" for node, count in sorted(Counter(placed.cpu).items())) or "none"
            found.tell(f"{name}, {role}: nodes on CUDA; on the CPU", f"{placed.cuda}; {cpu}")
            problems = (
                len(others) + len(placed.memcpy) + bool(placed.error) + (role == "decode" and placed.obstacle != "")
            )
            note = placed.error or (placed.obstacle if role == "decode" else "")
            found.none(
                f"{name}, {role}: nodes on the CPU but shape arithmetic, Memcpy nodes, obstacles", problems, note
            )


def golden(setting: Setting, found: Findings) -> None:
    """golden decodes on CUDA, all steps captured"""
    for name, path in bundles(setting).items():
        with found.of(name):
            model = open_model(path, "cuda")
            runner = runner_for(model, setting.pick(2, ROWS))
            found.tell(f"{name}: captured steps", next(model.graph_ids) - 1)
            problem = ""
            try:
                check_golden_decode(runner, model.manifest, model.choice.precision)
            except StartupError as error:
                problem = str(error)
                found.tell(f"{name}: problem", problem)
            found.none(f"{name}: golden answers that are wrong", int(bool(problem)))


class Compared(NamedTuple):
    """CUDA's answers beside the CPU's. same: requests with equal tokens. error: the largest difference of a
    log-probability in fp16 where the tokens before are equal, among tokens of at least LIKELY; wrong: requests whose
    first other token is no tie."""

    requests: int
    same: int
    error: float
    wrong: int


def compared(cuda: dict[str, Decoded], cpu: dict[str, Decoded]) -> Compared:
    """Compares answers of the same requests."""
    same = wrong = 0
    error = 0.0
    for name, expected in cpu.items():
        answer, is_equal = cuda[name], True
        steps = zip(answer.tokens, expected.tokens, answer.logprobs_V, expected.logprobs_V, strict=False)
        for token, wanted, ours_V, theirs_V in steps:
            likely = theirs_V > LIKELY
            difference = np.abs(ours_V - theirs_V)[likely]
            error = max(error, float(difference.max()) if np.isfinite(difference).all() else np.inf)
            if token != wanted:
                is_equal = False
                wrong += not theirs_V[wanted] - theirs_V[token] <= TIE
                break
        same += is_equal and len(answer.tokens) == len(expected.tokens)
    return Compared(len(cpu), same, error, wrong)


def answers(setting: Setting, found: Findings) -> None:
    """ragged requests, CUDA in fp16 beside the CPU in fp32"""
    for name, path in bundles(setting).items():
        with found.of(name):
            rows = setting.pick(4, ROWS)
            cpu, cuda = runner_for(open_model(path, "cpu"), rows), runner_for(open_model(path, "cuda"), rows)
            asked = questions(cuda.model.manifest, setting.pick(6, REQUESTS), tokens=setting.pick(6, 0))
            result = compared(decode(cuda, asked), decode(cpu, asked))
            found.tell(f"{name}: requests with equal tokens", f"{result.same} of {result.requests}")
            bar = max(LARGEST_ERROR, MARGIN * ROUNDING.get(name, 0.0))
            found.most(f"{name}: largest error of a log-probability", result.error, bar)
            found.none(f"{name}: other tokens that are no ties", result.wrong)


def capture(setting: Setting, found: Findings) -> None:
    """captured steps beside eager ones, bit for bit"""
    for name, path in bundles(setting).items():
        with found.of(name):
            rows, results = setting.pick(4, ROWS), []
            for captures in (True, False):
                model = open_model(path, "cuda", captures=captures)
                asked = questions(model.manifest, setting.pick(4, REQUESTS), tokens=setting.pick(5, 0))
                results.append(decode(runner_for(model, rows), asked))
            captured, eager = results
            different = sum(not _is_equal(captured[request], eager[request]) for request in eager)
            found.none(f"{name}: requests of {len(eager)} whose log-probabilities differ in a bit", different)


def _is_equal(one: Decoded, other: Decoded) -> bool:
    return one.tokens == other.tokens and np.array_equal(one.logprobs_V, other.logprobs_V)


def race(setting: Setting, found: Findings) -> None:
    """single steps of one row, each with another token: does any see the inputs of the one before?"""
    steps = setting.pick(200, RACE_STEPS)
    for name in ("rotary, heads of 32", "rotary, heads of 64"):
        with found.of(name):
            path = path_of(setting.models, name)
            cuda, cpu = runner_for(open_model(path, "cuda"), 1), runner_for(open_model(path, "cpu"), 1)
            tokens = range(4, 4 + RACE_TOKENS)
            _step(cuda, tokens[0], first=True)
            _step(cpu, tokens[0], first=True)
            expected = {token: _settled(cuda, token) for token in tokens}
            found.tell(f"{name}: tokens of {RACE_TOKENS} with answers of their own", len(set(expected.values())))
            found.none(
                f"{name}: answers that waiting for the device does not make the CPU's",
                sum(expected[token][0] != _step(cpu, token)[0] for token in tokens),
            )
            wrong = Counter[str]()
            for number in range(steps):
                token = tokens[number * 7 % RACE_TOKENS]
                answer = _step(cuda, token)
                if answer != expected[token]:
                    is_stale = answer == expected[tokens[(number - 1) * 7 % RACE_TOKENS]]
                    wrong["the token before" if is_stale else "another answer"] += 1
            found.none(f"{name}: wrong answers of {steps} steps", wrong.total(), str(dict(wrong)) if wrong else "")


def _step(runner: OnnxRunner, token: int, *, first: bool = False) -> tuple[int, float]:
    """The best token after a single one, and its log-probability."""
    plan = StepPlan(0 if first else 1, CacheShape(rows=1, target_len=1), decode=DecodeStep((token,), (0,)))
    output = runner.run(plan).predictions
    assert isinstance(output, Ranked)
    return output.top_ids[0][0], float(output.top_logprobs[0][0])


def _settled(runner: OnnxRunner, token: int) -> tuple[int, float]:
    """The same with nothing left to do on the device before and after."""
    memory = runner.memory
    assert isinstance(memory, CudaMemory)
    memory.stream.runtime.call("cudaDeviceSynchronize")
    _step(runner, token)
    memory.stream.runtime.call("cudaDeviceSynchronize")
    return _step(runner, token)
