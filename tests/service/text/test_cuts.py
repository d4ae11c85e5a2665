import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.cuts import parts_that_fit


def cut(text, words):
    parts = parts_that_fit(text, lambda part: len(part.split()) <= words)
    return None if parts is None else [text[part.start : part.end] for part in parts]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("It was old. It was red, and big.", ["It was old.", "It was red, and big."]),
        ("The man who was tired; he went to bed", ["The man who was tired;", "he went to bed"]),
        ("The old red house, the big one", ["The old red house,", "the big one"]),
        ("one two three four five six", ["one two three", "four five six"]),
    ],
)
def test_cuts_are_where_a_reader_would_pause(text, parts):
    assert cut(text, 5) == parts


def test_a_text_that_fits_is_not_cut():
    assert cut("one, two. three", 3) == ["one, two. three"]


def test_a_word_is_never_cut():
    assert parts_that_fit("short incomprehensibilities", lambda part: len(part) <= 8) is None


@given(st.text(st.sampled_from("ab ,.;:—、。😀\xa0"), max_size=200).map(str.strip), st.integers(2, 20))
def test_parts_fit_and_only_white_space_lies_between_them(text, limit):
    parts = parts_that_fit(text, lambda part: len(part) <= limit)
    if parts is None:
        return
    place = 0
    for part in parts:
        assert not text[place : part.start].strip()
        assert part.end - part.start <= limit
        place = part.end
    assert place == len(text)
