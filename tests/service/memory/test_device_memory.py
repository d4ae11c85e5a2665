"""What an engine gets of a device's memory, by hand and for every amount."""

from dataclasses import replace

import pytest

from export.bundle.manifest import Limits
from service.memory.cache_layout import CacheLayout, tiers_for
from service.memory.device_memory import LIBRARIES_BYTES, available_bytes, cache_bytes, least_bytes, limits_within
from service.memory.engine_limits import EngineLimits
from service.memory.memory_prediction import ModelShape, engine_parts

LIMITS = Limits(vocab_size=1000, max_source_len=64, max_target_len=1000, max_block=0)
SHAPE = ModelShape(
    layout=CacheLayout(target_bytes=10_000, source_bytes=5_000, shortlist_bytes=100, tiers=tiers_for(LIMITS)),
    vocab_size=1000,
    width=32,
    inner=64,
    heads=4,
    max_source_len=64,
    max_target_len=1000,
    chunk_tokens=0,
    shortlist_len=300,
    opened=0,
    opened_later=700,
    tokenizer=0,
)
ASKED = EngineLimits(max_rows=16, kv_cache_bytes=1 << 27, prefix_cache_bytes=5_000_000, parking_bytes=40_000_000)
ROW = 10_000 * 1024 + 5_000 * 64
SHORTLISTS = 2 * 16 * 100 * 384
PARTS = engine_parts(SHAPE, ASKED)
DRAWS = 2 * 4 * 16 * 1000  # log-probabilities by the temperature, and normalised again
FIXED = PARTS["outputs"] + PARTS["activations"] + DRAWS + 700 + LIBRARIES_BYTES


def test_what_is_available():
    assert available_bytes(1000, weights=400, most=0) == 900
    assert available_bytes(1000, weights=400, most=1200) == 800
    assert available_bytes(1000, weights=400, most=5000) == 900
    assert available_bytes(1000, weights=400, most=300) < 0


def test_caches_are_those_of_all_rows_that_admission_lets_in():
    assert cache_bytes(SHAPE, ASKED, 1 << 40) == 16 * ROW + SHORTLISTS
    in_turn = 10_000 * max(8 * 64, 2 * 256, 1024) + 5_000 * 64 * 8  # 8 short rows, 2 longer ones or a long one
    assert cache_bytes(SHAPE, ASKED, ROW) == in_turn + SHORTLISTS
    assert least_bytes(SHAPE, ASKED) == FIXED + cache_bytes(SHAPE, ASKED, ROW)


def test_a_device_with_room_gives_what_is_asked_for():
    all_of_it = FIXED + cache_bytes(SHAPE, ASKED, ASKED.kv_cache_bytes) + ASKED.parking_bytes
    assert limits_within(all_of_it, SHAPE, ASKED) == ASKED, "a decoder with a source has no prefix cache"
    assert limits_within(all_of_it - 1, SHAPE, ASKED) != ASKED


def test_a_device_without_room_for_the_largest_request_gives_nothing():
    least = least_bytes(SHAPE, ASKED)
    assert limits_within(least - 1, SHAPE, ASKED) is None
    found = limits_within(least, SHAPE, ASKED)
    assert found == replace(ASKED, kv_cache_bytes=ROW, prefix_cache_bytes=0, parking_bytes=0)
    assert limits_within(-5, SHAPE, ASKED) is None


@pytest.mark.parametrize("asked", [ASKED, replace(ASKED, kv_cache_bytes=1000), replace(ASKED, parking_bytes=0)])
def test_nothing_exceeds_the_device_and_more_memory_never_gives_less(asked):
    before = 0
    least = least_bytes(SHAPE, asked)
    for available in range(least, least + (1 << 28), 1 << 22):
        found = limits_within(available, SHAPE, asked)
        assert found is not None
        taken = FIXED + cache_bytes(SHAPE, asked, found.kv_cache_bytes) + found.parking_bytes
        assert taken <= available
        assert before <= found.kv_cache_bytes <= asked.kv_cache_bytes
        assert found.parking_bytes <= asked.parking_bytes
        before = found.kv_cache_bytes
    assert found == asked


def test_a_model_without_caches_needs_what_its_graphs_have():
    shape = replace(SHAPE, layout=CacheLayout(0, tiers=tiers_for(replace(LIMITS, max_target_len=0))), max_target_len=0)
    least = least_bytes(shape, ASKED)
    assert limits_within(least, shape, ASKED) == ASKED
    assert limits_within(least - 1, shape, ASKED) is None
