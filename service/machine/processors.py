"""The processors that this process may use (`processors`). A container's quota shows in neither os.cpu_count() nor the
affinity mask."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from service.machine.cgroups import cgroups

MAX_SINGLE_ENGINE_THREADS = 8
"""Intra-op threads by default: in a short step more threads wait for each other longer than they compute."""


@dataclass(frozen=True)
class Processors:
    """The processors available. A container's quota shows in neither os.cpu_count() nor the affinity mask."""

    allowed: int  # by the affinity mask; hyperthreads count one each
    cores: int  # that these are threads of: two threads of a core share the units that multiply
    quota: float | None  # processors' worth of time that cgroups (v1 or v2) allow

    @property
    def usable(self) -> int:
        """How many can be kept busy, at least 1. A quota of 2.5 counts as 2: half a one would stall a step."""
        return max(1, min(self.cores, int(self.quota) if self.quota is not None else self.cores))


def processors(root: Path = Path("/")) -> Processors:
    """Those this process may use. `root`: where /proc and /sys are found."""
    allowed = os.sched_getaffinity(0)
    cores = {_read_siblings(root, number) or str(number) for number in allowed}
    return Processors(len(allowed), len(cores), min(_cpu_quotas(root), default=None))


def in_core_order(root: Path = Path("/")) -> list[int]:
    """The numbers of the allowed processors, one thread of every core before the second of any."""
    by_core: dict[str, list[int]] = {}
    for number in sorted(os.sched_getaffinity(0)):
        by_core.setdefault(_read_siblings(root, number) or str(number), []).append(number)
    ranks = itertools.zip_longest(*by_core.values())
    return [number for rank in ranks for number in rank if number is not None]


def _read_siblings(root: Path, number: int) -> str:
    """The processors that are threads of the same core as this one; empty when the system does not report them."""
    topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the newer name first
        with contextlib.suppress(OSError):
            return (topology / name).read_text().strip()
    return ""


def _cpu_quotas(root: Path) -> Iterator[float]:
    """CPU limits of this process's cgroup and of every cgroup above it."""
    for group in cgroups(root, "cpu"):
        yield from _quotas_of(group)


def _quotas_of(group: Path) -> Iterator[float]:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(float, " ".join((group / name).read_text() for name in names).split())
            if quota > 0:
                yield quota / period
