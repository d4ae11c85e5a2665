"""The model, computed: one engine's buffers and bindings around the sessions of a bundle.

`OnnxModel` is read-only and shared by engines; `OnnxRunner` is one engine's own: states of its rows, token and length
arrays reused in place, past and present of every cache bound to the same memory. Which rows there are and what they are
for is the scheduler's business.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from export.bundle import AttentionKind, BundleError, Limits, Manifest, StateKind, Variant, verify_files
from service.cache_layout import CacheLayout
from service.encoder_request import EncoderOutput
from service.errors import StartupError
from service.runtime.batching import (
    blocks_together,
    contiguous_runs,
    encoder_outputs_by_row,
    mask_positions,
    pad,
    source_batches,
    source_width,
)
from service.runtime.busy_engines import BusyEngines
from service.runtime.kv_cache import CacheBuffer, CacheBuffers, PrefixStore, outputs_by_state
from service.runtime.memory import Block, CudaMemory, HostMemory, Memory
from service.runtime.row_shortlist import RowShortlist
from service.runtime.sessions import (
    CPU,
    CUDA,
    Device,
    ExecutionChoice,
    Open,
    Precision,
    Sessions,
    open_session,
    open_sessions,
    open_single_engine_sessions,
    providers_of,
    run_options,
    single_engine_role,
)
from service.runtime.step_inputs import RowInputs
from service.runtime.step_outputs import LogitsBlocks, RunnerOutputs
from service.step import Draft, NewRow, PrefillChunk, Scored, StepOutput, StepPlan, TurnOutput, padded

MOST_BINDINGS = 256
"""Of steps: some 10 KB each, made in 0.3 ms."""

STEPS_UNTIL_CAPTURE, MOST_GRAPHS = 8, 64
"""A step is captured as a CUDA graph when it has come so often with the same rows and capacities, and no more of them
than this in all: ONNX Runtime forgets none."""

SINGLE_ENGINE_ROWS = 16
"""Rows of a step that may run on all processors. More are a load that other engines share as soon as it lasts, and a
step that keeps their processors from them for long."""

SINGLE_ENGINE_MIN_BYTES = 1 << 24
"""Least weights of a decoder whose steps are worth dividing, unless threads are asked for. Smaller ones wait longer for
their threads than they compute: one sentence at a time, static int8 on two Zen 4 cores, two threads instead of one make
131 sentences of 159 a second with 7 MB (3+3 layers, d256), but a step of 2.5 ms of 3.9 with 56 MB (6+6, d512)."""


SINGLE_ENGINE_STEPS = 128
"""Steps of engines that were alone, until a model is worth a second copy of its weights."""

log = logging.getLogger(__name__)


class OnnxModel:
    """The sessions of one bundle. They may run in several threads at once; none is ever replaced."""

    def __init__(
        self,
        manifest: Manifest,
        choice: ExecutionChoice,
        sessions: Sessions,
        *,
        single_engine_sessions: Sessions | None = None,
        busy_engines: BusyEngines | None = None,
    ) -> None:
        self.manifest, self.choice, self.sessions = manifest, choice, sessions
        self.single_engine_sessions: Sessions = single_engine_sessions or {}
        self._open_lone: Callable[[], Sessions] | None = None
        self._lone_steps = 0
        self._open_attend: Callable[[], Any] | None = None
        self._attend_session: Any = None
        self._opening = threading.Lock()
        self.busy_engines = busy_engines or BusyEngines()
        self.graph_ids = itertools.count(1)  # of all runners: they share the session
        self.variant: Variant = manifest.variant(choice.precision)
        self.layout = CacheLayout.of(self.variant.states)

    @classmethod
    def open(
        cls,
        path: Path,
        manifest: Manifest,
        *,
        device: Device = "auto",
        precision: Precision = "auto",
        single_engine_threads: int = 1,
        single_engine_min_bytes: int = 0,
        single_engine_eagerly: bool = True,
        busy_engines: BusyEngines | None = None,
        available: Sequence[str] | None = None,
        open_graph: Open | None = None,
    ) -> OnnxModel:
        """Opens the graphs of a bundle whose files were verified. Raises StartupError.

        single_engine_threads: intra-op threads of a step, or of an encoder alone, while no other runner of
            `busy_engines` has rows; more than 1 load its weights a second time. single_engine_min_bytes: smallest
            graph files that are worth it. single_engine_eagerly: open the second session now, not on demand.
        available, open_graph: the installed providers and how a graph becomes a session, for tests.
        """
        choice, sessions = open_sessions(
            path, manifest, device=device, precision=precision, available=available, open_graph=open_graph
        )
        model = cls(manifest, choice, sessions, busy_engines=busy_engines)
        if "attend" in model.variant.graphs:
            file = path / model.variant.graphs["attend"].file
            model._open_attend = partial(open_graph or open_session, file, providers_of(choice.provider))
        is_large = model.bytes_of(single_engine_role(model.variant.graphs)) >= single_engine_min_bytes
        if choice.provider == CPU and single_engine_threads > 1 and is_large:
            if single_engine_eagerly:
                model.single_engine_sessions = open_single_engine_sessions(
                    path, manifest, choice, threads=single_engine_threads
                )
            else:
                model._open_lone = partial(_open_lone_late, path, manifest, choice, threads=single_engine_threads)
        return model

    @property
    def has_single_engine_mode(self) -> bool:
        """Steps of an engine alone are computed by several threads, or will be when that has come often enough."""
        return bool(self.single_engine_sessions) or self._open_lone is not None

    def lone(self, steps: int) -> Sessions:
        """The sessions for so many steps of an engine alone; {}: it uses those that all share. Asked for so many
        as SINGLE_ENGINE_STEPS, it opens them in a thread of their own: a server that always has many requests never
        pays for them."""
        if self._open_lone is not None:
            self._lone_steps += steps
            if self._lone_steps >= SINGLE_ENGINE_STEPS:
                with self._opening:
                    opening, self._open_lone = self._open_lone, None
                if opening is not None:
                    threading.Thread(target=self._make_lone, args=(opening,), name="lone-sessions", daemon=True).start()
        return self.single_engine_sessions

    def _make_lone(self, opening: Callable[[], Sessions]) -> None:
        try:
            self.single_engine_sessions = opening()
        except (BundleError, StartupError) as error:
            log.warning("steps go on with one thread each: %s", error)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the graphs in the bundle, once for each session that holds them: packed weights take as many."""
        total = sum(
            self.bytes_of(role) for sessions in (self.sessions, self.single_engine_sessions) for role in sessions
        )
        return total if self._attend_session is None else total + self.bytes_of("attend")

    def open_attend(self) -> Any:
        """The session that tells attention. It is opened once, when somebody first asks, and costs nothing before: not
        on the event loop, and better not on an engine's thread."""
        assert self._open_attend is not None, "the bundle was exported without attention"
        with self._opening:
            if self._attend_session is None:
                self._attend_session = self._open_attend()
            return self._attend_session

    def bytes_of(self, role: str) -> int:
        """Bytes of a graph's files."""
        file = self.variant.graphs[role].file
        return sum(
            digest.bytes
            for name, digest in self.manifest.files.items()
            if name == file or name.startswith(file + ".")  # weights in a file of their own
        )

    def runner(self, *, max_rows: int) -> OnnxRunner:
        """Buffers and bindings for one engine."""
        memory: Memory = CudaMemory.of_process() if self.choice.provider == CUDA else HostMemory()
        return OnnxRunner(self, memory, max_rows=max_rows)


