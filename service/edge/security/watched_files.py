"""Files that are read anew when they change: certificates, tokens.

A file that is replaced, as Kubernetes does with a symbolic link, counts as changed as one that is written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from service.edge.observability import logs
from service.errors import StartupError

CHECK_S = 1.0
_Stamp = tuple[int, int, int, int]


class WatchedFiles:
    """Notices changes of some files and has them read."""

    def __init__(self, kind: str, paths: Sequence[Path], read: Callable[[], None]) -> None:
        """kind: what they are, for the log. read: takes over what the files contain, or raises StartupError and leaves
        everything as it was. Called here for the first time; raises what it raises."""
        self._kind, self._paths, self._read = kind, paths, read
        self._stamps = self._doubted = self._seen()
        read()

    def _seen(self) -> list[_Stamp | None]:
        return [_stamp(path) for path in self._paths]

    def refresh(self) -> bool | None:
        """Reads files that have changed since the last time. Returns whether they were taken over; None: none has
        changed, or what was read first cannot be used: a key may still be missing that belongs to a new certificate.
        They are refused when the next call finds them the same."""
        stamps = self._seen()
        if stamps == self._stamps:
            return None
        files = [str(path) for path in self._paths]
        try:
            self._read()
        except StartupError as error:
            if stamps != self._doubted:
                self._doubted = stamps
                return None
            self._stamps = stamps
            logs.event("refused_files", {"kind": self._kind, "files": files, "reason": str(error)}, level=logs.ERROR)
            return False
        self._stamps = stamps
        logs.event("read_files", {"kind": self._kind, "files": files})
        return True

    async def watch(self, on_change: Callable[[bool], object]) -> None:
        """Refreshes until it is cancelled, in threads: storage may hang. on_change: called with whether changed files
        were taken over."""
        while True:
            await asyncio.sleep(CHECK_S)
            if (taken := await asyncio.to_thread(self.refresh)) is not None:
                on_change(taken)


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
