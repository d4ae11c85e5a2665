"""How the states of a text become one vector, in exports and in servers.

Shapes: S positions, M width.
"""

from __future__ import annotations

import numpy as np

from export.bundle.manifest import Pooling


def pool(pooling: Pooling, states_SM: np.ndarray, first: int = 0) -> np.ndarray:
    """One vector, float32 (M,), of a text's states without padding.

    The state of the first or last position, the largest values, the mean, the sum divided by the root of the number of
    positions, or the mean weighted by the position, from 1. first: the positions before it are left out, as
    sentence-transformers 6.2 does with those of a prompt.
    """
    states_SM = states_SM[first:].astype(np.float32)
    vector_M: np.ndarray
    if pooling in ("cls", "last"):
        vector_M = states_SM[0 if pooling == "cls" else -1].copy()
    elif pooling == "max":
        vector_M = states_SM.max(0)
    elif pooling == "weighted_mean":
        weights_S = np.arange(first + 1, first + 1 + len(states_SM), dtype=np.float32)
        vector_M = np.average(states_SM, axis=0, weights=weights_S)
    else:
        vector_M = states_SM.mean(0)
        if pooling == "mean_sqrt_len":
            vector_M *= np.float32(len(states_SM) ** 0.5)
    return vector_M
