"""One engine's turns on ONNX Runtime: the rows' caches, and the order of a plan's operations.

An `OnnxRunner` belongs to one engine, and only its thread uses it, except for `memory_bytes`, which any thread may
read. The scheduler decides which rows exist and what they are for.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import numpy as np

from export.bundle.manifest import Limits, StateKind
from service.encoder_request import EncoderOutput
from service.runtime.attention_passes import AttentionPasses
from service.runtime.batching import TokenCount, prefill_batches, source_batches, source_width
from service.runtime.bindings import Arena
from service.runtime.decoder import Decoder, logits_rows
from service.runtime.encoder import Encoder
from service.runtime.fixed_caches import FixedCaches
from service.runtime.kv_cache import CacheBuffers, Scratch
from service.runtime.memory import Memory
from service.runtime.model_sessions import ModelSessions
from service.runtime.row_shortlist import RowShortlist
from service.runtime.sessions import Sessions
from service.runtime.step_inputs import RowInputs
from service.runtime.step_outputs import LogitsBlocks
from service.runtime.stored_rows import ParkedRows, PrefixStore
from service.step import (
    Burst,
    Plain,
    Predictions,
    PrefillCost,
    Ranked,
    Scored,
    StepPlan,
    TurnOutput,
    VerifiedDraft,
    non_finite,
    padded,
)

log = logging.getLogger(__name__)

SINGLE_ENGINE_ROWS = 16
"""Rows of a step that may use all cores. A load of more rows is soon shared with other engines, and such a step would
occupy their cores for long."""

PROMPT_TOKENS_PER_STEP = 4
"""Tokens of a prompt that take as long as a step of one row, or longer."""


class _Passes(NamedTuple):
    """The passes over one set of sessions; a model may lack either."""

    encoder: Encoder | None
    decoder: Decoder | None


class Computed(NamedTuple):
    """What a turn computed beside predictions; see `TurnOutput`. extra: inputs of extra steps, with their scores."""

    prefill: PrefillCost | None
    extra: list[Scored]
    step_s: float
    drafts: dict[int, VerifiedDraft]


class OnnxRunner:
    """One engine's rows, and the outputs of its last run, which stay in its memory. See `service.step.Runner` and
    `DeferredOutputs`; a run that raises leaves the rows undefined until `reset`."""

    def __init__(
        self,
        model: ModelSessions,
        memory: Memory,
        *,
        max_rows: int,
        kv_cache_bytes: int | None = None,
        draft_tokens: int = 0,
    ) -> None:
        self.limits: Limits = model.manifest.limits
        self.layout = model.layout
        self.eos_ids = model.manifest.tokens.ends
        self.max_rows = max_rows
        self.memory, self.model = memory, model
        arena = Arena(memory)
        captured = Arena(memory) if model.layout.tiers else arena  # what captured steps use never moves
        self._caches = CacheBuffers(model.variant.states, arena, max_rows=max_rows)
        if model.layout.tiers:
            self._caches = FixedCaches(
                model.variant.states,
                captured,
                layout=model.layout,
                max_rows=max_rows,
                max_bytes=kv_cache_bytes,
                shortlists=arena,
            )
        self._prefixes = PrefixStore(self._caches, Arena(memory))
        self._parked = ParkedRows(self._caches, Arena(memory))
        self._inputs = RowInputs(captured, max_rows)
        self._logits = LogitsBlocks(
            Arena(memory),
            self.limits.vocab_size,
            model.sessions.get("logprobs"),
            captured=captured,
            options=model.run_options,
        )
        self._most_lines = max_rows * (draft_tokens + 2) if draft_tokens else max_rows
        self._shortlist: RowShortlist | None = None
        if "project_shortlist" in model.variant.graphs:
            sessions = model.sessions["project_shortlist"], model.sessions["shortlist_logprobs"]
            self._shortlist = RowShortlist(
                *sessions,
                arena,
                self._inputs,
                self._caches,
                self.limits.vocab_size,
                captured=captured,
                options=model.run_options,
            )
        # An arena of its own: bindings of the encoder outlive moves of the caches.
        self._scratch = Scratch(self._caches, Arena(memory))
        attention = AttentionPasses(model, self._scratch, self._inputs)
        self.cross_attention, self.attention = attention.cross_attention, attention.attention
        self._shortlist_rows: frozenset[int] = frozenset()  # of the last run
        self._encoder_outputs: dict[int, EncoderOutput] = {}  # by row; of the last run
        self._steps = 0  # of the last run, with its prompts; 1 for one that only encodes
        self._shared = self._passes = self._passes_of(model.sessions)
        single = model.single_engine_sessions
        self._single_engine = self._passes_of({**model.sessions, **single}) if single else None

    def _passes_of(self, sessions: Sessions) -> _Passes:
        encoder = decoder = None
        if "encode" in sessions:
            encoder = Encoder(self.model, sessions["encode"], self._scratch, self._inputs)
        if "decode" in sessions:
            decode, shortlist = sessions["decode"], self._shortlist
            decoder = Decoder(self.model, decode, self._caches, self._inputs, self._logits, shortlist)
        return _Passes(encoder, decoder)

    def capture(self) -> None:
        """Captures the decode steps of a device, where graphs allow that."""
        decoder = self._shared.decoder
        if decoder is not None and self.model.choice.captures:
            self._logits.ensure(self._most_lines, 1)
            if self._shortlist is not None:
                self._shortlist.ensure(self.max_rows, 1)
            steps, ids = decoder.capture(), self.model.graph_ids
            ranked = self._logits.capture(self._most_lines, decoder.rooms, ids)
            log.info("captured %d decode steps, and %d rankings of tokens", steps, ranked)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes this engine has allocated, by kind. May be called from any thread."""
        outputs = self._logits.size + (self._shortlist.size if self._shortlist else 0)
        caches = self._caches.size + self._prefixes.size + self._parked.size
        return {"kv_cache": caches, "outputs": outputs + self._scratch.size}

    def reset(self) -> None:
        """Drops all rows. Data that a failed run may have left half written is not used again. Raises DeviceLost."""
        self.memory.check_device()
        self._caches.clear()
        self._parked.clear()
        self.mark_idle()

    def mark_idle(self) -> None:
        """Reports that no row is live: other engines may use the cores."""
        self.model.busy_engines.mark_idle(self)

    def run(self, plan: StepPlan) -> TurnOutput:
        """Executes one turn in the order of StepPlan."""
        prefill, extra, step_s, drafts = self._compute(plan)
        predictions, wrong = self._read(plan, extra)
        return TurnOutput(
            predictions=predictions,
            non_finite=wrong,
            drafts=drafts,
            bursts={0: Burst([token for token, _ in extra], range(1 + len(extra)))} if extra else {},
            prefill=prefill,
            step_s=step_s,
        )

    def _compute(self, plan: StepPlan) -> Computed:
        """All of a turn but the choice of its best tokens."""
        assert 0 < plan.shape.rows <= self.max_rows, plan.shape.rows
        self._passes = self._passes_for(plan)
        started_s = time.perf_counter()
        self._place_rows(plan)
        prefill = self._start_rows(plan, started_s)
        prefilled_s = time.perf_counter()
        decoder = self._passes.decoder
        extra = decoder.step(plan.decode, plan) if decoder and plan.decode else []
        prompt_tokens = sum([len(chunk.tokens) for chunk in plan.prompts.chunks])
        self._steps = 1 + len(extra) + prompt_tokens // PROMPT_TOKENS_PER_STEP
        step_s = (time.perf_counter() - prefilled_s) / (1 + len(extra))
        return Computed(prefill, extra, step_s, self._verify(plan))

    def _verify(self, plan: StepPlan) -> dict[int, VerifiedDraft]:
        decoder = self._passes.decoder
        return decoder.verify(plan.drafts, plan.step_rows) if decoder and plan.drafts else {}

    def _passes_for(self, plan: StepPlan) -> _Passes:
        """The sessions of this turn. Chosen anew for each: a step on cores that other engines need is short."""
        is_single = self.model.busy_engines.mark_busy(self)
        is_small = not (logits_rows(plan) or self.model.divides_shortlists)
        if not is_single or is_small or plan.shape.rows > SINGLE_ENGINE_ROWS:
            return self._shared
        if self._single_engine is None and (sessions := self.model.sessions_for_single_engine(self._steps)):
            self._single_engine = self._passes_of({**self.model.sessions, **sessions})
        return self._single_engine or self._shared

    def _place_rows(self, plan: StepPlan) -> None:
        """Copies rows and resizes the buffers; the operation that needs less memory comes first, so that usage never
        exceeds the reservation."""
        self._caches.erase(plan.moves.abandoned_rows)
        self._parked.keep(plan.moves.slots)
        for parked in plan.moves.parked:  # while they are where the last turn left them
            self._parked.store(parked)
        live = plan.rows_after_copies
        if live <= plan.rows_before:
            self._copy(plan)
            self._make_room(plan, live=live)
        else:
            self._make_room(plan, live=plan.rows_before)
            self._copy(plan)
        self._resume(plan)

    def _resume(self, plan: StepPlan) -> None:
        for resumed in plan.moves.resumed:
            parked = self._parked.load(resumed)
            for row in resumed.lines:
                self._inputs["source_lengths"][row] = parked.source_len
                if self._shortlist is not None:
                    self._shortlist.restore(row, parked.shortlist_len)

    def _copy(self, plan: StepPlan) -> None:
        copies = plan.moves.copies
        if copies:  # most turns have none
            self._caches.copy(copies)
        for copy in copies:
            if copy.source_len:
                self._inputs["source_lengths"][copy.target] = copy.source_len
                if self._shortlist is not None:
                    self._shortlist.copy(copy.source, copy.target)

    def _make_room(self, plan: StepPlan, *, live: int) -> None:
        shape = plan.shape
        lengths: dict[StateKind, int] = {"self_kv": shape.target_len, "cross_kv": shape.source_len}
        if self._shortlist is not None:
            lengths["shortlist"] = shape.shortlist_len
        self._caches.ensure(shape.rows, live=live, lengths=lengths, most=plan.allocation_shape)
        lines = plan.step_rows + sum([len(draft.tokens) for draft in plan.drafts])
        if plan.decode and plan.decode.extra and plan.top_k and self.memory.device == "cpu":
            lines += plan.decode.extra.most
        is_decoding = bool(lines or plan.prompts.chunks)
        lines = max(self._caches.rows, lines) if is_decoding else 0
        if self._shortlist is not None:
            self._shortlist.ensure(max(self._caches.rows, lines), plan.top_k)
        self._logits.ensure(lines, plan.top_k)

    def _start_rows(self, plan: StepPlan, started_s: float) -> PrefillCost | None:
        """Fills the caches of new rows: encoder, shortlists, stored prefixes, prompts. started_s: of the turn."""
        encoder, decoder = self._passes
        encoded_s, count, on_device = started_s, TokenCount(), self.memory.device != "cpu"
        self._encoder_outputs = {}  # that of the last turn may not have been read yet
        for new_rows in source_batches(plan.new_rows, on_device=on_device):
            assert encoder is not None
            self._encoder_outputs |= encoder.encode(new_rows)
            encoded_s = time.perf_counter()
            count.add([len(new.source) for new in new_rows], max(map(source_width, new_rows)))
        if self._shortlist is not None:
            for new in plan.new_rows:
                self._shortlist.fill(new)
        self._prefixes.load(plan.prompts.loads)
        stores = {(block.row, block.start): block for block in plan.prompts.stores}
        for chunks in prefill_batches(plan.prompts.chunks, on_device=on_device):
            assert decoder is not None
            decoder.prefill(chunks)
            lengths = [len(chunk.tokens) for chunk in chunks]
            count.add(lengths, padded(max(lengths)))
            for chunk in chunks:  # before a later chunk moves what caches with a window hold
                if block := stores.get((chunk.row, chunk.start)):
                    self._prefixes.store(block, slots=plan.prompts.slots)
        if not (plan.new_rows or plan.prompts.chunks):
            return None
        return PrefillCost(time.perf_counter() - started_s, encoded_s - started_s, count.tokens, count.padding)

    def _rank(self, plan: StepPlan, extra: list[Scored]) -> int:
        """Ranks the lines of the turn, if they are to be, and returns their number."""
        logits = self._logits
        lines = plan.step_rows + sum([len(draft.tokens) for draft in plan.drafts])
        lines += len(extra) if logits.is_ranked else 0
        if lines and logits.is_ranked and logits_rows(plan):
            logits.rank(lines)
        self._shortlist_rows = plan.shortlist_rows
        return lines

    def _read(self, plan: StepPlan, extra: list[Scored]) -> tuple[Predictions, list[int]]:
        """The predictions of the turn, and the lines that are not finite."""
        logits, rows, lines = self._logits, plan.step_rows, self._rank(plan, extra)
        top_ids, top_scores = self._best(rows, lines)
        scores = [best[0] for best in top_scores]
        if logits.is_ranked:
            return Ranked(top_ids, top_scores, range(rows), self), non_finite(scores)
        tokens = [best[0] for best in top_ids]
        if extra:  # all steps wrote to the same line, which now holds the last one
            tokens = [*[token for token, _ in extra], *tokens]
            scores = [*[score for _, score in extra], *scores]
        return Plain(tokens, self), non_finite(scores)

    def _best(self, rows: int, lines: int) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and scores of the best tokens of each line. rows: live ones, of which the first lines are."""
        if self._shortlist is None or not self._shortlist_rows:
            return self._logits.best(lines)
        own_ids, own_scores = self._shortlist.best(lines)
        if len(self._shortlist_rows) == rows:
            return own_ids, own_scores
        ids, scores = self._logits.best(lines)
        for row in self._shortlist_rows:
            ids[row], scores[row] = own_ids[row], own_scores[row]
        return ids, scores

    def _of(self, row: int) -> LogitsBlocks | RowShortlist:
        """The outputs that hold the predictions of a row."""
        return self._shortlist if self._shortlist and row in self._shortlist_rows else self._logits

    def logprobs(self, row: int, line: int) -> np.ndarray:
        """See `service.step.DeferredOutputs`."""
        return self._of(row).logprobs(row, line)

    def logsumexp(self, row: int, line: int) -> float:
        """See `service.step.DeferredOutputs`."""
        return self._of(row).logsumexp(row, line)

    def encoder_output(self, row: int) -> EncoderOutput:
        """See `service.step.DeferredOutputs`."""
        return self._encoder_outputs[row]
