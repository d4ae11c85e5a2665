"""Chi-square test of the token frequencies of every sampling filter against the reference's distribution.

Tokens with an expected count below five share a cell. A forbidden token makes p 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from model.reference.sampling import sampling_distribution
from service.decoding.sampling import TOP_CANDIDATES, Sampler, Top
from service.options import DecodingOptions

FILTERS: dict[str, dict[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1.5": {"temperature": 1.5},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.9},
    "top-p 0.5": {"top_p": 0.5},
    "min-p": {"min_p": 0.05},
    "typical": {"typical_p": 0.9},
    "typical 0.2": {"typical_p": 0.2},
    "top-k, typical": {"top_k": 50, "typical_p": 0.8},
    "top-p, min-p": {"top_p": 0.95, "min_p": 0.01},
    "all": {"temperature": 0.8, "top_k": 100, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9},
}
SIGNIFICANT = 1e-3  # of a dozen tests with a fair sampler, one in 80 such tables has a p below


class ChiSquare(NamedTuple):
    statistic: float
    freedom: int
    p: float


def zipf_row(vocab_size: int, *, seed: int) -> np.ndarray:
    """Log-probabilities float32 (V,) such as a language model gives: rank**-1.1, with noise, in any order."""
    random = np.random.default_rng(seed)
    logits_V = random.permutation(-1.1 * np.log(np.arange(2.0, vocab_size + 2))) + random.normal(
        scale=0.3, size=vocab_size
    )
    logprobs_V: np.ndarray = (logits_V - np.log(np.exp(logits_V).sum())).astype(np.float32)
    return logprobs_V


def best_of(logprobs_V: np.ndarray, count: int) -> Top:
    """What the graph returns of a row."""
    ids = np.argsort(-logprobs_V, kind="stable")[:count]
    return ids.tolist(), logprobs_V[ids].tolist()


def measure(options: dict[str, Any], logprobs_V: np.ndarray, *, draws: int, seed: int) -> ChiSquare:
    """Draws with and without the best tokens of the row in turn."""
    sampler = Sampler(DecodingOptions(**options), seed, 0)
    top = best_of(logprobs_V, TOP_CANDIDATES)
    tokens = [sampler.draw(logprobs_V, top if turn % 2 else None) for turn in range(draws)]
    return chi_square(np.bincount(tokens, minlength=len(logprobs_V)), sampling_distribution(logprobs_V, **options))


def chi_square(counts_V: np.ndarray, probabilities_V: np.ndarray) -> ChiSquare:
    """Pearson's test. counts_V: int (V,), probabilities_V: float64 (V,), sums to 1."""
    expected_V = probabilities_V * counts_V.sum()
    if counts_V[probabilities_V == 0].any():
        return ChiSquare(math.inf, 0, 0.0)
    observed, expected = [0.0], [0.0]
    for token in np.argsort(-expected_V, kind="stable"):
        if expected[-1] >= 5 and expected_V[token] > 0:
            observed.append(0.0)
            expected.append(0.0)
        observed[-1] += float(counts_V[token])
        expected[-1] += float(expected_V[token])
    if expected[-1] < 5 and len(expected) > 1:  # the last cell is not full
        observed[-2:], expected[-2:] = [sum(observed[-2:])], [sum(expected[-2:])]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    return ChiSquare(statistic, freedom, survival(statistic, freedom))


def survival(statistic: float, freedom: int) -> float:
    """P(χ² > statistic): the regularised upper incomplete gamma function at (freedom / 2, statistic / 2)."""
    if not freedom:
        return 1.0
    a, x = (torch.tensor(value / 2, dtype=torch.float64) for value in (freedom, statistic))
    return float(torch.special.gammaincc(a, x))
