"""How long answers take from their rows on (`AnswerTime`), and the same for each tenant or lane (`AnswerTimes`)."""

from __future__ import annotations

import collections
from typing import Generic, TypeVar

from service.request import Finished

WEIGHT = 0.2  # of a new observation

K = TypeVar("K")


class AnswerTime:
    """Smoothed figures of answers, without their time in the queue. They are ratios of means, not means of ratios: an
    answer that ends alone must not outweigh many that end together."""

    def __init__(self) -> None:
        self._seconds = self._rows = self._tokens = 0.0
        self._weight = 0.0  # of all answers in these three

    def learn(self, finished: Finished, rows: int = 1) -> None:
        """Takes in how long an answer took. rows: that were busy beside it, its own included."""
        timings = finished.timings
        self._seconds += WEIGHT * (timings.total_s - timings.queue_s - self._seconds)
        self._rows += WEIGHT * (rows - self._rows)
        self._tokens += WEIGHT * (finished.generated_tokens - self._tokens)
        self._weight += WEIGHT * (1 - self._weight)

    def seconds(self, rows: int = 1, max_tokens: int = 0) -> float:
        """What an answer takes with so many busy rows, in seconds; 0: not known. A step takes the longer the more rows
        it has. max_tokens: of the answer, if known."""
        share = min(1.0, max_tokens * self._weight / self._tokens) if max_tokens and self._tokens else 1.0
        return share * self._seconds * rows / self._rows if self._rows else 0.0


class AnswerTimes(Generic[K]):
    """The times of those that were answered last, at most `most` of them, by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times = collections.OrderedDict[K, AnswerTime]()  # the one that was answered last at the end

    def __getitem__(self, key: K) -> AnswerTime:
        """The time of a key, from now on the one that was answered last. A new one may take the place of the oldest."""
        time = self._times.setdefault(key, AnswerTime())
        self._times.move_to_end(key)
        if len(self._times) > self._most:
            self._times.popitem(last=False)
        return time

    def get(self, key: K) -> AnswerTime | None:
        """The time of a key, if it is remembered."""
        return self._times.get(key)
