"""Sampling, slow and obviously correct: full distributions, full sorts, one sequence.

The filters come in this order: temperature, top-k, top-p (Holtzman et al. 2020), min-p (Nguyen et al. 2024), locally
typical (Meister et al. 2023). Each filter receives the remaining tokens of the previous one, renormalised to sum to 1.
Of tokens with equal probability at a cut, those with the lower ids stay.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from model.architectures import GenerativeModel
from model.reference.greedy import ModelPredictor, Predictor, Process, Stop


def sampling_distribution(
    scores_V: np.ndarray,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> np.ndarray:
    """Probabilities float64 (V,) to draw from, 0 where a filter or a score of -inf excludes a token.

    scores_V: floating (V,), log-probabilities plus any constant. temperature 0: only the best token. top_k 0: off.
    top_p, typical_p: keeps the smallest set whose probability reaches this; 1: off. min_p: a share of the best token's
    probability.
    """
    scores_V = scores_V.astype(np.float64)
    if temperature == 0:
        return _only(np.ones_like(scores_V), scores_V.argmax())
    weights_V = np.exp((scores_V - scores_V.max()) / temperature)
    probabilities_V: np.ndarray = weights_V / weights_V.sum()
    if top_k:
        probabilities_V = _only(probabilities_V, _descending(probabilities_V)[:top_k])
    if top_p < 1:
        probabilities_V = _only(probabilities_V, _reaching(top_p, probabilities_V, _descending(probabilities_V)))
    if min_p > 0:
        probabilities_V = _only(probabilities_V, np.flatnonzero(probabilities_V >= min_p * probabilities_V.max()))
    if typical_p < 1:
        possible = np.flatnonzero(probabilities_V)
        surprise = -np.log(probabilities_V[possible])
        entropy = (probabilities_V[possible] * surprise).sum()
        order = possible[np.argsort(np.abs(surprise - entropy), kind="stable")]
        probabilities_V = _only(probabilities_V, _reaching(typical_p, probabilities_V, order))
    return probabilities_V


def draw(probabilities_V: np.ndarray, uniform: float) -> int:
    """The token whose share of [0, 1) holds `uniform`; tokens are ordered by falling probability, then by id."""
    order = _descending(probabilities_V)
    order = order[probabilities_V[order] > 0]
    index = int(np.searchsorted(probabilities_V[order].cumsum(), uniform, side="right"))
    return int(order[min(index, len(order) - 1)])  # min: the sum may be slightly below 1


def sample(
    model: GenerativeModel,
    prompt: Sequence[int],
    *,
    source: Sequence[int] = (),
    uniforms: Sequence[float],
    prefix: Sequence[int] = (),
    process: Process | None = None,
    stop: Stop | None = None,
    **options: Any,
) -> list[int]:
    """New tokens, at most as many as there are `uniforms` in [0, 1), each drawn with the uniform of its position.

    prefix: the first new tokens, which are not drawn. process, stop: as in `model.reference.beam.search`. The other
    arguments and the errors are those of `model.reference.greedy.greedy`.
    """
    predictor = ModelPredictor(model, prompt, source=source, max_tokens=len(uniforms))

    def choose(scores_V: np.ndarray, tokens: Sequence[int]) -> int:
        return draw(sampling_distribution(scores_V, **options), uniforms[len(tokens)])

    return _extend(predictor, prefix, max_tokens=len(uniforms), choose=choose, process=process, stop=stop)


def alternatives(
    model: GenerativeModel,
    prompt: Sequence[int],
    *,
    source: Sequence[int] = (),
    max_tokens: int,
    num_hypotheses: int,
    min_probability: float = 0.0,
    prefix: Sequence[int] = (),
    process: Process | None = None,
    stop: Stop | None = None,
) -> list[list[int]]:
    """`prefix`, then each of the best next tokens whose probability reaches the minimum, each continued greedily."""
    predictor = ModelPredictor(model, prompt, source=source, max_tokens=max_tokens)
    scores_V = _scores(predictor, prefix, process)
    possible = np.flatnonzero(np.isfinite(scores_V) & (np.exp(scores_V) >= min_probability))
    best = possible[_descending(scores_V[possible])][:num_hypotheses]
    return [
        _extend(
            predictor,
            [*prefix, int(first)],
            max_tokens=max_tokens,
            choose=lambda scores_V, _: int(scores_V.argmax()),
            process=process,
            stop=stop,
        )
        for first in best
    ]


def _extend(
    predictor: Predictor,
    prefix: Sequence[int],
    *,
    max_tokens: int,
    choose: Callable[[np.ndarray, Sequence[int]], int],
    process: Process | None,
    stop: Stop | None,
) -> list[int]:
    new: list[int] = []
    while len(new) < max_tokens:
        is_forced = len(new) < len(prefix)
        new.append(prefix[len(new)] if is_forced else choose(_scores(predictor, new, process), new))
        if new[-1] in predictor.eos_ids or (stop is not None and stop(new)):
            break
    return new


def _scores(predictor: Predictor, tokens: Sequence[int], process: Process | None) -> np.ndarray:
    logprobs_V: np.ndarray = predictor.logprobs([tokens])[0]
    return logprobs_V if process is None else process(logprobs_V, tokens)


def _descending(values_V: np.ndarray) -> np.ndarray:
    """Ids by falling value; ties are in order of ids."""
    return np.argsort(-values_V, kind="stable")


def _reaching(mass: float, probabilities_V: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The fewest ids from the front of `order`, at least one, whose probability reaches `mass`."""
    count = int(np.searchsorted(probabilities_V[order].cumsum(), mass)) + 1
    return order[:count]


def _only(probabilities_V: np.ndarray, kept: np.ndarray | np.intp) -> np.ndarray:
    """The probabilities of the kept tokens, renormalised to sum to 1; 0 for all others."""
    kept_V: np.ndarray = np.zeros_like(probabilities_V)
    kept_V[kept] = probabilities_V[kept]
    kept_V /= kept_V.sum()
    return kept_V
