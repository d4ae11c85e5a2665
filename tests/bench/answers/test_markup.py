"""The phrases marked by hand: those that are scored share no sentence with those on which the layers are chosen."""

import numpy as np
import pytest

from bench.answers.markup import CHOICE, HELD_OUT, Phrase, exact
from service.text.inline_markup import extract
from service.text.mark_placement import Links
from service.text.mark_scanner import Kinds
from service.text.words import words


def lines_of(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    assert "CC BY 2.0" in lines[0], "the licence demands it"
    return [line.split("\t") for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("file", [CHOICE, HELD_OUT], ids=["choice", "held_out"])
def test_every_line_marks_one_phrase_of_a_sentence_and_of_its_translation(file):
    lines = lines_of(file)
    assert len(lines) >= 100
    assert len({tuple(line) for line in lines}) == len(lines)
    for line in lines:
        assert len(line) == 2, line
        for text in line:
            assert 0 <= text.index("[") < text.index("]"), text
            assert text.count("[") == text.count("]") == 1, text


def test_no_sentence_is_in_both_files():
    choice, held_out = (
        {source.replace("[", "").replace("]", "") for source, _ in lines_of(file)} for file in (CHOICE, HELD_OUT)
    )
    assert not choice & held_out


def test_a_phrase_is_placed_by_the_mean_of_the_given_layers():
    marked, plain = extract("one <b>two</b>", Kinds(tags=True)), "zwei eins"
    swapped, straight = np.array([[0, 1], [1, 0]], np.float32), np.eye(2, dtype=np.float32)
    phrase = Phrase(
        marked,
        plain,
        "<b>zwei</b> eins",
        [swapped, 0.5 * straight],
        lambda weights: Links(words(marked.plain), words(plain), weights),
    )
    assert phrase.placed([1]) == phrase.placed([1, 2]) == "<b>zwei</b> eins"
    assert phrase.placed([2]) == phrase.placed([]) == "zwei <b>eins</b>"
    assert (exact([phrase], [1]), exact([phrase, phrase._replace(target="")], [1]), exact([phrase], ())) == (100, 50, 0)
