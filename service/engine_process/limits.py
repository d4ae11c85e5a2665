"""What an engine process sets for itself before it opens anything: its end with its parent, its limits, its signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.settings.engine_settings import VISIBLE

PR_SET_PDEATHSIG = 1  # prctl(2)
OOM_SCORE = 500  # of 1,000: short of memory, the kernel ends an engine process and not the edge


def end_with(parent: int) -> None:
    """From now on the kernel kills this process when the thread that started it ends, even while it is stopped."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(0)


def leave_signals_to_parent() -> None:
    """Ctrl-C and service managers signal all processes; only the edge, which drains, decides when engines end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def prefer_for_oom_kill() -> None:
    """Makes this process the kernel's choice when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def limit_memory(limit_bytes: int) -> None:
    """Allocations beyond the limit fail: of all private writable memory, as RLIMIT_DATA counts it."""
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


@contextlib.contextmanager
def opening_memory(limit_bytes: int) -> Iterator[None]:
    """Within the block, allocations beyond the limit fail, too; 0: none. Memory that is already there counts."""
    least, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes:
        limits = [limit for limit in (limit_bytes, least) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (least, hard))


def pin_to(processors: Sequence[int]) -> None:
    """Runs on these processors only; () changes nothing."""
    if processors:
        os.sched_setaffinity(0, processors)


def see_device(device: str) -> None:
    """CUDA shows this process one device only, as its first; "" changes nothing. Before CUDA is loaded."""
    if device:
        os.environ[VISIBLE] = device


def give_way(niceness: int) -> None:
    """Lowers the priority of this process: where all processors are busy, a request that waits in the edge for its turn
    is missing in an engine's batch."""
    os.nice(niceness)
