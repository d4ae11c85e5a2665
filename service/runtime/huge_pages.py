"""Huge pages for a server: its steps read all weights again and again, and 4 KiB pages cost them 5-10 %.

glibc allocates huge pages when a variable requests them before the process starts. The `glossa` command therefore
executes itself once more: process id, standard streams, signals and exit status stay the same.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb=1"
SINCE = (2, 35)  # the first glibc that supports it
SWITCH = "sys/kernel/mm/transparent_hugepage/enabled"


def take_huge_pages() -> None:
    """Executes the running program again with huge pages; returns if that is impossible or already done."""
    if obstacle_to_huge_pages(os.environ) is None:
        with contextlib.suppress(OSError):  # a server on small pages is better than none
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, VARIABLE: TUNABLE})


def has_huge_pages(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment was started with huge pages."""
    return TUNABLE in environment.get(VARIABLE, "").split(":")


def obstacle_to_huge_pages(
    environment: Mapping[str, str], root: Path = Path("/"), libc: str | None = None
) -> str | None:
    """Why a process with this environment cannot get huge pages; None if it can. libc: in the notation of confstr."""
    if VARIABLE in environment:  # a user's choice stands, and a second start would find it again
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
