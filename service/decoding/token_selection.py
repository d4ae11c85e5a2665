"""Extension of one hypothesis by one token (`TokenSelector`): its candidates, its new state, its finish reason.

The distribution of a row passes the request's logits processors: penalties change the logits, which are normalised
again; masks remove tokens, and nothing is normalised after them. In a beam penalties change log-probabilities, and
nothing is normalised again, as in `transformers`. Where no processor applies, or only masks that name what they
exclude, only the most likely tokens that the graph returned are read. A hypothesis always records the unmodified
model's log-probabilities, over the full vocabulary or the row's shortlist. Which candidate a hypothesis takes is
decided by its search.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence as Items
from itertools import islice
from typing import Any

import numpy as np

from service.decoding.logits_processors import LogitsProcessor
from service.decoding.prompt_form import PLAIN, PromptForm
from service.decoding.stop_strings import StopMatcher, StopState
from service.errors import Unsatisfiable
from service.request import FinishReason, Request
from service.sequence import Hypothesis
from service.step import DeferredOutputs, Predictions, Ranked, Scored

Active = tuple[LogitsProcessor, Any]  # with its state
SPARE = 6  # with one more, the graph ranks 8


class TokenSelector:
    """The logits processors, the forced prefix and the stop conditions of one request.

    is_scored: log-probabilities are available, and hypotheses record them; set by the search.
    is_plain: no processor and no forced prefix: scores are the model's log-probabilities.
    spare: how many more tokens than it needs the graph shall rank, because masks may exclude the best ones.
    """

    def __init__(
        self,
        request: Request,
        *,
        eos_ids: tuple[int, ...],
        stops: StopMatcher | None,
        processors: tuple[LogitsProcessor, ...] = (),
        form: PromptForm = PLAIN,
    ) -> None:
        """eos_ids: the tokens that end an answer."""
        self.request, self.eos_ids, self.stops = request, eos_ids, stops
        self.options, self._form = request.options, form
        self.processors = tuple(sorted(processors, key=lambda processor: processor.is_mask))
        self._num_alternatives = self.options.top_logprobs
        self.is_scored = True
        self.is_plain = not (processors or request.prefix)
        self._is_masked = all(processor.is_mask for processor in processors)  # if at all: scores are the model's, too
        self.spare = SPARE if processors and self._is_masked else 0

    def start(self) -> Hypothesis:
        """Returns the hypothesis without tokens."""
        states = tuple([processor.initial_state() for processor in self.processors])
        return Hypothesis(states, StopState())

    def scores(self, hypothesis: Hypothesis, output: Ranked) -> np.ndarray | None:
        """The distribution after all processors, float32 (V,); None if none applies. Raises Unsatisfiable."""
        return self._scores(hypothesis, output, self._active(hypothesis))

    def _scores(self, hypothesis: Hypothesis, output: Ranked, active: Items[Active]) -> np.ndarray | None:
        """`scores` with these processors."""
        tokens = hypothesis.tokens
        if not active:
            return None
        scores_V = output.logprobs(hypothesis.row).copy()
        if not active[0][0].is_mask:
            is_beam = self.options.is_beam
            if not is_beam:
                scores_V += np.float32(output.logsumexp(hypothesis.row))
            for processor, state in active:
                if not processor.is_mask:
                    processor.apply(scores_V, state, tokens)
            if not is_beam:
                scores_V = log_softmax(scores_V)
        for processor, state in active:
            if processor.is_mask:
                processor.apply(scores_V, state, tokens)
        return scores_V

    def _active(self, hypothesis: Hypothesis) -> list[Active]:
        """The processors that change the next distribution, with their states."""
        tokens = hypothesis.tokens
        pairs = zip(self.processors, hypothesis.processor_states, strict=True)
        return [(processor, state) for processor, state in pairs if processor.applies(state, tokens)]

    def _ranked(self, hypothesis: Hypothesis, output: Ranked, active: Items[Active], count: int) -> list[Scored] | None:
        """`best_tokens` out of those that the graph has ranked; None if these do not suffice."""
        if not self._is_masked:
            return None
        excluded = set[int]()
        for processor, state in active:
            tokens = processor.excluded(state, hypothesis.tokens)
            if tokens is None:
                return None
            excluded.update(tokens)
        row = hypothesis.row
        pairs = zip(output.top_ids[row], output.top_logprobs[row], strict=True)
        best = list(islice((pair for pair in pairs if pair[0] not in excluded), count))
        return best if len(best) == count else None

    def forced_token(self, hypothesis: Hypothesis) -> int | None:
        """The next token of the forced prefix; None after its end."""
        position = len(hypothesis.tokens)
        return self.request.prefix[position] if position < len(self.request.prefix) else None

    def best_tokens(
        self, hypothesis: Hypothesis, output: Ranked, count: int, also: Collection[int] = ()
    ) -> list[Scored]:
        """At most `count` possible tokens of a scored row, best first; of equal ones the lowest id first.

        also: tokens that follow them if they are possible, with any score. The list is empty if no token is possible.
        """
        row, scores_V = hypothesis.row, None
        if not self.is_plain:
            token = self.forced_token(hypothesis)
            if token is not None:
                return [(token, float(output.logprobs(row)[token]))]
            active = self._active(hypothesis)
            if not also and (ranked := self._ranked(hypothesis, output, active, count)) is not None:
                return ranked
            scores_V = self._scores(hypothesis, output, active)
        if scores_V is None and not also:
            return list(zip(output.top_ids[row][:count], output.top_logprobs[row][:count], strict=True))
        if scores_V is None:
            scores_V = output.logprobs(row)
        found = top_tokens(scores_V, count)
        more = set(also).difference(token for token, _ in found)
        return found + [(token, float(scores_V[token])) for token in sorted(more) if scores_V[token] > -np.inf]

    def finish_reason(self, hypothesis: Hypothesis, token: int) -> FinishReason | None:
        """Why the hypothesis would end with this token; None: it would not."""
        if token in self.eos_ids:
            return FinishReason.END_OF_SEQUENCE
        if self.stops and self.stops.next_state(hypothesis.stop, token).is_stopped:
            return FinishReason.STOP_STRING
        return FinishReason.LENGTH if len(hypothesis.tokens) + 1 >= self.request.max_tokens else None

    def extend(self, hypothesis: Hypothesis, token: int, output: Predictions, score: float | None = None) -> None:
        """Appends a token, and sets the finish reason if the hypothesis ends with it. The search sets the score."""
        hypothesis.reason = self.finish_reason(hypothesis, token)
        self.append(hypothesis, token, output, score)

    def append(self, hypothesis: Hypothesis, token: int, output: Predictions, score: float | None = None) -> None:
        """Appends a token without setting the finish reason. score: of the token, from `best_tokens`."""
        if self.is_scored:
            assert isinstance(output, Ranked)
            row = hypothesis.row
            if score is None or not self._is_masked:
                score = float(output.logprobs(row)[token])
            hypothesis.logprobs.append(score)
            if count := self._num_alternatives:
                pairs = zip(output.top_ids[row][:count], output.top_logprobs[row][:count], strict=True)
                hypothesis.alternatives.append(tuple(pairs))
        if token not in self.eos_ids:
            if self.processors:
                states = zip(self.processors, hypothesis.processor_states, strict=True)
                hypothesis.processor_states = tuple([one.next_state(state, token) for one, state in states])
            if self.stops:
                hypothesis.stop = self.stops.next_state(hypothesis.stop, token)
        hypothesis.tokens.append(token)

    def length_norm(self, length: int) -> float:
        """The divisor of the score of an answer: length**α, or ((5 + length) / 6)**α (Wu et al. 2016, equation 14)."""
        length += self._form.counted
        base = float(length) if self.options.length_normalization == "average" else (5 + length) / 6
        return float(base**self.options.length_penalty)

    def normalise(self, hypothesis: Hypothesis, row: int, deferred: DeferredOutputs) -> None:
        """Sets the normalised score of a finished hypothesis, with the weighted coverage penalty (Wu et al. 2016,
        equation 14), 0 by default: Σ_i log(min(Σ_j a_ij, 1)) over source positions i, where a is the mean of all layers
        and heads. Sentences before the text are not among these positions: the prompt translates them, not the answer.
        row: one that has the request's source."""
        coverage = 0.0
        if weight := self.options.coverage_penalty:
            attention_LHTS = attention_of(self.request, hypothesis, row, deferred)
            covered_S = attention_LHTS.mean((0, 1), dtype=np.float64).sum(0)
            if (context := self._form.context) is not None:
                covered_S = np.delete(covered_S, context.positions(self.request.source))
            coverage = weight * float(np.log(np.clip(covered_S, 1e-10, 1.0)).sum())
        hypothesis.normalised = hypothesis.score / self.length_norm(len(hypothesis.tokens)) + coverage


