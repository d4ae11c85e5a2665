"""What one turn of an engine asks of its runner (`StepPlan`) and gets back (`Distributions`).

A plan is plain data: it names rows and tokens, never tensors, sessions or requests, so that the scheduler stays pure
and a runner can be replaced by a script. Live rows are the dense prefix [0, rows) of the runner's buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from export.bundle import PAD_MULTIPLE, AttentionKind, Limits
from service.cache_layout import Extent, StateLayout
from service.encoder_request import Encoded, Reading


def padded(length: int, multiple: int = PAD_MULTIPLE) -> int:
    """`length` rounded up to a multiple; graphs know positions beyond the model's limit up to one of PAD_MULTIPLE."""
    return -(-length // multiple) * multiple


Scored = tuple[int, float]
"""A token and its score."""


class Copy(NamedTuple):
    """Row `target` becomes a copy of row `source`, of whose positions `start` .. `stop` it does not hold yet.

    source_len: valid positions of its source that must be copied too; 0: the row has the same source already. words:
    the same of the words it chooses among; 0 also where it chooses among all.
    """

    source: int
    target: int
    start: int
    stop: int
    source_len: int
    words: int = 0


class Join(NamedTuple):
    """A new row. `source` goes through the encoder; empty for models without one.

    reading: what is asked of the encoder, beside what a decoder needs. words: the only ones that the row chooses among,
    in ascending order; none: all.
    """

    row: int
    source: tuple[int, ...]
    reading: Reading | None = None
    words: tuple[int, ...] = ()


class PromptBlock(NamedTuple):
    """Tokens of a prompt that are read at once, the first at position `start` of a row. Nobody asks what the model says
    behind them: the last token of a prompt is an ordinary step."""

    row: int
    start: int
    tokens: tuple[int, ...]


class Draft(NamedTuple):
    """Tokens of a row that are read at once, the first at position `start`: its newest one, and guesses at those that
    follow. What the model says behind each of them is asked for. What is cached of wrong guesses is written over by
    whatever the row reads next."""

    row: int
    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """`count` positions of `row` from `start` on, and the slot where they are kept for other prompts."""

    row: int
    start: int
    count: int
    slot: int


class StepPlan(NamedTuple):
    """One turn, done in this order: copies and growth, encoding, own words, kept blocks into rows, prompts, blocks that
    are to be kept, step, drafts.

    rows: live rows after copies and joins.
    copies: no row is the source of one and the target of another, so their order does not matter.
    joins: in rows that nobody has, ordered by row, and by the length of their sources, so that neighbours need little
        padding.
    loads, saves: from slots into rows, and from rows into slots. slots: how many slots there are.
    blocks: in the order in which they are read; those of one row follow each other.
    tokens, starts: input token and its position of each row; empty when nothing can step, and without a decoder.
    reading: rows whose prompts are not read yet: their step is there to keep the others together, says nothing, and
        what it caches is written over by the next block.
    drafts: at most one of a row. A row with one takes part in the step of the others, if there is one, as always.
    further: steps that the only row makes by itself behind the first, at most: the likeliest token of each is the input
        of the next, until it is one that ends answers. further_s: seconds after which none of them is begun.
    held: rows that hold something before the turn.
    longest, longest_source, most_words: positions and words that some row needs when the turn is over.
    narrow: rows with words of their own.
    room: what live rows can come to need, and more if there is memory to spare: new memory is taken for that.
    top_k: how many of the likeliest tokens are wanted of each row.
    is_scored: their log-probabilities are wanted too; if not, then one of each.
    """

    rows: int
    copies: tuple[Copy, ...] = ()
    joins: tuple[Join, ...] = ()
    loads: tuple[Keep, ...] = ()
    blocks: tuple[PromptBlock, ...] = ()
    saves: tuple[Keep, ...] = ()
    slots: int = 0
    tokens: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    reading: frozenset[int] = frozenset()
    drafts: tuple[Draft, ...] = ()
    further: int = 0
    further_s: float = 0.0
    held: int = 0
    longest: int = 0
    longest_source: int = 0
    most_words: int = 0
    narrow: frozenset[int] = frozenset()
    room: Extent = Extent()
    top_k: int = 1
    is_scored: bool = True

    @property
    def kept(self) -> int:
        """Rows that hold something after the copies, before others join: all but the joins behind them."""
        joining, kept = {join.row for join in self.joins}, self.rows
        while kept - 1 in joining:
            kept -= 1
        return kept


class Distributions(Protocol):
    """What the model says of each row's next token; valid until the next run.

    top_ids, top_logprobs: for each row at least the wanted number of tokens with the largest logits, best first, of
    equal ones the lowest id first; of a row with words of its own, to which its distribution is limited, perhaps fewer.
    Where nobody wants scores, the logits stand for log-probabilities, and only `behind`, `attend` and `see` tell more.
    taken: the inputs of the steps that the only row made by itself.
    join_s: seconds of encoding and prefill; step_s: seconds of one step; draft_s: of each draft.
    """

    top_ids: list[list[int]]
    top_logprobs: list[list[float]]
    taken: list[int]
    join_s: float
    step_s: float
    draft_s: list[float]

    def behind(self, row: int) -> Iterator[Distributions]:
        """What it says of a row behind each token of the row's draft, one after another; of the row that made steps by
        itself, behind each of them."""
        ...

    def logprobs(self, row: int) -> np.ndarray:
        """The whole distribution, float32 (V,): log-softmax of the logits. Not to be changed."""
        ...

    def normaliser(self, row: int) -> float:
        """Log-sum-exp of the logits: what must be added to log-probabilities to have logits again."""
        ...

    def attend(self, row: int, tokens: Sequence[int]) -> np.ndarray:
        """Cross-attention weights of the decoder over the row's source when it reads `tokens`, the start token first:
        float32 (layers, heads, len(tokens), source positions)."""
        ...

    def see(
        self, source: Sequence[int], tokens: Sequence[int], kinds: Sequence[AttentionKind]
    ) -> dict[AttentionKind, np.ndarray]:
        """Attention of a pass of the whole model over a source and what the decoder reads, whatever the rows hold:
        float32 (layers, heads, queries, keys) of each of the kinds."""
        ...

    def encoded(self, row: int) -> Encoded:
        """What the encoder says of the source of a row that joined in this turn with a reading."""
        ...


class Runner(Protocol):
    """Computes. It knows rows, tokens and states, but no requests, texts or strategies; one thread uses it."""

    @property
    def limits(self) -> Limits: ...

    @property
    def layout(self) -> StateLayout: ...

    @property
    def ends(self) -> tuple[int, ...]: ...

    @property
    def max_rows(self) -> int: ...

    @property
    def has_attention(self) -> bool:
        """`Distributions.attend` works."""
        ...

    def run(self, plan: StepPlan) -> Distributions: ...

    def reset(self) -> None:
        """Forgets all rows, whatever happened in a run that raised."""
        ...

    def rest(self) -> None:
        """No row is left, and none is known to come: what this runner needs of the machine, others may use."""
        ...
