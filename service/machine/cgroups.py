"""The cgroups of this process, versions 1 and 2: where their files are, and the memory that they allow."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

UNLIMITED = 1 << 60  # version 1 writes "none" as a number above this


def cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of the cgroups that contain this process and have a controller, the innermost first. Some may not
    exist. root: where /proc and /sys are found."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        mounts = ("", "unified") if not controllers else (controllers, controller) if controller in names else ()
        group = Path(path.lstrip("/"))
        # Inside a container the path may be the host's: the mount's own root then carries the limit.
        for mount, part in itertools.product(mounts, (group, *group.parents)):
            yield root / "sys/fs/cgroup" / mount / part


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes of memory that the cgroups of this process allow it and the others in them; None: there is no limit."""
    found = []
    for group in cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                found.append(int((group / name).read_text()))
    return min((limit for limit in found if limit < UNLIMITED), default=None)
