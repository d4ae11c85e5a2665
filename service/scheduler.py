"""Who runs in the next turn: admission, rows, memory, deadlines, cancellations. Pure: no threads, sockets or clocks.

`plan(now)` says what to run and who left; `commit` takes the chosen tokens. Requests are admitted in the order they
came, each only when its worst case fits beside the worst cases of all live rows: nothing can run out later. Live rows
stay the dense prefix [0, n): who leaves is replaced by the last row, who joins takes row n.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from export.bundle import Limits
from service.decoding.strategy import Selection
from service.errors import Cancelled, DeadlineExceeded, InvalidRequest
from service.request import Request
from service.sequence import Sequence
from service.states import StateLayout
from service.step import Join, Move, StepPlan, padded


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    max_rows: int = 64  # sequences decoded at once
    state_bytes: int = 1 << 30  # most bytes of key-value caches and other states
    join_tokens: int = 512  # source and prompt tokens read in one turn, padding included; bounds how long rows wait

    def __post_init__(self) -> None:
        for name in ("max_rows", "state_bytes", "join_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a turn does. `rows[i]` is the sequence in row i; `admitted` ones are new there, `ended` ones gave up."""

    step: StepPlan
    rows: tuple[Sequence, ...]
    admitted: tuple[Sequence, ...]
    ended: tuple[Sequence, ...]


class Scheduler:
    """The sequences of one engine. All methods but `check` belong to the engine's thread."""

    def __init__(self, config: SchedulerConfig, limits: Limits, layout: StateLayout, *, eos_id: int) -> None:
        self.config, self.limits, self.layout, self.eos_id = config, limits, layout, eos_id
        self.waiting: deque[Sequence] = deque()
        self.live: list[Sequence] = []
        self.reserved_bytes = 0  # the worst case of the live rows

    @property
    def has_prefill(self) -> bool:
        """The decoder reads whole blocks; otherwise prompts are fed token by token, as ordinary steps."""
        return self.limits.max_block != 1

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.live

    def check(self, request: Request) -> None:
        """Raises InvalidRequest for what could never run, however long it waited. Safe to call from any thread."""
        limits, prompt, source = self.limits, len(request.prompt), len(request.source)
        positions = prompt + request.max_tokens - 1
        if positions > limits.max_target_len:
            raise InvalidRequest(
                "max_tokens",
                f"{prompt} prompt tokens and {request.max_tokens} new ones need {positions} positions, "
                f"the model has {limits.max_target_len}",
            )
        if source > limits.max_source_len or (source == 0) != (limits.max_source_len == 0):
            raise InvalidRequest("source", f"must have 1..{limits.max_source_len} tokens, got {source}")
        if limits.max_block > 1 and prompt > limits.max_block:
            raise InvalidRequest("prompt", f"must have at most {limits.max_block} tokens, got {prompt}")
        if any(not 0 <= token < limits.vocab_size for token in request.source + request.prompt):
            raise InvalidRequest("source", f"token ids must be 0..{limits.vocab_size - 1}")
        worst = self._reserve([Sequence(request)])
        if worst > self.config.state_bytes:
            raise InvalidRequest(
                "max_tokens",
                f"the request needs up to {worst} bytes of state, the server allows {self.config.state_bytes}",
            )

    def submit(self, sequence: Sequence) -> None:
        """Adds a checked sequence to the end of the queue."""
        assert sequence.row is None, sequence.row
        self.waiting.append(sequence)

    def plan(self, now_s: float) -> Plan:
        """Lets expired and cancelled sequences go, closes holes, admits who fits. `now_s`: on the deadlines' clock."""
        ended = self._expire(now_s)
        before = len(self.live)
        moves = self._compact()
        left = before - len(self.live)
        admitted = self._admit()
        if left or admitted:
            self.reserved_bytes = self._reserve(self.live)
        return Plan(self._step(moves, admitted), tuple(self.live), tuple(admitted), tuple(ended))

    def commit(self, plan: Plan, selection: Selection) -> list[Sequence]:
        """Takes the choices for the rows of `plan`, the last one made. Returns the sequences that got a token."""
        assert len(selection.tokens) == len(plan.rows) == len(self.live), (len(selection.tokens), len(plan.rows))
        assert selection.parents == list(range(len(plan.rows))), selection.parents
        steps = len(plan.step.tokens)
        return [
            sequence
            for row, (sequence, token) in enumerate(zip(plan.rows, selection.tokens, strict=True))
            if sequence.advance(1 if row < steps else len(sequence.request.prompt), token, self.eos_id)
        ]

    def drop_live(self) -> list[Sequence]:
        """Forgets all live rows, after a turn failed. The caller ends them."""
        dropped, self.live, self.reserved_bytes = self.live, [], 0
        for sequence in dropped:
            sequence.row = None
        return dropped

    def _expire(self, now_s: float) -> list[Sequence]:
        ended = []
        for sequence in (*self.live, *self.waiting):
            deadline_s = sequence.request.deadline_s
            if sequence.end is not None:
                continue
            if sequence.is_cancelled:
                sequence.finish(Cancelled("the request was cancelled"))
            elif deadline_s is not None and now_s >= deadline_s:
                count = len(sequence.tokens)
                sequence.finish(DeadlineExceeded(f"the deadline passed after {count} tokens; allow more time or fewer"))
            else:
                continue
            ended.append(sequence)
        if ended:
            self.waiting = deque(sequence for sequence in self.waiting if sequence.end is None)
        return ended

    def _compact(self) -> list[Move]:
        live, moves, row = self.live, [], 0
        while row < len(live):
            if live[row].end is None:
                row += 1
                continue
            live[row].row = None
            last = live.pop()
            if row == len(live) or last.end is not None:
                last.row = None
                continue
            moves.append(Move(len(live), row, last.cached, len(last.request.source)))
            live[row], last.row = last, row
        return moves

    def _admit(self) -> list[Sequence]:
        admitted: list[Sequence] = []
        cost = 0
        while self.waiting and len(self.live) + len(admitted) < self.config.max_rows:
            sequence = self.waiting[0]
            cost += self._join_tokens(sequence)
            if admitted and cost > self.config.join_tokens:
                break
            if self._reserve([*self.live, *admitted, sequence]) > self.config.state_bytes:
                break
            admitted.append(self.waiting.popleft())
        admitted.sort(key=self._join_tokens)  # rows of one padded length are read together
        for row, sequence in enumerate(admitted, start=len(self.live)):
            sequence.row = row
        self.live += admitted
        return admitted

    def _step(self, moves: list[Move], admitted: list[Sequence]) -> StepPlan:
        live = self.live
        prefilled = len(admitted) if self.has_prefill else 0
        stepping = live[: len(live) - prefilled]
        starts = tuple([sequence.cached for sequence in stepping])
        blocks = [self._padded_prompt(sequence) for sequence in admitted] if prefilled else []
        return StepPlan(
            rows=len(live),
            moves=tuple(moves),
            joins=tuple(self._join(sequence) for sequence in admitted),
            tokens=tuple([sequence.next_input for sequence in stepping]),
            starts=starts,
            longest=max([start + 1 for start in starts] + blocks, default=0),
            longest_source=max([len(sequence.request.source) for sequence in live], default=0),
        )

    def _join(self, sequence: Sequence) -> Join:
        assert sequence.row is not None
        return Join(sequence.row, sequence.request.source, sequence.request.prompt if self.has_prefill else ())

    def _join_tokens(self, sequence: Sequence) -> int:
        prompt = self._padded_prompt(sequence) if self.has_prefill else 0
        return padded(len(sequence.request.source)) + prompt

    def _padded_prompt(self, sequence: Sequence) -> int:
        return padded(len(sequence.request.prompt))

    def _reserve(self, sequences: list[Sequence]) -> int:
        if not sequences:
            return 0
        prefill = self._padded_prompt if self.has_prefill else lambda _: 0
        target_len = max(max(sequence.longest, prefill(sequence)) for sequence in sequences)
        source_len = max(len(sequence.request.source) for sequence in sequences)
        return self.layout.bytes_for(len(sequences), target_len, source_len, max_rows=self.config.max_rows)


