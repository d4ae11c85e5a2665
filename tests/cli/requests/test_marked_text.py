"""Uncertain words as a terminal and as a file show them."""

import pytest

from cli.requests.marked_text import marked

SPANS = [(0, 3), (8, 11)]


def test_words_are_in_brackets_outside_a_terminal():
    assert marked("das ist gut", SPANS, in_terminal=False) == "[das] ist [gut]"
    assert marked("das ist gut", SPANS) == "[das] ist [gut]", "standard output of a test is no terminal"
    assert marked("das ist gut", []) == "das ist gut"


def test_a_terminal_underlines_them():
    shown = marked("das ist gut", [(4, 7)], in_terminal=True)
    assert shown == "das \x1b[33m\x1b[4mist\x1b[0m gut"


@pytest.mark.parametrize("text", ["", "a"])
def test_a_text_without_marks_stays(text):
    assert marked(text, [], in_terminal=True) == text
