"""The sequences of an engine that wait for rows, in lanes, and the early ends of waiting and live ones alike.

A lane holds the requests of one tenant in one class. Which lane is next is the business of
`service.engine.fair_shares`. Within a lane the order is that of arrival, with one exception: a sequence that needs many
rows lets later ones go first that need fewer, until these have had as many rows as it needs more. (Start-time fair
queueing with every request as a flow of its own: Goyal, Vin and Cheng, 1996. The lane's virtual time advances by the
rows that leave it over the requests that wait.) So no request waits for ever, and none keeps a smaller one waiting for
long.

Pure: no threads and no clock; deadlines are compared with a time that the caller passes.
"""

from __future__ import annotations

import heapq
import itertools
import math
import weakref
from collections.abc import Collection, Iterator

from service.answer_pace import bounded
from service.answer_time import AnswerTimes
from service.errors import Cancelled, DeadlineExceeded, DeadlineTooSoon
from service.request import Finished
from service.sequence import Lane, Sequence

MAX_LANES = 256  # whose answers' times are remembered; waiting requests of others end at their deadlines
SCAN_S = 0.02  # between two looks at all that wait, which take some 0.1 ms when hundreds do
STALE_DEADLINES = 256  # of ended requests that may stay in the heap, beside as many as there are unfinished requests


class WaitingQueue:
    """Sequences without rows. Iterates over them lane by lane, in no order within a lane."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, _Waiting] = {}
        self._cancelled: list[Sequence] = []
        # A heap; what is left of ended sequences leaves it late. They must not stay in memory until their deadlines:
        # some of them take megabytes.
        self._deadlines: list[tuple[float, int, weakref.ref[Sequence]]] = []
        self._numbers = itertools.count(1)
        self._size = 0
        self._next_scan_s = -math.inf
        self._times = AnswerTimes[Lane](MAX_LANES)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for lane in self._lanes.values() for entry in lane.heap)

    @property
    def lanes(self) -> Collection[Lane]:
        """The lanes in which sequences wait."""
        return self._lanes.keys()

    def submit(self, sequence: Sequence) -> None:
        """Adds a new sequence."""
        self.put(sequence)
        if sequence.request.deadline_s is not None:
            heapq.heappush(self._deadlines, (sequence.request.deadline_s, next(self._numbers), weakref.ref(sequence)))

    def put(self, sequence: Sequence, *, is_first: bool = False) -> None:
        """Adds a sequence, a new one or one that had rows before. is_first: before all that are in its lane now."""
        lane = self._lanes.get(sequence.lane)
        if lane is None:
            lane = self._lanes[sequence.lane] = _Waiting()
        place, number = lane.passed + sequence.width, next(self._numbers)
        if is_first:  # `passed` alone may have overtaken some that have waited long
            place, number = min([lane.passed, *[entry[0] for entry in lane.heap[:1]]]), -number
        heapq.heappush(lane.heap, (place, number, sequence))
        self._size += 1

    def first(self, lane: Lane) -> Sequence | None:
        """The next sequence of a lane; None if it is empty."""
        waiting = self._lanes.get(lane)
        return waiting.heap[0][2] if waiting else None

    def take(self, lane: Lane) -> Sequence:
        """Removes the next sequence of a lane, which is not empty."""
        waiting = self._lanes[lane]
        count = len(waiting.heap)
        _, number, sequence = heapq.heappop(waiting.heap)
        if number >= 0:  # else it only continues
            waiting.passed += sequence.width / count
        self._size -= 1
        if not waiting.heap:
            del self._lanes[lane]
        return sequence

    def learn(self, lane: Lane, finished: Finished) -> None:
        """Takes in how long an answer to a request of a lane took from its row on."""
        self._times[lane].learn(finished)

    def cancel(self, sequence: Sequence) -> None:
        """Lets a sequence end in the next `expire`, unless it has ended by then."""
        self._cancelled.append(sequence)

    def expire(self, now_s: float, live: int) -> list[Sequence]:
        """Ends the sequences that were cancelled or whose deadlines have passed, and returns them. live: number of
        sequences with rows.

        While there are any, waiting ones end as well if too little time is left for an answer, as the last ones of the
        lane took: their clients learn it earlier, and no token is computed in vain.
        """
        ended = []
        for sequence in self._cancelled:
            if sequence.outcome is None:
                sequence.finish(Cancelled("the request was cancelled"))
                ended.append(sequence)
        self._cancelled.clear()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            late = heapq.heappop(self._deadlines)[2]()
            if late is not None and late.outcome is None:
                count = late.steps
                late.finish(DeadlineExceeded(f"the deadline passed after {count} tokens; allow more time or fewer"))
                ended.append(late)
        if live and now_s >= self._next_scan_s:
            self._next_scan_s = now_s + SCAN_S
            ended += self._refuse_hopeless(now_s)
        self.remove([sequence for sequence in ended if not sequence.rows])
        if len(self._deadlines) > 2 * (live + len(self)) + STALE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if (at := entry[2]()) and at.outcome is None]
            heapq.heapify(self._deadlines)
        return ended

    def _refuse_hopeless(self, now_s: float) -> list[Sequence]:
        """Ends waiting sequences whose answers would come too late even if they got their rows now."""
        found = []
        for sequence in self:
            request, time = sequence.request, self._times.get(sequence.lane)
            if time and sequence.outcome is None and not sequence.steps and request.deadline_s is not None:
                needed_s = time.seconds(max_tokens=request.max_tokens)
                if request.deadline_s - now_s < needed_s:
                    problem = "the queue took too long for the deadline: allow more time"
                    sequence.finish(DeadlineTooSoon(problem, retry_after_s=bounded(needed_s)))
                    found.append(sequence)
        return found

    def remove(self, sequences: Collection[Sequence]) -> None:
        """Takes out some that wait."""
        gone = set(sequences)
        for lane in {sequence.lane for sequence in gone}:
            waiting = self._lanes[lane]
            self._size -= len(waiting.heap)
            waiting.heap = [entry for entry in waiting.heap if entry[2] not in gone]
            self._size += len(waiting.heap)
            heapq.heapify(waiting.heap)
            if not waiting.heap:
                del self._lanes[lane]


class _Waiting:
    """One lane: a heap of (rows that may leave before it, number, sequence); the number is negative for one that only
    continues. passed: rows that have left, divided by how many waited each time."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Sequence]] = []
        self.passed = 0.0
