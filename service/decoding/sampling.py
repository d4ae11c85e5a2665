"""Drawing one token from a distribution (`Sampler`): temperature, top-k, top-p (Holtzman et al. 2020), min-p (Nguyen et
al. 2024), locally typical (Meister et al. 2022), in this order; each sees what the one before has left.

The draw is exact over the whole vocabulary, and what is drawn depends on the random stream and the distribution only,
not on how much of the row was looked at. That rests on three things.

- Weights are whole numbers: the best token weighs 2**bits, another one exp(score difference / temperature) of that,
  rounded. float64 adds whole numbers below 2**53 without error, so every order of adding gives the same sum. Rounding
  moves less than 1e-7 of the probability in a vocabulary of 32k, which float32 log-probabilities leave open anyway.
  Cumulative sums of unrounded weights lost: only a full sort repeats them, 1.3 ms for 32k tokens.
- Tokens come in the order of falling score, of equal ones the lower id first. The one is drawn with which the summed
  weights exceed u · total; u is one uniform number per step. Top-k, top-p and min-p keep a beginning of this order, so
  its weight is all that has to be known of what they leave.
- The best K tokens of a row, which the graph sorts, are enough whenever the total is known well enough. The mass of a
  row that no rule has changed is 1, so the weight behind the best K lies between two bounds (`Sampler._bounds`). Every
  cut and the draw rise with the total: when its lower and its upper bound lead to the same token, so does the total
  itself. Else the whole row is read. A nucleus (top-p) that reaches beyond the best K is no reason to: it weighs at
  least p · total, and exceeds that by less than its last token, which weighs no more than the K-th. A draw that falls
  on the same one of the best K by both of these bounds is the exact draw.

A whole row is not sorted either: its weights go into a histogram over the score, and only tokens of the bucket in which
a cut or the draw falls are sorted.

V vocabulary, K best tokens of a row, N tokens that are looked at, in the order of their ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from service.errors import Unsatisfiable
from service.options import DecodingOptions

TOP_CANDIDATES = 64  # best tokens of a row that sampling asks of the graph

Top = tuple[Sequence[int], Sequence[float]]
"""Ids and log-probabilities of the K best tokens of a row, best first, of equal ones the lower id first."""

_SLACK = 1e-4  # how far the sum of a row's probabilities may be from 1; float32 log-softmax of 32k logits: about 1e-6
_BUCKETS = 1024
_BLOCK = 8192  # tokens at once: larger arrays come from the system as fresh pages, which tripled the cost at V = 32k
_FEW = 256  # as many are sorted at once
_LOWEST = float(np.finfo(np.float32).min)


class _Best(NamedTuple):
    """The best tokens of a row, best first, of equal ones the lower id first."""

    ids: Sequence[int] | np.ndarray  # (K,)
    scores_K: np.ndarray  # float64 (K,)
    is_all: bool  # no other token weighs anything


class Sampler:
    """Draws the tokens of one hypothesis, each with the next number of the random stream (seed, index).

    CPython promises that `Random.random` of an integer seed stays the same in every version.
    """

    def __init__(self, options: DecodingOptions, seed: int, index: int) -> None:
        assert options.temperature != 0, "temperature 0 is greedy search"
        self._random = Random(seed << 32 | index)
        self._sharpness = 1 / (1.0 if options.temperature is None else options.temperature)
        self._top_k, self._top_p = options.top_k, options.top_p
        self._min_p, self._typical_p = options.min_p, options.typical_p

    def draw(self, scores_V: np.ndarray, top: Top | None = None) -> int:
        """The id of the next token.

        scores_V: float32 (V,), log-probabilities plus any constant; -inf: impossible. Not modified, and not read where
        `top` is enough. top: only of log-probabilities that no rule has changed; any K ≥ 1.
        Raises Unsatisfiable when no token is possible.
        """
        uniform = self._random.random()
        if top is not None:
            best = _Best(top[0], np.array(top[1], dtype=np.float64), is_all=len(top[0]) == len(scores_V))
            token = self._draw_from_best(uniform, best, len(scores_V))
            if token is not None:
                return token
        return self._draw_from_row(uniform, scores_V)

    def _draw_from_best(self, uniform: float, best: _Best, vocab_size: int) -> int | None:
        """What `_draw_from_row` would draw; None where these tokens do not tell, which never is so if they are all."""
        unit, scores_K, is_all = _unit(vocab_size), best.scores_K, best.is_all
        if 0 < self._top_k <= len(scores_K):
            scores_K, is_all = scores_K[: self._top_k], True
        gaps_K = scores_K[0] - scores_K
        weights_K = _weights(gaps_K, self._sharpness, unit)
        reached_K = weights_K.cumsum()
        # From here on, the weight of the tokens that are left is at least `low` and at most `high`.
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
            ids = np.array(best.ids[:left])
            order = np.argsort(ids)
            return int(ids[order[self._typical(uniform, scores_K[:left][order], unit)]])
        place = int(reached_K.searchsorted(_target(uniform, low)))
        if low == high <= reached_K[-1]:
            return int(best.ids[place])
        is_plain = place < len(gaps_K) and place == int(reached_K.searchsorted(_target(uniform, high)))
        return int(best.ids[place]) if is_plain else None

    def _bounds(self, best: float, gaps_K: np.ndarray, weights_K: np.ndarray, vocab_size: int) -> tuple[float, float]:
        """The least and the most that the tokens left by top-k can weigh: the best K, which are left, and a tail.

        Each token of the tail weighs at most what the K-th does. That is one bound. With a = 1 / temperature ≥ 1 there
        are better ones. Let q = exp(-gap) be a token's probability relative to the best one's. All q of a row sum to
        1 / p_best, so the mass m of the tail is known. A token weighs q**a; in the tail this is at most
        q · q_K**(a - 1), and in sum least when all n are equal: m · (m / n)**(a - 1).
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
        """The weight of the nucleus if all weigh `total`. Beyond the best K: its bound, `excess` above the least."""
        target = math.ceil(self._top_p * total)
        place = int(reached_K.searchsorted(target))
        return float(reached_K[place]) if place < len(reached_K) else target + excess

    def _draw_from_row(self, uniform: float, scores_V: np.ndarray) -> int:
        unit, best = _unit(len(scores_V)), float(scores_V.max())
        if best == -math.inf:
            raise Unsatisfiable("no token is possible: the constraints exclude the whole vocabulary")
        assert math.isfinite(best), best
        lightest = best - math.log(unit) / self._sharpness  # what scores less weighs 1 or nothing
        if float(scores_V.min()) >= lightest:
            return self._place(uniform, scores_V, len(scores_V))
        weighs_V = scores_V > max(lightest - 1 / self._sharpness, _LOWEST)  # what does not weighs less than 0.4
        doubtful = np.flatnonzero(weighs_V & (scores_V < lightest))
        weighs_V[doubtful] = _weights(_gaps(scores_V[doubtful], best), self._sharpness, unit) > 0
        return _nth(weighs_V, self._place(uniform, scores_V[weighs_V], len(scores_V)))

    def _place(self, uniform: float, scores_N: np.ndarray, vocab_size: int) -> int:
        """The place of the token drawn from these, of which each weighs something."""
        unit = _unit(vocab_size)
        if 0 < self._top_k < len(scores_N):
            places = _Row(scores_N).up_to(self._top_k)
            return int(places[self._place(uniform, scores_N[places], vocab_size)])
        if len(scores_N) <= _FEW:
            order = np.argsort(-scores_N, kind="stable")
            best = _Best(order, scores_N[order].astype(np.float64), is_all=True)
            place = self._draw_from_best(uniform, best, vocab_size)
            assert place is not None
            return place
        if self._typical_p < 1 and self._top_p == 1 and self._min_p == 0:
            return self._typical(uniform, scores_N, unit)
        row = _Row(scores_N, self._sharpness, unit)
        left = self._left(row)
        if self._typical_p < 1:
            places = row.up_to(left)
            return int(places[self._typical(uniform, scores_N[places], unit)])
        place, _ = row.reach(_target(uniform, left))
        return place

    def _left(self, row: _Row) -> float:
        """The weight of the tokens that top-p and min-p leave."""
        left = row.total
        if self._top_p < 1:
            _, left = row.reach(math.ceil(self._top_p * left))
        if self._min_p > 0:
            left = min(left, row.weight_of_at_least(self._min_p))
        return left

    def _typical(self, uniform: float, scores_N: np.ndarray, unit: float) -> int:
        """The place of the token drawn from the typical ones among these, of which each weighs something.

        Those are the smallest set with enough mass of the tokens whose surprise is nearest to the mean surprise; that
        is, whose gap is nearest to the mean gap, as surprise is gap / temperature plus a constant.
        """
        if len(scores_N) > _FEW:
            return self._typical_of_many(uniform, scores_N, unit)
        gaps = _gaps(scores_N, float(scores_N.max()))
        weights = _weights(gaps, self._sharpness, unit)
        total = float(weights.sum())
        mean = float((weights * gaps).sum()) / total
        kept = _first(np.abs(gaps - mean), weights, math.ceil(self._typical_p * total))
        gaps, weights = gaps[kept], weights[kept]
        last, _ = _cut(gaps, weights, _target(uniform, float(weights.sum())))
        return int(kept[last])

    def _typical_of_many(self, uniform: float, scores_N: np.ndarray, unit: float) -> int:
        """The same by histogram. Whole buckets are inside the set or outside of it, but for those at its borders."""
        row = _Row(scores_N, self._sharpness, unit, has_mean=True)
        target = float(math.ceil(self._typical_p * row.total))
        # A token's gap is as far from the mean as the middle of its bucket, ± half a width; so the last token of the
        # set is in a bucket near `border`. 0.01: rounding moves the edges of buckets by far less.
        far = np.abs(row.middles - row.mean) / row.width
        border = int(np.bincount(far.astype(np.intp), row.sums).cumsum().searchsorted(target))
        is_inside = far < border - 1.01
        inside, span = np.flatnonzero(is_inside).tolist(), np.flatnonzero(far < border + 2.01).tolist()
        is_open = (row.buckets >= span[0]) & (row.buckets <= span[-1])
        if inside:
            is_open &= (row.buckets < inside[0]) | (row.buckets > inside[-1])
        places = np.flatnonzero(is_open)
        gaps, weights = row.weigh(places)
        kept = _first(np.abs(gaps - row.mean), weights, target - float(row.sums[is_inside].sum()))
        places, gaps, weights = places[kept], gaps[kept], weights[kept]
        sums = np.where(is_inside, row.sums, np.bincount(row.buckets[places], weights, _BUCKETS))
        reached = sums.cumsum()
        target = _target(uniform, float(reached[-1]))
        bucket = int(reached.searchsorted(target))
        if is_inside[bucket]:
            places = row.places(bucket)
            gaps, weights = row.weigh(places)
        else:
            kept = row.buckets[places] == bucket
            places, gaps, weights = places[kept], gaps[kept], weights[kept]
        last, _ = _cut(gaps, weights, target - _before(reached, bucket))
        return int(places[last])


