"""How fast answers follow each other (`AnswerPace`), for the hint when to try again."""

from __future__ import annotations

from service.errors import Overloaded

MIN_RETRY_S, MAX_RETRY_S = 0.05, 30.0


class AnswerPace:
    """Seconds from one final event to the next, smoothed, while there was work."""

    def __init__(self, now_s: float) -> None:
        self._s_per_answer, self._last_s = 0.0, now_s

    def resume(self, now_s: float) -> None:
        """There is work again: the time without any is left out."""
        self._last_s = now_s

    def count(self, answers: int, now_s: float) -> None:
        """Counts final events."""
        self._s_per_answer += 0.2 * ((now_s - self._last_s) / answers - self._s_per_answer)
        self._last_s = now_s

    def retry_after_s(self, waiting: int) -> float:
        """When half of `waiting` requests will have been answered."""
        return min(MAX_RETRY_S, max(MIN_RETRY_S, self._s_per_answer * waiting / 2))

    def overloaded(self, waiting: int) -> Overloaded:
        """The refusal of one more request while `waiting`, the most that may, wait already."""
        retry_after_s = self.retry_after_s(waiting)
        problem = f"{waiting} requests are waiting already; try again in {retry_after_s:.2g} s"
        return Overloaded(problem, retry_after_s=retry_after_s, limit=waiting)