def _open_lone_late(path: Path, manifest: Manifest, choice: ExecutionChoice, *, threads: int) -> Sessions:
    """See `open_single_engine_sessions`. Raises BundleError if the files have changed since the others were opened."""
    verify_files(path, manifest)
    return open_single_engine_sessions(path, manifest, choice, threads=threads)


class OnnxRunner:
    """One engine's rows. See `service.step.Runner`; a run that raises leaves the rows undefined until `reset`."""

    def __init__(self, model: OnnxModel, memory: Memory, *, max_rows: int) -> None:
        self.limits: Limits = model.manifest.limits
        self.layout = model.layout
        self.eos_ids = model.manifest.tokens.ends
        self.max_rows = max_rows
        self._model, self._memory = model, memory
        self._shared = self._computing = _Computing(model.sessions)
        self._lone = (
            _Computing({**model.sessions, **model.single_engine_sessions}) if model.single_engine_sessions else None
        )
        self._ranking: Any = model.sessions.get("logprobs")
        self._align = model.sessions.get("align")
        self._rankings: dict[tuple[int, int], Any] = {}  # bindings by lines; void when a buffer moves
        inputs = {role: frozenset(graph.inputs) for role, graph in model.variant.graphs.items()}
        self._inputs = inputs.get("decode", frozenset())
        self._has_places = "places" in inputs.get("encode", ())
        self._kept = outputs_by_state(model.variant)
        self._states = CacheBuffers(model.variant.states, memory, max_rows=max_rows)
        self._crosses = self._states.of_kind("cross_kv")
        self._kept_blocks = PrefixStore(model.variant.states, memory)
        self._outputs = LogitsBlocks(memory, self.limits.vocab_size)
        self._rows = RowInputs(memory, max_rows)
        self._source_lengths = self._rows["source_lengths"]
        self._words: RowShortlist | None = None
        if "project_shortlist" in inputs:
            sessions = model.sessions["project_shortlist"], model.sessions["shortlist_logprobs"]
            self._words = RowShortlist(*sessions, memory, self._rows, self._states, self.limits.vocab_size)
        self._total_length = np.zeros((), np.int32)
        self._graphs = 0  # steps that were captured
        self._uncaptured = run_options(None) if model.choice.captures else None
        self._scratch: dict[str, Block] = {}
        self._encoded: dict[int, EncoderOutput] = {}  # by row, of those that joined in the last run

    @property
    def has_attention(self) -> bool:
        return self._align is not None

    def memory_bytes(self) -> dict[str, int]:
        """What this engine has allocated now, by kind. From any thread."""
        scratch = list(self._scratch.values())
        return {
            "kv_cache": sum(buffer.block.size for buffer in self._states.buffers) + self._kept_blocks.size,
            "outputs": self._outputs.size
            + (self._words.size if self._words else 0)
            + sum(block.size for block in scratch),
        }

    def reset(self) -> None:
        """Forgets all rows. Nothing that a failed run may have left half written is used again."""
        self._states = CacheBuffers(self._model.variant.states, self._memory, max_rows=self.max_rows)
        self._crosses = self._states.of_kind("cross_kv")
        if self._words is not None:
            self._words.states = self._states
        self._forget_bindings()
        self.mark_idle()

    def mark_idle(self) -> None:
        self._model.busy_engines.mark_idle(self)

    def run(self, plan: StepPlan) -> StepOutput:
        assert 0 < plan.rows <= self.max_rows, plan.rows
        self._computing = self._computing_for(plan)
        started_s = time.perf_counter()
        kept = plan.rows_after_copies
        if kept <= plan.rows_before:  # rows leave before the others may grow: never more memory than was reserved
            self._copy(plan)
            self._make_room(plan, live=kept)
        else:
            self._make_room(plan, live=plan.rows_before)
            self._copy(plan)
        self._memory.settle()
        self._encoded.clear()
        for joins in source_batches(plan.new_rows):
            self._encode_sources(joins)
        if self._words is not None:
            for join in plan.new_rows:
                self._words.fill(join)
        for load in plan.prefix_loads:
            self._kept_blocks.load(self._states, load)
        self._memory.settle()
        for blocks in blocks_together(plan.prefill_chunks):
            self._read(blocks)
        for save in plan.prefix_stores:
            self._kept_blocks.save(self._states, save, slots=plan.prefix_slots)
        joined_s = time.perf_counter()
        extra = self._step(plan) if plan.tokens else []
        stepped_s = time.perf_counter()
        draft_s = self._verify(plan.drafts, len(plan.tokens)) if plan.drafts else []
        lines = len(plan.tokens) + (len(extra) if self._outputs.is_ranked else 0)
        lines += sum([len(draft.tokens) for draft in plan.drafts])
        if self._outputs.is_ranked and self._asked(plan):
            self._rank(0, lines)
        deferred = RunnerOutputs(self._outputs, self, self._words, plan.shortlist_rows)
        top_ids, top_scores = deferred.best(len(plan.tokens), lines)
        if extra and not self._outputs.is_ranked:  # every step wrote to the same line
            top_ids = [*[[token] for token, _ in extra], *top_ids]
            top_scores = [*[[score] for _, score in extra], *top_scores]
        return TurnOutput(
            rows=len(plan.tokens),
            is_ranked=self._outputs.is_ranked,
            top_ids=top_ids,
            top_scores=top_scores,
            deferred=deferred,
            token_lines=_token_lines(plan, len(extra)),
            extra_tokens=[token for token, _ in extra],
            encoder_outputs=self._encoded,
            prefill_s=joined_s - started_s,
            step_s=(stepped_s - joined_s) / (1 + len(extra)),
            draft_s=draft_s,
        ).step()

    def _copy(self, plan: StepPlan) -> None:
        self._states.copy(plan.copies)
        for copy in plan.copies:
            if copy.source_len:
                self._source_lengths[copy.target] = copy.source_len
                if self._words is not None:
                    self._words.copy(copy.source, copy.target)

    def _make_room(self, plan: StepPlan, *, live: int) -> None:
        lengths: dict[StateKind, int] = {"self_kv": plan.max_target_len, "cross_kv": plan.max_source_len}
        if self._words is not None:
            lengths["shortlist"] = plan.max_shortlist_len
        moved = self._states.ensure(plan.rows, live=live, lengths=lengths, most=plan.allocation_shape)
        lines = len(plan.tokens) + sum([len(draft.tokens) for draft in plan.drafts])
        if self._outputs.must_rank(is_scored=plan.is_scored):
            lines += plan.extra_greedy_steps
        is_decoding = bool(lines or plan.prefill_chunks)
        lines = max(self._states.rows, lines) if is_decoding else 0
        if self._words is not None:
            moved |= self._words.ensure(max(self._states.rows, lines), plan.top_k)
        if self._outputs.ensure(lines, plan.top_k, is_scored=plan.is_scored) or moved:
            self._forget_bindings()

    def _forget_bindings(self) -> None:
        self._rankings.clear()
        if self._words is not None:
            self._words.forget()
        for computing in (self._shared, self._lone):
            if computing is not None:
                computing.steps.clear()

    def _computing_for(self, plan: StepPlan) -> _Computing:
        """Decided for every turn: one step on threads that others need is soon over, and so is one on too few."""
        is_alone = self._model.busy_engines.mark_busy(self)
        if not is_alone or plan.rows > SINGLE_ENGINE_ROWS:
            return self._shared
        if self._lone is None and (sessions := self._model.lone(1 + plan.extra_greedy_steps)):
            self._lone = _Computing({**self._model.sessions, **sessions})
        return self._lone or self._shared

    def _encode_sources(self, joins: Sequence[NewRow]) -> None:
        """Runs the encoder over sources, the longest of them last, copies what it wrote to their rows, and keeps what
        it was asked to tell."""
        width, count = source_width(joins[-1]), len(joins)
        told = sorted({name for join in joins if join.encoder_request for name in join.encoder_request.outputs})
        encoding = self._encoding_for(count, width, told, mask_positions(joins, width) if self._has_places else None)
        rows = [join.row for join in joins]
        encoding.source[:] = pad([join.source for join in joins], width)
        encoding.lengths[:] = self._source_lengths[rows] = [len(join.source) for join in joins]
        if self._memory.device != "cpu":
            encoding.bind_sources()  # other devices copy what is bound when it is bound
        encoding.session.run_with_iobinding(encoding.binding)
        outputs = encoding.binding.get_outputs()[-len(told) :] if told else ()
        self._encoded |= encoder_outputs_by_row(
            joins, dict(zip(told, (value.numpy() for value in outputs), strict=True))
        )
        for first, stop in contiguous_runs(rows):
            valid = len(joins[stop - 1].source)
            for state in self._crosses:
                state.take(
                    self._scratch[state.names[0]],
                    rows[first],
                    first=first,
                    count=stop - first,
                    valid=valid,
                    rows=count,
                    length=width,
                )
        self._memory.settle()

    def _encoding_for(self, count: int, width: int, told: Sequence[str], places: np.ndarray | None) -> _Encoding:
        """What `encode` reads and writes for so many sources of one width; kept if nothing else is asked of it."""
        for state in self._crosses:
            self._make_scratch(state, state.count * state.scratch_size(count, width))
        is_plain = not told and places is None
        encoding = self._computing.encodings.get((count, width)) if is_plain else None
        if encoding is not None:
            return encoding
        encoding = _Encoding(self._computing.encode, count, width, places)
        for state in self._crosses:
            address, size = self._scratch[state.names[0]].address, state.scratch_size(count, width)
            for place, name in enumerate(state.names):
                shape = state.shape_for(count, width)
                encoding.binding.bind_output(name, self._memory.device, 0, state.dtype, shape, address + place * size)
        for name in told:
            encoding.binding.bind_output(name, "cpu")
        if is_plain:
            self._computing.encodings[count, width] = encoding
        return encoding

    def cross_attention(self, row: int, tokens: Sequence[int]) -> np.ndarray:
        """One pass of the whole decoder over `tokens`, in plain attention that shows its weights. The source's keys and
        values are copied to a place of their own, so that the result does not depend on how roomy the rows are."""
        assert self._align is not None, "the bundle was exported without attention"
        length = int(self._source_lengths[row])
        block, lengths = np.array([tokens], np.int64), np.array([length], np.int32)
        binding = self._align.io_binding()
        _bind_input(binding, "tokens", block)
        _bind_input(binding, "source_lengths", lengths)
        for state in self._crosses:
            size = state.scratch_size(1, length)
            scratch = self._make_scratch(state, state.count * size)
            state.give(scratch, row, length)
            for place, name in enumerate(state.names):
                shape, address = state.shape_for(1, length), scratch.address + place * size
                binding.bind_input(name, self._memory.device, 0, state.dtype, shape, address)
        self._memory.settle()
        binding.bind_output("cross_attention", "cpu")
        self._align.run_with_iobinding(binding)
        weights_LBHTS: np.ndarray = binding.get_outputs()[0].numpy()
        return weights_LBHTS[:, 0]

    def attention(
        self, source: Sequence[int], tokens: Sequence[int], kinds: Sequence[AttentionKind]
    ) -> dict[AttentionKind, np.ndarray]:
        """One pass of the whole model, alone and unpadded: nothing of it depends on who else is there."""
        feeds = {
            "source": np.array([source], np.int64),
            "source_lengths": np.array([len(source)], np.int32),
            "tokens": np.array([tokens], np.int64),
            "lengths": np.array([len(tokens)], np.int32),
        }
        wanted = self._model.variant.graphs["attend"].inputs
        session = self._model.open_attend()
        told = session.run([f"{kind}_attention" for kind in kinds], {name: feeds[name] for name in wanted})
        return {kind: weights_LBHQK[:, 0] for kind, weights_LBHQK in zip(kinds, told, strict=True)}

    def _make_scratch(self, state: CacheBuffer, size: int) -> Block:
        """Memory the encoder writes states to; kept, so that hardly any run allocates what an earlier one had."""
        block = self._scratch.get(state.names[0])
        if block is None or block.size < size:
            block = self._scratch[state.names[0]] = self._memory.allocate(1 << (size - 1).bit_length())
            for computing in (self._shared, self._lone):
                if computing is not None:
                    computing.encodings.clear()
        return block

    def _read(self, blocks: Sequence[PrefillChunk]) -> None:
        """Reads blocks of prompts straight into their rows: one, or first ones of one padded length in rows that are
        neighbours. Right padding is written behind a row's end, where whatever comes next is written over it."""
        first, width = blocks[0], padded(len(blocks[0].tokens))
        # The operator takes a block that has a past to be as long as it is wide: its padding counts.
        ends = [len(block.tokens) if block.start == 0 else block.start + width for block in blocks]
        feeds: dict[str, np.ndarray] = {
            "tokens": pad([block.tokens for block in blocks], width),
            "starts": np.array([block.start for block in blocks], np.int64),
            "lengths": np.array(ends, np.int32),
            "total_length": np.array(self._states.capacities["self_kv"] if first.start else width, np.int32),
            "source_lengths": self._source_lengths[first.row : first.row + len(blocks)],
            "positions": np.zeros((0, 2), np.int64),  # nobody asks what follows
        }
        binding = self._bind(first.row, len(blocks), lines=(0, 0))
        self._bind_feeds(binding, feeds)
        self._computing.decode.run_with_iobinding(binding, self._uncaptured)

    def _verify(self, drafts: Sequence[Draft], line: int) -> list[float]:
        """Reads drafts one by one, because the operator takes no others, into lines from `line` on. Returns the seconds
        of each."""
        seconds = []
        for draft in drafts:
            started_s, count = time.perf_counter(), len(draft.tokens)
            feeds: dict[str, np.ndarray] = {
                "tokens": np.array([draft.tokens], np.int64),
                "starts": np.array([draft.start], np.int64),
                "lengths": np.array([draft.start + count], np.int32),
                "total_length": np.array(self._states.capacities["self_kv"], np.int32),
                "positions": np.stack([np.zeros(count, np.int64), np.arange(count)], 1),
            }
            binding = self._bind(draft.row, 1, lines=(line, count))
            self._bind_feeds(binding, feeds)
            self._computing.decode.run_with_iobinding(binding, self._uncaptured)
            line += count
            seconds.append(time.perf_counter() - started_s)
        return seconds

    def _step(self, plan: StepPlan) -> list[Scored]:
        """One step of all rows, and what the only one goes on with by itself: returns the inputs of those steps. What
        each of them says is kept, in a line of its own, if it is to be ranked."""
        rows, inputs = len(plan.tokens), self._rows
        inputs["tokens"][:rows, 0] = plan.tokens
        inputs["starts"][:rows] = plan.starts
        inputs["lengths"][:rows] = [start + 1 for start in plan.starts]
        self._total_length[...] = self._states.capacities["self_kv"]
        self._memory.settle()
        until_s = time.perf_counter() + plan.extra_greedy_s
        asked, own = self._asked(plan), self._words if plan.shortlist_rows else None
        step = self._step_for(rows, 0, asked)
        self._compute(step)
        taken: list[Scored] = []
        line = 0
        if own is not None:
            own.rank(rows, line)
        while len(taken) < plan.extra_greedy_steps and time.perf_counter() < until_s:
            if own is None and self._memory.device != "cpu":
                self._rank(line, rows)
            token, score = self._outputs.likeliest(line) if own is None else own.likeliest(line)
            if token in self.eos_ids:
                break
            taken.append((token, score))
            if self._outputs.is_ranked:
                line += 1
                step = self._step_for(rows, line, asked)
            start = plan.starts[0] + len(taken)
            inputs["tokens"][0, 0], inputs["starts"][0], inputs["lengths"][0] = token, start, start + 1
            self._compute(step)
            if own is not None:
                own.rank(rows, line)
        return taken

    def _asked(self, plan: StepPlan) -> int:
        """Of how many rows the logits are wanted: of all, unless each has words of its own."""
        return 0 if len(plan.shortlist_rows) == plan.rows else plan.rows

    def _step_for(self, rows: int, line: int, asked: int) -> _Step:
        """What is bound for a step of the first rows; what it says of those that it is asked for is written to lines
        from `line` on."""
        capacities, steps = self._states.capacities, self._computing.steps
        key = rows, line, asked, capacities.get("self_kv", 0), capacities.get("cross_kv", 0)
        step = steps.get(key)
        if step is None:
            if len(steps) >= MOST_BINDINGS:
                steps.clear()
            step = steps[key] = _Step(self._bind(0, rows, lines=(line, asked)))
            self._rows.bind(step.binding, rows, self._inputs, asked=asked)
            self._bind_feeds(step.binding, {"total_length": self._total_length})
        return step

    def _compute(self, step: _Step) -> None:
        """Runs `decode` with the inputs of the step's rows."""
        self._rows.write()
        if self._uncaptured is not None:
            self._count(step)
        self._computing.decode.run_with_iobinding(step.binding, step.options or self._uncaptured)

    def _rank(self, first: int, lines: int) -> None:
        """Has the lines [first, first + lines) ranked."""
        if not lines:
            return
        binding = self._rankings.get((first, lines))
        if binding is None:
            if len(self._rankings) >= MOST_BINDINGS:
                self._rankings.clear()
            binding = self._rankings[first, lines] = self._ranking.io_binding()
            self._outputs.bind_ranking(binding, first, lines)
        self._ranking.run_with_iobinding(binding)

    def _count(self, step: _Step) -> None:
        """Has a step captured that comes again and again: what is bound for it stays where it is, and what it reads of
        main memory stays as it is, the capacity."""
        step.runs += 1
        if step.runs == STEPS_UNTIL_CAPTURE and self._graphs < MOST_GRAPHS:
            self._graphs += 1
            step.options = run_options(next(self._model.graph_ids))

    def _bind(self, first: int, rows: int, *, lines: tuple[int, int]) -> Any:
        """A binding of `decode` for the states of rows [first, first + rows) and for outputs. lines: the first one that
        is written to of these, and how many are."""
        binding = self._computing.decode.io_binding()
        for state in self._states.buffers:
            if state.kind == "shortlist":
                continue
            shape = state.shape(rows)
            for name, address in state.addresses(first):
                place = (self._memory.device, 0, state.dtype, shape, address)
                binding.bind_input(name if state.kind == "cross_kv" else f"past.{name}", *place)
                for output in self._kept[name]:
                    binding.bind_output(output, *place)
        self._outputs.bind(binding, *lines)
        if self._words is not None:
            self._words.bind_states(binding, rows)
        return binding

    def _bind_feeds(self, binding: Any, feeds: Mapping[str, np.ndarray]) -> None:
        """Binds those arrays in main memory that `decode` wants: other devices copy them now."""
        for name, array in feeds.items():
            if name in self._inputs:
                _bind_input(binding, name, array)


