"""The factors of rotary frequencies in a GGUF file → the scaling of Llama 3 from which they were computed.

llama.cpp's converter writes one factor for each frequency, and drops the parameters: a frequency is divided by 1 where
it is high, by `factor` where it is low, and in between by a mean that is weighted by the number of turns in the
original context (the `llama3` rotary embedding of transformers).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from model.pretrained.files import PretrainedError

_HIGH = 4.0  # turns of all published models, of which low_freq_factor is 1
_TOLERANCE = 1e-5  # relative, of factors stored in single precision


def rotary_scaling(factors_F: npt.NDArray[np.float32], base: float, head_dim: int) -> dict[str, Any]:
    """The rope_parameters that give these factors, of F = head_dim / 2 frequencies.

    Only the ratios of the original length and the two bounds determine the factors: the lower bound is 1 turn. Raises
    PretrainedError for other factors.
    """
    if factors_F.shape != (head_dim // 2,):
        raise PretrainedError(f"rope_freqs.weight: must have {head_dim // 2} factors, got shape {factors_F.shape}")
    factors = factors_F.astype(np.float64)
    if np.all(factors == 1.0):
        return {}
    if not np.all((factors >= 1.0) & np.isfinite(factors)):
        raise _other(factors)
    frequencies = base ** (-2.0 * np.arange(head_dim // 2) / head_dim)
    for high, original in _candidates(factors, frequencies):
        found = {"factor": float(factors.max()), "low_freq_factor": 1.0, "high_freq_factor": high}
        found = {**found, "original_max_position_embeddings": original}
        if np.allclose(_factors(found, frequencies), factors, rtol=_TOLERANCE, atol=0.0):
            return {"rope_type": "llama3", **found}
    raise _other(factors)


def _other(factors: npt.NDArray[np.float64]) -> PretrainedError:
    return PretrainedError(f"rope_freqs.weight: is no scaling of Llama 3, got factors {factors.tolist()!s:.200}")


def _candidates(factors: npt.NDArray[np.float64], frequencies: npt.NDArray[np.float64]) -> list[tuple[float, int]]:
    """The upper bound in turns and the original length that the factors between their extremes imply."""
    least, between = 1.0 / factors.max(), (factors > 1.0) & (factors < factors.max())
    share = ((1.0 / factors - least) / (1.0 - least))[between]  # (turns - low) / (high - low)
    per_length = (frequencies / (2.0 * math.pi))[between]  # turns of a context of 1 token
    if len(share) >= 2:
        slope, start = np.polyfit(per_length, share, 1)  # start: -1 / (high - 1)
        span = -1.0 / start
        return [(round(1.0 + span, 3), round(slope * span)), (1.0 + span, round(slope * span))]
    if len(share) == 1:
        return [(_HIGH, round((1.0 + share[0] * (_HIGH - 1.0)) / per_length[0]))]
    # Any length with a full turn of no scaled frequency, and _HIGH turns of all others
    scaled = frequencies[factors > 1.0] / (2.0 * math.pi)
    return [(_HIGH, int(1.0 / scaled.max()))]


def _factors(rope: dict[str, Any], frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    turns = rope["original_max_position_embeddings"] * frequencies / (2.0 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept: npt.NDArray[np.float64] = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / (kept + (1.0 - kept) / float(rope["factor"]))
