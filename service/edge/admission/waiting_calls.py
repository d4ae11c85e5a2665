"""Calls that wait, in groups such as those of a connection (`WaitingCalls`): which of them makes room for others.

Why they wait, and how one is ended, is the business of those who keep them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Hashable, Protocol):
    """A call that waits. since_s: since when. groups: that it belongs to."""

    @property
    def since_s(self) -> float: ...

    @property
    def groups(self) -> tuple[Hashable, ...]: ...


W = TypeVar("W", bound=Waiting)


class WaitingCalls(Generic[W]):
    """The one that has waited longest comes first. Event-loop thread only."""

    def __init__(self) -> None:
        self._calls: dict[W, None] = {}
        self._groups: dict[Hashable, dict[W, None]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[W]:
        return iter(self._calls)

    def count_of(self, group: Hashable) -> int:
        """How many of a group wait."""
        return len(self._groups.get(group, ()))

    def add(self, one: W) -> None:
        """A call begins to wait."""
        self._calls[one] = None
        for group in one.groups:
            self._groups.setdefault(group, {})[one] = None

    def remove(self, one: W) -> None:
        """A call waits no longer, or did not before."""
        if one not in self._calls:
            return
        del self._calls[one]
        for group in one.groups:
            del self._groups[group][one]
            if not self._groups[group]:
                del self._groups[group]

    def longest(self, until_s: float) -> W | None:
        """The one that has waited longest in the largest group, or else of all, if it did by `until_s`."""
        if not self._calls:
            return None
        oldest = (next(iter(calls)) for calls in (max(self._groups.values(), key=len), self._calls))
        return next((one for one in oldest if one.since_s <= until_s), None)