class _Row:
    """The weights of N tokens as a histogram over the gap, by which the score of a token lies below the best one.

    scores_N: floating (N,), finite. unit: what the best token weighs; 0: each token weighs 1.
    buckets: int16 (N,), the bucket of each token; it rises with the gap, whatever is rounded. sums: float64 (1024,),
    the weight of each bucket. total: that of all tokens. mean: the weighted mean of the gaps, 0 without has_mean.
    """

    def __init__(
        self, scores_N: np.ndarray, sharpness: float = 0.0, unit: float = 0.0, *, has_mean: bool = False
    ) -> None:
        self._scores_N, self._sharpness, self._unit = scores_N, sharpness, unit
        self._best = float(scores_N.max())
        self.width = max(self._best - float(scores_N.min()), 1e-300) / (_BUCKETS - 1)
        self.buckets = np.empty(len(scores_N), dtype=np.int16)
        self.sums, moment = np.zeros(_BUCKETS), 0.0
        for start in range(0, len(scores_N), _BLOCK):
            gaps, weights = self._weigh(scores_N[start : start + _BLOCK])
            buckets = (gaps * (1 / self.width)).astype(np.int16)
            self.buckets[start : start + _BLOCK] = buckets
            self.sums += np.bincount(buckets, weights, _BUCKETS)
            if has_mean:
                moment += float(weights @ gaps)
        self._reached = self.sums.cumsum()
        self.total = float(self._reached[-1])
        self.mean = moment / self.total

    @property
    def middles(self) -> np.ndarray:
        """Float64 (1024,): the gap in the middle of each bucket."""
        return (np.arange(_BUCKETS) + 0.5) * self.width

    def places(self, bucket: int) -> np.ndarray:
        """Of the tokens in a bucket, rising."""
        return np.flatnonzero(self.buckets == bucket)

    def weigh(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gaps and weights of the tokens at these places."""
        return self._weigh(self._scores_N[places])

    def _weigh(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gaps = _gaps(scores, self._best)
        return gaps, _weights(gaps, self._sharpness, self._unit) if self._unit else np.ones(len(gaps))

    def reach(self, target: float) -> tuple[int, float]:
        """The place of the token with which the weights reach target, best token first, and what they are then."""
        bucket = int(self._reached.searchsorted(target))
        before = _before(self._reached, bucket)
        places = self.places(bucket)
        last, weight = _cut(*self.weigh(places), target - before)
        return int(places[last]), before + weight

    def up_to(self, target: float) -> np.ndarray:
        """Places, rising, of the fewest best tokens whose weights reach target."""
        bucket = int(self._reached.searchsorted(target))
        is_left = self.buckets < bucket
        places = self.places(bucket)
        is_left[places[_first(*self.weigh(places), target - _before(self._reached, bucket))]] = True
        return np.flatnonzero(is_left)

    def weight_of_at_least(self, share: float) -> float:
        """The weight of the tokens that weigh at least so much of what the best one does."""
        farthest = -math.log(share) / self._sharpness
        border = int(min(farthest / self.width, _BUCKETS))  # rounding moves it by far less than a bucket
        places = np.flatnonzero((self.buckets >= border - 1) & (self.buckets <= border + 1))
        _, weights = self.weigh(places)
        passing = float(weights[weights >= share * self._unit].sum())
        return _before(self._reached, max(border - 1, 0)) + passing


def _unit(vocab_size: int) -> float:
    """What the best token weighs: as much as keeps the sum of `vocab_size` weights below 2**53."""
    return 2.0 ** (53 - vocab_size.bit_length())


def _gaps(scores: np.ndarray, best: float) -> np.ndarray:
    gaps = scores.astype(np.float64)
    np.subtract(best, gaps, out=gaps)
    return gaps


def _weights(gaps: np.ndarray, sharpness: float, unit: float) -> np.ndarray:
    weights: np.ndarray = gaps * -sharpness
    np.exp(weights, out=weights)
    weights *= unit
    np.rint(weights, out=weights)
    return weights


def _target(uniform: float, total: float) -> float:
    """The first token with which the weights reach this is drawn. Rounding must not carry it beyond the total."""
    return min(math.floor(uniform * total) + 1.0, total)


def _nth(is_true: np.ndarray, count: int) -> int:
    """The place of the true element in front of which there are `count` others."""
    for start in range(0, len(is_true), _BLOCK):
        places = np.flatnonzero(is_true[start : start + _BLOCK])
        if count < len(places):
            return start + int(places[count])
        count -= len(places)
    raise AssertionError(count)


def _before(reached: np.ndarray, place: int) -> float:
    """The cumulative sum in front of `place`."""
    return float(reached[place - 1]) if place else 0.0


def _first(keys_N: np.ndarray, weights_N: np.ndarray, target: float) -> np.ndarray:
    """Places, rising, of the fewest elements of smallest key whose weights reach target; equal keys: lower places."""
    last, _ = _cut(keys_N, weights_N, target)
    is_kept = keys_N <= keys_N[last]
    is_kept[last + 1 :] &= keys_N[last + 1 :] < keys_N[last]
    return np.flatnonzero(is_kept)


def _cut(keys_N: np.ndarray, weights_N: np.ndarray, target: float) -> tuple[int, float]:
    """The place of the element with which the weights, added in the order of (key, place), reach target; the sum then.

    target: a whole number, at most the sum of all weights. Which bucket a key falls into rises with the key, whatever
    is rounded, and the sums of buckets are exact.
    """
    places: np.ndarray | None = None
    before = 0.0
    while len(keys_N) > _FEW:
        low, high = keys_N.min(), keys_N.max()
        if high - low < 1e-300:
            break  # all equal
        buckets_N = ((keys_N - low) * ((_BUCKETS - 1) / (high - low))).astype(np.intp)
        reached = np.bincount(buckets_N, weights_N).cumsum()
        bucket = int(reached.searchsorted(target - before))
        before += _before(reached, bucket)
        inside = np.flatnonzero(buckets_N == bucket)
        places = inside if places is None else places[inside]
        keys_N, weights_N = keys_N[inside], weights_N[inside]
    order = np.argsort(keys_N, kind="stable")
    reached = weights_N[order].cumsum()
    last = int(reached.searchsorted(target - before))
    place = order[last]
    return int(place if places is None else places[place]), before + float(reached[last])
