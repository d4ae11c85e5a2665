"""When refused calls shall come again (`RetryTimes`): one after the other, about as fast as calls are answered.

With the same hint for all of them they would come together, be refused again, and take processor time from answers: at
ten times the capacity, with four retries each, nothing at all was answered for a second and a half.
"""

from __future__ import annotations

import math
import random

HALF_LIFE_S = 1.0  # of what is known about the rate of answers
LEAST_PER_S = 10.0  # calls that are invited, where hardly any were answered
MOST_S = 5.0  # ahead; an overload that lasts invites each call at some moment of the second half of this


class RetryTimes:
    """The moments that are given away. Event-loop thread only."""

    def __init__(self, now_s: float) -> None:
        self._answers, self._counted_s = 0.0, now_s  # with weights that halve in HALF_LIFE_S
        self._next_s = now_s
        self._random = random.Random()

    def answered(self, now_s: float) -> None:
        """A call was answered."""
        self._decay(now_s)
        self._answers += 1

    def after_s(self, least_s: float, now_s: float) -> float:
        """In how many seconds a call that is refused now shall come again, with two digits; not before `least_s`."""
        self._decay(now_s)
        per_s = max(LEAST_PER_S, self._answers * math.log(2) / HALF_LIFE_S)
        self._next_s = max(self._next_s, now_s) + 1 / per_s
        ahead_s = self._next_s - now_s
        if ahead_s > MOST_S:
            self._next_s = now_s + MOST_S
            ahead_s = self._random.uniform(MOST_S / 2, MOST_S)
        return max(least_s, float(f"{ahead_s:.2g}"))

    def _decay(self, now_s: float) -> None:
        self._answers *= 0.5 ** ((now_s - self._counted_s) / HALF_LIFE_S)
        self._counted_s = now_s
