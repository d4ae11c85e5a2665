"""Which of a server's engines have rows, so that one that has the processors to itself can use them all.

It counts and decides nothing: how a step is computed is `service.runtime.runner`'s business.
"""

from __future__ import annotations

import threading


class BusyEngines:
    """Those that have work now. Shared by the runners of a server; every method from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[object] = set()

    def mark_busy(self, who: object) -> bool:
        """`who` has work from now on, if it had none. Returns whether it is the only one."""
        with self._lock:
            self._busy.add(who)
            return len(self._busy) == 1

    def mark_idle(self, who: object) -> None:
        """`who` has no work for now; again: nothing happens."""
        with self._lock:
            self._busy.discard(who)
