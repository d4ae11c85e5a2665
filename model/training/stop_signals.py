"""Ctrl-C and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """In this context the first Ctrl-C or SIGTERM requests a stop after the step; a second Ctrl-C stops immediately."""
    requested = threading.Event()

    def request(number: int, _: object) -> None:
        if requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested.set()

    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return
    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
