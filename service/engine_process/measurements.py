"""What an engine measures, until its process sends it: the `EngineMetrics` of an engine process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from service.wire.messages import Measurement, MeasurementName


def _recorder(name: MeasurementName) -> Callable[..., None]:
    def measured(self: Measurements, *numbers: Any, **named: Any) -> None:
        self._calls.append((name, (*numbers, *named.values())))  # callers name arguments in their order

    return measured


class Measurements:
    """Keeps calls of `EngineMetrics` until `take`. The engine's thread calls, any thread takes."""

    def __init__(self) -> None:
        self._calls: deque[Measurement] = deque()  # each of its operations is atomic

    def take(self) -> list[Measurement]:
        """All calls since the last `take`, in order. Two threads that take at the same time get a part each."""
        calls, taken = self._calls, list[Measurement]()
        for _ in range(len(calls)):
            try:
                taken.append(calls.popleft())
            except IndexError:  # the other thread was faster
                break
        return taken

    admitted = _recorder("admitted")
    preempted = _recorder("preempted")
    prefilled = _recorder("prefilled")
    looked_up = _recorder("looked_up")
    stepped = _recorder("stepped")
    speculated = _recorder("speculated")
    first_token = _recorder("first_token")
    next_tokens = _recorder("next_tokens")
    generated = _recorder("generated")
    finished = _recorder("finished")
