import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.documents.plain import segments, wrap_width
from service.text.segmentation import Splitter, splitter_for

WRAPPED = """\
CHAPTER ONE

It was a cold day, and the old man who lived in the red house
at the end of the street was looking for a cat. He had not
seen it for two days.

   "Where is it?" he asked.
"""
SENTENCES = "One sentence in a line, which is rather long for a line\nAnd a shorter one\nAnd another one of them\n"


def translated(source, language="en"):
    return [
        part.text for one in segments(source, Splitter(language)) for part in one.parts if not isinstance(part, str)
    ]


def test_sentences_of_wrapped_lines_are_joined():
    assert translated(WRAPPED) == [
        "CHAPTER ONE",
        "It was a cold day, and the old man who lived in the red house at the end of the street was looking for a cat.",
        "He had not seen it for two days.",
        '"Where is it?" he asked.',
    ]


def test_lines_that_were_not_wrapped_are_paragraphs():
    verses = "The red house\nThe black cat\nThe old man in the long street of the town\n"
    assert translated(verses) == verses.splitlines()
    assert translated("one line without a stop\r\nanother line\u2028and one more") == [
        *("one line without a stop", "another line", "and one more")
    ]


def test_lines_wrapped_with_carriage_returns_are_joined():
    assert translated(WRAPPED.replace("\n", "\r\n")) == translated(WRAPPED)


@pytest.mark.parametrize(("text", "width"), [(WRAPPED, 61), ("short\nlines\n", 0), ("x " * 61, 0), (SENTENCES, 0)])
def test_width_is_that_of_the_longest_line_if_most_lines_were_wrapped(text, width):
    assert wrap_width(text) == width


def test_what_has_no_words_is_copied():
    assert translated("* * *\n\n1234\n\n---\n\nThe end.\n") == ["The end."]


def test_languages_without_rules_are_split_into_paragraphs():
    assert translated("One. Two.\n\nThree.", splitter_for("th").language) == ["One. Two.", "Three."]


@settings(max_examples=60)
@given(st.text(st.sampled_from("aB.!?,'\"„“ \n\r\t\xa0\u2028\u0085\x0b\x1f😀é\u0301(1"), max_size=200) | st.text())
def test_segments_tile_the_text(source):
    found = list(segments(source, Splitter("en")))
    assert "".join(source[one.span.start : one.span.end] for one in found) == source
    for one in found:
        if one.is_copied:
            assert one.parts == (source[one.span.start : one.span.end],)
        else:
            (text,) = [part.text for part in one.parts if not isinstance(part, str)]
            assert text == text.strip() != ""


@pytest.mark.parametrize("part", ["a", ".", "\n", "a\n", " ", "\r\n\r\n", "The end. "])
def test_hostile_text_takes_linear_time(part):
    began_s = time.process_time()
    for _ in segments(part * (200_000 // len(part)), Splitter("en")):
        pass
    assert time.process_time() - began_s < 5


def test_spaces_without_a_line_break_take_linear_time():
    source, began_s = "a" + " " * 500_000 + "b", time.process_time()
    assert (
        "".join(source[span.start : span.end] for span in (one.span for one in segments(source, Splitter(""))))
        == source
    )
    assert time.process_time() - began_s < 5
