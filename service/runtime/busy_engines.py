"""Tracks which engines have live rows, so that a single busy engine may use all cores.

It makes no decision: `service.runtime.runner` chooses the sessions of a turn.
"""

from __future__ import annotations

import threading


class BusyEngines:
    """The engines with work. Shared by the runners of a server; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[object] = set()

    def mark_busy(self, engine: object) -> bool:
        """Records that `engine` has work. Returns whether it is the only one."""
        with self._lock:
            self._busy.add(engine)
            return len(self._busy) == 1

    def mark_idle(self, engine: object) -> None:
        """Records that `engine` has no work; idempotent."""
        with self._lock:
            self._busy.discard(engine)
