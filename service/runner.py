"""The model, computed: ONNX Runtime sessions, the choice of a provider, and one engine's buffers and bindings.

The only module of the service that knows ONNX Runtime. `OnnxModel` is read-only and shared by engines; `OnnxRunner` is
one engine's own: states of its rows, token and length arrays reused in place, past and present of every cache bound to
the same memory. Which rows there are and what they are for is the scheduler's business.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from export.bundle import SESSION_CONFIG, SESSION_OPTIMIZATION, SESSION_THREADS, Limits, Manifest, StateKind, Variant
from service.decoding import Greedy
from service.errors import StartupError
from service.memory import HostMemory, Memory
from service.request import Request
from service.scheduler import Scheduler, SchedulerConfig
from service.sequence import Sequence as Decoded
from service.states import StateBuffers, StateLayout
from service.step import Join, Runner, StepPlan, StepResult, padded

Device = Literal["auto", "cpu", "cuda"]
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@dataclass(frozen=True)
class ExecutionChoice:
    """Where a model runs and why. `fallback`: something better was asked for; `reason` then names cause and fix."""

    provider: str
    requested: Device
    fallback: bool
    reason: str
    precision: str


class OnnxModel:
    """The sessions of one bundle. Sessions may run in several threads at once; nothing here changes."""

    def __init__(self, path: Path, manifest: Manifest, choice: ExecutionChoice, sessions: dict[str, Any]) -> None:
        self.path, self.manifest, self.choice, self.sessions = path, manifest, choice, sessions
        self.variant: Variant = manifest.variant(choice.precision)
        self.layout = StateLayout.of(self.variant.states)

    @classmethod
    def open(cls, path: Path, manifest: Manifest, *, device: Device = "auto") -> OnnxModel:
        """Opens the graphs of a bundle whose files were verified. Raises StartupError."""
        choice = ExecutionChoice(CPU, device, False, "", "fp32")
        sessions = {
            role: open_session(path / graph.file, [CPU]) for role, graph in manifest.variant("fp32").graphs.items()
        }
        return cls(path, manifest, choice, sessions)

    def runner(self, *, max_rows: int) -> OnnxRunner:
        """Buffers and bindings for one engine."""
        return OnnxRunner(self, HostMemory(), max_rows=max_rows)


def available_providers() -> list[str]:
    """The execution providers this build of ONNX Runtime has; one may still fail to start, for want of a device."""
    return list(ort.get_available_providers())


def open_session(file: Path, providers: list[str]) -> Any:
    """A session under the settings the bundle was verified with."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = SESSION_THREADS, 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, SESSION_OPTIMIZATION)
    options.log_severity_level = 3
    options.enable_mem_pattern = False  # plans memory for one shape; here every step may have another
    for key, value in {**SESSION_CONFIG, "session.intra_op.allow_spinning": "0"}.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(file), options, providers=providers)


