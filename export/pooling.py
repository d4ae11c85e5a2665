"""How the states of a text become one vector, by numpy: as servers do (`service.encoder_request`), which import nothing
of exports but their bundles.

Shapes: S positions, M width.
"""

from __future__ import annotations

import numpy as np

from export.bundle.manifest import Pooling


def pool(pooling: Pooling, states_SM: np.ndarray) -> np.ndarray:
    """One vector, float32 (M,), of a text's states without padding."""
    states_SM = states_SM.astype(np.float32)
    vector_M: np.ndarray
    if pooling in ("cls", "last"):
        vector_M = states_SM[0 if pooling == "cls" else -1]
    elif pooling == "max":
        vector_M = states_SM.max(0)
    elif pooling == "weighted_mean":
        vector_M = np.average(states_SM, axis=0, weights=np.arange(1, len(states_SM) + 1, dtype=np.float32))
    else:
        vector_M = states_SM.mean(0)
        if pooling == "mean_sqrt_len":
            vector_M = vector_M * np.float32(len(states_SM) ** 0.5)
    return vector_M
