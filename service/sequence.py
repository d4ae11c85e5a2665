"""One request being decoded (`Sequence`) and its candidate answers (`Hypothesis`). No text, sockets, clocks or locks.

Greedy search has one hypothesis, sampling one for each requested sample, beam search one for each place of the beam.
All live hypotheses of a sequence have the same length, and each has a row of its own in every turn; between two turns
several may continue the same row. How hypotheses are extended and chosen is the business of `service.decoding`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from service.draws import Draws
from service.encoder_request import EncoderOutput
from service.errors import RequestError
from service.memory.cache_layout import CacheShape
from service.request import FinishReason, Request
from service.step import Predictions

Outcome = FinishReason | RequestError
Lane = tuple[int, str]
"""The requests of one tenant in one class, the number of which is its `Priority`. (An enumeration is slow to hash.)"""


@dataclass(slots=True, eq=False)
class Hypothesis:
    """A candidate answer. Its search writes it, row assignment its row."""

    processor_states: tuple[Any, ...] = ()  # of each of the request's logits processors
    stop: Any = None  # state of the search for stop strings
    tokens: list[int] = field(default_factory=list)  # generated so far, end token included
    logprobs: list[float] = field(default_factory=list)  # the model's own, one for each token
    alternatives: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    score: float = 0.0  # what the search compares
    # Whose cache holds all but the last token: its own row, or that of the hypothesis it continues; while its sequence
    # is parked, the line of the slot.
    row: int = -1
    normalised: float = 0.0  # the score of a finished hypothesis, normalised by its length
    reason: FinishReason | None = None  # why it ended; None: it goes on

    def fork(self) -> Hypothesis:
        """Returns another hypothesis with the same past, to be continued differently."""
        return Hypothesis(
            self.processor_states,
            self.stop,
            self.tokens.copy(),
            self.logprobs.copy(),
            self.alternatives.copy(),
            self.score,
            self.row,
        )


class Search(Protocol):
    """The decoding strategy of one request. It belongs to the sequence it was made for.

    top_k: how many of the most likely tokens of a row it needs; 0: one, without log-probabilities.
    needs_rows: it may need the whole distributions of its rows.
    is_greedy: it has one hypothesis, which takes the most likely token wherever none is forced, without processors.
    draws: of one hypothesis that takes tokens drawn from its distribution, without processors.
    """

    top_k: int
    needs_rows: bool
    is_greedy: bool
    draws: Draws

    def start(self) -> Hypothesis:
        """Returns the hypothesis without tokens."""

    def advance(self, sequence: Sequence, output: Predictions) -> None:
        """Replaces the sequence's hypotheses by their continuations, and ends it when none is left.

        Raises Unsatisfiable when the request's constraints leave no possible token; NotKept before any change, when it
        needs the same turn again, with its rows.
        """


@dataclass(slots=True, weakref_slot=True, eq=False)
class Sequence:
    """A request on its way through waiting, live (it has rows) and ended.

    Every attribute has one writer, and everything else only reads it; `tests/service/test_sequence.py` enforces that.
    All of them run on the engine's thread.
    """

    request: Request
    search: Search
    lane: Lane = field(init=False)
    # written by the scheduler
    rows: tuple[int, ...] = ()  # in the last plan
    max_shape: CacheShape = field(default_factory=CacheShape)  # the most it may need from its start on
    num_computed: int = 0  # positions in the cache of each of its rows
    unread: int = 0  # tokens that turns have chosen for it which were not read yet
    draft_tokens: tuple[int, ...] = ()  # guesses at the tokens after the newest one, verified by the last plan
    slot: int | None = None  # where its rows are stored while it is parked: it has none then, and waits for new ones
    row_s: float = 0.0  # `FairShares.row_s` when it got its rows
    # written by its search
    hypotheses: list[Hypothesis] = field(init=False)  # the live ones, each with the next input as its last token
    width: int = field(init=False)  # most rows it may still need in one turn; never grows
    steps: int = 0  # tokens of each live hypothesis
    num_generated: int = 0  # tokens of all hypotheses so far
    committed_tokens: list[int] = field(default_factory=list)  # certain to begin the best answer; only grows
    encoder_output: EncoderOutput | None = None  # of a request for encoder outputs
    # written by the methods below
    outcome: Outcome | None = None  # why it ended
    answers: list[Hypothesis] = field(default_factory=list)  # of a successful end: as many as requested, best first

    def __post_init__(self) -> None:
        self.lane = int(self.request.priority), self.request.tenant
        self.hypotheses, self.width = [self.search.start()], self.request.options.width

    def accept_draft_token(self) -> None:
        """Counts the position of a right guess, which the model has computed already."""
        self.num_computed += 1

    def go_back(self, position: int) -> None:
        """Goes on from a position: what was computed from there on is void, and so is what was not read yet."""
        self.num_computed, self.unread = position, 0

    def finish(self, outcome: Outcome) -> None:
        """Ends the sequence; the first outcome counts. Its rows are free from the next plan on."""
        if self.outcome is None:
            self.outcome = outcome

    def finish_with(self, answers: Iterable[Hypothesis]) -> None:
        """Ends the sequence successfully."""
        self.answers = list(answers)
        self.committed_tokens = self.answers[0].tokens
        reason = self.answers[0].reason
        assert reason is not None
        self.finish(reason)

    def fail(self, error: RequestError) -> None:
        """Ends the sequence with an error, even after a successful end that could not be reported."""
        self.outcome = error
