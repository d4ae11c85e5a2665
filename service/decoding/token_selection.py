"""How one hypothesis is extended by one token: what it may choose from, what it becomes, whether that ends it.

The distribution of a row passes the request's rules: those that are no masks change the logits, which are normalised
again; masks take tokens away and nothing is normalised. Where no rule applies, the likeliest tokens that the graph
returned are all that is looked at. What a hypothesis records is always the model's own log-probability,
among all words or its row's own.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Protocol

import numpy as np

from service.errors import Unsatisfiable
from service.request import FinishReason, Request
from service.sequence import Hypothesis
from service.step import Scored, StepOutput, ranked


class NotFinite(ArithmeticError):
    """The model's outputs contain NaN or infinity: the numbers cannot be trusted."""


class Stops(Protocol):
    """Says when a stop string is complete: `service.decoding.stop_strings.StopMatcher`."""

    def initial_state(self) -> Any: ...
    def next_state(self, state: Any, token: int) -> Any: ...
    def is_stopped(self, state: Any) -> bool: ...


def check_finite(output: StepOutput) -> None:
    """Raises NotFinite when a row is not a distribution."""
    if rows := output.turn.non_finite_lines():
        raise NotFinite(f"log-probabilities of rows {rows} are not finite")


class TokenSelector:
    """The rules, the forced prefix and the ends of one request."""

    def __init__(self, request: Request, *, eos_ids: tuple[int, ...], stops: Stops | None) -> None:
        """eos_ids: the tokens that end an answer."""
        self.request, self.eos_ids, self.stops = request, eos_ids, stops
        self.options = request.options
        self.rules = tuple(sorted(request.logits_processors, key=lambda rule: rule.is_mask))
        self._told = self.options.top_logprobs
        self.is_scored = True  # log-probabilities are there, and kept
        # scores are log-probabilities, and no token is forced
        self.is_plain = not (request.logits_processors or request.prefix)

    def start(self) -> Hypothesis:
        states = tuple([rule.initial_state() for rule in self.rules])
        return Hypothesis(states, self.stops.initial_state() if self.stops else None)

    def scores(self, hypothesis: Hypothesis, output: StepOutput) -> np.ndarray | None:
        """The distribution after all rules, float32 (V,); None: no rule changes it. Raises Unsatisfiable."""
        tokens = hypothesis.tokens
        active = [
            (rule, state)
            for rule, state in zip(self.rules, hypothesis.processor_states, strict=True)
            if rule.applies(state, tokens)
        ]
        if not active:
            return None
        row, scored = hypothesis.row, ranked(output)
        scores_V = scored.logprobs(row).copy()
        if not active[0][0].is_mask:
            scores_V += np.float32(scored.logsumexp(row))
            for rule, state in active:
                if not rule.is_mask:
                    rule.apply(scores_V, state, tokens)
            scores_V = log_softmax(scores_V)
        for rule, state in active:
            if rule.is_mask:
                rule.apply(scores_V, state, tokens)
        return scores_V

    def forced(self, hypothesis: Hypothesis) -> int | None:
        """The token that must come next, while the prefix lasts."""
        place = len(hypothesis.tokens)
        return self.request.prefix[place] if place < len(self.request.prefix) else None

    def best(self, hypothesis: Hypothesis, output: StepOutput, count: int, also: Collection[int] = ()) -> list[Scored]:
        """At most `count` possible tokens, best first; of equal ones the lowest id first. Empty: there is none.

        also: tokens that are listed behind them if they are possible, however unlikely.
        """
        row, scores_V = hypothesis.row, None
        if not self.is_plain:
            token = self.forced(hypothesis)
            if token is not None:
                return [(token, float(ranked(output).logprobs(row)[token]) if self.is_scored else math.nan)]
            scores_V = self.scores(hypothesis, output)
        if not self.is_scored:
            return [(output.top_ids[row][0], math.nan)]
        scored = ranked(output)
        if scores_V is None and not also:
            return list(zip(scored.top_ids[row][:count], scored.top_logprobs[row][:count], strict=True))
        if scores_V is None:
            scores_V = scored.logprobs(row)
        found = best_of(scores_V, count)
        more = set(also).difference(token for token, _ in found)
        return found + [(token, float(scores_V[token])) for token in sorted(more) if scores_V[token] > -np.inf]

    def end(self, hypothesis: Hypothesis, token: int) -> FinishReason | None:
        """Why the hypothesis would end with this token."""
        if token in self.eos_ids:
            return FinishReason.END_OF_SEQUENCE
        if self.stops and self.stops.is_stopped(self.stops.next_state(hypothesis.stop, token)):
            return FinishReason.STOP_STRING
        return FinishReason.LENGTH if len(hypothesis.tokens) + 1 >= self.request.max_tokens else None

    def extend(self, hypothesis: Hypothesis, token: int, output: StepOutput) -> None:
        """Appends a token to the hypothesis, which may end with it. Its score is left to the search."""
        hypothesis.reason = self.end(hypothesis, token)
        self.append(hypothesis, token, output)

    def append(self, hypothesis: Hypothesis, token: int, output: StepOutput, score: float | None = None) -> None:
        """Appends a token of which it is known whether it ends the hypothesis. score: of the token, as `best` told."""
        row = hypothesis.row
        if self.is_scored:
            if score is None or not self.is_plain:
                score = float(ranked(output).logprobs(row)[token])
            hypothesis.logprobs.append(score)
        if self._told:
            scored = ranked(output)
            told = zip(scored.top_ids[row][: self._told], scored.top_logprobs[row][: self._told], strict=True)
            hypothesis.alternatives.append(tuple(told))
        if token not in self.eos_ids:
            if self.rules:
                states = zip(self.rules, hypothesis.processor_states, strict=True)
                hypothesis.processor_states = tuple([rule.next_state(state, token) for rule, state in states])
            if self.stops:
                hypothesis.stop = self.stops.next_state(hypothesis.stop, token)
        hypothesis.tokens.append(token)

    def norm(self, length: int) -> float:
        """What a score is divided by: length**α, or ((5 + length) / 6)**α (Wu et al. 2016, equation 14)."""
        base = float(length) if self.options.length_normalization == "average" else (5 + length) / 6
        return float(base**self.options.length_penalty)

    def normalise(self, hypothesis: Hypothesis, row: int, output: StepOutput) -> None:
        """Sets by what a finished hypothesis is ranked. row: one with the request's source."""
        hypothesis.normalised = hypothesis.score / self.norm(len(hypothesis.tokens))
        hypothesis.normalised += self.coverage(hypothesis, row, output)

    def coverage(self, hypothesis: Hypothesis, row: int, output: StepOutput) -> float:
        """The coverage penalty of Wu et al. 2016, equation 14: Σ_i log(min(Σ_j a_ij, 1)) over source positions i,
        with the mean of all layers and heads as a. 0 when it is not asked for. row: one with the request's source."""
        if not self.options.coverage_penalty:
            return 0.0
        attention_LHTS = attention_of(self.request, hypothesis, row, output)
        covered_S = attention_LHTS.mean((0, 1), dtype=np.float64).sum(0)
        return self.options.coverage_penalty * float(np.log(np.clip(covered_S, 1e-10, 1.0)).sum())


