"""Plain, slow implementations of the rules that peers also have: the effect of a request's options on a row's scores.

Rules other than masks change the logits, and scores are renormalized; masks are not renormalized. Shares no code with
`service`, whose rules are compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from model.architectures import GenerativeModel
from model.reference.greedy import Process, next_logits

RULES = ("repetition_penalty", "min_tokens", "no_repeat_ngram_size")


def process_of(model: GenerativeModel, source: Sequence[int], options: Mapping[str, Any]) -> Process | None:
    """The `process` of `model.reference.beam.search` for these options; None when no rule is among them."""
    if not any(name in options for name in RULES):
        return None

    def process(logprobs_V: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
        scores_V = logprobs_V.copy()
        penalty = options.get("repetition_penalty", 1.0)
        if penalty != 1.0:  # Keskar et al. 2019: it depends on the sign of a logit
            prefix = [model.config.bos_id, *tokens]
            logits_V = next_logits(model, prefix, source=source).clone()
            for token in set(prefix):
                logits_V[token] = logits_V[token] / penalty if logits_V[token] > 0 else logits_V[token] * penalty
            scores_V = torch.log_softmax(logits_V, -1).numpy()
        if len(tokens) < options.get("min_tokens", 0):
            scores_V[model.config.eos_id] = -np.inf
        size = options.get("no_repeat_ngram_size", 0)
        if size:
            grams = [tuple(tokens[first : first + size]) for first in range(len(tokens) - size + 1)]
            last = tuple(tokens[len(tokens) - size + 1 :])
            for gram in grams:
                if gram[:-1] == last:
                    scores_V[gram[-1]] = -np.inf
        return scores_V

    return process
