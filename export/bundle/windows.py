"""Where the cache of a layer with a sliding window keeps the keys and values of a row.

Such a cache has a fixed number of places. A row's positions lie in them in order, the first one that it holds at place
0. Before a block that might not fit, what the window still reaches moves to the front. Where a position lies depends on
the start of the block alone, never on other rows or on how the row came to be where it is: so neither do the bits of a
row. All layers of a model keep what its longest window needs, so that they share their places. This module uses the
standard library only.
"""

from __future__ import annotations

LARGEST_BLOCK = 128  # tokens of a block that continues a row, padding included
SLACK = 128  # positions by which a cache moves: 1/64 of what a window's layers read in as many steps


def places_of(window: int) -> int:
    """Return the places of a cache for a window of so many positions, a token's own included."""
    return -(-window // 8) * 8 + SLACK + LARGEST_BLOCK


def first_position(window: int, start: int) -> int:
    """Return the position at place 0 when a block begins at position `start`: a multiple of SLACK that never falls as
    `start` grows. 0 without a window, given as 0."""
    beyond = start - (places_of(window) - LARGEST_BLOCK) if window else 0
    return max(0, -(-beyond // SLACK) * SLACK)
