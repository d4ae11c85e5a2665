"""One request being decoded (`Sequence`) and its candidate answers (`Hypothesis`). No text, no sockets, no clock.

Greedy search has one hypothesis, sampling as many as texts were asked for, beam search as many as the beam is wide. All
live hypotheses of a sequence have the same length, and each has a row of its own in every turn; between two turns
several may continue the same row. How hypotheses are extended and chosen is the business of `service.decoding`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from service.cache_layout import CacheShape
from service.encoder_request import EncoderOutput
from service.errors import RequestError
from service.request import FinishReason, Request
from service.step import StepOutput

Outcome = FinishReason | RequestError


class Hypothesis:
    """A candidate answer.

    row: the row whose cache holds everything but its last token: its own, or the one of the hypothesis it continues.
    score: what the search compares. processor_states: what each of the request's rules remembers of it.
    normalised: the score of a finished hypothesis with regard to its length.
    """

    __slots__ = (
        "alternatives",
        "logprobs",
        "normalised",
        "processor_states",
        "reason",
        "row",
        "score",
        "stop",
        "tokens",
    )

    def __init__(self, processor_states: tuple[Any, ...] = (), stop: Any = None) -> None:
        self.tokens: list[int] = []  # produced, end token included
        self.logprobs: list[float] = []  # the model's own, one for each token
        self.alternatives: list[tuple[tuple[int, float], ...]] = []
        self.score = self.normalised = 0.0
        self.processor_states, self.stop = processor_states, stop
        self.row = -1
        self.reason: FinishReason | None = None

    def fork(self) -> Hypothesis:
        """Another one with the same past, to be continued differently."""
        twin = Hypothesis(self.processor_states, self.stop)
        twin.tokens, twin.logprobs = self.tokens.copy(), self.logprobs.copy()
        twin.alternatives = self.alternatives.copy()
        twin.score, twin.row = self.score, self.row
        return twin


class Search(Protocol):
    """How one request is decoded. It belongs to the sequence it was made for.

    top_k: how many of a row's likeliest tokens it wants to see.
    is_greedy: it has one hypothesis, which takes the likeliest token wherever none is forced; no rules change that.
    is_scored: it wants log-probabilities.
    """

    top_k: int
    is_greedy: bool
    is_scored: bool

    def start(self) -> Hypothesis:
        """The hypothesis that has no tokens yet."""
        ...

    def advance(self, sequence: Sequence, output: StepOutput) -> None:
        """Replaces the sequence's hypotheses by their continuations, and ends it when that is all.

        Raises Unsatisfiable when the request's constraints leave no way to go on.
        """
        ...


class Sequence:
    """A request on its way through waiting, live (it has rows) and ended.

    hypotheses: the live ones, each with the next input as its last token.
    width: rows it may come to need at once; never grows.
    max_shape: what it may come to need when it begins, by the scheduler that has it.
    num_computed: positions that are in the cache of each of its rows.
    draft_tokens: guesses at the tokens behind the newest one that the last plan has the model read.
    answers: once it has ended well, the answers that were asked for, best first.
    committed_tokens: tokens that are certain to begin the first answer; only grows.
    steps: tokens of each live hypothesis. num_generated: tokens of all answers so far.
    encoder_output: what the encoder says, where that is the answer.
    """

    __slots__ = (
        "answers",
        "committed_tokens",
        "draft_tokens",
        "encoder_output",
        "hypotheses",
        "max_shape",
        "num_computed",
        "num_generated",
        "outcome",
        "request",
        "rows",
        "search",
        "steps",
        "width",
    )

    def __init__(self, request: Request, search: Search) -> None:
        self.request, self.search = request, search
        self.hypotheses: list[Hypothesis] = [search.start()]
        self.answers: list[Hypothesis] = []
        self.committed_tokens: list[int] = []
        self.width = request.options.width
        self.rows: tuple[int, ...] = ()  # in the last plan
        self.num_computed = self.steps = self.num_generated = 0
        self.draft_tokens: tuple[int, ...] = ()
        self.max_shape = CacheShape()
        self.encoder_output: EncoderOutput | None = None
        self.outcome: Outcome | None = None

    @property
    def longest(self) -> int:
        """Positions it can come to need in the cache; the very last token is never an input."""
        return len(self.request.prompt) + self.request.max_tokens - 1

    @property
    def is_prefilled(self) -> bool:
        return self.num_computed >= len(self.request.prompt)

    def input_at(self, position: int, hypothesis: Hypothesis) -> int:
        """The token at the first position that is not cached."""
        prompt = self.request.prompt
        return prompt[position] if position < len(prompt) else hypothesis.tokens[-1]

    def finish(self, outcome: Outcome) -> None:
        """The one way to end. The first end counts; its rows are free from the next plan on."""
        if self.outcome is None:
            self.outcome = outcome

    def answer(self, answers: Iterable[Hypothesis]) -> None:
        """Ends well, with these answers."""
        self.answers = list(answers)
        self.committed_tokens = self.answers[0].tokens
        reason = self.answers[0].reason
        assert reason is not None
        self.finish(reason)
