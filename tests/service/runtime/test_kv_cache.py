import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from export.bundle.manifest import StateKind, capacity_for
from export.bundle.windows import first_position, places_of
from service.memory.cache_layout import CacheShape
from service.runtime.bindings import Arena
from service.runtime.kv_cache import CacheBuffer, CacheBuffers, Scratch
from service.runtime.memory import HostMemory
from service.step import Copy
from tests.cache_states import CROSS, RECURRENT, SELF, STRIDED, WINDOWED, WORDS
from tests.fakes import bytes_of, cuda_memory

memories = pytest.mark.parametrize("make", [HostMemory, cuda_memory], ids=["host", "cuda"])


def array(buffer, rows=None, state=0):
    """One state of the buffer as an array of all its rows."""
    shape = buffer.shape(buffer.rows)
    offset = list(buffer.offsets(0))[state][1]
    size = int(np.prod(shape)) * buffer.dtype.itemsize
    return bytes_of(buffer.block)[offset : offset + size].view(buffer.dtype).reshape(shape)[:rows]


def fill(buffer, seed=1):
    """Random values in all states."""
    for state in range(len(buffer.specs)):
        array(buffer, state=state)[:] = np.random.default_rng(seed + state).integers(1, 99, array(buffer).shape)


def stacked(buffer, rows=None):
    """A copy of all states, the states first."""
    return np.stack([array(buffer, rows, state) for state in range(len(buffer.specs))])


def moved(states, *sizes, **more):
    """Makes room; returns whether bindings to the buffers became invalid."""
    before = states.arena.generation
    states.ensure(*sizes, **more)
    return states.arena.generation != before


def cache_and_scratch(memory):
    """A buffer of four rows of 16 source positions, and scratch memory for its states."""
    caches = CacheBuffers([CROSS], Arena(memory), max_rows=4)
    caches.ensure(4, live=0, lengths={"cross_kv": 16})
    return caches.buffers[0], Scratch(caches, Arena(memory))


def test_words_are_copied_into_rows_of_another_source_and_keep_their_room():
    states = CacheBuffers([SELF, WORDS], Arena(HostMemory()), max_rows=4)
    lengths: dict[StateKind, int] = {"self_kv": 8, "shortlist": 70}
    states.ensure(3, live=0, lengths=lengths)
    (buffer,) = states.of_kind("shortlist")
    assert buffer.shape(3) == (3, 6, 128)
    values = array(buffer)
    values[:] = np.arange(4)[:, None, None]
    states.copy([Copy(2, 0, 0, 4, 0), Copy(2, 1, 0, 4, 3, 70)])
    assert (values[0] == 0).all()
    assert (values[1, :, :70] == 2).all()
    assert (values[1, :, 70:] == 1).all()
    assert not moved(states, 3, live=3, lengths=lengths | {"shortlist": 65})
    assert states.capacities["shortlist"] == 128
    states.ensure(3, live=3, lengths=lengths | {"shortlist": 0})
    assert buffer.shape(3) == (3, 6, 0)
    assert not moved(states, 3, live=3, lengths=lengths | {"shortlist": 0}), "nothing to be done"


def test_places_of_several_positions_grow_and_are_copied_whole():
    buffer = CacheBuffer([STRIDED], Arena(HostMemory()))
    buffer.resize(2, 8, live=0)
    assert buffer.shape(2) == (2, 2, 3, 4)
    array(buffer)[:] = np.arange(48).reshape(2, 2, 3, 4)
    before = array(buffer).copy()
    buffer.copy([(0, 1, 4, 6)])  # position 4 shares a place with 3 and 5
    assert np.array_equal(array(buffer)[1, :, 1], before[0, :, 1])
    assert np.array_equal(array(buffer)[1, :, ::2], before[1, :, ::2])
    buffer.resize(2, 16, live=2)
    assert buffer.shape(2) == (2, 2, 6, 4)
    assert np.array_equal(array(buffer)[0, :, :3], before[0])


def numbered(states, row, length):
    """Writes each position of a row into all of its places, as blocks of one token from the first position on do."""
    for start in range(length):
        (first,) = states.advance(row, [start])
        for buffer in states.buffers:
            array(buffer)[row, :, start - (first if buffer.spec.window else 0)] = start


