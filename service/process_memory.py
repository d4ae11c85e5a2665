"""The memory of this process."""

from __future__ import annotations

import ctypes


def give_back_memory() -> None:
    """Returns what loading took to the system: 40 % of an engine process's weights, 11 MB of an edge with 58,000 words.
    Only glibc needs this call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
