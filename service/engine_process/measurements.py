"""What an engine has measured, until its process sends it."""

from __future__ import annotations

from collections import deque

from service.measurements import Measurement


class Measurements(deque[Measurement]):
    """The engine's thread appends, any thread takes: each operation of a deque is atomic."""

    def take(self) -> list[Measurement]:
        """All measurements since the last `take`, in order. Two threads that take at the same time get a part each."""
        taken = list[Measurement]()
        for _ in range(len(self)):
            try:
                taken.append(self.popleft())
            except IndexError:  # the other thread was faster
                break
        return taken
