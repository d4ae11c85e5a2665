"""Which weights are too large to be copied into each graph: `export.passes.held_weights` says what becomes of them."""

from __future__ import annotations

import numpy as np

HELD_BYTES = 1 << 20  # of a matrix that stays in the memory of its model


def is_large(array: np.ndarray) -> bool:
    """Report whether a graph should not have the values of a constant."""
    return array.ndim == 2 and array.nbytes >= HELD_BYTES
