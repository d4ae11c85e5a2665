"""What one turn of an engine requests from its runner (`StepPlan`) and what it returns (`StepOutput`, `TurnOutput`).

A plan is plain data: it names rows and tokens, never tensors, sessions or requests, so that the scheduler stays pure
and a script can replace a runner. Live rows are the dense prefix [0, rows) of the runner's buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from export.bundle.manifest import PAD_MULTIPLE, AttentionKind, Limits
from service.encoder_request import EncoderOutput, EncoderRequest
from service.memory.cache_layout import CacheLayout, CacheShape


def padded(length: int, multiple: int = PAD_MULTIPLE) -> int:
    """`length` rounded up to a multiple; graphs know positions beyond the model's limit up to one of PAD_MULTIPLE."""
    return -(-length // multiple) * multiple


Scored = tuple[int, float]
"""A token and its score."""


class Copy(NamedTuple):
    """Copies cache positions `start` .. `stop` of row `source` into row `target`, which has the same earlier ones.

    source_len: valid source positions whose cross keys and values are copied too; 0: both rows have the same source.
    shortlist_len: valid shortlist entries that are copied too; 0 also without a shortlist.
    """

    source: int
    target: int
    start: int
    stop: int
    source_len: int
    shortlist_len: int = 0


class Parked(NamedTuple):
    """Rows of one sequence that are stored beside the caches, so that others can use them. The k-th of `rows` becomes
    line k of the slot.

    target_len, source_len, shortlist_len: positions and entries of each row; all rows have the same source.
    """

    slot: int
    rows: tuple[int, ...]
    target_len: int
    source_len: int
    shortlist_len: int = 0


class Resumed(NamedTuple):
    """A parked sequence gets rows again. lines: by new row, the line of the slot whose contents it gets."""

    slot: int
    lines: Mapping[int, int]


class NewRow(NamedTuple):
    """A row that starts in this turn.

    source: token ids for the encoder; empty for models without one.
    encoder_request: encoder outputs wanted beside those that a decoder needs.
    shortlist: the only token ids the row may choose, ascending; empty: the full vocabulary.
    """

    row: int
    source: tuple[int, ...]
    encoder_request: EncoderRequest | None = None
    shortlist: tuple[int, ...] = ()


class PrefillChunk(NamedTuple):
    """Consecutive prompt tokens that one pass adds to the cache of a row, the first at position `start`. No logits are
    computed: the last token of a prompt is the input of an ordinary step."""

    row: int
    start: int
    tokens: tuple[int, ...]


class Draft(NamedTuple):
    """The newest token of a row, at position `start`, and guesses at those that follow it, verified in one pass: logits
    are computed after each of them. Later inputs overwrite the cache entries of wrong guesses."""

    row: int
    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixBlock:
    """`count` cached positions of `row` from `start` on, and the slot of the prefix cache that stores them."""

    row: int
    start: int
    count: int
    slot: int


class StepPlan(NamedTuple):
    """One turn, executed in this order: erasure of abandoned rows, parking, copies and cache growth, resumption,
    encoder, shortlists, prefix loads, prefill, prefix stores, decode step, drafts.

    rows: live rows after copies, resumption and new rows.
    abandoned_rows: rows, as they are before the turn, of requests that ended in mid-prompt. No output has shown yet
        whether their contents are finite.
    parked: rows to store, as they are before the turn. resumed: rows to restore, from slots that are free afterwards.
    slots: those in use, these included; the contents of all others are forgotten.
    copies: no row is both a source and a target, so their order does not matter.
    new_rows: into free rows; ordered by row and by source length, so that neighbours need little padding.
    prefix_loads, prefix_stores: from slots into rows, and from rows into slots. prefix_slots: number of slots.
    prefill_chunks: in execution order; those of one row follow each other.
    tokens, starts: input token and its position, by row; empty without a decoder and when no row steps.
    prefilling_rows: rows with unread prompt tokens. They step along because live rows are a prefix; the result is
        meaningless, and the next chunk overwrites what the step caches.
    drafts: at most one a row. A row with a draft takes part in the step of the others, if there is one.
    extra_greedy_steps: most steps that a single row makes in this turn after the first one: each feeds the most likely
        token to the next, until that is an end token. extra_greedy_s: seconds after which none of them starts.
    rows_before: rows with contents before the turn.
    max_target_len, max_source_len, max_shortlist_len: largest sizes of a row at the end of the turn.
    shortlist_rows: rows with a shortlist.
    allocation_shape: what new buffers are allocated for: the reserved worst case, or more if memory allows.
    top_k: most likely tokens wanted of each row.
    is_scored: whether any row needs log-probabilities; if not, only the most likely token of each row is found.
    """

    rows: int
    abandoned_rows: tuple[int, ...] = ()
    parked: tuple[Parked, ...] = ()
    resumed: tuple[Resumed, ...] = ()
    slots: frozenset[int] = frozenset()
    copies: tuple[Copy, ...] = ()
    new_rows: tuple[NewRow, ...] = ()
    prefix_loads: tuple[PrefixBlock, ...] = ()
    prefill_chunks: tuple[PrefillChunk, ...] = ()
    prefix_stores: tuple[PrefixBlock, ...] = ()
    prefix_slots: int = 0
    tokens: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    prefilling_rows: frozenset[int] = frozenset()
    drafts: tuple[Draft, ...] = ()
    extra_greedy_steps: int = 0
    extra_greedy_s: float = 0.0
    rows_before: int = 0
    max_target_len: int = 0
    max_source_len: int = 0
    max_shortlist_len: int = 0
    shortlist_rows: frozenset[int] = frozenset()
    allocation_shape: CacheShape = CacheShape()
    top_k: int = 1
    is_scored: bool = True

    @property
    def rows_after_copies(self) -> int:
        """Rows with contents after the copies: all but the new and resumed rows at the end."""
        new, kept = {join.row for join in self.new_rows}, self.rows
        new.update(row for resumed in self.resumed for row in resumed.lines)
        while kept - 1 in new:
            kept -= 1
        return kept


T = TypeVar("T")
ByRow = Sequence[T] | Mapping[int, T]


@dataclass(slots=True, eq=False)
class StepOutput:
    """Next-token predictions by row: after the decode step of a turn, or after one draft token or one extra step of a
    row. Log-probabilities are the unmodified model's, over the full vocabulary or the row's shortlist. Only a turn in
    which a row is scored (`StepPlan.is_scored`) has them; elsewhere reading one raises KeyError.

    top_ids: at least StepPlan.top_k tokens of each row, best first, of equal ones the lowest id first; fewer where a
        shortlist is shorter. Without log-probabilities only the most likely token.
    top_logprobs: those of `top_ids`. lines: where `turn` has the distribution of each row.
    """

    top_ids: ByRow[list[int]]
    top_logprobs: ByRow[list[float]]
    lines: ByRow[int]
    turn: TurnOutput

    def logprobs(self, row: int) -> np.ndarray:
        """The distribution, float32 (V,): log-softmax of the logits, -inf outside a shortlist. Read-only."""
        return self.turn.deferred.logprobs(row, self.lines[row])

    def logsumexp(self, row: int) -> float:
        """Log-sum-exp of the logits: log-probabilities plus this are logits."""
        return self.turn.deferred.logsumexp(row, self.lines[row])


@dataclass(slots=True, eq=False, kw_only=True)
class TurnOutput:
    """All that a turn computed; valid until the next run. Predictions stand in lines: first one for each row of the
    step, then one for each draft token or extra step.

    top_ids, top_scores: by line, best first. If the turn is ranked, scores are log-probabilities; otherwise they only
        show whether the numbers are finite.
    token_lines: by row with a draft or extra steps, the lines after each of its tokens.
    extra_tokens: inputs of the extra greedy steps.
    encoder_outputs: by new row with an encoder request.
    prefill_tokens: that encoder and prefill computed, padding_tokens: of these the ones that only fill a batch.
    prefill_s: seconds of encoder and prefill, encode_s: of these until the encoder had run; step_s: of one step;
        draft_s: of each draft.
    """

    rows: int
    is_ranked: bool
    top_ids: list[list[int]]
    top_scores: list[list[float]]
    deferred: DeferredOutputs
    token_lines: Mapping[int, Sequence[int]]
    extra_tokens: Sequence[int] = ()
    encoder_outputs: Mapping[int, EncoderOutput]
    prefill_s: float
    step_s: float
    draft_s: Sequence[float] = ()
    encode_s: float = 0.0
    prefill_tokens: int = 0
    padding_tokens: int = 0

    def step(self) -> StepOutput:
        """Predictions after the decode step, by row."""
        if self.is_ranked:
            return StepOutput(self.top_ids, self.top_scores, range(self.rows), self)
        return StepOutput(self.top_ids, {}, {}, self)

    def after_each_token(self, row: int) -> Iterator[StepOutput]:
        """Predictions for a row after each token of its draft, or after each step of the turn, in order."""
        for line in self.token_lines[row]:
            ids = {row: self.top_ids[line]}
            if self.is_ranked:
                yield StepOutput(ids, {row: self.top_scores[line]}, {row: line}, self)
            else:
                yield StepOutput(ids, {}, {}, self)

    def non_finite_lines(self) -> list[int]:
        """Lines whose best score is NaN or infinite."""
        return [line for line, scores in enumerate(self.top_scores) if not math.isfinite(scores[0])]


class DeferredOutputs(Protocol):
    """Outputs that are computed, or copied out of the runner's memory, only on demand."""

    def logprobs(self, row: int, line: int) -> np.ndarray:
        """See StepOutput.logprobs: of a row, in a line of the turn."""

    def logsumexp(self, row: int, line: int) -> float: ...

    def cross_attention(self, row: int, tokens: Sequence[int]) -> np.ndarray:
        """Cross-attention weights over the source of a row for the decoder inputs `tokens`, start token first: float32
        (layers, heads, len(tokens), source positions)."""

    def attention(
        self, source: Sequence[int], tokens: Sequence[int], kinds: Sequence[AttentionKind]
    ) -> dict[AttentionKind, np.ndarray]:
        """Attention weights of a separate pass over `source` and the decoder inputs `tokens`: float32 (layers, heads,
        queries, keys) by kind."""


class DeviceLost(Exception):
    """The device computes nothing any more in this process: only another process can. What it last returned is void."""


class Runner(Protocol):
    """Executes plans. It knows rows, tokens and caches, but no requests, texts or strategies. One thread uses it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def layout(self) -> CacheLayout: ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""

    @property
    def max_rows(self) -> int: ...

    def run(self, plan: StepPlan) -> StepOutput:
        """Executes one turn. A run that raises leaves the rows undefined until `reset`."""

    def reset(self) -> None:
        """Drops all rows, also after a run that raised. Raises DeviceLost when no later run could succeed."""

    def mark_idle(self) -> None:
        """Reports that no row is live and none is waiting: other engines may use the cores."""
