"""What one turn of an engine requests from its runner (`StepPlan`) and what it returns (`TurnOutput`).

A plan is plain data: it names rows and tokens, never tensors, sessions or requests, so that the scheduler stays pure
and a script can replace a runner. Live rows are the dense prefix [0, rows) of the runner's buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from export.bundle.manifest import PAD_MULTIPLE, AttentionKind, Limits
from service.draws import Draw
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


class Moves(NamedTuple):
    """What happens to rows before anything is computed: they are erased, parked, copied, resumed.

    abandoned_rows: to erase, as they are before the turn, of requests that ended in mid-prompt. No output has shown yet
        whether their contents are finite.
    parked: to store, as they are before the turn. resumed: to restore, from slots that are free afterwards.
    slots: those in use, these included; the contents of all others are forgotten.
    copies: no row is both a source and a target, so their order does not matter.
    """

    abandoned_rows: tuple[int, ...] = ()
    parked: tuple[Parked, ...] = ()
    resumed: tuple[Resumed, ...] = ()
    slots: frozenset[int] = frozenset()
    copies: tuple[Copy, ...] = ()


class Prompts(NamedTuple):
    """What is read of prompts, in this order.

    loads, stores: from slots of the prefix cache into rows, and from rows into slots. slots: their number.
    chunks: in execution order; those of one row follow each other.
    """

    loads: tuple[PrefixBlock, ...] = ()
    chunks: tuple[PrefillChunk, ...] = ()
    stores: tuple[PrefixBlock, ...] = ()
    slots: int = 0


class ExtraSteps(NamedTuple):
    """Greedy steps that a single row makes after its first one: each feeds the most likely token to the next, until
    that is an end token. most: their number. max_s: seconds after which none of them starts."""

    most: int
    max_s: float


class DecodeStep(NamedTuple):
    """One step of all rows, by columns: 64 records cost 20 microseconds more.

    tokens, starts: input token and its position, by row.
    prefilling_rows: rows with unread prompt tokens. They step along because live rows are a prefix; the result is
        meaningless, and the next chunk overwrites what the step caches.
    fed: rows whose token is not known yet: each with the row for which it was chosen, in the turn before.
    more: further steps, in which each row takes its own such token. still: rows that stay at their position.
    draws: by row; the others take their most likely token. A device may guess where it is not certain.
    """

    tokens: tuple[int, ...]
    starts: tuple[int, ...]
    prefilling_rows: frozenset[int] = frozenset()
    extra: ExtraSteps | None = None
    fed: tuple[tuple[int, int], ...] = ()
    more: int = 0
    still: frozenset[int] = frozenset()
    draws: tuple[tuple[int, Draw], ...] = ()


class StepPlan(NamedTuple):
    """One turn, executed in this order: moves and growth of the caches, encoder, shortlists, prompts, step, drafts.

    rows_before: rows with contents before the turn.
    shape: live rows after moves and new rows, and the largest sizes of one at the end of the turn.
    allocation_shape: what new buffers are allocated for: the reserved worst case, or more if memory allows.
    new_rows: into free rows; ordered by row and by source length, so that neighbours need little padding.
    decode: None without a decoder and when no row steps.
    drafts: at most one a row. A row with a draft takes part in the step of the others, if there is one.
    shortlist_rows: rows with a shortlist.
    top_k: most likely tokens wanted of each row, with log-probabilities; 0: the most likely one, without.
    read_rows: rows whose whole distributions may be read.
    """

    rows_before: int
    shape: CacheShape
    allocation_shape: CacheShape = CacheShape()
    moves: Moves = Moves()
    new_rows: tuple[NewRow, ...] = ()
    prompts: Prompts = Prompts()
    decode: DecodeStep | None = None
    drafts: tuple[Draft, ...] = ()
    shortlist_rows: frozenset[int] = frozenset()
    top_k: int = 1
    read_rows: tuple[int, ...] = ()

    @property
    def step_rows(self) -> int:
        """Rows that step: all or none."""
        return 0 if self.decode is None else self.shape.rows

    @property
    def rows_after_copies(self) -> int:
        """Rows with contents after the copies: all but the new and resumed rows at the end."""
        new = {join.row for join in self.new_rows}.union(*[resumed.lines for resumed in self.moves.resumed])
        kept = self.shape.rows
        while kept - 1 in new:
            kept -= 1
        return kept


T = TypeVar("T")
ByRow = Sequence[T] | Mapping[int, T]


@dataclass(slots=True, eq=False)
class Plain:
    """Predictions of a turn in which no row is scored: the most likely token of each row."""

    tokens: ByRow[int]
    deferred: DeferredOutputs

    def best(self, row: int) -> int:
        """The most likely token."""
        return self.tokens[row]

    def moved(self, lines: Mapping[int, int]) -> Plain:
        """The predictions for rows in other lines of the turn. lines: by row."""
        return Plain({row: self.tokens[line] for row, line in lines.items()}, self.deferred)


@dataclass(slots=True, eq=False)
class Ranked:
    """Predictions of a turn in which a row is scored. Log-probabilities are the unmodified model's, over the full
    vocabulary or the row's shortlist.

    top_ids: at least StepPlan.top_k tokens of each row, best first, of equal ones the lowest id first; fewer where a
        shortlist is shorter. top_logprobs: theirs. lines: where the turn has the distribution of each row.
    draws: of a turn with DecodeStep.draws: the token that a device has drawn, and whether it is no guess.
    """

    top_ids: ByRow[list[int]]
    top_logprobs: ByRow[list[float]]
    lines: ByRow[int]
    deferred: DeferredOutputs
    draws: ByRow[tuple[int, bool]] = ()

    def drawn(self, row: int) -> int | None:
        """The token that was drawn for certain; None: none was."""
        return self.draws[row][0] if self.draws and self.draws[row][1] else None

    def taken(self, row: int) -> int:
        """The token with which a device goes on."""
        return self.draws[row][0] if self.draws else self.top_ids[row][0]

    def best(self, row: int) -> int:
        """The most likely token."""
        return self.top_ids[row][0]

    def moved(self, lines: Mapping[int, int]) -> Ranked:
        """The predictions for rows in other lines of the turn. lines: by row."""
        ids = {row: self.top_ids[line] for row, line in lines.items()}
        scores = {row: self.top_logprobs[line] for row, line in lines.items()}
        draws = {row: self.draws[line] for row, line in lines.items()} if self.draws else ()
        return Ranked(ids, scores, lines, self.deferred, draws)

    def logprobs(self, row: int) -> np.ndarray:
        """The distribution, float32 (V,): log-softmax of the logits, -inf outside a shortlist. Read-only."""
        return self.deferred.logprobs(row, self.lines[row])

    def logsumexp(self, row: int) -> float:
        """Log-sum-exp of the logits: log-probabilities plus this are logits."""
        return self.deferred.logsumexp(row, self.lines[row])


Predictions = Plain | Ranked
"""Predictions of next tokens, by row."""


class Burst(NamedTuple):
    """Greedy steps of a row after its first one. tokens: their inputs. lines: of the predictions after the first step
    and after each of these."""

    tokens: Sequence[int]
    lines: range


class VerifiedDraft(NamedTuple):
    """A draft that a row has read in `seconds`. tokens: the guesses. lines: of the predictions after the token before
    them and after each of these."""

    tokens: Sequence[int]
    lines: range
    seconds: float


class PrefillCost(NamedTuple):
    """What encoder and prefill of a turn took. encode_s: of the seconds those until the encoder had run. tokens: that
    they computed; padding_tokens: of these the ones that only fill a batch."""

    seconds: float
    encode_s: float
    tokens: int
    padding_tokens: int


@dataclass(slots=True, eq=False, kw_only=True)
class TurnOutput:
    """All that a turn computed; valid until the next run.

    predictions: in lines: first one for each row of the step, by row, then one for each draft token or extra step.
    non_finite: lines whose best score is NaN or infinite.
    drafts, bursts: by row. prefill: None where nothing was encoded or prefilled.
    step_s: seconds of one step.
    """

    predictions: Predictions
    non_finite: Sequence[int] = ()
    drafts: Mapping[int, VerifiedDraft]
    bursts: Mapping[int, Burst] = field(default_factory=dict)
    prefill: PrefillCost | None = None
    step_s: float

    @property
    def extra_steps(self) -> int:
        """Steps of each row after the first one."""
        return max([len(burst.tokens) for burst in self.bursts.values()], default=0)


def non_finite(scores: Iterable[float]) -> list[int]:
    """Lines whose best score is NaN or infinite. scores: the best one of each line."""
    finite = [*map(math.isfinite, scores)]
    return [] if all(finite) else [line for line, is_finite in enumerate(finite) if not is_finite]


class DeferredOutputs(Protocol):
    """Outputs that are computed, or copied out of the runner's memory, only on demand."""

    def logprobs(self, row: int, line: int) -> np.ndarray:
        """See Ranked.logprobs: of a row, in a line of a ranked turn."""

    def logsumexp(self, row: int, line: int) -> float: ...

    def encoder_output(self, row: int) -> EncoderOutput:
        """Of a new row with an encoder request."""

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

    def run(self, plan: StepPlan) -> TurnOutput:
        """Executes one turn. A run that raises leaves the rows undefined until `reset`."""

    def reset(self) -> None:
        """Drops all rows, also after a run that raised. Raises DeviceLost when no later run could succeed."""

    def mark_idle(self) -> None:
        """Reports that no row is live and none is waiting: other engines may use the cores."""


@runtime_checkable
class AheadRunner(Runner, Protocol):
    """A runner that takes a plan while it computes another one: `launch` and `collect` are the halves of `run`."""

    def launch(self, plan: StepPlan) -> None:
        """Begins a turn after those that were not collected yet, of which there may be one. Raises like `run`."""

    def collect(self) -> TurnOutput:
        """Waits for the oldest turn that was launched and not collected. Its output is valid until the next launch, and
        of the distributions only those of StepPlan.read_rows if another turn is launched already."""
