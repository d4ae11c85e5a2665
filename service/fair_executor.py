"""A few threads that prepare requests, fair to their tenants (`FairExecutor`).

Preparation takes from some milliseconds to a fraction of a second, in Python: while it runs, the event loop or an
engine waits for the interpreter. So tenants take turns, and a tenant among others runs one task at a time and rests
after each of them: what it can take from the others is bounded, however much it sends. One that is alone uses all
threads. Tasks of one tenant begin in the order of their coming.
"""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from service.presence import Presence

PRESENT_S = 5.0  # since a tenant was last seen
REST = 4.0  # of a task's time: a tenant among others gets a fifth of a thread

T = TypeVar("T")
_Task = tuple[Future[Any], Callable[[], Any]]


class FairExecutor:
    """Thread-safe. The threads start with the first task and end at `close`."""

    def __init__(self, threads: int, name: str, *, rest: float = REST) -> None:
        """rest: seconds that a tenant's next task waits for each second that its last one took, while other tenants are
        present."""
        self._names = [f"{name}-{place}" for place in range(threads)]
        self._rest = rest
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._waiting: dict[str, collections.deque[_Task]] = {}  # by tenant; the one whose turn is next comes first
        self._running = collections.Counter[str]()
        self._rested: dict[str, float] = {}  # when a tenant has rested
        self._presence = Presence()
        self._is_closed = False

    def see(self, tenant: str) -> None:
        """Notes that a tenant is present, with or without a task."""
        self._presence.see(tenant, time.monotonic())

    def submit(self, tenant: str, task: Callable[[], T]) -> Future[T]:
        """Runs `task()` in a thread. The future can be cancelled until it begins."""
        future: Future[T] = Future()
        self.see(tenant)
        with self._changed:
            assert not self._is_closed
            self._waiting.setdefault(tenant, collections.deque()).append((future, task))
            if len(self._threads) < len(self._names):
                thread = threading.Thread(target=self._work, name=self._names[len(self._threads)], daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return future

    def close(self) -> None:
        """Cancels the tasks that have not begun. Does not wait for the others."""
        with self._changed:
            self._is_closed = True
            waiting, self._waiting = self._waiting, {}
            self._changed.notify_all()
        for tasks in waiting.values():
            for future, _ in tasks:
                future.cancel()

    def _work(self) -> None:
        while (found := self._next()) is not None:
            tenant, (future, task) = found
            began_s = time.monotonic()
            if future.set_running_or_notify_cancel():
                with contextlib.suppress(Exception):  # of callbacks of the future, which logs them
                    try:
                        future.set_result(task())
                    except BaseException as error:  # the panic of a library in Rust is no Exception
                        future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            del future, task, found
            self._end(tenant, began_s)

    def _end(self, tenant: str, began_s: float) -> None:
        now_s = time.monotonic()
        with self._changed:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
            self._rested[tenant] = now_s + self._rest * (now_s - began_s)
            if len(self._rested) > len(self._waiting):
                self._rested = {name: until_s for name, until_s in self._rested.items() if until_s > now_s}
            self._changed.notify_all()

    def _next(self) -> tuple[str, _Task] | None:
        """The task to begin now, as soon as there is one; None: the end."""
        with self._changed:
            while not self._is_closed:
                now_s = time.monotonic()
                waits_s = {name: self._waits_s(name, now_s) for name in self._waiting}
                ready = [name for name, wait_s in waits_s.items() if wait_s <= 0]
                if ready:
                    tenant = min(ready, key=self._running.__getitem__)  # of equals the first, whose turn it is
                    tasks = self._waiting.pop(tenant)
                    task = tasks.popleft()
                    if tasks:
                        self._waiting[tenant] = tasks  # at the end
                    self._running[tenant] += 1
                    return tenant, task
                wait_s = min(waits_s.values(), default=math.inf)
                self._changed.wait(wait_s if wait_s < math.inf else None)
        return None

    def _waits_s(self, tenant: str, now_s: float) -> float:
        """Seconds until the next task of a tenant may begin; infinite until its running one has ended."""
        if now_s - self._presence.others_s(tenant) > PRESENT_S:
            return 0.0
        return math.inf if self._running[tenant] else self._rested.get(tenant, 0.0) - now_s
