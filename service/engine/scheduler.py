"""Who runs in the next turn: admission, rows, memory, deadlines, cancellations. Pure: no threads, sockets or clocks.

`plan(now)` says what to run and who left; `commit` says who has read its prompt and takes a token. Requests are
admitted in the order they came, each only when its worst case fits beside the worst cases of all live ones, in rows and
in bytes: nothing can run out later. Every live hypothesis has a row, and live rows stay the dense prefix [0, n).

Rows are laid out anew when hypotheses came or went. The first hypothesis that continues a row keeps it; all others, and
those whose row lies behind the new end, are copied into rows that nobody continues. So a copy never reads what another
one writes, and a beam's copies are as few as they can be. A hypothesis goes first of all into a row of its own request:
there the source's keys and values are right already, and so are all positions up to where both hypotheses part.

Reading never keeps running rows waiting for long. In every turn each running row steps once, and beside it at most
`max_prefill_tokens` tokens of sources and prompts are read: between two tokens of a row lie one step and so much
reading. (One source, or one block of a prompt, is always read, even if it is longer. And seldom enough, because
capacities grow by a third or more, a row outgrows the buffers, and all that rows hold is moved once.) Sources are read
whole, in the order they came. Prompts are read in blocks of `block` tokens from position 0 on. The split depends on
nothing else, so neither do the bits; what the load decides is how many blocks a turn has. The oldest unfinished prompt
gets one of them in every turn, so that it ends, and the shortest ones get the others, so that a long one does not hold
them up. While nothing runs, `max_idle_prefill_tokens` may be read in a turn: nobody waits but those that are read.

Where drafts are allowed, rows may read guesses at their next tokens together with the newest one (`DraftProposer` says
which). Only those that come true count as cached.
"""

from __future__ import annotations

import functools
import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from export.bundle import PAD_MULTIPLE, Limits
from service.cache_layout import CacheLayout, CacheShape
from service.engine.prefix_cache import PrefixCache
from service.engine.prompt_lookup import DraftProposer
from service.errors import Cancelled, DeadlineExceeded, InvalidRequest
from service.request import Request
from service.sequence import Hypothesis, Sequence
from service.step import Copy, Draft, NewRow, PrefillChunk, PrefixBlock, StepOutput, StepPlan, padded

