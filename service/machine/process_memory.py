"""The memory of this process."""

from __future__ import annotations

import ctypes
import gc
import resource


def give_back_memory() -> None:
    """Returns what loading took to the system: 40 % of an engine process's weights, 11 MB of an edge with 58,000 words.
    Only glibc needs this call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def settle() -> None:
    """Call it once everything is loaded: gives back what loading took, and takes what stays out of garbage collection,
    where each full collection would stop all threads for 14 to 25 ms (Zen 5)."""
    gc.collect()
    give_back_memory()
    gc.freeze()


def no_core_dumps() -> None:
    """No crash writes the texts of clients, or gigabytes of weights, anywhere. A limit of 0 bytes stops files alone: a
    program that receives core dumps (core_pattern, core(5)) gets them whatever the limit is, unless it is 1."""
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
