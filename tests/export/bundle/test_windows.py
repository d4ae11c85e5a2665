import pytest

from export.bundle.windows import LARGEST_BLOCK, SLACK, first_position, places_of


@pytest.mark.parametrize("window", [1, 7, 16, 512, 1021])
def test_a_cache_always_holds_the_window_and_has_room_for_the_largest_block(window):
    places, before = places_of(window), 0
    for start in range(4 * places):
        first = first_position(window, start)
        assert first % SLACK == 0
        assert first in (before, before + SLACK)
        assert first <= max(0, start - window + 1)
        assert start - first + LARGEST_BLOCK <= places
        before = first
    assert before > 2 * places


def test_without_a_window_all_positions_stay():
    assert first_position(0, 10**6) == 0
