"""How fast the engines of a process answer (`AnswerPace`): when to try again, and when an answer can be expected."""

from __future__ import annotations

from service.answer_time import WEIGHT, AnswerTime
from service.errors import DeadlineTooSoon, Overloaded

MIN_RETRY_S, MAX_RETRY_S = 0.05, 30.0
# Of a prediction: a request is accepted if its deadline leaves so many times as long. When load multiplies, refusals
# take processor time from the engines before a prediction knows. At 5 times the capacity (16 tokens, 1 s deadlines,
# server on one core) a tenth of all calls had an answer too late with 1.25, and one in a thousand with 1.7.
MARGIN = 1.7
# A burst may fill a queue; one that has stood for so long is kept short, as in CoDel (Nichols and Jacobson, ACM Queue
# 10(5), 2012): its time counts so many times. Answers come sooner, no fewer, and an end of overload soon shows.
STANDING_AFTER_S, STANDING_WEIGHT = 0.5, 3.0


class AnswerPace:
    """Smoothed figures of the answers of one process. time: what they take without the queue."""

    def __init__(self, now_s: float) -> None:
        self._last_s = self._cleared_s = now_s
        self._gap_s = self._answers = 0.0  # between final events, while there was work; and how many ended together
        self.time = AnswerTime()
        self._queue_weight = 1.0  # of the time in the queue
        self._is_filling = True  # no answer has ended since there is work

    def resume(self, now_s: float) -> None:
        """There is work again: the time without any is left out, and that until the first answer: it is what an answer
        takes, and with many rows many times what lies between two."""
        self._last_s = self._cleared_s = now_s
        self._is_filling = True

    def count(self, answers: int, now_s: float) -> None:
        """Counts final events."""
        if self._is_filling:
            self._last_s, self._is_filling = now_s, False
            return
        self._gap_s += WEIGHT * (now_s - self._last_s - self._gap_s)
        self._answers += WEIGHT * (answers - self._answers)
        self._last_s = now_s

    def observe(self, unfinished: int, rows: int, now_s: float) -> None:
        """Takes in how many requests are unfinished, of all that share the rows."""
        if unfinished < rows:
            self._cleared_s = now_s
        self._queue_weight = STANDING_WEIGHT if now_s - self._cleared_s > STANDING_AFTER_S else 1.0

    def predicted_s(self, unfinished: int, rows: int, max_tokens: int = 0, *, service_s: float | None = None) -> float:
        """Seconds until the answer to one more request. It waits for its row while `unfinished` fill all `rows`, and
        then shares the engines with the others. Time in a queue that has stood for STANDING_AFTER_S counts
        STANDING_WEIGHT times, see `observe`.

        max_tokens: of the answer, if known. service_s: what the answer takes from its row on, if better known than by
        `time`. For an idle engine 0 is predicted: what was learned in a slow time must not refuse the requests from
        which a better pace would be learned.
        """
        if not unfinished:
            return 0.0
        if service_s is None:
            service_s = self.time.seconds(min(unfinished + 1, rows), max_tokens)
        return self._queue_weight * self._s_per_answer * max(0, unfinished + 1 - rows) + service_s

    @property
    def _s_per_answer(self) -> float:
        return self._gap_s / self._answers if self._answers else 0.0

    def retry_after_s(self, waiting: int) -> float:
        """When half of `waiting` requests will have been answered."""
        return bounded(self._s_per_answer * waiting / 2)

    def overloaded(self, waiting: int) -> Overloaded:
        """The refusal of one more request while `waiting`, the most that may, wait already."""
        problem = f"{waiting} requests are waiting already"
        return Overloaded(problem, retry_after_s=self.retry_after_s(waiting), limit=waiting)


def too_late(predicted_s: float, remaining_s: float) -> DeadlineTooSoon | None:
    """The refusal of a request whose answer is expected too late for its deadline, or None. Its numbers are rounded, so
    that few texts are sent again and again under overload."""
    if MARGIN * predicted_s <= remaining_s:
        return None
    most_s = MARGIN * predicted_s
    problem = f"an answer may take {float(f'{most_s:.1g}'):g} s now, too long for the deadline: allow more time"
    return DeadlineTooSoon(problem, retry_after_s=bounded(float(f"{most_s - remaining_s:.2g}")))


def bounded(seconds: float) -> float:
    """A hint when to try again, within its limits."""
    return min(MAX_RETRY_S, max(MIN_RETRY_S, seconds))