def check_invariants(scheduler: Scheduler) -> list[str]:
    """Every broken promise of the scheduler's state, between two turns; [] if all hold."""
    broken = []
    live, waiting = scheduler.live, scheduler.waiting
    if len({id(sequence) for sequence in (*live, *waiting)}) != len(live) + len(waiting):
        broken.append("a sequence is in two places")
    for row, sequence in enumerate(live):
        if sequence.row != row:
            broken.append(f"the sequence at {row} believes to be in row {sequence.row}")
        done, produced = sequence.cached >= len(sequence.request.prompt), len(sequence.tokens)
        if produced != (sequence.cached - len(sequence.request.prompt) + 1 if done else 0):
            broken.append(f"row {row} has {produced} tokens and {sequence.cached} cached positions")
        if produced > sequence.request.max_tokens or sequence.cached > sequence.longest:
            broken.append(f"row {row} is longer than it may be")
    if any(sequence.row is not None or sequence.end is not None for sequence in waiting):
        broken.append("a waiting sequence has a row or an end")
    if len(live) > scheduler.config.max_rows:
        broken.append(f"{len(live)} rows of {scheduler.config.max_rows}")
    if scheduler.reserved_bytes != scheduler._reserve(live):
        broken.append(f"{scheduler.reserved_bytes} bytes reserved, {len(live)} rows need {scheduler._reserve(live)}")
    if scheduler.reserved_bytes > scheduler.config.state_bytes:
        broken.append(f"{scheduler.reserved_bytes} bytes reserved of {scheduler.config.state_bytes}")
    return broken