DEADLINES = 256
"""How many deadlines of requests that have ended may wait to be forgotten, beside as many as there are others."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    max_rows: int = 64  # sequences decoded at once
    kv_cache_bytes: int = 1 << 30  # most bytes of key-value caches and other states
    max_prefill_tokens: int = (
        256  # source and prompt tokens read beside a step, padding included: bounds how long rows wait
    )
    max_idle_prefill_tokens: int = 1024  # the same in a turn in which no row steps
    # Prompt tokens read at once; only whole blocks are reused. A prompt of 449 tokens takes a model of 12 layers, d768,
    # in int8 on one Zen 4 core 608 ms in blocks of 16, 523 of 32, 380 of 64, 332 of 128, 331 of 256, 363 in one.
    block: int = 128
    prefix_bytes: int = 0  # for beginnings of prompts that were read lately, beside kv_cache_bytes; 0: none are kept
    draft_tokens: int = 0  # of a draft at most, for decoders that read blocks; 0: nothing is drafted
    # Steps of a turn, and about how long they may take together, for one greedy row whose answer is not streamed, with
    # nobody waiting for its turn. Whoever comes meanwhile waits for them.
    greedy_steps_per_turn: int = 16
    greedy_turn_s: float = 0.01

    def __post_init__(self) -> None:
        for name in (
            "max_rows",
            "kv_cache_bytes",
            "max_prefill_tokens",
            "max_idle_prefill_tokens",
            "block",
            "greedy_steps_per_turn",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.block % PAD_MULTIPLE:
            raise ValueError(f"block: must be a multiple of {PAD_MULTIPLE}, got {self.block}")
        for name in ("prefix_bytes", "draft_tokens", "greedy_turn_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be at least 0, got {getattr(self, name)}")


class Plan(NamedTuple):
    """What a turn does, for `live` sequences; `admitted` ones are new there, `ended` ones gave up.

    readers: live ones that read blocks of their prompts.
    reading: live ones whose prompts will not have been read yet, but for the last token.
    looked_up, reused: tokens of new prompts, and how many of them need not be read, because they were kept.
    """

    step: StepPlan
    live: tuple[Sequence, ...]
    admitted: tuple[Sequence, ...]
    ended: tuple[Sequence, ...]
    readers: frozenset[Sequence] = frozenset()
    reading: frozenset[Sequence] = frozenset()
    looked_up: int = 0
    reused: int = 0


class Scheduler:
    """The sequences of one engine. All methods but `check` belong to the engine's thread.

    live: in the order of admission. rows: whose hypothesis was in which row in the last plan, and which.
    """

    def __init__(self, config: SchedulerConfig, limits: Limits, layout: CacheLayout) -> None:
        self.config, self.limits, self.layout = config, limits, layout
        self._bytes_for = functools.lru_cache(maxsize=1024)(self._bytes_of)
        self.waiting: deque[Sequence] = deque()
        self._cancelled: list[Sequence] = []
        self._deadlines: list[tuple[float, int, Sequence]] = []  # a heap; those that have ended leave it late
        self._submitted = 0
        self.live: list[Sequence] = []
        self.rows: list[tuple[Sequence, Hypothesis]] = []
        self.reserved = CacheShape()  # the worst case of the live sequences
        self.block = min(config.block, limits.max_block) if limits.max_block else config.block
        self.prefixes = PrefixCache(self._slots(), self.block)
        drafts = config.draft_tokens if self.has_prefill else 0
        self.draft_proposer = DraftProposer(drafts) if drafts else None

    def _slots(self) -> int:
        """How many blocks of prompts are kept. What has no positions cannot be kept block by block, and what a decoder
        makes of a prompt depends on the source, if there is one."""
        layout = self.layout
        if not self.has_prefill or layout.row_bytes or layout.source_bytes or not layout.target_bytes:
            return 0
        return self.config.prefix_bytes // layout.bytes_per(self.block)

    @property
    def has_prefill(self) -> bool:
        """The decoder reads whole blocks; otherwise prompts are fed token by token, as ordinary steps."""
        return self.limits.max_block != 1

    @property
    def has_decoder(self) -> bool:
        """Without one a turn is nothing but joins, which end in it."""
        return self.limits.max_target_len > 0

    @property
    def reserved_rows(self) -> int:
        return self.reserved.rows

    @property
    def reserved_bytes(self) -> int:
        return self._bytes_for(self.reserved)

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.live

    def check(self, request: Request) -> None:
        """Raises InvalidRequest for what could never run, however long it waited. Safe to call from any thread."""
        limits, prompt, source = self.limits, len(request.prompt), len(request.source)
        positions = prompt + request.max_tokens - 1
        if (prompt > 0) != self.has_decoder:
            raise InvalidRequest("prompt", f"must have tokens exactly when there is a decoder, got {prompt}")
        if positions > limits.max_target_len:
            raise InvalidRequest(
                "max_tokens",
                f"{prompt} prompt tokens and {request.max_tokens} new ones need {positions} positions, "
                f"the model has {limits.max_target_len}",
            )
        if source > limits.max_source_len or (source == 0) != (limits.max_source_len == 0):
            raise InvalidRequest("source", f"must have 1..{limits.max_source_len} tokens, got {source}")
        ids = request.source + request.prompt + request.prefix + request.shortlist
        if any(not 0 <= token < limits.vocab_size for token in ids):
            raise InvalidRequest("source", f"token ids must be 0..{limits.vocab_size - 1}")
        width = request.options.width
        if width > self.config.max_rows:
            raise InvalidRequest(
                "options", f"the request needs {width} rows, the server has {self.config.max_rows}; ask for fewer"
            )
        worst = self._bytes_for(self._extent_of(request, width))
        if worst > self.config.kv_cache_bytes:
            raise InvalidRequest(
                "max_tokens",
                f"the request needs up to {worst} bytes of state, the server allows {self.config.kv_cache_bytes}",
            )

    def submit(self, sequence: Sequence) -> None:
        """Adds a checked sequence to the end of the queue."""
        assert not sequence.rows, sequence.rows
        request = sequence.request
        sequence.max_shape = self._extent_of(request, sequence.width)
        self.waiting.append(sequence)
        if request.deadline_s is not None:
            self._submitted += 1
            heapq.heappush(self._deadlines, (request.deadline_s, self._submitted, sequence))

    def plan(self, now_s: float) -> Plan:
        """Lets expired and cancelled sequences go, lays out rows, admits who fits. `now_s`: on the deadlines' clock."""
        ended = self._expire(now_s)
        held = len(self.rows)
        self.live = [sequence for sequence in self.live if sequence.outcome is None]
        is_settled = self._is_settled()
        if not is_settled:
            self.reserved = self._worst()
        readers = self._readers()
        admitted = self._admit(readers)
        copies = [] if is_settled and not admitted else self._lay_out(admitted)
        loads: list[PrefixBlock] = []
        blocks: list[PrefillChunk] = []
        reading: frozenset[Sequence] = frozenset()
        if self.has_prefill and (readers or admitted):
            loads = self._load(admitted)
            blocks = self._read(readers, admitted)
            reading = frozenset(self._readers(blocks))
        return Plan(
            self._step(held, copies, admitted, loads, blocks, reading),
            tuple(self.live),
            tuple(admitted),
            tuple(ended),
            frozenset([self.rows[block.row][0] for block in blocks]),
            reading,
            looked_up=sum([len(sequence.request.prompt) for sequence in admitted]) if self.prefixes.slots else 0,
            reused=sum([load.count for load in loads]),
        )

    def commit(self, plan: Plan) -> list[Sequence]:
        """The inputs of `plan`, the last one made, are cached. Returns the sequences that have read their prompts: the
        distribution behind each of their rows is about a new token, if there is a decoder."""
        for block in plan.step.prefill_chunks:
            self.rows[block.row][0].num_computed += len(block.tokens)
        for sequence in plan.live:
            sequence.num_computed += sequence not in plan.reading
        return [sequence for sequence in plan.live if sequence.is_prefilled]

    def learn(self, plan: Plan, output: StepOutput) -> tuple[int, int]:
        """What `plan`, the last one made, took, and what its drafts were worth, after its sequences were extended.
        Returns how many tokens were drafted, and how many of them were right."""
        if self.draft_proposer is None:
            return 0, 0
        if plan.step.tokens and not plan.step.prefilling_rows:
            self.draft_proposer.stepped(plan.step.rows, output.turn.step_s)
        drafted = right = 0
        for draft, seconds in zip(plan.step.drafts, output.turn.draft_s, strict=True):
            sequence, size = self.rows[draft.row][0], len(draft.tokens)
            accepted = sequence.num_computed - draft.start - 1
            self.draft_proposer.verified(sequence, size, accepted, seconds)
            drafted, right = drafted + size - 1, right + accepted
        return drafted, right

    def drop_live(self) -> list[Sequence]:
        """Forgets all live sequences, after a turn failed. The caller finishes them."""
        dropped, self.live, self.rows = self.live, [], []
        self.reserved = CacheShape()
        self.prefixes.clear()
        for sequence in dropped:
            sequence.rows = ()
        return dropped

    def cancel(self, sequence: Sequence) -> None:
        """Lets a sequence go in the next plan, unless it has ended."""
        self._cancelled.append(sequence)

    def _expire(self, now_s: float) -> list[Sequence]:
        ended = []
        for sequence in self._cancelled:
            if sequence.outcome is None:
                sequence.finish(Cancelled("the request was cancelled"))
                ended.append(sequence)
        self._cancelled.clear()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.outcome is None:
                count = sequence.steps
                sequence.finish(DeadlineExceeded(f"the deadline passed after {count} tokens; allow more time or fewer"))
                ended.append(sequence)
        if any(not sequence.rows for sequence in ended):
            self.waiting = deque(sequence for sequence in self.waiting if sequence.outcome is None)
        if len(self._deadlines) > 2 * (len(self.live) + len(self.waiting)) + DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[2].outcome is None]
            heapq.heapify(self._deadlines)
        return ended

    def _is_settled(self) -> bool:
        """Every row is continued by the hypothesis that was there before."""
        return sum(len(sequence.hypotheses) for sequence in self.live) == len(self.rows) and all(
            hypothesis is self.rows[hypothesis.row][1] for sequence in self.live for hypothesis in sequence.hypotheses
        )

    def _lay_out(self, admitted: list[Sequence]) -> list[Copy]:
        """Gives every live hypothesis a row of its own in a dense prefix, and the new ones, in their order, the rows
        that are left. Returns what must be copied for that."""
        staying, homeless = self._settle(admitted)
        count = len(staying) + len(homeless) + len(admitted)
        free = [row for row in range(count) if row not in staying]
        own: dict[Sequence, list[int]] = {}  # free rows that hold the right source already
        for row in free:
            if row < len(self.rows):
                own.setdefault(self.rows[row][0], []).append(row)
        copies: list[Copy] = []
        strangers: list[tuple[Sequence, Hypothesis]] = []
        for sequence, hypothesis in homeless:
            if rows := own.get(sequence):
                row = rows.pop()
                start = _common_positions(sequence, self.rows[row][1], hypothesis)
                copies.append(Copy(hypothesis.row, row, start, sequence.num_computed, 0))
                staying[row] = sequence, hypothesis
            else:
                strangers.append((sequence, hypothesis))
        left = [row for row in free if row not in staying]
        for row, (sequence, hypothesis) in zip(left, strangers, strict=False):
            request = sequence.request
            copies.append(
                Copy(hypothesis.row, row, 0, sequence.num_computed, len(request.source), len(request.shortlist))
            )
            staying[row] = sequence, hypothesis
        for row, sequence in zip(left[len(strangers) :], admitted, strict=True):
            staying[row] = sequence, sequence.hypotheses[0]
        self._take(sorted(staying.items()))
        return copies

    def _settle(
        self, admitted: list[Sequence]
    ) -> tuple[dict[int, tuple[Sequence, Hypothesis]], list[tuple[Sequence, Hypothesis]]]:
        """Who keeps the row that it continues, by row, and who needs another one: whoever comes second to a row, and
        those whose rows lie behind the end of the prefix that is needed."""
        staying: dict[int, tuple[Sequence, Hypothesis]] = {}
        homeless: list[tuple[Sequence, Hypothesis]] = []
        for sequence in self.live[: len(self.live) - len(admitted)]:
            for hypothesis in sequence.hypotheses:
                if hypothesis.row in staying:
                    homeless.append((sequence, hypothesis))
                else:
                    staying[hypothesis.row] = sequence, hypothesis
        count = len(staying) + len(homeless) + len(admitted)
        homeless += [staying.pop(row) for row in sorted(staying) if row >= count]
        return staying, homeless

    def _take(self, rows: list[tuple[int, tuple[Sequence, Hypothesis]]]) -> None:
        """These are the rows of all live hypotheses now."""
        taken: dict[Sequence, list[int]] = {sequence: [] for sequence in self.live}
        self.rows = []
        for row, (sequence, hypothesis) in rows:
            assert row == len(self.rows), (row, len(self.rows))
            self.rows.append((sequence, hypothesis))
            hypothesis.row = row
            taken[sequence].append(row)
        for sequence, own in taken.items():
            sequence.rows = tuple(own)

    def _readers(self, blocks: Iterable[PrefillChunk] = ()) -> list[Sequence]:
        """Live sequences with prompts that are not read but for the last token, when `blocks` are; oldest first."""
        if not self.has_prefill:
            return []
        read: dict[Sequence, int] = {}
        for block in blocks:
            sequence = self.rows[block.row][0]
            read[sequence] = read.get(sequence, 0) + len(block.tokens)
        return [
            sequence
            for sequence in self.live
            if sequence.num_computed + read.get(sequence, 0) < len(sequence.request.prompt) - 1
        ]

    def _budget(self, readers: list[Sequence]) -> int:
        """How many tokens may be read in this turn."""
        config = self.config
        is_running = len(self.live) > len(readers)
        return (
            config.max_prefill_tokens if is_running else max(config.max_prefill_tokens, config.max_idle_prefill_tokens)
        )

    def _admit(self, readers: list[Sequence]) -> list[Sequence]:
        """New sequences, in the order they came, as many as there is something to be read of in this turn."""
        admitted: list[Sequence] = []
        budget = self._budget(readers)
        cost = sum([padded(self._next_block(sequence)) for sequence in readers])
        while self.waiting:
            sequence = self.waiting[0]
            cost += len(sequence.request.source) + padded(self._next_block(sequence))
            if (admitted or readers) and cost > budget:
                break
            wanted = self.reserved.with_more(sequence.max_shape)
            if wanted.rows > self.config.max_rows or self._bytes_for(wanted) > self.config.kv_cache_bytes:
                break
            admitted.append(self.waiting.popleft())
            self.live.append(sequence)
            self.reserved = wanted
        admitted.sort(key=lambda new: (len(new.request.source), padded(self._next_block(new))))
        return admitted

    def _load(self, admitted: list[Sequence]) -> list[PrefixBlock]:
        """What of the new prompts was kept and is only copied."""
        loads = []
        for sequence in admitted:
            for slot in self.prefixes.find(sequence.request.prompt):
                loads.append(PrefixBlock(sequence.rows[0], sequence.num_computed, self.block, slot))
                sequence.num_computed += self.block
        return loads

    def _read(self, readers: list[Sequence], admitted: list[Sequence]) -> list[PrefillChunk]:
        """The blocks of this turn, ordered so that equal first ones are neighbours."""
        counts = self._share(readers, admitted)
        blocks = [block for sequence, count in counts.items() for block in self._blocks(sequence, count)]
        firsts = [block for block in blocks if block.start == 0]
        firsts.sort(key=lambda block: (padded(len(block.tokens)), block.row))
        return [*firsts, *[block for block in blocks if block.start]]

    def _share(self, readers: list[Sequence], admitted: list[Sequence]) -> dict[Sequence, int]:
        """How many blocks of each prompt this turn has: one of the oldest, then all of the shortest ones."""
        budget = self._budget([*readers, *admitted])
        by_rest = sorted(
            [*readers, *admitted], key=lambda sequence: len(sequence.request.prompt) - sequence.num_computed
        )
        counts: dict[Sequence, int] = {}
        cost = 0
        for sequence, is_sure in [*((oldest, True) for oldest in readers[:1]), *((other, False) for other in by_rest)]:
            while size := self._next_block(sequence, counts.get(sequence, 0)):
                cost += padded(size)
                if counts and cost > budget:
                    return counts
                counts[sequence] = counts.get(sequence, 0) + 1
                if is_sure:
                    break
        return counts

    def _next_block(self, sequence: Sequence, after: int = 0) -> int:
        """Tokens of the block that is to be read behind the next `after` ones; 0: the prompt has no more."""
        if not self.has_prefill:
            return 0
        rest = len(sequence.request.prompt) - 1 - sequence.num_computed - after * self.block
        return max(0, min(self.block, rest))

    def _blocks(self, sequence: Sequence, count: int) -> list[PrefillChunk]:
        """The next `count` blocks of a prompt; the last token of all is left to a step."""
        prompt, (row,) = sequence.request.prompt[:-1], sequence.rows
        starts = range(sequence.num_computed, len(prompt), self.block)[:count]
        return [PrefillChunk(row, start, prompt[start : start + self.block]) for start in starts]

    def _save(self, blocks: Iterable[PrefillChunk]) -> list[PrefixBlock]:
        """Whole blocks that are worth keeping, and where."""
        saves = []
        for block in blocks:
            if len(block.tokens) == self.block:
                slot = self.prefixes.keep(self.rows[block.row][0].request.prompt, block.start)
                if slot is not None:
                    saves.append(PrefixBlock(block.row, block.start, self.block, slot))
        return saves

    def _step(
        self,
        held: int,
        copies: list[Copy],
        admitted: list[Sequence],
        loads: list[PrefixBlock],
        blocks: list[PrefillChunk],
        reading: frozenset[Sequence],
    ) -> StepPlan:
        drafts = self._drafts(reading)
        starts = [sequence.num_computed for sequence, _ in self.rows]
        for block in blocks:
            starts[block.row] = block.start + len(block.tokens)
        tokens = []
        if steps := self.has_decoder and len(reading) + len(drafts) < len(self.live):
            tokens = [sequence.input_at(at, one) for at, (sequence, one) in zip(starts, self.rows, strict=True)]
        further = self._further(starts[0]) if steps and not reading else 0
        ends = [block.start + padded(len(block.tokens)) for block in blocks]
        ends += [draft.start + len(draft.tokens) for draft in drafts]
        narrow = [sequence for sequence in self.live if sequence.request.shortlist]
        return StepPlan(
            rows=len(self.rows),
            copies=tuple(copies),
            new_rows=tuple([self._join(sequence) for sequence in admitted]),
            prefix_loads=tuple(loads),
            prefill_chunks=tuple(blocks),
            prefix_stores=tuple(self._save(blocks)),
            prefix_slots=self.prefixes.slots,
            tokens=tuple(tokens),
            starts=tuple(starts if steps else ()),
            prefilling_rows=frozenset([row for sequence in reading for row in sequence.rows]),
            drafts=tuple(drafts),
            extra_greedy_steps=further,
            extra_greedy_s=self.config.greedy_turn_s,
            rows_before=held,
            max_target_len=max([start + 1 + further for start in starts] + ends, default=0),
            max_source_len=max([len(sequence.request.source) for sequence in self.live], default=0),
            max_shortlist_len=max([len(sequence.request.shortlist) for sequence in narrow], default=0),
            shortlist_rows=frozenset([row for sequence in narrow for row in sequence.rows]),
            allocation_shape=self._room(),
            top_k=max([sequence.search.top_k for sequence in self.live], default=1),
            is_scored=any(sequence.search.is_scored for sequence in self.live),
        )

    def _drafts(self, reading: frozenset[Sequence]) -> list[Draft]:
        """What rows that have begun to answer read beside their newest token."""
        if self.draft_proposer is None:
            return []
        stepping = [one for one in self.live if one not in reading and one.steps]
        proposed = self.draft_proposer.propose(stepping, len(self.rows))
        drafts = []
        for sequence in self.live:
            sequence.draft_tokens = proposed.get(sequence, ())
            if sequence.draft_tokens:
                (hypothesis,) = sequence.hypotheses
                drafts.append(
                    Draft(hypothesis.row, sequence.num_computed, (hypothesis.tokens[-1], *sequence.draft_tokens))
                )
        return drafts

    def _further(self, start: int) -> int:
        """Steps behind the one at position `start` that nobody need look at: a turn costs as much whatever it is for, a
        tenth and more of a step of one row. A stream must not come in bursts."""
        if len(self.rows) != 1 or self.waiting or self.draft_proposer is not None:
            return 0
        (sequence,) = self.live
        request = sequence.request
        is_free = start + 1 >= len(request.prompt) and sequence.steps >= len(request.prefix)
        if request.is_streamed or not (is_free and sequence.search.is_greedy):
            return 0
        return max(0, min(self.config.greedy_steps_per_turn - 1, request.max_tokens - sequence.steps - 1))

    def _join(self, sequence: Sequence) -> NewRow:
        (row,) = sequence.rows
        request = sequence.request
        return NewRow(row, request.source, request.encoder_request, request.shortlist)

    def _worst(self) -> CacheShape:
        """What the live sequences need at most."""
        extents = [sequence.max_shape for sequence in self.live]
        return CacheShape(
            sum([sequence.width for sequence in self.live]),
            max([extent.target_len for extent in extents], default=0),
            max([extent.source_len for extent in extents], default=0),
            max([extent.shortlist_len for extent in extents], default=0),
        )

    def _extent_of(self, request: Request, width: int) -> CacheShape:
        """What a request with so many hypotheses needs at most. The very last token is never an input."""
        longest = len(request.prompt) + request.max_tokens - 1
        if self.has_prefill:
            last = max(0, len(request.prompt) - 2) // self.block * self.block  # where the last block begins
            longest = max(longest, last + padded(len(request.prompt) - 1 - last))
        return CacheShape(width, max(0, longest), len(request.source), len(request.shortlist))

    def _bytes_of(self, extent: CacheShape) -> int:
        """Bytes of the buffers that hold so much."""
        if not extent.rows:
            return 0
        return self.layout.bytes_for(*extent, max_rows=self.config.max_rows)

    def _room(self) -> CacheShape:
        """What memory is taken for, when more of it is needed: for all rows, if that is allowed, so that rows that come
        later find their place."""
        everything = self.reserved._replace(rows=self.config.max_rows)
        return everything if self._bytes_for(everything) <= self.config.kv_cache_bytes else self.reserved


