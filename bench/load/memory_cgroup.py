"""A cgroup of version 2 with a limit of memory, for a server that is started in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

NAME = "glossa-memory-promise"


class MemoryCgroup:
    """A group that this process is in. group: its directory. origin: that of this process before."""

    def __init__(self, group: Path, origin: Path) -> None:
        self.group, self._origin = group, origin

    def leave(self) -> None:
        """This process goes back; those that it has started stay."""
        (self._origin / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self) -> int:
        """The most memory that its processes have had."""
        return int((self.group / "memory.peak").read_text())

    def killed(self) -> int:
        """Processes that ended for want of memory."""
        events = dict(line.split() for line in (self.group / "memory.events").read_text().splitlines())
        return int(events["oom_kill"])


@contextlib.contextmanager
def limited(directory: Path, limit_bytes: int, root: Path = Path("/")) -> Iterator[MemoryCgroup]:
    """A new group in a directory that this user may change, which holds no processes itself. This process is in it
    until it leaves. root: where /proc and /sys are found."""
    own = next(line for line in (root / "proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    mount = next(path for path in (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified") if _is_version_2(path))
    group = MemoryCgroup(directory / NAME, mount / own.removeprefix("0::").lstrip("/"))
    group.group.mkdir()
    try:
        (group.group / "memory.max").write_text(str(limit_bytes))
        with contextlib.suppress(FileNotFoundError):  # without swap
            (group.group / "memory.swap.max").write_text("0")
        (group.group / "cgroup.procs").write_text(str(os.getpid()))
        yield group
    finally:
        group.leave()
        group.group.rmdir()


def _is_version_2(path: Path) -> bool:
    return (path / "cgroup.controllers").exists()
