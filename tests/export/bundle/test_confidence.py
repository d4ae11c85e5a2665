"""Words of a text, their raw confidence, and the maps that calibrate it."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.bundle.confidence import ConfidenceMap, merged, raw_sentence, raw_words, word_spans

STEPS = ConfidenceMap(method="isotonic", raw=(0.2, 0.4, 0.8), calibrated=(0.1, 0.5, 0.6))


def words(text):
    return [text[start:end] for start, end in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Das ist gut.", ["Das", "ist", "gut", "."]),
        ("„Wo?“, fragt\nsie …", ["„", "Wo", "?", "“", ",", "fragt", "sie", "…"]),
        ("twenty-seven isn't 3.5 €", ["twenty-seven", "isn't", "3.5", "€"]),
        ("私は本 read", ["私", "は", "本", "read"]),
        ("हिन्दी में।", ["हिन्दी", "में", "।"]),
        ("...", [".", ".", "."]),
        (" \n", []),
    ],
)
def test_words_are_runs_without_space_and_marks_at_their_ends(text, expected):
    assert words(text) == expected


@given(st.text())
def test_words_are_in_order_and_leave_out_only_white_space(text):
    spans = word_spans(text)
    assert all(start < end for start, end in spans)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    assert "".join(words(text)) == "".join(text.split())


def test_a_word_has_the_probability_of_all_its_tokens():
    pieces = ["Ha", "us", " am", " See", ".", ""]
    found = raw_words("Haus am See.", pieces, [-0.1, -0.7, -0.2, -0.3, -0.05, -9.0])
    assert [word.span for word in found] == [(0, 4), (5, 7), (8, 11), (11, 12)]
    assert [math.log(word.confidence) for word in found] == pytest.approx([-0.8, -0.2, -0.3, -0.05])


def test_a_token_counts_for_every_word_it_lies_in_and_incomplete_ones_for_the_next():
    found = raw_words("ä b.", ["", "ä", " ", "b."], [-0.9, -0.1, -5.0, -0.4])
    assert [math.log(word.confidence) for word in found] == pytest.approx([-1.0, -0.4, -0.4])
    cut = raw_words("ein", ["ein", " Haus"], [-0.1, -0.5])  # by a stop string
    assert [word.span for word in cut] == [(0, 3)]
    assert raw_words("", [""], [-0.1]) == []


def test_a_sentence_has_the_mean_of_its_words():
    assert raw_sentence([0.5, 0.25]) == 0.375


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(0.0, 0.1), (0.2, 0.1), (0.3, 0.3), (0.4, 0.5), (0.6, 0.55), (0.8, 0.6), (0.9, 0.6), (1.0, 0.6)],
)
def test_an_isotonic_map_is_linear_between_its_knots(raw, expected):
    assert STEPS(raw) == pytest.approx(expected)


def test_a_map_of_one_knot_is_constant():
    assert [ConfidenceMap(method="isotonic", raw=(0.5,), calibrated=(0.7,))(raw) for raw in (0.0, 0.5, 1.0)] == [
        0.7
    ] * 3


def test_a_temperature_divides_the_logit():
    soften = ConfidenceMap(method="temperature", temperature=2.0)
    assert soften(0.9) == pytest.approx(1 / (1 + math.exp(-math.log(9) / 2)))
    assert soften(0.5) == 0.5
    sharpen = ConfidenceMap(method="temperature", temperature=0.01)
    assert (sharpen(0.0), sharpen(1.0)) == (0.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=2), st.floats(0.01, 100))
def test_maps_are_monotone_and_stay_probabilities(raw, temperature):
    for map in (STEPS, ConfidenceMap(method="temperature", temperature=temperature)):
        values = [map(value) for value in sorted(raw)]
        assert values == sorted(values)
        assert all(0 <= value <= 1 for value in values)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"raw": ()}, "as many raw as calibrated knots, got 0 and 2"),
        ({"raw": (), "calibrated": ()}, "as many raw as calibrated knots, got 0 and 0"),
        ({"raw": (0.5, 0.5)}, "ascending raw knots"),
        ({"calibrated": (0.5, 0.4)}, "do not descend"),
        ({"method": "temperature"}, "no knots for the method temperature"),
    ],
)
def test_numbers_that_are_no_map_have_a_problem(change, problem):
    good = ConfidenceMap(method="isotonic", raw=(0.1, 0.5), calibrated=(0.2, 0.4))
    assert good.problem == ""
    assert problem in dataclasses.replace(good, **change).problem


def test_neighbouring_spans_are_joined():
    spans = [(0, 2), (3, 5), (5, 6), (7, 9)]
    assert merged(spans, [True, True, False, True]) == [(0, 5), (7, 9)]
    assert merged(spans, [True] * 4) == [(0, 9)]
    assert merged(spans, [False] * 4) == []
