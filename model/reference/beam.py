"""Beam search, slow and obviously correct: every candidate of a step is listed and sorted.

Semantics of transformers 5.23 (`GenerationMixin._beam_search`) for one request, with the finished pool of N =
beam_size * patience hypotheses (Kasai et al. 2022), the two length normalisations and the coverage term of GNMT (Wu et
al. 2016, eq. 14) and diverse groups (Vijayakumar et al. 2016), each with a pool of its own, as in the former
`BeamSearchScorer`. Lexical constraints have no oracle: tests check their guarantees directly.

Shapes: R live hypotheses, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from model.architectures import GenerativeModel
from model.reference.greedy import ModelPredictor, Predictor, Process, Stop


class Hypothesis(NamedTuple):
    """One answer. `score` is its ranking score; the log-probabilities are the unmodified model's."""

    tokens: tuple[int, ...]  # new tokens, including eos if it was produced
    score: float
    token_logprobs: tuple[float, ...]


def beam_search(
    model: GenerativeModel,
    prompt: Sequence[int],
    *,
    source: Sequence[int] = (),
    max_tokens: int,
    **options: Any,
) -> list[Hypothesis]:
    """`search` over a model. prompt, source, max_tokens and errors as in `model.reference.greedy.greedy`."""
    predictor = ModelPredictor(model, prompt, source=source, max_tokens=max_tokens)
    return search(predictor, max_tokens=max_tokens, **options)


def search(
    predictor: Predictor,
    *,
    max_tokens: int,
    beam_size: int = 1,
    num_hypotheses: int = 1,
    length_penalty: float = 1.0,
    length_normalization: Literal["average", "gnmt"] = "average",
    coverage_penalty: float = 0.0,
    patience: float = 1.0,
    early_stopping: Literal["true", "false", "never"] = "true",
    num_beam_groups: int = 1,
    diversity_penalty: float = 0.0,
    prefix: Sequence[int] = (),
    counted: int = 0,
    process: Process | None = None,
    stop: Stop | None = None,
) -> list[Hypothesis]:
    """The best finished hypotheses, best first; fewer than `num_hypotheses` if no more were found.

    beam_size: of all groups together. prefix: forced first new tokens of every hypothesis, regardless of scores.
    counted: tokens of the prompt that count in the length of a score, such as a language in `transformers`.
    process: computes ranking scores from the model's log-probabilities. stop: ends a hypothesis as eos does.
    """

    def is_finished(group: _Group, length: int) -> bool:
        if not group.live or len(group.pool) < capacity:
            return not group.live
        hopes_for = max_tokens if early_stopping == "never" and length_penalty > 0 else length
        best_possible = group.live[0].score / scorer.norm(hopes_for)
        return early_stopping == "true" or best_possible <= group.pool[-1].score

    scorer = _Scorer(predictor, length_penalty, length_normalization, coverage_penalty, counted)
    group_size = beam_size // num_beam_groups
    capacity = max(1, round(group_size * patience))  # each group is a beam of its own
    groups = [_Group() for _ in range(num_beam_groups)]
    for length in range(1, max_tokens + 1):
        taken: Counter[int] = Counter()  # tokens that earlier groups have just appended
        for group in groups:
            if group.is_finished:
                continue
            logprobs_RV = predictor.logprobs([live.tokens for live in group.live])
            totals_RV = _totals(group.live, logprobs_RV, process)
            for token, times in taken.items():
                totals_RV[:, token] -= diversity_penalty * times
            if length <= len(prefix):
                totals_RV = _only(totals_RV, prefix[length - 1])
            looked_at = max(2, 1 + len(predictor.eos_ids)) * group_size
            candidates = _best(group.live, logprobs_RV, totals_RV, looked_at)
            is_last = length == max_tokens
            pairs = [(live, is_last or _has_ended(live, predictor, stop)) for live in candidates]
            group.pool += [scorer.finish(live) for live, ended in pairs[:group_size] if ended]
            ranked = sorted(group.pool, key=lambda hypothesis: -hypothesis.score)  # stable: earlier first
            group.pool = ranked[:capacity]
            group.live = [live for live, ended in pairs if not ended][:group_size]
            if length > len(prefix):  # forced tokens cost no diversity penalty
                taken.update(live.tokens[-1] for live in group.live)
            group.is_finished = is_finished(group, length)
    found = [hypothesis for group in groups for hypothesis in group.pool]
    return sorted(found, key=lambda hypothesis: -hypothesis.score)[:num_hypotheses]


class _Live(NamedTuple):
    """An unfinished hypothesis, or a candidate for one; `score` is the sum of its tokens' ranking scores."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    token_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Scorer:
    """Final scores of hypotheses: length normalisation and coverage."""

    predictor: Predictor
    length_penalty: float
    length_normalization: Literal["average", "gnmt"]
    coverage_penalty: float
    counted: int

    def norm(self, length: int) -> float:
        length += self.counted
        base = float(length) if self.length_normalization == "average" else (5.0 + length) / 6.0
        return float(base**self.length_penalty)

    def finish(self, live: _Live) -> Hypothesis:
        score = live.score / self.norm(len(live.tokens))
        if self.coverage_penalty:
            covered_S = np.minimum(self.predictor.coverage(live.tokens), 1.0)
            score += self.coverage_penalty * float(np.log(covered_S).sum())
        return Hypothesis(live.tokens, score, live.token_logprobs)


@dataclass
class _Group:
    live: list[_Live] = field(default_factory=lambda: [_Live()])  # best first
    pool: list[Hypothesis] = field(default_factory=list)  # best first
    is_finished: bool = False


def _totals(live: list[_Live], logprobs_RV: np.ndarray, process: Process | None) -> np.ndarray:
    """float64 (R, V): the score of each hypothesis extended by each token."""
    rows = []
    for hypothesis, logprobs_V in zip(live, logprobs_RV, strict=True):
        scores_V = logprobs_V if process is None else process(logprobs_V, hypothesis.tokens)
        rows.append(hypothesis.score + scores_V.astype(np.float64))
    return np.stack(rows)


def _has_ended(live: _Live, predictor: Predictor, stop: Stop | None) -> bool:
    return live.tokens[-1] in predictor.eos_ids or (stop is not None and stop(live.tokens))


def _only(totals_RV: np.ndarray, token: int) -> np.ndarray:
    """The totals with all other tokens made impossible."""
    kept_RV = np.full_like(totals_RV, -np.inf)
    kept_RV[:, token] = totals_RV[:, token]
    return kept_RV


def _best(live: list[_Live], logprobs_RV: np.ndarray, totals_RV: np.ndarray, count: int) -> list[_Live]:
    """The best continuations with finite scores; ties go to the better hypothesis, then to the lower token."""
    order = np.argsort(-totals_RV, axis=None, kind="stable")[:count]  # ties go to the lower index: rank, then token
    ranks, tokens = np.unravel_index(order, totals_RV.shape)
    return [
        _Live(
            (*live[rank].tokens, int(token)),
            float(totals_RV[rank, token]),
            (*live[rank].token_logprobs, float(logprobs_RV[rank, token])),
        )
        for rank, token in zip(ranks, tokens, strict=True)
        if np.isfinite(totals_RV[rank, token])
    ]
