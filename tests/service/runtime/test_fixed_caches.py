"""Caches that never move, whatever rows come, go and grow."""

import itertools

import numpy as np
import pytest

from export.bundle.manifest import Limits, StateSpec
from service.memory.cache_layout import CacheLayout, CacheShape, Tier, tiers_for
from service.runtime.bindings import Arena
from service.runtime.fixed_caches import FixedCaches
from service.runtime.memory import HostMemory, StoredArray
from tests.fakes import bytes_of

SPECS = (
    StateSpec(name="self_key.0", kind="self_kv", dtype="float32", shape=("batch", 2, "past", 4)),
    StateSpec(name="cross_key.0", kind="cross_kv", dtype="float16", shape=("batch", 2, "source", 4)),
    StateSpec(name="memory.0", kind="recurrent", dtype="float32", shape=("batch", 3)),
)
LIMITS = Limits(vocab_size=9, max_source_len=200, max_target_len=1000, max_block=0)
TIERS = tiers_for(LIMITS)
LAYOUT = CacheLayout.of(SPECS, TIERS)


def caches(max_rows=17, max_bytes=1 << 22):
    arena = Arena(HostMemory())
    made = FixedCaches(
        SPECS, arena, layout=LAYOUT, max_rows=max_rows, max_bytes=max_bytes, shortlists=Arena(arena.memory)
    )
    return made, arena


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (200, 1000, [(64, 64), (256, 64), (1024, 256)]),
        (0, 40, [(48, 0)]),
        (64, 256, [(64, 64), (256, 64)]),
        (16, 0, [(0, 16)]),
        (0, 4096, [(256, 0), (1024, 0), (4096, 0)]),
    ],
)
def test_tiers_are_few_and_the_largest_holds_every_request(source, target, expected):
    tiers = tiers_for(Limits(vocab_size=9, max_source_len=source, max_target_len=target, max_block=0))
    assert [tuple(tier) for tier in tiers] == expected


def test_a_reservation_is_counted_as_it_is_allocated():
    small, large = LAYOUT.bytes_for(3, 5, 60, max_rows=16), LAYOUT.bytes_for(3, 5, 65, max_rows=16)
    assert small == 4 * (64 * 32 + 64 * 16 + 12)
    assert large == 4 * (1024 * 32 + 256 * 16 + 12), "a long source alone takes the tier that holds it"


def test_each_tier_has_room_for_the_rows_that_admission_lets_in():
    made, _ = caches(max_rows=16, max_bytes=LAYOUT.bytes_for(8, 256, 64, max_rows=16))
    assert made.most_rows == {TIERS[0]: 16, TIERS[1]: 8, TIERS[2]: 2}
    for tier, rows in made.most_rows.items():
        made.ensure(rows, live=0, lengths={"self_kv": tier.target_len, "cross_kv": tier.source_len})


def test_without_a_limit_all_rows_of_the_largest_tier_have_room():
    assert set(caches(max_bytes=None)[0].most_rows.values()) == {17}


@pytest.mark.parametrize("max_rows", [1, 5, 17, 64])
@pytest.mark.parametrize("max_bytes", [1, 1 << 15, 1 << 17, 1 << 19, 1 << 22])
def test_a_layout_knows_what_is_allocated(max_rows, max_bytes):
    made, _ = caches(max_rows, max_bytes)
    assert made.size == LAYOUT.fixed_bytes(max_rows=max_rows, max_bytes=max_bytes)


def test_a_limit_between_two_steps_lets_in_as_much_as_the_step_below():
    steps = LAYOUT.steps_within(max_rows=17, max_bytes=1 << 22)
    assert steps == sorted(steps)
    assert steps[0] == LAYOUT.bytes_for(1, *TIERS[-1], max_rows=17)
    assert steps[-1] <= 1 << 22
    rows = [caches(17, step)[0].most_rows for step in steps]
    assert [caches(17, step - 1)[0].most_rows for step in steps[1:]] == rows[:-1]
    assert LAYOUT.steps_within(max_rows=17, max_bytes=1) == steps[:1]


def test_one_row_of_the_largest_tier_always_has_room():
    made, _ = caches(max_bytes=1)
    assert set(made.most_rows.values()) == {1}
    made.ensure(1, live=0, lengths={"self_kv": 1000, "cross_kv": 200})