def _token_lines(plan: StepPlan, extra: int) -> dict[int, range]:
    """The lines after each token of a draft, or after each step of the only row, by row."""
    if extra:
        return {0: range(1 + extra)}
    lines, first = {}, len(plan.tokens)
    for draft in plan.drafts:
        lines[draft.row] = range(first, first + len(draft.tokens))
        first += len(draft.tokens)
    return lines


class _Computing:
    """Sessions, and what is bound for them."""

    def __init__(self, sessions: Sessions) -> None:
        self.decode: Any = sessions.get("decode")
        self.encode: Any = sessions.get("encode")
        self.steps: dict[tuple[int, ...], _Step] = {}  # by rows, line and capacities; void when a buffer moves
        self.encodings: dict[tuple[int, int], _Encoding] = {}  # by sources and width; void when the scratch moves


class _Step:
    """What is bound for a step. runs: how many there were, where it may be captured. options: once it is."""

    __slots__ = ("binding", "options", "runs")

    def __init__(self, binding: Any) -> None:
        self.binding, self.runs = binding, 0
        self.options: Any = None


class _Encoding:
    """A run of `encode` over so many sources of one width: arrays that are filled anew each time, bound once.

    places: which of all there are, in a batch of this width, that are to be told; None: the graph knows none.
    """

    def __init__(self, session: Any, count: int, width: int, places: np.ndarray | None = None) -> None:
        self.session, self.binding = session, session.io_binding()
        self.source, self.lengths = np.zeros((count, width), np.int64), np.zeros(count, np.int32)
        self._places = places  # a binding keeps no array alive
        if places is not None:
            _bind_input(self.binding, "places", places)
        self.bind_sources()

    def bind_sources(self) -> None:
        _bind_input(self.binding, "source", self.source)
        _bind_input(self.binding, "source_lengths", self.lengths)


def _bind_input(binding: Any, name: str, array: np.ndarray) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
