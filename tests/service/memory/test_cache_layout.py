from dataclasses import replace

from export.bundle.manifest import Limits, StateSpec, capacity_for
from export.bundle.windows import places_of
from service.memory.cache_layout import CacheLayout, row_capacity_for, shortlist_capacity_for, tiers_for
from tests.cache_states import CROSS, RECURRENT, SELF, STRIDED, WINDOWED, WORDS


def test_row_capacities_grow_in_small_steps_up_to_the_most():
    assert [row_capacity_for(rows, 40) for rows in (1, 2, 3, 4, 5, 9, 17, 33, 40)] == [1, 2, 4, 4, 8, 16, 24, 40, 40]


def test_a_layout_counts_bytes_by_what_they_grow_with():
    layout = CacheLayout.of([SELF, SELF, CROSS, RECURRENT])
    assert layout == CacheLayout(target_bytes=2 * 2 * 4 * 4, source_bytes=2 * 4 * 2, row_bytes=3 * 5 * 4)
    first = StateSpec(name="first.0", kind="cross_kv", dtype="float32", shape=("batch", 6))
    assert CacheLayout.of([first, CROSS]) == CacheLayout(target_bytes=0, source_bytes=2 * 4 * 2, row_bytes=6 * 4)
    assert layout.bytes_for(3, target_len=9, source_len=0, max_rows=8) == 4 * (64 * 16 + 16 * 8 + 60)


def test_rows_fill_what_their_lengths_take_without_rounding():
    layout = CacheLayout.of([SELF, CROSS, RECURRENT, STRIDED, WORDS])
    assert layout.filled_bytes(0, 9, 5, 3) == 0
    row = 9 * layout.target_bytes + 3 * layout.stride_bytes[0][1] + 5 * layout.source_bytes + layout.row_bytes
    assert layout.filled_bytes(2, 9, 5, 3) == 2 * (row + 3 * layout.shortlist_bytes)


def test_words_take_room_only_where_a_row_has_its_own():
    assert [shortlist_capacity_for(count) for count in (0, 1, 64, 65, 129, 193, 257, 513)] == [
        *(0, 64, 64, 128, 192, 256, 384, 768)
    ]
    assert all(shortlist_capacity_for(count) % 64 == 0 for count in range(5000))
    layout = CacheLayout.of([SELF, WORDS])
    assert layout == CacheLayout(target_bytes=2 * 4 * 4, shortlist_bytes=6)
    plain = layout.bytes_for(3, target_len=9, source_len=0, max_rows=8)
    assert layout.bytes_for(3, target_len=9, source_len=0, shortlist_len=70, max_rows=8) == plain + 4 * 128 * 6


def test_what_has_one_place_for_several_positions_is_counted_by_places():
    layout = CacheLayout.of([SELF, STRIDED])
    assert layout == CacheLayout(target_bytes=2 * 4 * 4, stride_bytes=((3, 2 * 4 * 4),))
    assert layout.bytes_per(7) == 7 * 32 + 3 * 32
    assert layout.bytes_for(1, target_len=7, source_len=0, max_rows=8) == 8 * 32 + 3 * 32


def test_states_with_a_window_take_no_more_than_they_keep():
    layout, places, size = CacheLayout.of([SELF, WINDOWED, WINDOWED]), places_of(9), 2 * 4 * 4
    assert layout == CacheLayout(target_bytes=size, window_bytes=2 * size, window_places=places)
    assert layout.bytes_per(places) == 3 * size * places
    assert layout.bytes_per(places + 1000) == size * (3 * places + 1000)
    assert layout.bytes_for(3, 1000, 0, max_rows=8) == 4 * size * (capacity_for(1000) + 2 * places)
    assert layout.filled_bytes(2, 1000, 0) == 2 * size * (1000 + 2 * places)
    tiered = replace(layout, tiers=tiers_for(Limits(vocab_size=9, max_source_len=0, max_target_len=1000, max_block=0)))
    (*_, largest) = tiered.tiers
    row = tiered.bytes_for(1, *largest, max_rows=1)
    assert tiered.fixed_bytes(max_rows=1, max_bytes=row) == row