def held(states, row, length):
    """The positions that a row's places hold, of the state without a window and of that with one."""
    lines = [
        array(buffer)[row, :, : length - (states.firsts[row] if buffer.spec.window else 0)] for buffer in states.buffers
    ]
    assert all((line == line[:1, :, :1]).all() for line in lines)
    return [line[0, :, 0].astype(int).tolist() for line in lines]


@memories
def test_states_with_a_window_hold_the_last_positions(make):
    states, places = CacheBuffers([SELF, WINDOWED], Arena(make()), max_rows=4), places_of(9)
    states.ensure(3, live=0, lengths={"self_kv": 800})
    assert [buffer.shape(3)[2] for buffer in states.buffers] == [1024, places] == [1024, 272]
    length = 700
    numbered(states, 1, length)
    first = first_position(9, length - 1)
    assert states.firsts == [0, first, 0, 0]
    assert first == 640
    assert held(states, 1, length) == [[*range(length)], [*range(first, length)]]
    numbered(states, 0, 300)
    states.copy([Copy(1, 2, 0, length, 0), Copy(0, 3, 0, 300, 0)])
    assert states.firsts == [256, first, first, 256]
    assert held(states, 2, length) == held(states, 1, length)
    numbered(states, 2, 20)
    assert states.firsts[2] == 0, "a new request"
    states.copy([Copy(1, 2, 690, length, 0)])
    assert held(states, 2, length)[1] == held(states, 1, length)[1], "of a target whose positions lay elsewhere"
    array(states.buffers[1])[2, :, -1] = 3
    states.copy([Copy(1, 2, 690, length, 0)])
    assert held(states, 2, length)[1] == held(states, 1, length)[1]
    states.clear()
    assert states.firsts == [0] * 4


@memories
@pytest.mark.parametrize("spec", [SELF, CROSS, RECURRENT], ids=["self", "cross", "recurrent"])
@pytest.mark.parametrize("count", [1, 3])
def test_resizing_keeps_live_rows(make, spec, count):
    buffer = CacheBuffer([spec] * count, Arena(make()))
    buffer.resize(3, 8, live=0)
    fill(buffer)
    before = stacked(buffer, 2)
    for rows, capacity, kept in ((4, 16, 8), (8, 6, 6), (2, 24, 6)):
        buffer.resize(rows, capacity, live=2)
        assert buffer.block.size == buffer.size_for(rows, capacity) == count * array(buffer).nbytes
        if spec is RECURRENT:
            assert np.array_equal(stacked(buffer, 2), before)
        else:
            assert np.array_equal(stacked(buffer, 2)[..., :kept, :], before[..., :kept, :])


@memories
@pytest.mark.parametrize("spec", [SELF, CROSS, RECURRENT], ids=["self", "cross", "recurrent"])
@pytest.mark.parametrize("live", [0, 1, 5, 40])
@pytest.mark.parametrize("count", [1, 3])
def test_a_shape_changes_in_place_and_keeps_live_rows(make, spec, live, count):
    buffer = CacheBuffer([spec] * count, Arena(make()))
    buffer.resize(40, 8, live=0, size=buffer.size_for(64, 128))
    address = buffer.block.address
    fill(buffer)
    before, kept = stacked(buffer, live), 8
    for capacity in (16, 24, 32, 128, 96, 64, 16, 7, 8, 9):
        buffer.reshape(40, capacity, live=live)
        kept = min(kept, capacity)
        assert buffer.block.address == address
        if spec is RECURRENT:
            assert np.array_equal(stacked(buffer, live), before)
        else:
            assert np.array_equal(stacked(buffer, live)[..., :kept, :], before[..., :kept, :])


@pytest.fixture
def in_lines(monkeypatch):
    """Rows on a device are copied line by line, as they are where much lies between two lines."""
    monkeypatch.setattr("service.runtime.cuda_memory.PIECE_BYTES", 0)


@memories
@pytest.mark.usefixtures("in_lines")
def test_a_copy_touches_the_positions_that_it_names(make):
    buffer = CacheBuffer([SELF], Arena(make()))
    buffer.resize(3, 8, live=0)
    array(buffer)[:] = np.arange(3)[:, None, None, None]
    buffer.copy([(2, 0, 3, 5)])
    assert (array(buffer)[0, :, 3:5] == 2).all()
    assert (array(buffer)[0, :, :3] == 0).all()
    assert (array(buffer)[0, :, 5:] == 0).all()
    assert (array(buffer)[1] == 1).all()


