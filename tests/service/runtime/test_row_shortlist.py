"""Outputs of rows with words of their own; what they are worth is tested with real graphs in `test_runner`."""

import numpy as np
import pytest

from export.bundle.manifest import StateSpec
from service.runtime.bindings import Arena
from service.runtime.kv_cache import CacheBuffers
from service.runtime.memory import HostMemory
from service.runtime.row_shortlist import RowShortlist
from service.runtime.step_inputs import RowInputs
from service.runtime.step_outputs import LogitsBlocks
from service.step import NewRow
from tests.fakes import RecordingSession, array_at

WIDTH, WORDS = 8, 100
STATES = [
    StateSpec(name="word_ids", kind="shortlist", dtype="int64", shape=("batch", "shortlist")),
    StateSpec(name="word_weight", kind="shortlist", dtype="int8", shape=("batch", WIDTH, "shortlist")),
]


class ScarceMemory(HostMemory):
    """Has nothing left while `is_out`."""

    is_out = False

    def allocate(self, size):
        if self.is_out and size:
            raise MemoryError(size)
        return super().allocate(size)


@pytest.fixture
def memory():
    return ScarceMemory()


@pytest.fixture
def make(memory):
    """A shortlist of 64 rows, whose sessions call what it is made with."""

    def made(project=None, rank=None):
        arena = Arena(memory)
        caches = CacheBuffers(STATES, arena, max_rows=64)
        sessions = RecordingSession(project), RecordingSession(rank)
        return RowShortlist(*sessions, arena, RowInputs(arena, 64), caches, WORDS)

    return made


@pytest.fixture
def own(make):
    return make()


def test_bindings_become_invalid_only_when_more_or_longer_lines_are_needed(own):
    arena = own.caches.arena

    def moved(lines, top_k, length):
        own.caches.ensure(2, live=0, lengths={"shortlist": length})
        before = arena.generation
        own.ensure(lines, top_k)
        return arena.generation != before

    assert moved(4, 2, 0)
    assert moved(4, 2, 70)
    assert [moved(3, 2, 0), moved(4, 2, 70), moved(2, 2, 10)] == [False] * 3
    assert moved(4, 40, 70)
    assert moved(5, 2, 10)


def test_failed_allocation_is_retried(own, memory):
    outputs = LogitsBlocks(Arena(memory), WORDS)
    own.caches.ensure(2, live=0, lengths={"shortlist": 70})
    own.ensure(2, 2)
    outputs.ensure(2, 4)
    memory.is_out = True
    for ensure in (own.ensure, outputs.ensure):
        for _ in range(2):
            with pytest.raises(MemoryError):
                ensure(64, 4)
    memory.is_out = False
    own.ensure(64, 4)
    outputs.ensure(64, 4)
    assert own.size >= 64 * 4 * (WIDTH + 128 + 1)
    assert outputs.size >= 64 * 4 * 2 * WORDS


def test_of_few_words_the_best_are_few(make):
    def rank(binding):
        array_at(binding.bound["top_logprobs"])[:] = [[-1, -2, *[-np.inf] * 6], [-3] * 8]

    own = make(rank=rank)
    own.caches.ensure(2, live=0, lengths={"shortlist": 5})
    own.ensure(2, 8)
    own.rank(2, 0)
    ids, logprobs = own.best(2)
    assert [len(line) for line in ids] == [len(line) for line in logprobs] == [2, 8]


def test_a_row_reads_its_own_shortlist_when_the_width_returns_to_an_earlier_one(make):
    read: list[list[int]] = []
    own = make(project=lambda binding: read.append(array_at(binding.bound["ids"])[0].tolist()))
    shortlists = [tuple(range(90)), (7, 8), tuple(range(5, 95)), (3, 4, 5)]
    for shortlist in shortlists:
        own.caches.ensure(1, live=0, lengths={"shortlist": len(shortlist)})
        own.ensure(1, 2)
        own.fill(NewRow(0, (1, 2), shortlist=shortlist))
    assert [tuple(ids[: len(asked)]) for ids, asked in zip(read, shortlists, strict=True)] == shortlists
    assert len({len(ids) for ids in read}) == 2, "the widths must return for the test to mean anything"
