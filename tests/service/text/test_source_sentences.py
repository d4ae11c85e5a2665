"""Texts as sentences and what stands between them: nothing is lost, and a single sentence is left alone."""

import pytest

from service.text.edits import edited
from service.text.mark_scanner import Kinds
from service.text.segmentation import splitter_for
from service.text.source_sentences import NO_MARKS, split

ENGLISH = splitter_for("en")
MARKS = Kinds(tags=True, placeholders=True)


def sentences(text, kinds=NO_MARKS, **options):
    found = split(text, ENGLISH, kinds, **options)
    if found is None:
        return None
    assert "".join(one.before + one.original for one in found.sentences) + found.after == text
    assert all(edited(one.text, one.edits) == one.original for one in found.sentences)
    return [one.text for one in found.sentences]


@pytest.mark.parametrize(
    "text",
    ["Hello", "Hello.", " Hello, you there?\n", "Dr. Smith isn't here.", "ASP.NET runs.", "123. 456.", "...", "1. One"],
)
def test_a_single_sentence_is_left_alone(text):
    assert sentences(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is here.  Two is there!", ["One is here.", "Two is there!"]),
        ("one\ntwo\r\n\r\nthree\n", ["one", "two", "three"]),
        ("One is here. 123.", ["One is here."]),
        ("- one\n- two\n---\n", ["- one", "- two"]),
        ("今日は寒い。明日も寒い。", ["今日は寒い。", "明日も寒い。"]),
        ("Ready?\x85Go.", ["Ready?", "Go."]),
    ],
)
def test_several_sentences_are_split(text, expected):
    assert sentences(text) == expected


def test_a_wrapped_sentence_is_read_as_one_line():
    words = 40 * ["words"]
    lines = [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]
    text = "\r\n".join([*lines, *lines]) + ". Another one."
    found = sentences(text)
    assert found is not None
    assert found[-1] == "Another one."
    assert all("\r" not in one and "\n" not in one for one in found)


def test_a_sentence_that_is_too_long_is_cut():
    found = sentences("One two three four. Five.", fits=lambda text: len(text.split()) <= 2)
    assert found == ["One two", "three four.", "Five."]


def test_a_word_that_is_too_long_is_left_to_the_model():
    assert sentences("Oneverylong. Five.", fits=lambda text: len(text) <= 5) == ["Oneverylong.", "Five."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>One here.</b>", None),
        ("<b>One here. Two</b> there.", ["One here.", "Two</b> there."]),
        ("One <i>here.</i>&nbsp;Two &amp; more.", ["One <i>here.", "Two &amp; more."]),
        ("Hi {name}. You have {n.x} of {m}!", ["Hi {name}.", "You have {n.x} of {m}!"]),
        ("One here.<br/>Two there.", ["One here.", "Two there."]),
        ("<p>{n}</p> One here.", None),
    ],
)
def test_marks_are_in_no_sentences_way(text, expected):
    assert sentences(text, MARKS) == expected


def test_marks_between_sentences_are_not_part_of_the_plain_text():
    found = split("<b>One here.</b> <i>Two there.</i><br/>", ENGLISH, MARKS)
    assert found is not None
    assert [(one.before, one.plain_before) for one in found.sentences] == [("<b>", ""), ("</b> <i>", " ")]
    assert (found.after, found.plain_after) == ("</i><br/>", "")