@memories
def test_rows_of_scratch_memory_are_loaded_into_the_caches(make):
    buffer, scratch = cache_and_scratch(make())
    array(buffer)[:] = 0
    scratch.reserve(3, 8)
    assert [place[:4] for _, place in scratch.places()] == [(scratch.arena.memory.device, 0, np.float16, (3, 2, 8, 4))]
    written = array(scratch.buffers[0])
    written[:] = np.arange(written.size).reshape(written.shape)
    scratch.load(1, 2, rows=2, length=7)
    assert np.array_equal(array(buffer)[2:, :, :7], written[1:, :, :7])
    assert (array(buffer)[2:, :, 7:] == 0).all()
    assert (array(buffer)[:2] == 0).all()


@memories
@pytest.mark.parametrize("spec", [SELF, CROSS, STRIDED], ids=["self", "cross", "strided"])
@pytest.mark.usefixtures("in_lines")
def test_states_that_are_alike_are_copied_together(make, spec):
    device = make()
    buffer, other = CacheBuffer([spec] * 3, Arena(device)), CacheBuffer([spec] * 3, Arena(device))
    for one, rows, capacity in ((buffer, 5, 24), (other, 4, 9)):
        one.resize(rows, capacity, live=0, size=one.size_for(6, 30))
        fill(one, seed=capacity)
    places = spec.places
    before = stacked(buffer)
    buffer.copy([(4, 0, 0, 7), (4, 2, 3, 6), (1, 3, 0, 2)])
    after = stacked(buffer)
    assert np.array_equal(after[:, 0, :, : places(7)], before[:, 4, :, : places(7)])
    assert np.array_equal(after[:, 2, :, 3 // spec.stride : places(6)], before[:, 4, :, 3 // spec.stride : places(6)])
    assert np.array_equal(after[:, 3, :, : places(2)], before[:, 1, :, : places(2)])
    assert np.array_equal(after[:, [1, 4]], before[:, [1, 4]])
    assert np.array_equal(after[:, 0, :, places(7) :], before[:, 0, :, places(7) :])
    scratch = CacheBuffer([spec] * 3, Arena(device))
    scratch.resize(2, 8, live=0)
    buffer.copy_to(scratch, 4, 1, length=8)
    scratch.copy_to(other, 1, 1, length=8)
    assert np.array_equal(stacked(other)[:, 1, :, : places(8)], after[:, 4, :, : places(8)])
    buffer.copy_to(other, 3, 2, length=3, source_start=3)
    some = places(3)
    assert np.array_equal(stacked(other)[:, 2, :, :some], after[:, 3, :, places(3) : places(3) + some])


def test_states_share_a_buffer_exactly_when_they_are_alike():
    twins = [SELF, CROSS, STRIDED, RECURRENT, dataclasses.replace(SELF, name="self_value.0")]
    states = CacheBuffers(twins, Arena(HostMemory()), max_rows=4)
    assert [[spec.name for spec in buffer.specs] for buffer in states.buffers] == [
        ["self_key.0", "self_value.0"], ["cross_key.0"], ["self_key.1"], ["memory.0"]
    ]  # fmt: skip
    states.ensure(2, live=0, lengths={"self_kv": 8, "cross_kv": 8})
    (_, first), (_, second) = states.buffers[0].offsets(0)
    assert second - first == array(states.buffers[0]).nbytes


@memories
def test_a_row_of_the_caches_is_stored_in_scratch_memory(make):
    buffer, scratch = cache_and_scratch(make())
    array(buffer)[:] = np.arange(array(buffer).size).reshape(array(buffer).shape)
    scratch.reserve(1, 5)
    scratch.store(1, 5)
    assert np.array_equal(array(scratch.buffers[0])[0], array(buffer)[1, :, :5])


def test_scratch_memory_is_reused_for_runs_that_need_no_more():
    _, scratch = cache_and_scratch(HostMemory())
    scratch.reserve(3, 8)
    generation, size = scratch.arena.generation, scratch.size
    assert size >= 3 * 2 * 8 * 4 * 2
    for rows, length in ((1, 24), (3, 8), (6, 4)):
        scratch.reserve(rows, length)
        assert [place[3] for _, place in scratch.places()] == [(rows, 2, length, 4)]
    assert (scratch.arena.generation, scratch.size) == (generation, size)
    scratch.reserve(4, 24)
    assert scratch.arena.generation > generation


@memories
def test_copies_of_rows_bring_what_each_of_them_lacks(make):
    states = CacheBuffers([SELF, CROSS, RECURRENT], Arena(make()), max_rows=16)
    states.ensure(12, live=0, lengths={"self_kv": 40, "cross_kv": 8})
    own, cross, whole = (array(buffer) for buffer in states.buffers)
    for values in (own, cross, whole):
        values[:] = np.random.default_rng(2).random(values.shape)
    copies = [
        Copy(1, 7, 3, 9, 0),
        Copy(1, 8, 0, 9, 5),
        Copy(2, 9, 18, 35, 0),
        Copy(3, 10, 0, 40, 8),
        Copy(4, 11, 37, 40, 0),
    ]
    for copy in copies:  # what is before `start` is the same already
        own[copy.target, :, : copy.start] = own[copy.source, :, : copy.start]
    before = [values.copy() for values in (own, cross, whole)]
    states.copy(copies)
    for copy in copies:
        assert np.array_equal(own[copy.target, :, : copy.stop], before[0][copy.source, :, : copy.stop])
        assert np.array_equal(whole[copy.target], before[2][copy.source])
        kept = before[1][copy.source if copy.source_len else copy.target]
        assert np.array_equal(cross[copy.target, :, : copy.source_len or None], kept[:, : copy.source_len or None])
    assert all(np.array_equal(values[:7], old[:7]) for values, old in zip((own, cross, whole), before, strict=True))


@memories
def test_a_copy_of_a_state_that_does_not_grow_is_whole(make):
    buffer = CacheBuffer([RECURRENT], Arena(make()))
    buffer.resize(3, 1, live=0)
    values = array(buffer)
    values[:] = np.arange(values.size).reshape(values.shape)
    buffer.copy([(2, 0, 3, 5)])
    assert np.array_equal(values[0], values[2])


def test_cross_attention_is_copied_only_into_rows_of_another_source():
    states = CacheBuffers([SELF, CROSS], Arena(HostMemory()), max_rows=4)
    states.ensure(3, live=0, lengths={"self_kv": 8, "cross_kv": 8})
    own, cross = (array(buffer) for buffer in states.buffers)
    own[:], cross[:] = np.arange(4)[:, None, None, None], np.arange(4)[:, None, None, None]
    states.copy([Copy(2, 0, 0, 4, 0)])
    assert (own[0, :, :4] == 2).all()
    assert (cross[0] == 0).all()
    states.copy([Copy(2, 1, 0, 4, 3)])
    assert (cross[1, :, :3] == 2).all()
    assert (cross[1, :, 3:] == 1).all()


def test_offsets_and_shapes_are_those_of_the_rows():
    buffer = CacheBuffer([SELF], Arena(HostMemory()))
    buffer.resize(4, 8, live=0)
    assert buffer.shape(3) == (3, 2, 8, 4)
    assert dict(buffer.offsets(2))[SELF.name] == array(buffer, 2).nbytes


def test_buffers_grow_when_they_must_and_shrink_when_half_would_do():
    states = CacheBuffers([SELF, CROSS], Arena(HostMemory()), max_rows=32)

    def ensure(rows, target, source, live=1):
        before = [buffer.block.address for buffer in states.buffers]
        has_moved = moved(states, rows, live=live, lengths={"self_kv": target, "cross_kv": source})
        assert has_moved or before == [buffer.block.address for buffer in states.buffers]
        return states.rows, states.capacities["self_kv"], states.capacities["cross_kv"]

    assert ensure(5, 1, 10, live=0) == (8, 8, 16)
    assert ensure(2, 8, 10) == (8, 8, 16)
    assert ensure(9, 9, 10) == (16, 16, 16)
    assert ensure(9, 30, 40) == (16, 32, 48)
    assert ensure(9, 20, 30) == (16, 32, 48)
    assert ensure(9, 16, 24) == (16, 16, 24)
    assert ensure(8, 16, 24) == (8, 16, 24)
    assert ensure(1, 16, 24) == (8, 16, 24)
    assert ensure(1, 17, 24) == (1, 24, 24)


def test_idle_buffers_keep_their_memory_unless_it_is_far_too_much():
    states = CacheBuffers([SELF], Arena(HostMemory()), max_rows=32)
    states.ensure(8, live=0, lengths={"self_kv": 64})
    address = states.buffers[0].block.address
    assert not moved(states, 4, live=0, lengths={"self_kv": 32})
    assert states.buffers[0].block.address == address
    assert states.buffers[0].shape(4) == (4, 2, 32, 4)
    assert not moved(states, 4, live=0, lengths={"self_kv": 32})
    states.ensure(1, live=0, lengths={"self_kv": 8})
    assert states.buffers[0].block.size == states.buffers[0].size_for(1, 8)


def test_memory_kept_while_idle_does_not_outlive_the_next_growth():
    states = CacheBuffers([SELF, CROSS], Arena(HostMemory()), max_rows=32)
    states.ensure(8, live=0, lengths={"self_kv": 256, "cross_kv": 16})
    states.ensure(5, live=0, lengths={"self_kv": 64, "cross_kv": 16})  # the block for 256 positions stays
    states.ensure(6, live=5, lengths={"self_kv": 64, "cross_kv": 192})
    held = sum(buffer.block.size for buffer in states.buffers)
    assert held == sum(buffer.size_for(buffer.rows, buffer.capacity) for buffer in states.buffers)


def test_memory_is_taken_once_for_all_that_rows_can_come_to_need():
    states = CacheBuffers([SELF, CROSS], Arena(HostMemory()), max_rows=32)
    most = CacheShape(rows=20, target_len=60, source_len=30)
    states.ensure(5, live=0, lengths={"self_kv": 1, "cross_kv": 10}, most=most)
    assert [buffer.block.size for buffer in states.buffers] == [
        buffer.size_for(24, capacity) for buffer, capacity in zip(states.buffers, (64, 32), strict=True)
    ]
    assert states.buffers[0].shape(1) == (1, 2, 8, 4), "a roomy cache is slow"
    addresses = [buffer.block.address for buffer in states.buffers]
    for rows, longest in ((20, 1), (20, 60), (3, 20)):
        assert not moved(states, rows, live=1, lengths={"self_kv": longest, "cross_kv": 30}, most=most)
        assert states.capacities == {"self_kv": 64 if rows == 3 else capacity_for(longest), "cross_kv": 32}
        assert [buffer.block.address for buffer in states.buffers] == addresses


@pytest.mark.parametrize(("needed", "capacity"), [(12, 16), (60, 64), (200, 64)])
def test_few_rows_have_room_for_what_they_need_from_the_start(needed, capacity):
    states = CacheBuffers([SELF, CROSS], Arena(HostMemory()), max_rows=32)
    most = CacheShape(rows=2, target_len=needed, source_len=10)
    assert moved(states, 2, live=0, lengths={"self_kv": 1, "cross_kv": 10}, most=most)
    assert states.capacities == {"self_kv": capacity, "cross_kv": 16}
    for longest in range(2, min(needed, capacity) + 1):
        assert not moved(states, 2, live=2, lengths={"self_kv": longest, "cross_kv": 10}, most=most)
    assert not moved(states, 2, live=0, lengths={"self_kv": 1, "cross_kv": 10}, most=most), "the next ones are at home"


def test_growing_and_moving_at_random_never_loses_a_value():
    rng = np.random.default_rng(5)
    states = CacheBuffers([SELF, CROSS], Arena(HostMemory()), max_rows=20)
    truth: list[Any] = []  # one row's (self, cross) values, by row
    for _ in range(400):
        if truth and rng.random() < 0.4:
            hole = int(rng.integers(len(truth)))
            last = truth.pop()
            if hole < len(truth):
                states.copy([Copy(len(truth), hole, 0, last[0].shape[1], last[1].shape[1])])
                truth[hole] = last
        joins = int(rng.integers(0, 3)) if len(truth) < 17 else 0
        kept = len(truth)
        truth += [(rng.random((2, n, 4), np.float32), rng.random((2, m, 4)).astype(np.float16))
                  for n, m in rng.integers(1, 40, (joins, 2))]  # fmt: skip
        if not truth:
            continue
        lengths = [max(row[kind].shape[1] for row in truth) for kind in (0, 1)]
        most = CacheShape(len(truth), *[length + int(rng.integers(0, 40)) for length in lengths])
        states.ensure(len(truth), live=kept, lengths={"self_kv": lengths[0], "cross_kv": lengths[1]}, most=most)
        for row, kind in itertools.product(range(kept, len(truth)), (0, 1)):
            values = truth[row][kind]
            array(states.buffers[kind])[row, :, : values.shape[1]] = values
        for row, kind in itertools.product(range(len(truth)), (0, 1)):
            values = truth[row][kind]
            assert np.array_equal(array(states.buffers[kind])[row, :, : values.shape[1]], values)