def _common_positions(sequence: Sequence, old: Hypothesis, new: Hypothesis) -> int:
    """How many positions the cache of `old`, which was in a row, has in common with that of `new`."""
    pairs = enumerate(zip(old.tokens, new.tokens, strict=False))  # the newest token is in no cache yet
    common = next((place for place, (one, other) in pairs if one != other), len(old.tokens))
    return len(sequence.request.prompt) + common


def check_invariants(scheduler: Scheduler) -> list[str]:
    """Every broken promise of the scheduler's state, between two turns; [] if all hold."""
    broken = []
    config, live, waiting = scheduler.config, scheduler.live, scheduler.waiting
    if len(set(live) | set(waiting)) != len(live) + len(waiting):
        broken.append("a sequence is in two places")
    if any(sequence not in live for sequence, _ in scheduler.rows):
        broken.append("a row belongs to a sequence that is not live")
    for sequence in live:
        if sequence.outcome is not None:
            continue  # its rows are free from the next plan on
        name, request, live_ones = sequence.request.request_id, sequence.request, sequence.hypotheses
        expected = max(0, sequence.num_computed - len(request.prompt) + 1)
        if any(len(hypothesis.tokens) != expected for hypothesis in live_ones):
            broken.append(f"{name}: hypotheses must have {expected} tokens")
        if not live_ones:
            broken.append(f"{name}: goes on without a hypothesis")
        if len(live_ones) > sequence.width:
            broken.append(f"{name}: {len(live_ones)} hypotheses, reserved are {sequence.width} rows")
        if any(hypothesis.row not in sequence.rows for hypothesis in live_ones):
            broken.append(f"{name}: a hypothesis continues a row that is not its sequence's")
        if len(sequence.draft_tokens) > max(0, config.draft_tokens) or (
            sequence.draft_tokens and len(sequence.rows) != 1
        ):
            broken.append(f"{name}: drafts {len(sequence.draft_tokens)} tokens in rows {sequence.rows}")
        if expected > request.max_tokens or sequence.num_computed > sequence.longest:
            broken.append(f"{name}: is longer than it may be")
        if any(
            hypothesis.tokens[: len(sequence.committed_tokens)] != sequence.committed_tokens for hypothesis in live_ones
        ):
            broken.append(f"{name}: a hypothesis contradicts what was certain")
    if sorted(row for sequence in live for row in sequence.rows) != list(range(len(scheduler.rows))):
        broken.append(f"rows {[sequence.rows for sequence in live]} are not the prefix of {len(scheduler.rows)}")
    if any(sequence.rows or sequence.outcome is not None for sequence in waiting):
        broken.append("a waiting sequence has a row or an end")
    if len(scheduler.rows) > config.max_rows or scheduler.reserved_rows > config.max_rows:
        broken.append(f"{len(scheduler.rows)} rows, {scheduler.reserved_rows} reserved, of {config.max_rows}")
    if len(scheduler.rows) > scheduler.reserved_rows:
        broken.append(f"{len(scheduler.rows)} rows are used, {scheduler.reserved_rows} reserved")
    if scheduler.reserved_bytes > config.kv_cache_bytes:
        broken.append(f"{scheduler.reserved_bytes} bytes reserved of {config.kv_cache_bytes}")
    return broken
