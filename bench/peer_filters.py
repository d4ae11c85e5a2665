"""Compare the reference's sampling filters with Hugging Face on the distributions of a real checkpoint.

Their warpers in the order of their own `generate`: temperature, top-k, top-p, min-p, typical. They compute in
float32, so a token whose cumulative probability is within 1e-5 of a limit may be cut on one side only; such rows are
counted separately.

"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bench.case import case
from model.architectures import GenerativeModel
from model.checkpoints.checkpoint import load_checkpoint
from model.reference.greedy import next_logits
from model.reference.sampling import sampling_distribution

Options = Mapping[str, Any]  # of `sampling_distribution`

NEAR = 1e-5  # relative to a limit
SETTINGS: dict[str, Options] = {
    "temperature 0.7": {"temperature": 0.7},
    "top-k 10": {"top_k": 10},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "typical 0.9": {"typical_p": 0.9},
    "typical 0.2": {"typical_p": 0.2},
    "all": {"temperature": 1.3, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9},
}


@case("checkpoint", rows=200)
def peer_filters(args: argparse.Namespace) -> None:
    rows_RV = rows_of(load_checkpoint(args.checkpoint).model, args.rows)
    differing = 0
    for name, options in SETTINGS.items():
        verdicts = Counter(verdict(row_V, options) for row_V in rows_RV)
        differing += verdicts["different"]
        print(f"{name}: {dict(verdicts)}")
    sys.exit(differing > 0)


def rows_of(model: GenerativeModel, count: int) -> list[np.ndarray]:
    """Log-probabilities float32 (V,) after random prefixes, and for random sources where there is an encoder."""
    config, generator, rows = model.config, np.random.default_rng(1), []
    for _ in range(count):
        prefix = [config.bos_id, *generator.integers(4, config.vocab_size, generator.integers(6)).tolist()]
        source = [*generator.integers(4, config.vocab_size, generator.integers(1, 9)).tolist(), config.eos_id]
        logits_V = next_logits(model, prefix, source=source if config.has_encoder else ())
        rows.append(logits_V.log_softmax(-1).numpy())
    return rows


def verdict(logprobs_V: np.ndarray, options: Options) -> str:
    ours_V, theirs_V = sampling_distribution(logprobs_V, **options), theirs(logprobs_V, options)
    if np.abs(ours_V - theirs_V).max() < NEAR:
        return "equal"
    nudged: list[Options] = [
        {**options, "top_p": top_p, "typical_p": typical_p, "min_p": min_p}
        for top_p in around(options.get("top_p", 1.0))
        for typical_p in around(options.get("typical_p", 1.0))
        for min_p in around(options.get("min_p", 0.0))
    ]
    is_near = any(np.abs(sampling_distribution(logprobs_V, **near) - theirs_V).max() < NEAR for near in nudged)
    return "equal within rounding of a limit" if is_near else "different"


def around(limit: float) -> tuple[float, ...]:
    return (limit * (1 - NEAR), limit, min(1.0, limit * (1 + NEAR))) if limit < 1 else (limit,)


def theirs(logprobs_V: np.ndarray, options: Options) -> np.ndarray:
    """float64 (V,): what transformers would sample from."""
    warpers = importlib.import_module("transformers.generation.logits_process")
    scores_1V = torch.from_numpy(logprobs_V)[None]
    for name, kind, off in (
        ("temperature", warpers.TemperatureLogitsWarper, 1.0),
        ("top_k", warpers.TopKLogitsWarper, 0),
        ("top_p", warpers.TopPLogitsWarper, 1.0),
        ("min_p", warpers.MinPLogitsWarper, 0.0),
        ("typical_p", warpers.TypicalLogitsWarper, 1.0),
    ):
        value = options.get(name, off)
        if value != off:
            scores_1V = kind(value)(None, scores_1V)
    probabilities_V: np.ndarray = scores_1V[0].double().softmax(-1).numpy()
    return probabilities_V
