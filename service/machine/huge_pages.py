"""Huge pages for engine processes: their steps read all weights again and again, and 4 KiB pages cost them 5-10 %.

glibc allocates huge pages when a variable requests them before a process starts, so the edge, which needs none, sets it
for the processes that it starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb=1"
SINCE = (2, 35)  # the first glibc that supports it
SWITCH = "sys/kernel/mm/transparent_hugepage/enabled"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that gets huge pages; unchanged where that is impossible or already decided."""
    return {**environment, **({} if obstacle_to_huge_pages(environment) else {VARIABLE: TUNABLE})}


def has_huge_pages(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment was started with huge pages."""
    return TUNABLE in environment.get(VARIABLE, "").split(":")


def obstacle_to_huge_pages(
    environment: Mapping[str, str], root: Path = Path("/"), libc: str | None = None
) -> str | None:
    """Why a process with this environment cannot get huge pages; None if it can. libc: in the notation of confstr."""
    if VARIABLE in environment:  # a user's choice stands
        return f"{VARIABLE} is set to {environment[VARIABLE]!r}"
    libc = _libc() if libc is None else libc
    name, _, version = libc.partition(" ")
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < SINCE:
        return f"the C library is {libc or 'not glibc'}, not glibc {'.'.join(map(str, SINCE))} or newer"
    try:
        modes = (root / SWITCH).read_text()
    except OSError:
        return f"the kernel has no /{SWITCH}"
    return f"/{SWITCH} is set to never" if "[never]" in modes else None


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):  # another system, or another C library
        return ""
