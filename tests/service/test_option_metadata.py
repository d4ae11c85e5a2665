import math

import pytest

from service.option_metadata import INT32_MAX, Option, Range, option


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
def test_a_range_contains_what_its_words_say(allowed, inside, outside, words):
    assert str(allowed) == words
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in (*outside, math.nan, math.inf, -math.inf))


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"default": 0, "range": Range(0, 9)}, ("0..9", "0")),
        ({"default": 0, "range": Range(0, 9), "unset": "off", "limits": "even"}, ("0..9; even", "0 (off)")),
        ({"default": 1.0}, ("", "1")),
        ({"default": False}, ("", "false")),
        ({"default": None, "unset": "random"}, ("", "random")),
        ({"default": (), "max_items": 4, "max_bytes": 8}, ("at most 4 of 8 bytes", "none")),
        ({"default": {}, "max_items": 4, "range": Range(0, 1)}, ("0..1; at most 4", "none")),
        ({"default": "", "max_bytes": 8}, ("at most 8 bytes", "none")),
    ],
)
def test_limits_and_defaults_are_put_into_words(details, words):
    known = Option(group="beam", help="an option", **details)
    assert (known.accepts, known.default_meaning) == words


def test_a_mapping_is_a_default_of_its_own():
    field = option({}, "an option", group="beam")
    assert field.default_factory() is not field.default_factory()
    assert field.metadata["option"].default == {}