def attention_of(request: Request, hypothesis: Hypothesis, row: int, deferred: DeferredOutputs) -> np.ndarray:
    """Cross-attention weights with which each token of a finished hypothesis was predicted: float32 (layers, heads,
    tokens, source positions). row: one that has the request's source."""
    inputs = (*request.prompt, *hypothesis.tokens[:-1])
    return deferred.cross_attention(row, inputs)[:, :, len(request.prompt) - 1 :]


def unsatisfiable(steps: int) -> Unsatisfiable:
    """The error of a request without a possible token after `steps` tokens."""
    return Unsatisfiable(f"the constraints leave no possible token after {steps} tokens; loosen them")


def log_softmax(scores_V: np.ndarray) -> np.ndarray:
    """Log-softmax of one row, float32 (V,); -inf stays -inf."""
    shifted_V = scores_V - scores_V.max()
    result: np.ndarray = shifted_V - np.log(np.exp(shifted_V).sum())
    return result


BLOCK = 64  # scores of which `candidates` compares the maximum


def top_tokens(scores_V: np.ndarray, count: int) -> list[Scored]:
    """The `count` tokens with the best finite scores, best first; of equal ones the lowest id first."""
    ids = candidates(scores_V, count)
    scores = scores_V[ids]
    order = np.argsort(-scores, kind="stable")[:count]
    found = zip(ids[order].tolist(), scores[order].tolist(), strict=True)
    return [(token, score) for token, score in found if score > -math.inf]


def candidates(scores_V: np.ndarray, count: int) -> np.ndarray:
    """Ascending ids that include the `count` best scores and all scores equal to them.

    A score is among the best only if fewer than `count` blocks have a higher maximum, so most blocks are read once.
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
