"""Large pages of memory for a server: its steps read all weights again and again, and 4 KiB pages cost them 5-10 %.

glibc takes large pages for what is allocated when a variable says so before the process begins. The `glossa` command
therefore starts itself once more, in the same process: its number, standard streams, signals and exit status stay.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb=1"
SINCE = (2, 35)  # the first glibc that knows it
SWITCH = "sys/kernel/mm/transparent_hugepage/enabled"


def take_huge_pages() -> None:
    """Replaces the running program by itself with large pages; returns where that is not possible or has been done."""
    if obstacle_to_huge_pages(os.environ) is None:
        with contextlib.suppress(OSError):  # a server on small pages is better than none
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, VARIABLE: TUNABLE})


def has_huge_pages(environment: Mapping[str, str]) -> bool:
    return TUNABLE in environment.get(VARIABLE, "").split(":")


def obstacle_to_huge_pages(
    environment: Mapping[str, str], root: Path = Path("/"), libc: str | None = None
) -> str | None:
    """Why a process with this environment cannot be given large pages; None: it can. `libc`: as confstr names it."""
    if VARIABLE in environment:  # whoever set it knows better, and a second start would find it again
        return f"{VARIABLE} is set to {environment[VARIABLE]!r}"
    libc = _libc() if libc is None else libc
    name, _, version = libc.partition(" ")
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < SINCE:
        return f"the C library is {libc or 'not glibc'}, not glibc {'.'.join(map(str, SINCE))} or newer"
    try:
        modes = (root / SWITCH).read_text()
    except OSError:
        return f"the kernel has no /{SWITCH}"
    return f"/{SWITCH} says never" if "[never]" in modes else None


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):  # another system, or another C library
        return ""
