"""The decoder's passes over the rows of an engine: prefill chunks, decode steps, drafts.

The plan (`service.step`) decides which tokens go into which rows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from export.bundle.manifest import largest_capacity
from export.bundle.windows import LARGEST_BLOCK, places_of
from service.memory.cache_layout import row_capacity_for
from service.runtime.batching import pad
from service.runtime.bindings import Binding, BindingCache
from service.runtime.fixed_caches import FixedCaches
from service.runtime.kv_cache import CacheBuffers
from service.runtime.model_sessions import ModelSessions
from service.runtime.row_shortlist import RowShortlist
from service.runtime.sessions import run_options
from service.runtime.step_inputs import RowInputs
from service.runtime.step_outputs import LogitsBlocks
from service.step import DecodeStep, Draft, PrefillChunk, Scored, StepPlan, VerifiedDraft, padded

HOST_INPUTS = frozenset({"total_length", "total_slots", "window_total"})
"""Inputs of `decode` that operators read in main memory, on every device."""


class Decoder:
    """The passes of one `decode` session for the rows of an engine. One thread uses it."""

    def __init__(
        self,
        model: ModelSessions,
        session: Any,
        caches: CacheBuffers,
        inputs: RowInputs,
        logits: LogitsBlocks,
        shortlist: RowShortlist | None,
    ) -> None:
        self._model, self._session, self._arena = model, session, caches.arena
        self._caches, self._inputs, self._logits, self._shortlist = caches, inputs, logits, shortlist
        self._tokens, self._starts, self._lengths = inputs["tokens"][:, 0], inputs["starts"], inputs["lengths"]
        self._names = frozenset(model.variant.graphs["decode"].inputs)
        outputs = model.variant.graphs["decode"].outputs
        self._outputs_of = {  # by state: the outputs that are bound to its memory
            state.name: [name for name in outputs if name.partition(".")[2] == state.name]
            for state in model.variant.states
        }
        self._eos_ids = model.manifest.tokens.ends
        self._steps = BindingCache(self._arena)
        longest = largest_capacity(model.manifest.limits.max_target_len) if "key_positions" in self._names else 0
        self._key_positions = np.arange(longest)
        self._key_block = self._arena.allocate(self._key_positions.nbytes)
        self._arena.memory.write(self._key_block, self._key_positions)

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        """Adds prompt tokens to the caches: one chunk, or first ones in consecutive rows. Right padding is cached after
        the end of a row, where the next input overwrites it."""
        first, width = chunks[0], padded(max([len(chunk.tokens) for chunk in chunks]))
        # Padding counts: for a chunk with a past, and on CUDA for any with a position bias, GroupQueryAttention takes a
        # row's last position for the last one of its length. Causality hides the padding from the tokens before it.
        starts = [chunk.start for chunk in chunks]
        firsts = self._advance(first.row, starts, width)
        binding = self._bind(first.row, len(chunks), lines=(0, 0))
        self._feed(binding, "tokens", pad([chunk.tokens for chunk in chunks], width))
        self._feed_lengths(binding, starts, firsts, width)
        self._feed_total(binding, self._caches.capacities["self_kv"] if first.start else width)
        source_lengths = self._inputs["source_lengths"]
        self._feed(binding, "source_lengths", source_lengths[first.row : first.row + len(chunks)])
        self._feed(binding, "positions", np.zeros((0, 2), np.int64))  # no logits
        binding.run()

    def verify(self, drafts: Sequence[Draft], line: int) -> dict[int, VerifiedDraft]:
        """Computes the logits after each token of each draft, into lines from `line` on; one draft at a time, because
        the operator takes no others. Returns them by row."""
        verified = {}
        for draft in drafts:
            started_s, count = time.perf_counter(), len(draft.tokens)
            firsts = self._advance(draft.row, [draft.start], count)
            binding = self._bind(draft.row, 1, lines=(line, count))
            self._feed(binding, "tokens", np.array([draft.tokens], np.int64))
            self._feed_lengths(binding, [draft.start], firsts, count)
            self._feed_total(binding, self._caches.capacities["self_kv"])
            self._feed(binding, "positions", np.stack([np.zeros(count, np.int64), np.arange(count)], 1))
            binding.run()
            seconds = time.perf_counter() - started_s
            verified[draft.row] = VerifiedDraft(draft.tokens[1:], range(line, line + count), seconds)
            line += count
        return verified

    def step(self, step: DecodeStep, plan: StepPlan) -> list[Scored]:
        """The decode step of a plan and its extra steps. Returns the inputs of the latter, with their scores. If the
        turn is ranked, each step writes a line of its own."""
        rows, logits, is_host = plan.shape.rows, self._logits, self._arena.memory.device == "cpu"
        self._tokens[:rows] = step.tokens
        self._place(step.starts)
        most, max_s = step.extra or (0, 0.0)
        until_s = time.perf_counter() + max_s
        num_logits, shortlist = logits_rows(plan), self._shortlist if plan.shortlist_rows else None
        room = rows if is_host else self._pad(rows)
        binding = self._step_all(plan, room, step.fed)
        extra: list[Scored] = []
        line = 0
        # A device would have to be waited for after each, as it is after a turn.
        while is_host and len(extra) < most and time.perf_counter() < until_s:
            token, score = logits.most_likely(line) if shortlist is None else shortlist.most_likely(line)
            if token in self._eos_ids:
                break
            extra.append((token, score))
            if logits.is_ranked:
                line += 1
                binding = self._step(rows, line, num_logits)
            start = step.starts[0] + len(extra)
            self._tokens[0] = token
            self._place([start])
            self._run(binding)
            if shortlist is not None:
                shortlist.rank(rows, line)
        return extra

    def _step_all(self, plan: StepPlan, room: int, fed: Sequence[tuple[int, int]]) -> Binding:
        """One step of all rows of a plan, computed for `room` of them. Returns its binding."""
        binding = self._step(room, 0, room if logits_rows(plan) else 0)
        self._run(binding, fed)
        if self._shortlist is not None and plan.shortlist_rows:
            self._shortlist.rank(plan.shape.rows, 0)
        return binding

    def follow(self, plan: StepPlan, number: int) -> None:
        """A further step of a plan on a device, the one of this number after the first: each row takes the best token
        of its last one, which was kept there."""
        step, rows = plan.decode, plan.shape.rows
        assert step is not None
        self._place([start + (number if row not in step.still else 0) for row, start in enumerate(step.starts)])
        self._step_all(plan, row_capacity_for(rows, self._caches.rows), [(row, row) for row in range(rows)])

    def _place(self, starts: Sequence[int]) -> None:
        """Sets the inputs that follow from the positions of the first rows' tokens."""
        rows = len(starts)
        self._starts[:rows] = starts
        self._lengths[:rows] = [start + 1 for start in starts]
        if "window_lengths" in self._names:
            firsts = self._advance(0, starts, 1)
            self._inputs["window_lengths"][:rows] = [
                start + 1 - first for start, first in zip(starts, firsts, strict=True)
            ]

    def _advance(self, row: int, starts: Sequence[int], width: int) -> list[int]:
        """Makes room for blocks of `width` tokens in the caches of layers with a window. Returns the first position
        that they hold, by row."""
        assert not self._caches.window or width <= LARGEST_BLOCK, (width, LARGEST_BLOCK)
        return self._caches.advance(row, starts)

    def _step(self, rows: int, line: int, num_logits: int) -> Binding:
        """A binding for a step of the first rows that writes logits of `num_logits` of them to lines from `line` on."""
        capacities = self._caches.capacities
        key = rows, line, num_logits, capacities.get("self_kv", 0), capacities.get("cross_kv", 0)
        binding = self._steps.get(key)
        if binding is None:
            binding = self._bind(0, rows, lines=(line, num_logits))
            self._steps.add(key, binding)
            self._inputs.bind(binding, rows, self._names, num_logits=num_logits)
            self._feed_total(binding, capacities.get("self_kv", 0))
        return binding

    def _pad(self, rows: int) -> int:
        """The rows of the captured step that has room for these; the others get harmless inputs."""
        room = row_capacity_for(rows, self._caches.rows)
        self._inputs.pad(rows, room)
        return room

    @property
    def rooms(self) -> list[int]:
        """The numbers of rows for which steps are captured, in any tier; ascending."""
        assert isinstance(self._caches, FixedCaches)
        return sorted(set().union(*map(_rooms, self._caches.most_rows.values())))

    def capture(self) -> int:
        """Captures the steps of all tiers and numbers of rows, so that none is captured while requests are served.
        Returns their number. There must be no rows, and nothing that steps use may move afterwards."""
        caches, captured = self._caches, 0
        assert isinstance(caches, FixedCaches)
        self._inputs.pad(0, caches.max_rows)
        for tier, most in reversed(caches.most_rows.items()):
            caches.use(tier)
            for rows, has_logits in itertools.product(
                sorted(_rooms(most), reverse=True), {True, self._shortlist is None}
            ):
                binding = self._step(rows, 0, rows if has_logits else 0)
                binding.options = run_options(next(self._model.graph_ids))
                self._run(binding)
                captured += 1
        caches.clear()
        return captured

    def _run(self, binding: Binding, fed: Sequence[tuple[int, int]] = ()) -> None:
        """Runs a step with the inputs of its rows."""
        self._inputs.write(fed)
        binding.run()

    def _bind(self, first: int, rows: int, *, lines: tuple[int, int]) -> Binding:
        """A binding to the caches of rows [first, first + rows) and the outputs. lines: the first one, and how many."""
        binding = Binding(self._session, self._model.run_options)
        for buffer in self._caches.buffers:
            if buffer.kind == "shortlist":
                continue
            for name, place in buffer.places(first, rows):
                binding.read(name if buffer.kind == "cross_kv" else f"past.{name}", place)
                for output in self._outputs_of[name]:
                    binding.write(output, place)
        self._logits.bind(binding, *lines)
        if self._shortlist is not None:
            self._shortlist.bind_states(binding, rows)
        return binding

    def _feed_lengths(self, binding: Binding, starts: Sequence[int], firsts: Sequence[int], width: int) -> None:
        """Feeds what follows from the positions of blocks of `width` tokens."""
        ends = np.array(starts, np.int32) + np.int32(width)
        self._feed(binding, "starts", np.array(starts, np.int64))
        self._feed(binding, "lengths", ends)
        self._feed(binding, "window_lengths", ends - np.array(firsts, np.int32))

    def _feed_total(self, binding: Binding, total: int) -> None:
        """Binds the total length and what follows from it; graphs compute none of that."""
        self._feed(binding, "total_length", np.array(total, np.int32))
        if "key_positions" in self._names:
            place = self._arena.place(self._key_block, 0, self._key_positions.dtype, (total,))
            binding.read("key_positions", place)
        self._feed(binding, "total_slots", np.array(self._model.variant.slots(total), np.int32))
        window = self._caches.window
        self._feed(binding, "window_total", np.array(min(total, places_of(window)) if window else total, np.int32))

    def _feed(self, binding: Binding, name: str, array: np.ndarray) -> None:
        """Lets the next run read an array, if `decode` has this input."""
        if name in self._names and name in HOST_INPUTS:
            binding.read_array(name, array)
        elif name in self._names:
            binding.upload(name, array, self._arena.memory)


def _rooms(most: int) -> set[int]:
    """The numbers of rows that a tier with room for `most` has steps for."""
    return {row_capacity_for(rows, most) for rows in range(1, most + 1)}


def logits_rows(plan: StepPlan) -> int:
    """Rows whose logits are wanted: all, unless each has a shortlist."""
    return 0 if len(plan.shortlist_rows) == plan.shape.rows else plan.shape.rows