class OnnxRunner:
    """One engine's rows. See `service.step.Runner`; a run that raises leaves the rows undefined until `reset`."""

    def __init__(self, model: OnnxModel, memory: Memory, *, max_rows: int) -> None:
        self.limits: Limits = model.manifest.limits
        self.layout = model.layout
        self.eos_id = model.manifest.tokens.eos
        self._model, self._memory, self._max_rows = model, memory, max_rows
        self._decode, self._encode = model.sessions["decode"], model.sessions.get("encode")
        self._inputs = frozenset(model.variant.graphs["decode"].inputs)
        self._states = StateBuffers(model.variant.states, memory, max_rows=max_rows)
        self._crosses = self._states.of_kind("cross_kv")
        self._tokens = np.zeros((max_rows, 1), np.int64)
        self._starts = np.zeros(max_rows, np.int64)
        self._lengths = np.zeros(max_rows, np.int32)
        self._source_lengths = np.zeros(max_rows, np.int32)
        self._total_length = np.zeros((), np.int32)
        self._logits = np.zeros((0, self.limits.vocab_size), np.float32)
        self._steps: dict[int, Any] = {}  # bindings by row count, as long as no buffer moves
        self._rows = 0

    def reset(self) -> None:
        self._rows = 0

    def run(self, plan: StepPlan) -> StepResult:
        assert 0 < plan.rows <= self._max_rows, plan.rows
        started_s = time.perf_counter()
        self._move(plan)
        self._make_room(plan)
        for _, group in groupby(plan.joins, key=self._padded_source):
            self._encode_sources(list(group))
        for _, group in groupby(plan.joins, key=self._padded_prompt):
            self._prefill(list(group))
        joined_s = time.perf_counter()
        if plan.tokens:
            self._step(plan)
        self._rows = plan.rows
        return StepResult(self._logits[: plan.rows], joined_s - started_s, time.perf_counter() - joined_s)

    def _move(self, plan: StepPlan) -> None:
        for move in plan.moves:
            lengths: dict[StateKind, int] = {"self_kv": move.cached, "cross_kv": move.source_len}
            self._states.move(move.source, move.target, lengths)
            self._source_lengths[move.target] = move.source_len

    def _make_room(self, plan: StepPlan) -> None:
        kept = plan.rows - len(plan.joins)
        lengths: dict[StateKind, int] = {"self_kv": plan.longest, "cross_kv": plan.longest_source}
        if self._states.ensure(plan.rows, live=kept, lengths=lengths):
            self._steps.clear()
        if len(self._logits) < self._states.rows:
            self._logits = np.zeros((self._states.rows, self.limits.vocab_size), np.float32)
            self._steps.clear()

    def _padded_source(self, join: Join) -> int:
        return padded(len(join.source), self.limits.max_source_len)

    def _padded_prompt(self, join: Join) -> int:
        return padded(len(join.prompt), self.limits.max_target_len)

    def _encode_sources(self, joins: list[Join]) -> None:
        """Runs the encoder over sources of one padded length and copies what it wrote to their rows."""
        width = self._padded_source(joins[0])
        if not width:
            return
        assert self._encode is not None
        lengths = np.array([len(join.source) for join in joins], np.int32)
        feeds = {"source": _block([join.source for join in joins], width), "source_lengths": lengths}
        binding = self._encode.io_binding()
        for name, array in feeds.items():
            _bind_input(binding, name, array)
        written = []
        for state in self._crosses:
            pitch = width * state.axes.inner * state.axes.itemsize
            block = self._memory.allocate(len(joins) * state.axes.outer * pitch)
            shape = (len(joins), *(width if isinstance(size, str) else size for size in state.spec.shape[1:]))
            binding.bind_output(state.spec.name, self._memory.device, 0, state.dtype, shape, block.address)
            written.append((state, block, pitch))
        self._encode.run_with_iobinding(binding)
        for place, join in enumerate(joins):
            self._source_lengths[join.row] = len(join.source)
            for state, block, pitch in written:
                state.take(block, place, join.row, len(join.source), pitch)

    def _prefill(self, joins: list[Join]) -> None:
        """Reads whole prompts of one padded length straight into their rows, which are neighbours."""
        width = self._padded_prompt(joins[0])
        if not width:
            return
        first = joins[0].row
        lengths = np.array([len(join.prompt) for join in joins], np.int32)
        feeds: dict[str, np.ndarray] = {
            "tokens": _block([join.prompt for join in joins], width),
            "starts": np.zeros(len(joins), np.int64),
            "lengths": lengths,
            "total_length": np.array(width, np.int32),
            "source_lengths": self._source_lengths[first:],
        }
        self._decode.run_with_iobinding(self._bind(first, len(joins), feeds))

    def _step(self, plan: StepPlan) -> None:
        rows = len(plan.tokens)
        self._tokens[:rows, 0] = plan.tokens
        self._starts[:rows] = plan.starts
        np.add(self._starts[:rows], 1, out=self._lengths[:rows], casting="unsafe")
        self._total_length[...] = self._states.capacities["self_kv"]
        binding = self._steps.get(rows)
        if binding is None:
            feeds: dict[str, np.ndarray] = {
                "tokens": self._tokens,
                "starts": self._starts,
                "lengths": self._lengths,
                "total_length": self._total_length,
                "source_lengths": self._source_lengths,
            }
            binding = self._steps[rows] = self._bind(0, rows, feeds)
        self._decode.run_with_iobinding(binding)

    def _bind(self, first: int, rows: int, feeds: dict[str, np.ndarray]) -> Any:
        """A binding of `decode` for rows [first, first + rows) of every buffer."""
        binding = self._decode.io_binding()
        for name, array in feeds.items():
            if name in self._inputs:
                _bind_input(binding, name, array[:rows] if array.ndim else array)
        for state in self._states.buffers:
            place = (self._memory.device, 0, state.dtype, state.shape(rows), state.address(first))
            if state.kind == "cross_kv":
                binding.bind_input(state.spec.name, *place)
            else:
                binding.bind_input(f"past.{state.spec.name}", *place)
                binding.bind_output(f"present.{state.spec.name}", *place)
        logits = self._logits[first : first + rows]
        binding.bind_output("logits", "cpu", 0, logits.dtype, logits.shape, logits.ctypes.data)
        return binding


def _bind_input(binding: Any, name: str, array: np.ndarray) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _block(rows: Sequence[tuple[int, ...]], width: int) -> np.ndarray:
    block = np.zeros((len(rows), width), np.int64)
    for place, tokens in enumerate(rows):
        block[place, : len(tokens)] = tokens
    return block


def decode_alone(runner: Runner, request: Request) -> list[int]:
    """Greedy tokens of one request without an engine; the runner must have no rows."""
    scheduler = Scheduler(SchedulerConfig(max_rows=1), runner.limits, runner.layout, eos_id=runner.eos_id)
    sequence = Decoded(request)
    scheduler.submit(sequence)
    while sequence.end is None:
        plan = scheduler.plan(0.0)
        scheduler.commit(plan, Greedy().select(runner.run(plan.step).logits_RV, plan.rows))
    runner.reset()
    return sequence.tokens


def golden_decode(runner: Runner, manifest: Manifest) -> None:
    """Repeats the decode the bundle was verified with. Raises StartupError when it comes out differently."""
    golden = manifest.golden
    request = Request(
        request_id="golden", source=golden.source, prompt=golden.prompt, max_tokens=max(1, len(golden.output))
    )
    tokens = decode_alone(runner, request)
    if tuple(tokens) != golden.output:
        raise StartupError(
            f"self-check failed: this machine decodes {tokens}, the bundle was verified with {list(golden.output)}; "
            "fix: export the bundle again on this kind of machine, or check the installation of onnxruntime"
        )
