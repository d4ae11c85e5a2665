"""Greedy search, sampling, and the alternatives at a position: hypotheses that are extended independently.

One hypothesis follows the forced prefix. After the prefix it is forked into the requested number: samples, each with
its own random stream, or alternatives, which begin with different tokens. They are never compared. A target to score
is a prefix without a continuation.
"""

from __future__ import annotations

import math

from service.decoding.sampling import TOP_CANDIDATES, Sampler
from service.decoding.token_selection import TokenSelector, unsatisfiable
from service.draws import Draws, NotKept
from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from service.step import Predictions, Ranked

DOUBTS = 16
"""After a draw that needed the whole row, the tokens for which rows are read at once: to ask for one afterwards costs
two turns, to read one for nothing a copy of 4 bytes a word."""


class GreedyAndSampling:
    """Greedy search or sampling of one or several hypotheses of one request."""

    def __init__(self, selector: TokenSelector) -> None:
        options = selector.options
        self._selector = selector
        self._count = options.width
        self._samplers: dict[Hypothesis, Sampler] = {}
        self._sampler = None
        if options.is_sampling and self._count == 1:
            self._sampler = Sampler(options, selector.request.seed, 0)
        is_free = self._sampler is not None and not (selector.processors or selector.request.shortlist)
        self.draws: Draws = self._sampler.ahead if self._sampler and is_free and self._sampler.needs_best_only else None
        self._all: list[Hypothesis] = []  # after the fork, in the order of the answers
        self.is_greedy = self._count == 1 and not (options.is_sampling or selector.processors)
        # without processors, prefix, stop strings and alternatives
        self._is_plain = self.is_greedy and not (selector.request.prefix or selector.stops or options.top_logprobs)
        self._is_scored = selector.is_scored = not self.is_greedy or options.returns_hypotheses
        self._reads_rows = bool(selector.processors) or (options.is_sampling and self.draws is None)
        self._doubts = 0  # tokens for which rows are still wanted
        self.needs_rows = self._is_scored and (self._reads_rows or not selector.is_plain)
        wanted = TOP_CANDIDATES if options.is_sampling else options.num_hypotheses
        top_k = max(1, options.top_logprobs, wanted) + (0 if options.is_sampling else selector.spare)
        self.top_k = top_k if self._is_scored else 0

    def start(self) -> Hypothesis:
        """Returns the hypothesis without tokens."""
        return self._selector.start()

    def advance(self, sequence: Sequence, output: Predictions) -> None:
        """Extends each hypothesis by one token. Raises Unsatisfiable if one has no possible token, NotKept as
        `service.sequence.Search`."""
        sequence.steps += 1
        if self._is_plain:
            (hypothesis,) = sequence.hypotheses
            row = hypothesis.row
            token = output.best(row)
            hypothesis.tokens.append(token)
            if self._is_scored:
                assert isinstance(output, Ranked)
                hypothesis.logprobs.append(output.top_logprobs[row][0])
            if token in self._selector.eos_ids:
                hypothesis.reason = FinishReason.END_OF_SEQUENCE
            elif sequence.steps >= sequence.request.max_tokens:
                hypothesis.reason = FinishReason.LENGTH
        else:
            try:
                if not self._all and sequence.steps > len(sequence.request.prefix):
                    self._fork(sequence, output)
                else:
                    for hypothesis in sequence.hypotheses:
                        self._extend(hypothesis, output)
            except NotKept:
                sequence.steps -= 1
                self._doubts, self.needs_rows = DOUBTS, self.draws is not None
                raise
            if self.needs_rows and not self._reads_rows:
                self._doubts = max(0, self._doubts - 1)
                self.needs_rows = self._doubts > 0 or sequence.steps < len(sequence.request.prefix)
        sequence.num_generated += len(sequence.hypotheses)
        if self._count == 1:
            (hypothesis,) = sequence.hypotheses
            sequence.committed_tokens = hypothesis.tokens
            if hypothesis.reason is None:
                return
        self._retire(sequence, output)

    def _fork(self, sequence: Sequence, output: Predictions) -> None:
        """Forks the hypothesis into the requested number, and extends each by its first token after the prefix."""
        (root,) = sequence.hypotheses
        options = self._selector.options
        if options.is_sampling or self._count == 1:
            self._all = [root, *(root.fork() for _ in range(self._count - 1))]
            if options.is_sampling:
                seed, one = sequence.request.seed, self._sampler
                self._samplers = {twin: one or Sampler(options, seed, index) for index, twin in enumerate(self._all)}
            for hypothesis in self._all:
                self._extend(hypothesis, output)
        else:
            assert isinstance(output, Ranked)
            least = options.min_alternative_probability
            least = math.log(least) if least else -math.inf
            found = self._selector.best_tokens(root, output, self._count)
            if not found:
                raise unsatisfiable(sequence.steps - 1)
            found = [found[0], *(scored for scored in found[1:] if scored[1] >= least)]
            self._all = [root, *(root.fork() for _ in found[1:])]
            for hypothesis, (token, score) in zip(self._all, found, strict=True):
                self._selector.extend(hypothesis, token, output, score)
        sequence.hypotheses = self._all

    def _extend(self, hypothesis: Hypothesis, output: Predictions) -> None:
        selector, row, score = self._selector, hypothesis.row, None
        if not self._is_scored:
            forced = selector.forced_token(hypothesis)
            selector.extend(hypothesis, output.best(row) if forced is None else forced, output)
            return
        assert isinstance(output, Ranked)
        sampler = self._samplers.get(hypothesis)
        if sampler is None:
            found = selector.best_tokens(hypothesis, output, 1)
            if not found:
                raise unsatisfiable(len(hypothesis.tokens))
            token, score = found[0]
        elif (forced := selector.forced_token(hypothesis)) is not None:
            token = forced
        else:
            scores_V = selector.scores(hypothesis, output)
            if scores_V is not None:
                token = sampler.draw(scores_V)
            elif (drawn := output.drawn(row)) is not None:
                sampler.skip()
                token, score = drawn, output.top_logprobs[row][output.top_ids[row].index(drawn)]
            else:
                logprobs_V = output.logprobs(row)
                token = sampler.draw(logprobs_V, (output.top_ids[row], output.top_logprobs[row]))
                score = float(logprobs_V[token])
        selector.extend(hypothesis, token, output, score)

    def _retire(self, sequence: Sequence, output: Predictions) -> None:
        """Releases the rows of finished hypotheses, and finishes the sequence with the last of them. The score of an
        answer is the model's log-probability."""
        live = [hypothesis for hypothesis in sequence.hypotheses if hypothesis.reason is None]
        if self._all or not live:
            sequence.width = max(1, len(live))
        if live:
            if len(live) < len(sequence.hypotheses):
                sequence.hypotheses = live
            return
        answers = self._all or sequence.hypotheses
        for hypothesis in answers:
            hypothesis.score = sum(hypothesis.logprobs) if self._is_scored else math.nan
            self._selector.normalise(hypothesis, sequence.rows[0], output.deferred)
        sequence.hypotheses = []
        sequence.finish_with(answers)