def test_a_tier_that_suits_live_rows_stays():
    made, _ = caches()
    made.ensure(2, live=0, lengths={"self_kv": 200, "cross_kv": 1})
    assert made.capacities["self_kv"] == 256
    made.ensure(2, live=2, lengths={"self_kv": 3, "cross_kv": 1})
    assert made.capacities["self_kv"] == 256, "attention does not cost more, and moving rows would"
    made.ensure(2, live=0, lengths={"self_kv": 3, "cross_kv": 1})
    assert made.capacities["self_kv"] == 64
    made.ensure(2, live=2, lengths={"self_kv": 3, "cross_kv": 1}, most=CacheShape(2, 300, 1))
    assert made.capacities["self_kv"] == 1024, "at once what rows may come to need"


def test_rows_keep_their_contents_and_memory_its_place():
    made, arena = caches()
    rng, generation = np.random.default_rng(1), arena.generation
    self_kv, cross_kv, memory = made.buffers
    blocks = [buffer.block for buffer in made.buffers]
    truth: list[tuple[np.ndarray, ...]] = []

    def array(buffer, row):
        ((name, offset),) = itertools.islice(buffer.offsets(row), 1)
        assert name
        return arena.memory.read(StoredArray(buffer.block, offset, buffer.shape(1)[1:], buffer.dtype))[0]

    for turn in range(300):
        if truth and rng.random() < 0.3:
            truth.pop()
        kept = len(truth)
        if len(truth) < 17:
            most = (40, 60) if turn % 40 < 20 else (900, 190)
            lengths = rng.integers(1, most)
            truth.append((rng.random((2, lengths[0], 4), np.float32), rng.random((2, lengths[1], 4)).astype(np.float16),
                          rng.random(3, np.float32)))  # fmt: skip
        target, source = (max(row[kind].shape[1] for row in truth) for kind in (0, 1))
        made.ensure(len(truth), live=kept, lengths={"self_kv": target, "cross_kv": source})
        for row in range(kept, len(truth)):
            own, other, fixed = truth[row]
            array(self_kv, row)[:, : own.shape[1]] = own
            array(cross_kv, row)[:, : other.shape[1]] = other
            array(memory, row)[:] = fixed
        for row, (own, other, fixed) in enumerate(truth):
            assert np.array_equal(array(self_kv, row)[:, : own.shape[1]], own)
            assert np.array_equal(array(cross_kv, row)[:, : other.shape[1]], other)
            assert np.array_equal(array(memory, row), fixed)
    made.clear()
    assert [buffer.block for buffer in made.buffers] == blocks
    assert arena.generation == generation


def test_what_lies_beyond_the_end_of_a_row_are_numbers():
    """Attention with a position bias multiplies it by zero, and zero times what is not a number is none."""

    class Dirty(HostMemory):
        def allocate(self, size):
            block = super().allocate(size)
            block.bytes[:] = 0xFF
            return block

    arena = Arena(Dirty())
    made = FixedCaches(SPECS, arena, layout=LAYOUT, max_rows=4, max_bytes=1 << 20, shortlists=arena)
    for _ in range(2):
        assert not any(bytes_of(buffer.block).any() for buffer in made.buffers)
        made.use(TIERS[0])
        bytes_of(made.buffers[0].block)[:] = 0xFF  # a turn that failed
        made.clear()


def test_a_row_is_erased_in_all_its_states_and_no_other_is():
    made, arena = caches()
    made.use(TIERS[0])
    for buffer in made.buffers:
        bytes_of(buffer.block)[:] = 0xFF
    made.erase((3, 5))
    for buffer in made.buffers:
        for row in range(7):
            ((_, offset),) = itertools.islice(buffer.offsets(row), 1)
            stored = StoredArray(buffer.block, offset, buffer.shape(1)[1:], buffer.dtype)
            assert arena.memory.read(stored)[0].view(np.uint8).any() == (row not in (3, 5))


def test_memory_that_the_device_does_not_have_is_an_error():
    class Full(HostMemory):
        def allocate(self, size):
            if size > 1 << 16:
                raise MemoryError(size)
            return super().allocate(size)

    arena = Arena(Full())
    with pytest.raises(MemoryError):
        FixedCaches(SPECS, arena, layout=LAYOUT, max_rows=64, max_bytes=1 << 24, shortlists=arena)


def test_tier_for_a_layout_without_tiers_is_that_of_its_capacities():
    assert CacheLayout.of(SPECS).tier_for(9, 30) == Tier(16, 32)
