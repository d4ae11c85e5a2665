"""Decoding with and without a KV cache."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.measure import interleaved
from lectures.claim import Claim, Finding, Measured, verdict_of
from lectures.graphs import CachedRow, fresh_model, sessions
from model.architecture_config import DecoderConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lectures.lab import Lab

LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
WORDS = 500
CHECKED = 48  # tokens decoded both ways and compared
EQUAL = 1e-4  # of log-probabilities: blocks and steps are summed in different orders


def measure(lab: Lab) -> Measured:
    """Milliseconds of the token after n - 1 others, whose keys and values are cached or recomputed."""
    lengths = lab.pick(LENGTHS, LENGTHS[:4])
    config = DecoderConfig(
        vocab_size=WORDS,
        d_model=256,
        num_decoder_layers=4,
        positions="rotary",
        max_target_len=lengths[-1],
    )
    rng, jobs = np.random.default_rng(1), {}
    with tempfile.TemporaryDirectory() as scratch:
        session = sessions(fresh_model(config), Path(scratch))["decode"]
        for length in lengths:
            tokens_T, row = rng.integers(4, WORDS, length), CachedRow(session, config, length)
            row.run(tokens_T, 0)
            jobs[f"cached {length}"] = partial(row.ms, tokens_T[-1:], length - 1)
            jobs[f"anew {length}"] = partial(row.ms, tokens_T, 0)
        spreads = interleaved(jobs, lab.pick(15, 3))
        tokens_T = rng.integers(4, WORDS, CHECKED)
        difference = largest_difference(CachedRow(session, config, 64), CachedRow(session, config, 64), tokens_T)
    return {
        "lengths": lengths,
        "ms": {way: [spreads[f"{way} {length}"].low for length in lengths] for way in ("cached", "anew")},
        "difference": difference,
    }


def largest_difference(cached: CachedRow, anew: CachedRow, tokens_T: np.ndarray) -> float:
    """Largest difference of the log-probabilities after each prefix, computed in one block or token by token."""
    found = 0.0
    for place in range(len(tokens_T)):
        step_V, _ = cached.run(tokens_T[place : place + 1], place)
        block_V, _ = anew.run(tokens_T[: place + 1], 0)
        found = max(found, float(np.abs(step_V - block_V).max()))
    return found


def judge(measured: Measured) -> Finding:
    lengths, cached, anew = measured["lengths"], measured["ms"]["cached"], measured["ms"]["anew"]
    ratios = [slow / fast for slow, fast in zip(anew, cached, strict=True)]
    totals = [_total(lengths, ms) for ms in (cached, anew)]
    grown = cached[-1] / cached[0]
    return Finding(
        verdict=verdict_of([measured["difference"] < EQUAL, ratios[-1] > 10, ratios[-1] > 2 * ratios[0]]),
        explanation=f"The log-probabilities agree to {measured['difference']:.0e}. At {lengths[-1]} tokens a token "
        f"costs {ratios[-1]:.0f} times less with the cache, {grown:.1f} times its cost at {lengths[0]} tokens: "
        f"attention over the cache still grows. {lengths[-1]} tokens take {totals[0] / 1e3:.2g} s instead of "
        f"{totals[1] / 1e3:.2g} s.",
        header=("tokens so far", "ms, cached", "ms, recomputed", "recomputed / cached"),
        rows=[
            (f"{n}", f"{fast:.2f}", f"{slow:.2f}", f"{ratio:.1f}")
            for n, fast, slow, ratio in zip(lengths, cached, anew, ratios, strict=True)
        ],
    )


def _total(lengths: list[int], ms: list[float]) -> float:
    """Milliseconds of all tokens up to the last length, interpolated between the measured ones."""
    return float(np.interp(np.arange(1, lengths[-1] + 1), lengths, ms).sum())


def draw(measured: Measured, figure: Figure) -> None:
    lengths = measured["lengths"]
    left, right = figure.subplots(1, 2)
    for way, label in (("anew", "without a cache"), ("cached", "with a KV cache")):
        left.plot(lengths, measured["ms"][way], marker="o", label=label)
    left.set(xscale="log", yscale="log", xlabel="tokens before the next one", ylabel="time of the next token, ms")
    ratios = [slow / fast for slow, fast in zip(measured["ms"]["anew"], measured["ms"]["cached"], strict=True)]
    right.plot(lengths, ratios, marker="o", color="tab:green", label="without ÷ with a KV cache")
    right.set(xscale="log", yscale="log", xlabel="tokens before the next one", ylabel="ratio of times")
    for place in (left, right):
        place.set_xticks(lengths, [str(n) for n in lengths])
        place.minorticks_off()
        place.legend()


CLAIM = Claim(
    name="cache",
    title="A cache makes decoding linear",
    statement="Causal attention never changes the keys and values of earlier tokens, so they can be cached: a "
    "token then costs one row of attention instead of all.",
    experiment="A decoder-only model of four layers, d_model 256, exported; one row, one thread. The token "
    "after a prefix of n - 1 tokens by one decode step over the KV cache, or by recomputing the prefix. "
    "Fastest of 15 rounds.",
    measure=measure,
    judge=judge,
    draw=draw,
)
