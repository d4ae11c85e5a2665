"""Sampling of one token from a distribution (`Sampler`).

Filters run in this order, each on what the previous one keeps: temperature, top-k, top-p (Holtzman et al. 2020), min-p
(Nguyen et al. 2024), locally typical (Meister et al. 2023). The module knows neither hypotheses nor constraints.

The draw is exact over the whole vocabulary. It depends on the random stream and the distribution only, not on how much
of the row was read, for three reasons:

- Weights are whole numbers: the best token weighs 2**bits, each other token exp(score difference / temperature) of
  that, rounded. float64 adds whole numbers below 2**53 without error, so every order of addition gives the same sum.
  Rounding moves less than 1e-7 of the probability in a vocabulary of 32k, less than float32 log-probabilities leave
  open. The alternative, cumulative sums of unrounded weights, needs a full sort: 1.3 ms for 32k tokens.
- Tokens are ordered by falling score, equal scores by id. The draw is the token with which the summed weights exceed
  u · total; u is one uniform number per step. Top-k, top-p and min-p each keep a prefix of this order, so the weight of
  that prefix is all that must be known of them.
- The K best tokens of a row, which the graph returns sorted, suffice whenever the total is known well enough. The
  probabilities of an unprocessed row sum to 1, so the weight after the K best lies between two bounds
  (`Sampler._bounds`). Every cut and the draw rise with the total: if both bounds lead to the same token, so does the
  total. Otherwise the whole row is read. A nucleus (top-p) that extends beyond the K best does not require that: it
  weighs at least p · total, and exceeds this by less than the weight of its last token, which is at most that of the
  K-th. A draw that falls on the same one of the K best by both bounds is exact.

V vocabulary, K best tokens of a row, N tokens under consideration, in the order of their ids.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice
from random import Random

import numpy as np

from service.decoding.token_selection import candidates
from service.draws import Draw
from service.errors import Unsatisfiable
from service.options import DecodingOptions

TOP_CANDIDATES = 64  # best tokens per row that sampling requests from the graph

Top = tuple[Sequence[int], Sequence[float]]
"""Ids and log-probabilities of the K best tokens of a row, best first, of equal ones the lower id first."""

_SLACK = 1e-4  # tolerance of the sum of a row's probabilities; float32 log-softmax of 32k logits: about 1e-6
_BUCKETS = 1024
_FEW = 256  # elements that are sorted without a histogram


class Sampler:
    """Samples the tokens of one hypothesis, each with the next number of the random stream (seed, index).

    CPython guarantees that `Random.random` with an integer seed gives the same numbers in every version.
    """

    def __init__(self, options: DecodingOptions, seed: int, index: int) -> None:
        assert options.temperature != 0, "temperature 0 is greedy search"
        self._random, self._ahead = Random(seed << 32 | index), deque[float]()
        self._sharpness = 1 / (1.0 if options.temperature is None else options.temperature)
        self._top_k, self._top_p = options.top_k, options.top_p
        self._min_p, self._typical_p = options.min_p, options.typical_p

    @property
    def needs_best_only(self) -> bool:
        """Whether a draw that falls on one of the best tokens needs no other ones, whatever these are."""
        return self._typical_p == 1 and self._top_k <= TOP_CANDIDATES

    def ahead(self, first: int, count: int) -> Draw:
        """How `count` tokens will be drawn after the next `first` ones."""
        while len(self._ahead) < first + count:
            self._ahead.append(self._random.random())
        uniforms = tuple(islice(self._ahead, first, first + count))
        return Draw(uniforms, self._sharpness, self._top_k, self._top_p, self._min_p)

    def skip(self) -> None:
        """The next token was drawn elsewhere."""
        self._uniform()

    def _uniform(self) -> float:
        return self._ahead.popleft() if self._ahead else self._random.random()

    def draw(self, scores_V: np.ndarray, top: Top | None = None) -> int:
        """Returns the id of the next token.

        scores_V: float32 (V,), log-probabilities plus any constant; -inf: impossible. Not modified, and not read if
        `top` suffices. top: only with log-probabilities that no processor has changed; any K ≥ 1.
        Raises Unsatisfiable if no token is possible.
        """
        uniform = self._uniform()
        if top is not None:
            token = self._draw_from_best(uniform, top, len(scores_V))
            if token is not None:
                return token
        return self._draw_from_row(uniform, scores_V)

    def _draw_from_best(self, uniform: float, top: Top, vocab_size: int) -> int | None:
        """The token that `_draw_from_row` would return; None if these tokens do not determine it."""
        unit, ids, scores_K = _unit(vocab_size), top[0], np.array(top[1], dtype=np.float64)
        is_all = len(ids) == vocab_size  # no other token has a weight
        if 0 < self._top_k <= len(scores_K):
            scores_K, is_all = scores_K[: self._top_k], True
        gaps_K = scores_K[0] - scores_K
        weights_K = _weights(gaps_K, self._sharpness, unit)
        reached_K = weights_K.cumsum()
        # From here on, the weight of the remaining tokens is at least `low` and at most `high`.
        low = high = float(reached_K[-1])
        if not is_all:
            low, high = self._bounds(float(scores_K[0]), gaps_K, weights_K, vocab_size)
        if self._top_p < 1:
            low, high = self._nucleus(low, reached_K, 0.0), self._nucleus(high, reached_K, float(weights_K[-1]))
        if self._min_p > 0:
            passing = int(np.count_nonzero(weights_K >= self._min_p * unit))
            passed = float(reached_K[passing - 1])
            low = min(low, passed)
            high = min(high, passed) if passing < len(gaps_K) else high
        if self._typical_p < 1:
            if not low == high <= reached_K[-1]:
                return None
            left = int(reached_K.searchsorted(low)) + 1
            order = np.argsort(ids[:left])
            return int(ids[order[self._typical(uniform, gaps_K[:left][order], weights_K[:left][order])]])
        index = int(reached_K.searchsorted(_target(uniform, low)))
        if low == high <= reached_K[-1]:
            return int(ids[index])
        is_plain = index < len(gaps_K) and index == int(reached_K.searchsorted(_target(uniform, high)))
        return int(ids[index]) if is_plain else None

    def _bounds(self, best: float, gaps_K: np.ndarray, weights_K: np.ndarray, vocab_size: int) -> tuple[float, float]:
        """Lower and upper bound of the weight of the tokens that top-k keeps: the K best and a tail.

        Each token of the tail weighs at most as much as the K-th, which is one bound. For a = 1 / temperature ≥ 1 there
        are tighter ones. Let q = exp(-gap) be a token's probability relative to that of the best. All q of a row sum to
        1 / p_best, so the mass m of the tail is known. A token weighs q**a; in the tail this is at most
        q · q_K**(a - 1), and the sum is smallest when all n are equal: m · (m / n)**(a - 1).
        """
        known, unit, power = float(weights_K.sum()), _unit(vocab_size), self._sharpness - 1
        count = min(self._top_k or vocab_size, vocab_size) - len(gaps_K)
        low, high = known, known + count * float(weights_K[-1])
        if power < 0:
            return low, high
        mass, known_mass = math.exp(-best), float(np.exp(-gaps_K).sum())
        most = max(0.0, mass * (1 + _SLACK) - known_mass)
        high = min(high, known + unit * most * math.exp(-float(gaps_K[-1]) * power) + count)  # weights are rounded
        if not self._top_k:
            least = max(0.0, mass * (1 - _SLACK) - known_mass)
            low = max(low, known + unit * least * min(1.0, least / count) ** power - count)
        return low, high

    def _nucleus(self, total: float, reached_K: np.ndarray, excess: float) -> float:
        """The weight of the nucleus for a total weight. Beyond the K best: its bound, `excess` above the minimum."""
        target = math.ceil(self._top_p * total)
        index = int(reached_K.searchsorted(target))
        return float(reached_K[index]) if index < len(reached_K) else target + excess

    def _draw_from_row(self, uniform: float, scores_V: np.ndarray) -> int:
        """The token drawn from the whole row."""
        unit, best = _unit(len(scores_V)), float(scores_V.max())
        if best == -math.inf:
            raise Unsatisfiable("no token is possible: the constraints exclude the whole vocabulary")
        assert math.isfinite(best), best
        ids = candidates(scores_V, self._top_k) if self._top_k else None
        gaps = (scores_V if ids is None else scores_V[ids]).astype(np.float64)
        np.subtract(best, gaps, out=gaps)
        if float(gaps.max()) == math.inf:
            kept = np.flatnonzero(gaps < math.inf)
            ids, gaps = kept if ids is None else ids[kept], gaps[kept]
        if 0 < self._top_k < len(gaps):
            kept = _Order(gaps, np.ones(len(gaps))).up_to(self._top_k)
            ids, gaps = kept if ids is None else ids[kept], gaps[kept]
        weights = _weights(gaps, self._sharpness, unit)
        index = self._index(uniform, gaps, weights, unit)
        return index if ids is None else int(ids[index])

    def _index(self, uniform: float, gaps_N: np.ndarray, weights_N: np.ndarray, unit: float) -> int:
        """The index of the token drawn from those that top-k keeps. gaps_N: finite."""
        by_score, left = _Order(gaps_N, weights_N), float(weights_N.sum())  # left: weight that top-p and min-p keep
        if self._top_p < 1:
            _, left = by_score.reach(math.ceil(self._top_p * left))
        if self._min_p > 0:
            left = min(left, float(weights_N[weights_N >= self._min_p * unit].sum()))
        if self._typical_p == 1:
            return by_score.reach(_target(uniform, left))[0]
        if self._top_p == 1 and self._min_p == 0:
            return self._typical(uniform, gaps_N, weights_N)
        kept = by_score.up_to(left)
        return int(kept[self._typical(uniform, gaps_N[kept], weights_N[kept])])

    def _typical(self, uniform: float, gaps_N: np.ndarray, weights_N: np.ndarray) -> int:
        """The index of the token drawn from the typical tokens.

        These are the smallest set with enough mass of tokens whose information is closest to the mean information;
        that is, whose gap is closest to the mean gap, as information is gap / temperature plus a constant.
        """
        total = float(weights_N.sum())
        mean = float((weights_N * gaps_N).sum()) / total
        kept = _Order(np.abs(gaps_N - mean), weights_N).up_to(math.ceil(self._typical_p * total))
        gaps_N, weights_N = gaps_N[kept], weights_N[kept]
        last, _ = _Order(gaps_N, weights_N).reach(_target(uniform, float(weights_N.sum())))
        return int(kept[last])


class _Order:
    """Cumulative weights in the order of (key, index). keys_N: finite. weights_N: whole numbers.

    A histogram over the keys finds the bucket in which a weight is reached, and only that bucket is sorted: for 32,000
    elements the histogram takes 0.15 ms, a stable sort 2 to 3 ms. The bucket of a key rises with the key despite
    rounding, and sums of weights are exact.
    """

    def __init__(self, keys_N: np.ndarray, weights_N: np.ndarray) -> None:
        self._keys_N, self._weights_N = keys_N, weights_N
        self._buckets_N: np.ndarray | None = None
        if len(keys_N) > _FEW:
            low, high = keys_N.min(), keys_N.max()
            scaled_N = keys_N - low
            scaled_N *= (_BUCKETS - 1) / max(high - low, 1e-300)
            self._buckets_N = scaled_N.astype(np.intp)
            self._reached = np.bincount(self._buckets_N, weights_N).cumsum()

    def reach(self, target: float) -> tuple[int, float]:
        """The index of the element with which the weights reach target, and their sum then. target: at most the sum
        of all weights."""
        if self._buckets_N is None:
            indices, before = np.argsort(self._keys_N, kind="stable"), 0.0
        else:
            bucket = int(self._reached.searchsorted(target))
            before = float(self._reached[bucket - 1]) if bucket else 0.0
            indices = np.flatnonzero(self._buckets_N == bucket)
            indices = indices[np.argsort(self._keys_N[indices], kind="stable")]
        reached = self._weights_N[indices].cumsum()
        last = int(reached.searchsorted(target - before))
        return int(indices[last]), before + float(reached[last])

    def up_to(self, target: float) -> np.ndarray:
        """Ascending indices of the fewest elements whose weights reach target."""
        last, _ = self.reach(target)
        is_kept_N = self._keys_N <= self._keys_N[last]
        is_kept_N[last + 1 :] &= self._keys_N[last + 1 :] < self._keys_N[last]
        return np.flatnonzero(is_kept_N)


def _unit(vocab_size: int) -> float:
    """The weight of the best token: the sum of `vocab_size` weights stays below 2**53."""
    return 2.0 ** (53 - vocab_size.bit_length())


def _weights(gaps: np.ndarray, sharpness: float, unit: float) -> np.ndarray:
    weights: np.ndarray = gaps * -sharpness
    np.exp(weights, out=weights)
    weights *= unit
    np.rint(weights, out=weights)
    return weights


def _target(uniform: float, total: float) -> float:
    """The cumulative weight of the draw. Rounding must not carry it beyond the total."""
    return min(math.floor(uniform * total) + 1.0, total)