def attention_of(request: Request, hypothesis: Hypothesis, row: int, output: StepOutput) -> np.ndarray:
    """With which weights each token of a finished hypothesis was predicted, float32 (layers, heads, tokens, source).
    row: one with the request's source."""
    inputs = (*request.prompt, *hypothesis.tokens[:-1])
    return output.turn.deferred.cross_attention(row, inputs)[:, :, len(request.prompt) - 1 :]


def unsatisfiable(steps: int) -> Unsatisfiable:
    """The error of a request that cannot go on behind so many tokens."""
    return Unsatisfiable(f"the constraints leave no possible token after {steps} of them; loosen them")


def log_softmax(scores_V: np.ndarray) -> np.ndarray:
    """Of one row, float32 (V,). What is -inf stays so."""
    shifted_V = scores_V - scores_V.max()
    result: np.ndarray = shifted_V - np.log(np.exp(shifted_V).sum())
    return result


BLOCK = 64
"""Scores that are looked at together to find the best ones."""


def best_of(scores_V: np.ndarray, count: int) -> list[Scored]:
    """The `count` best finite scores, best first, of equal ones the lowest id first."""
    ids = candidates(scores_V, count)
    scores = scores_V[ids]
    order = np.argsort(-scores, kind="stable")[:count]
    found = zip(ids[order].tolist(), scores[order].tolist(), strict=True)
    return [(token, score) for token, score in found if score > -math.inf]


def candidates(scores_V: np.ndarray, count: int) -> np.ndarray:
    """Ids in ascending order that include the `count` best scores and their equals.

    A score is among the best only if fewer than `count` blocks have a higher maximum: most blocks need no second look.
    """
    blocks = len(scores_V) // BLOCK
    if blocks > count:
        most = scores_V[: blocks * BLOCK].reshape(blocks, BLOCK).max(1)
        bound = np.partition(most, -count)[-count]
        if bound > -np.inf:
            chosen = np.flatnonzero(most >= bound)
            inside = (chosen[:, None] * BLOCK + np.arange(BLOCK)).ravel()
            return np.concatenate([inside, np.arange(blocks * BLOCK, len(scores_V))])
    return np.flatnonzero(scores_V > -np.inf)
