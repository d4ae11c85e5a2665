"""The scheduler of one engine: what the next turn computes, and for whom. Pure: no threads, sockets or clocks.

A turn is `plan`, the runner's `run`, `commit`, then `service.decoding.search.advance`, which extends the sequences, and
`record_drafts`. With a runner that is ahead, the next turn may be planned and launched before one is read: it is then
`plan`, the runner's `launch`, `launched`, and later its `collect`, `read` and `advance`. Rows whose tokens the device
chooses go on in the turn between; the others repeat their input in it (`held`).

`Scheduler.plan` shows the order inside a plan:

1. ends: cancelled sequences and passed deadlines (`service.engine.waiting_queue`)
2. parking: live sequences that give way to others (`service.engine.fair_shares`, `service.engine.parking`)
3. memory: what the sequences that are left may still need
4. admission of waiting sequences, as many as fit and as this turn can prefill (`service.engine.admission`)
5. rows, when hypotheses came or went (`service.engine.row_assignment`)
6. prefill of new and unfinished prompts (`service.engine.prefill`)
7. drafts (`service.engine.prompt_lookup`)
8. the decode step of all rows

Between two tokens of a row lie one step and a bounded prefill. (And seldom enough, because capacities grow by a third
or more, a row outgrows the buffers, and the contents of all rows are moved once.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple

from export.bundle.manifest import Limits
from service.engine.admission import Capacity
from service.engine.fair_shares import FairShares
from service.engine.parking import Parking
from service.engine.prefill import Prefill, PrefillPlanner
from service.engine.prefix_cache import PrefixCache
from service.engine.prompt_lookup import DraftProposer
from service.engine.row_assignment import Assigned, Assignment, assign, is_settled
from service.engine.run_ahead import can_run_ahead, draws, held_back, inputs, more_steps, place
from service.engine.waiting_queue import WaitingQueue
from service.memory.cache_layout import CacheLayout, CacheShape
from service.memory.engine_limits import EngineLimits
from service.sequence import Sequence
from service.step import DecodeStep, Draft, ExtraSteps, Moves, NewRow, Parked, StepPlan, TurnOutput, padded


class Plan(NamedTuple):
    """A turn of the `live` sequences: `admitted` ones are new, `ended` ones were cancelled or too late. `parked` ones
    were live before.

    prefill: of this turn. prefix_queried_tokens: tokens of admitted prompts that were looked up in the prefix cache.
    rows: see `Scheduler`. held: sequences that need their last turn's output before they go on.
    """

    step: StepPlan
    live: tuple[Sequence, ...]
    admitted: tuple[Sequence, ...]
    ended: tuple[Sequence, ...]
    prefill: Prefill
    prefix_queried_tokens: int = 0
    parked: tuple[Sequence, ...] = ()
    rows: Items[Assigned] = ()
    held: frozenset[Sequence] = frozenset()

    @property
    def prefix_hit_tokens(self) -> int:
        """How many of the queried tokens are copied from the prefix cache."""
        return sum([load.count for load in self.step.prompts.loads])


@dataclass(slots=True)
class _Changes:
    """Sequences that get or lose rows in a turn. stored: the rows of the parked ones, for the runner."""

    admitted: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    parked: list[Sequence] = field(default_factory=list)
    stored: list[Parked] = field(default_factory=list)


class Scheduler:
    """The sequences of one engine. Only the engine's thread uses it, except for `Capacity.check`.

    limits: of the engine. waiting: sequences without rows. live: those with rows, in the order of admission. rows: by
    row, the sequence and the hypothesis that had it in the last plan. draft_proposer: None where nothing is drafted.
    is_ahead: turns are launched, and read later.
    """

    def __init__(self, limits: EngineLimits, model: Limits, layout: CacheLayout) -> None:
        self.limits, self._model = limits, model
        # A decoder that takes single tokens has no prefill: its prompts are fed as ordinary steps.
        chunk = 0 if model.max_block == 1 else min(limits.chunk_tokens, model.max_block or limits.chunk_tokens)
        self.waiting, self.live = WaitingQueue(), list[Sequence]()
        self.rows: list[Assigned] = []
        self.capacity = Capacity(layout, max_rows=limits.max_rows, max_bytes=limits.kv_cache_bytes, chunk_tokens=chunk)
        self.shares, self.parking = FairShares(), Parking(layout, limits.parking_bytes)
        self.draft_proposer = DraftProposer(limits.draft_tokens) if limits.draft_tokens and chunk else None
        self.prefill = PrefillPlanner(
            chunk,
            max_tokens=limits.max_prefill_tokens,
            max_idle_tokens=limits.max_idle_prefill_tokens,
            prefix_slots=_prefix_slots(limits, layout, chunk),
        )
        self._can_repeat = not layout.row_bytes  # an input: state without positions would take it in twice
        self._is_parking_due = self.is_ahead = False
        self._step_s = 0.0

    @property
    def prefix_cache(self) -> PrefixCache:
        """What of recent prompts is cached."""
        return self.prefill.prefix_cache

    @property
    def is_idle(self) -> bool:
        """No sequence is live or waiting."""
        return not self.waiting and not self.live

    def submit(self, sequence: Sequence) -> None:
        """Adds a sequence, whose request `Capacity.check` has accepted, to the end of the queue."""
        assert not sequence.rows, sequence.rows
        sequence.max_shape = self.capacity.shape_of(sequence.request)
        self.waiting.submit(sequence)

    def plan(self, now_s: float) -> Plan:
        """The next turn. now_s: the time, on the deadlines' clock, in seconds."""
        ended = self.waiting.expire(now_s, len(self.live))
        for sequence in ended:
            self.parking.free(sequence)
        before, self._is_parking_due = self.rows, False
        self.prefill.abandon(self.live)
        self.live = [sequence for sequence in self.live if sequence.outcome is None]
        self.shares.at(now_s)
        self.shares.meet({*self.waiting.lanes, *[sequence.lane for sequence in self.live]})
        turn = _Changes()
        if self.shares.guests:
            self._park_guests(turn)
        if not (was_settled := not turn.parked and is_settled(self.rows, self.live)):
            self.capacity.reserve_for(self.live)
        unfinished = self.prefill.unfinished(self.live)
        self._admit(unfinished, turn)
        slots = self.parking.slots
        assignment = Assignment(self.rows)
        if turn.parked or turn.admitted or turn.resumed or not was_settled:
            assignment = assign(self.rows, self.live, turn.admitted, turn.resumed)
            self.rows = assignment.rows
        for sequence in turn.resumed:
            self.parking.free(sequence)
        prefill = self.prefill.plan(self.rows, unfinished, turn.admitted, live=len(self.live))
        moves = Moves(prefill.abandoned_rows, tuple(turn.stored), assignment.resumed, slots, assignment.copies)
        held = held_back(self.live, can_repeat=self._can_repeat) if self.is_ahead else frozenset()
        step = self._step(before, moves, turn.admitted, prefill, held)
        queried = sum([len(new.request.prompt) for new in turn.admitted]) if self.prefix_cache.slots else 0
        admitted, parked = tuple(turn.admitted), tuple(turn.parked)
        return Plan(step, tuple(self.live), admitted, tuple(ended), prefill, queried, parked, self.rows, held)

    def commit(self, plan: Plan) -> list[Sequence]:
        """Records that the inputs of `plan`, the last one made, are cached. Returns the sequences whose whole prompts
        are: the output of the turn for each of their rows is about a new token, if there is a decoder."""
        for chunk in plan.step.prompts.chunks:
            self.rows[chunk.row][0].num_computed += len(chunk.tokens)
        paused = plan.prefill.unfinished | plan.held
        for sequence in plan.live:
            sequence.num_computed += sequence not in paused
        live = [sequence for sequence in plan.live if sequence not in plan.held] if plan.held else plan.live
        return [sequence for sequence in live if sequence.num_computed >= len(sequence.request.prompt)]

    def launched(self, plan: Plan) -> list[Sequence]:
        """`commit` of a turn that is read later: until then its tokens are not known here."""
        advancing, more = self.commit(plan), plan.step.decode.more if plan.step.decode else 0
        for sequence in advancing:
            sequence.unread += 1 + more
            sequence.num_computed += more
        return advancing

    def read(self, plan: Plan, advancing: Iterable[Sequence], turn: TurnOutput) -> list[Sequence]:
        """Takes in the output of an earlier plan, and gives it by the rows that sequences have now. Returns those that
        advance in it and have not ended since."""
        left, more = [], plan.step.decode.more if plan.step.decode else 0
        self._step_s = turn.step_s
        for sequence in advancing:
            sequence.unread -= 1 + more
            sequence.num_computed -= more  # until they are accepted
            if sequence.outcome is None:
                left.append(sequence)
        place(turn, plan.rows, [] if plan.rows is self.rows else self.live)
        return left

    @property
    def can_run_ahead(self) -> bool:
        """Whether the next turn can be planned before the last one was read, and brings a sequence forward."""
        if self._is_parking_due or self.draft_proposer is not None:
            return False
        return can_run_ahead(self.live, can_repeat=self._can_repeat)

    def record_drafts(self, plan: Plan, turn: TurnOutput) -> tuple[int, int]:
        """Records the times of `plan`, the last one made, and how many drafted tokens were accepted, after its
        sequences were extended. Returns the numbers of drafted and of accepted tokens."""
        if self.draft_proposer is None:
            return 0, 0
        if plan.step.decode is not None and not plan.step.decode.prefilling_rows:
            self.draft_proposer.record_step(plan.step.shape.rows, turn.step_s)
        drafted = accepted = 0
        for draft in plan.step.drafts:
            sequence, size = self.rows[draft.row][0], len(draft.tokens)
            right = sequence.num_computed - draft.start - 1
            self.draft_proposer.record_draft(sequence, size, right, turn.drafts[draft.row].seconds)
            drafted, accepted = drafted + size - 1, accepted + right
        return drafted, accepted

    def drop_live(self) -> list[Sequence]:
        """Forgets all live and parked sequences and the prefix cache, after a turn failed. The caller ends them."""
        parked = [sequence for sequence in self.waiting if sequence.slot is not None]
        self.waiting.remove(parked)
        for sequence in parked:
            self.parking.free(sequence)
        dropped, self.live, self.rows = [*self.live, *parked], [], []
        self.capacity.reserve_for(())
        self.prefill.clear()
        return dropped

    def _park_guests(self, turn: _Changes) -> None:
        """Parks guests beyond the rows that are theirs in this turn."""
        left, leaving, stored = self.shares.rows_for_guests, list[Sequence](), 0
        for sequence in [sequence for sequence in self.live if sequence.lane in self.shares.guests]:
            rows = self.shares.rows_of(sequence)
            if rows > left and self._can_park(sequence, stored):
                leaving.append(sequence)
                stored += self.parking.bytes_of(sequence)
            else:
                left -= rows
        for sequence in reversed(leaving):  # each before all that wait, so that the oldest is the first to continue
            self._park(sequence, turn, is_first=True)

    def _can_park(self, sequence: Sequence, stored: int) -> bool:
        """Whether a sequence can be parked in this turn, beside `stored` bytes. One with a token that was not read can
        in the next one, which is planned after that."""
        can_take = self.parking.can_take(sequence, stored)
        self._is_parking_due |= can_take and sequence.unread > 0
        return can_take and not sequence.unread

    def _park(self, sequence: Sequence, turn: _Changes, *, is_first: bool) -> None:
        turn.stored.append(self.parking.park(sequence))
        turn.parked.append(sequence)
        self.live.remove(sequence)
        self.waiting.put(sequence, is_first=is_first)

    def _admit(self, unfinished: list[Sequence], turn: _Changes) -> None:
        """Moves waiting sequences to the live ones, as many as fit and as this turn can prefill. One that does not fit
        is not overtaken. New ones are ordered by what is encoded and computed of them, so that neighbours need little
        padding."""
        if not self.waiting:
            return
        prefill = self.prefill
        budget = prefill.budget(len(self.live), len(unfinished))
        cost = sum([prefill.cost(sequence) for sequence in unfinished])
        for sequence in self._candidates():
            is_new = sequence.slot is None
            if is_new:
                cost += len(sequence.request.source) + prefill.cost(sequence)
                if (turn.admitted or unfinished) and cost > budget:
                    break
            if not self._make_room(sequence, turn):
                break
            self.waiting.take(sequence.lane)
            sequence.row_s = self.shares.row_s
            self.live.append(sequence)
            (turn.admitted if is_new else turn.resumed).append(sequence)
        turn.admitted.sort(key=lambda new: (len(new.request.source), prefill.cost(new)))

    def _candidates(self) -> Iterator[Sequence]:
        """Waiting sequences in the order in which they get rows, lane by lane; guests as far as they have rows left.
        The caller takes each out of the queue, or stops."""
        for lane in self.shares.order(self.waiting.lanes):
            left, rows_of = math.inf, self.shares.rows_of
            if lane in self.shares.guests:
                guests = [rows_of(sequence) for sequence in self.live if sequence.lane in self.shares.guests]
                left = self.shares.rows_for_guests - sum(guests)
            while (sequence := self.waiting.first(lane)) is not None and rows_of(sequence) <= left:
                left -= rows_of(sequence)
                yield sequence

    def _make_room(self, sequence: Sequence, turn: _Changes) -> bool:
        """Reserves what a sequence may need, and parks others for it if they leave their rows."""
        if self.capacity.reserve(sequence):
            return True
        if not self.shares.guests and self.capacity.reserved.rows == len(self.live):
            return False  # the usual case under load: all have one row
        if not (leaving := self._leaving(sequence)):
            return False
        for one in leaving:
            self._park(one, turn, is_first=self.shares.is_guest_of(one, sequence))
        self.capacity.reserve_for(self.live)
        return self.capacity.reserve(sequence)

    def _leaving(self, sequence: Sequence) -> list[Sequence]:
        """The live sequences, those of the most rows first, without which one more fits; [] if it never does."""
        leaving: list[Sequence] = []
        staying, stored = self.live.copy(), 0
        for one in sorted(self.live, key=lambda one: -one.width):
            if self.shares.makes_room(one, sequence) and self._can_park(one, stored):
                leaving.append(one)
                staying.remove(one)
                stored += self.parking.bytes_of(one)
                if self.capacity.fits(self.capacity.shape_for(staying), sequence):
                    return leaving
        return []

    def _step(
        self,
        before: Items[Assigned],
        moves: Moves,
        admitted: list[Sequence],
        prefill: Prefill,
        held: frozenset[Sequence],
    ) -> StepPlan:
        """before: the rows of the last turn."""
        chunks, drafts = prefill.prompts.chunks, self._drafts(prefill.unfinished)
        starts = [sequence.num_computed for sequence, _ in self.rows]
        for sequence in held:
            for row in sequence.rows:
                starts[row] -= 1
        for chunk in chunks:
            starts[chunk.row] = chunk.start + len(chunk.tokens)
        decode, end = None, max(starts, default=-1) + 1
        if self._model.max_target_len > 0 and len(prefill.unfinished) + len(drafts) < len(self.live):
            tokens, fed = inputs(self.rows, starts, before)
            prefilling_rows = frozenset([row for sequence in prefill.unfinished for row in sequence.rows])
            still = frozenset([row for sequence in held for row in sequence.rows])
            extra, more = None, 0
            if self.is_ahead:
                most = self.limits.greedy_steps_per_turn
                more = more_steps(self.live, held, step_s=self._step_s, most=most, can_repeat=self._can_repeat)
            elif not prefill.unfinished:
                extra = self._extra_steps(starts[0])
            is_drawn = self.is_ahead and self._can_repeat and self.draft_proposer is None
            drawn = draws(self.live, held, 1 + more) if is_drawn else ()
            decode = DecodeStep(tokens, tuple(starts), prefilling_rows, extra, fed, more, still, drawn)
            end += extra.most if extra else more
        ends = [chunk.start + padded(len(chunk.tokens)) for chunk in chunks]
        ends += [draft.start + len(draft.tokens) for draft in drafts]
        with_shortlist = [sequence for sequence in self.live if sequence.request.shortlist]
        return StepPlan(
            rows_before=len(before),
            shape=CacheShape(
                len(self.rows),
                max([end, *ends]),
                max([len(sequence.request.source) for sequence in self.live], default=0),
                max([len(sequence.request.shortlist) for sequence in with_shortlist], default=0),
            ),
            allocation_shape=self.capacity.allocation_shape(),
            moves=moves,
            new_rows=tuple([_new_row(sequence) for sequence in admitted]),
            prompts=prefill.prompts,
            decode=decode,
            drafts=tuple(drafts),
            shortlist_rows=frozenset([row for sequence in with_shortlist for row in sequence.rows]),
            top_k=max([sequence.search.top_k for sequence in self.live], default=0),
            read_rows=tuple([row for one in self.live if one.search.needs_rows for row in one.rows]),
        )

    def _drafts(self, unfinished: frozenset[Sequence]) -> list[Draft]:
        """Guesses that rows with an own token verify beside their newest one."""
        if self.draft_proposer is None:
            return []
        stepping = [sequence for sequence in self.live if sequence not in unfinished and sequence.steps]
        proposed = self.draft_proposer.propose(stepping, len(self.rows))
        drafts = []
        for sequence in self.live:
            guesses = sequence.draft_tokens = proposed.get(sequence, ())
            if guesses:
                (hypothesis,) = sequence.hypotheses
                drafts.append(Draft(hypothesis.row, sequence.num_computed, (hypothesis.tokens[-1], *guesses)))
        return drafts

    def _extra_steps(self, start: int) -> ExtraSteps | None:
        """Those after the step at position `start` that the only row makes in the same turn: a turn costs a tenth of a
        step of one row or more, whatever it is for. A streamed answer must not come in bursts."""
        if len(self.rows) != 1 or self.waiting or self.draft_proposer is not None:
            return None
        (sequence,) = self.live
        request = sequence.request
        is_free = start + 1 >= len(request.prompt) and sequence.steps >= len(request.prefix)
        most = min(self.limits.greedy_steps_per_turn, request.max_tokens - sequence.steps - sequence.unread) - 1
        if request.is_streamed or not (is_free and sequence.search.is_greedy) or most <= 0:
            return None
        return ExtraSteps(most, self.limits.greedy_turn_s)


def _new_row(sequence: Sequence) -> NewRow:
    (row,) = sequence.rows
    request = sequence.request
    return NewRow(row, request.source, request.encoder_request, request.shortlist)


def _prefix_slots(limits: EngineLimits, layout: CacheLayout, chunk: int) -> int:
    """How many chunks the prefix cache holds. State without positions cannot be stored by chunk, and what a decoder
    computes of a prompt depends on the source, if there is one."""
    if not chunk or layout.row_bytes or layout.source_bytes or not layout.bytes_per(1):
        return 0
    return limits.prefix_cache_bytes // layout.bytes_per(chunk)
