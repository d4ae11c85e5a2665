"""What one turn of an engine asks of its runner (`StepPlan`) and gets back (`StepOutput`).

A plan is plain data: it names rows and tokens, never tensors, sessions or requests, so that the scheduler stays pure
and a runner can be replaced by a script. Live rows are the dense prefix [0, rows) of the runner's buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from export.bundle import PAD_MULTIPLE, AttentionKind, Limits
from service.cache_layout import CacheLayout, CacheShape
from service.encoder_request import EncoderOutput, EncoderRequest


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
    """One turn, executed in this order: copies and cache growth, encoder, shortlists, prefix loads, prefill, prefix
    stores, decode step, drafts.

    rows: live rows after copies and new rows.
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
        """Rows with contents after the copies: all but the new rows at the end."""
        new, kept = {join.row for join in self.new_rows}, self.rows
        while kept - 1 in new:
            kept -= 1
        return kept


class StepOutput(Protocol):
    """What the model says of each row's next token; valid until the next run.

    top_ids, top_logprobs: for each row at least the wanted number of tokens with the largest logits, best first, of
    equal ones the lowest id first; of a row with words of its own, to which its distribution is limited, perhaps fewer.
    Where no row is scored, logits stand for log-probabilities, and there are no distributions.
    extra_tokens: the inputs of the steps that the only row made by itself.
    prefill_s: seconds of encoding and prefill; step_s: seconds of one step; draft_s: of each draft.
    """

    top_ids: list[list[int]]
    top_logprobs: list[list[float]]
    extra_tokens: list[int]
    prefill_s: float
    step_s: float
    draft_s: list[float]

    def after_each_token(self, row: int) -> Iterator[StepOutput]:
        """What it says of a row behind each token of the row's draft, one after another; of the row that made steps by
        itself, behind each of them."""
        ...

    def logprobs(self, row: int) -> np.ndarray:
        """The whole distribution, float32 (V,): log-softmax of the logits. Not to be changed."""
        ...

    def logsumexp(self, row: int) -> float:
        """Log-sum-exp of the logits: what must be added to log-probabilities to have logits again."""
        ...

    def cross_attention(self, row: int, tokens: Sequence[int]) -> np.ndarray:
        """Cross-attention weights of the decoder over the row's source when it reads `tokens`, the start token first:
        float32 (layers, heads, len(tokens), source positions)."""
        ...

    def attention(
        self, source: Sequence[int], tokens: Sequence[int], kinds: Sequence[AttentionKind]
    ) -> dict[AttentionKind, np.ndarray]:
        """Attention of a pass of the whole model over a source and what the decoder reads, whatever the rows hold:
        float32 (layers, heads, queries, keys) of each of the kinds."""
        ...

    def encoder_output(self, row: int) -> EncoderOutput:
        """What the encoder says of the source of a row that joined in this turn with a reading."""
        ...


class Runner(Protocol):
    """Computes. It knows rows, tokens and states, but no requests, texts or strategies; one thread uses it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def layout(self) -> CacheLayout: ...

    @property
    def ends(self) -> tuple[int, ...]: ...

    @property
    def max_rows(self) -> int: ...

    @property
    def has_attention(self) -> bool:
        """`StepOutput.attend` works."""
        ...

    def run(self, plan: StepPlan) -> StepOutput: ...

    def reset(self) -> None:
        """Forgets all rows, whatever happened in a run that raised."""
        ...

    def mark_idle(self) -> None:
        """No row is left, and none is known to come: what this runner needs of the machine, others may use."""
        ...
