import math
from typing import Any

import pytest

from service.option_metadata import INT32_MAX, OPTIONS, Option, Range


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (Range(0, INT32_MAX), (0, 5, INT32_MAX), (-1, INT32_MAX + 1), "at least 0"),
        (Range(1, 32), (1, 32), (0, 33), "1..32"),
        (Range(0.1, 10), (0.1, 10), (0.0, 10.5), "0.1..10"),
        (Range(0, 1, above_low=True), (0.1, 1), (0, 1.1), "above 0 and at most 1"),
        (Range(0, 1, below_high=True), (0, 0.9), (-0.1, 1), "at least 0 and below 1"),
        (Range(0.01, 100, or_zero=True), (0, 0.01, 100), (0.001, -1, 101), "0 or 0.01..100"),
        (Range(0, 2**64 - 1), (0, 2**64 - 1), (-1, 2**64), "0..18446744073709551615"),
    ],
)
def test_a_range_contains_what_its_text_describes(allowed, inside, outside, words):
    assert str(allowed) == words
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in (*outside, math.nan, math.inf, -math.inf))


def test_texts_without_a_default_are_empty_and_lists_are_tuples():
    assert OPTIONS["prefix"].default == ""
    assert OPTIONS["stop"].default == ()
    assert OPTIONS["seed"].default is None


def test_what_an_option_needs_are_options():
    assert {other for option in OPTIONS.values() for other in option.needs} <= set(OPTIONS)


def test_an_unknown_key_of_the_list_is_an_error():
    known: dict[str, Any] = {"group": "beam", "type": "int", "default": 0, "help": "an option"}
    assert Option(**known).range is None
    with pytest.raises(TypeError, match="maximum"):
        Option(**(known | {"maximum": 3}))
