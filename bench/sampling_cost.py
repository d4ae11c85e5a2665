"""Cost of sampling a token: microseconds with the best tokens of the row, and with the whole row.


`best` is the first decile of the draws for which the best 64 tokens are enough, `share` how many those are, `row` the
first decile of draws from the whole row (a busy machine shifts the median), `mean` the average cost of a draw.
Limits with a vocabulary of 32000: best 15, row 250.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from bench.case import case
from bench.sampling_chi_square import FILTERS, best_of, zipf_row
from service.decoding.sampling import TOP_CANDIDATES, Sampler
from service.options import DecodingOptions

DRAWS = 1000
HEADER = ("filter", "row", "words", "best_us", "share", "row_us", "mean_us")


def peaked_row(vocab_size: int) -> np.ndarray:
    """Log-probabilities float32 (V,) of a model that is nearly sure: 90 % on 16 tokens."""
    random = np.random.default_rng(1)
    logits_V = random.normal(scale=3.0, size=vocab_size)
    logits_V[random.choice(vocab_size, size=16, replace=False)] += np.log(vocab_size) + 6.2
    logprobs_V: np.ndarray = (logits_V - np.log(np.exp(logits_V).sum())).astype(np.float32)
    return logprobs_V


def measure(options: DecodingOptions, logprobs_V: np.ndarray) -> tuple[float, float, float, float]:
    """best_us, share, row_us, mean_us."""
    top = best_of(logprobs_V, TOP_CANDIDATES)
    never_read = np.full_like(logprobs_V, np.nan)

    def is_enough(sampler: Sampler) -> bool:
        try:
            sampler.draw(never_read, top)
        except AssertionError:
            return False
        return True

    judge, timed = Sampler(options, 1, 0), Sampler(options, 1, 0)
    enough = [is_enough(judge) for _ in range(DRAWS)]
    with_best = [_us(lambda: timed.draw(logprobs_V, top)) for _ in range(DRAWS)]
    best = [cost for cost, is_fast in zip(with_best, enough, strict=True) if is_fast]
    alone = [_us(lambda: timed.draw(logprobs_V)) for _ in range(DRAWS // 2)]
    best_us = _first_decile(best) if best else float("nan")
    return best_us, sum(enough) / DRAWS, _first_decile(alone), statistics.fmean(with_best)


def _first_decile(costs: list[float]) -> float:
    return sorted(costs)[len(costs) // 10]


def _us(draw: Callable[[], object]) -> float:
    started = time.perf_counter()
    draw()
    return (time.perf_counter() - started) * 1e6


@case(words=[8000, 32000])
def sampling_cost(args: argparse.Namespace) -> None:
    rows = []
    for words in args.words:
        for kind, logprobs_V in (("zipf", zipf_row(words, seed=1)), ("peaked", peaked_row(words))):
            for name, options in FILTERS.items():
                rows.append((name, kind, words, *measure(DecodingOptions(**options), logprobs_V)))
    if args.json:
        json.dump([dict(zip(HEADER, row, strict=True)) for row in rows], sys.stdout, indent=1)
        return
    print(f"{'filter':16} {'row':>7} {'words':>6} {'best':>7} {'share':>6} {'row':>7} {'mean':>7}")
    for name, kind, words, best_us, share, row_us, mean_us in rows:
        print(f"{name:16} {kind:>7} {words:6} {best_us:7.1f} {share:6.0%} {row_us:7.1f} {mean_us:7.1f}")
