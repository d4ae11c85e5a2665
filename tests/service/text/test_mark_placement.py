from xml.etree import ElementTree

import numpy as np
import pytest

from service.text.inline_markup import extract
from service.text.mark_placement import Links, word_links
from service.text.mark_scanner import Kinds
from service.text.words import words

ALL = Kinds(tags=True, placeholders=True)


def aligned(source, target, *pairs):
    """Links of words, from pairs (word of the target, word of the source) and the weight 1."""
    first, second = words(source), words(target)
    weights = np.full((len(second), len(first)), 0.01, np.float32)
    for one, other in pairs:
        weights[one, other] = 1
    return Links(first, second, weights)


def restored(raw, target, *pairs, kinds=ALL):
    text = extract(raw, kinds)
    return text.restored(target, aligned(text.plain, target, *pairs))


MOVED = ((0, 0), (1, 3), (2, 1), (3, 2))  # a b c d → A D B C


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("a b c <b>d</b>", "A <b>D</b> B C"),
        ("a <b>b c</b> d", "A D <b>B C</b>"),
        ("<b>a <i>b</i></b> c d", "<b>A D <i>B</i></b> C"),
        ("a <b>b</b> <i>c</i> <u>d</u>", "A <u>D</u> <b>B</b> <i>C</i>"),
        ("<b>a b c d</b>", "<b>A D B C</b>"),
        ("a b {x} c d", "A D B {x} C"),
        ("{x} a b c d {y}", "{x} A D B C {y}"),
        ("<b>{x} a b c d {y}</b>", "<b>{x} A D B C {y}</b>"),
        ("a b c {x}d", "A {x}D B C"),
        ("a b c d{x}", "A D{x} B C"),
        ("a {x} <b>b</b> c d", "A {x} D <b>B</b> C"),
    ],
)
def test_marks_follow_the_words_that_belong_together(raw, expected):
    assert restored(raw, "A D B C", *MOVED) == expected


def test_of_several_runs_the_one_with_the_largest_weight_is_covered():
    pairs = [(0, 1), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    assert restored("a <b>b</b>", "B a a a B B", *pairs) == "B a a a <b>B B</b>"
    assert restored("a <b>b</b>", "B a B B", *[(0, 1), (1, 0), (2, 1), (3, 1)]) == "<b>B a B B</b>"


def test_elements_side_by_side_do_not_overlap_when_they_want_the_same_word():
    pairs = [(0, 0), (0, 1)]
    answer = restored("<b>a</b> <i>b</i>", "X", *pairs)
    assert sorted((answer.index("<b>X</b>"), answer.index("<i></i>"))) in ([0, 7], [0, 8])


def test_punctuation_is_covered_only_with_punctuation():
    pairs = [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert restored("<b>a</b> b", "A, B.", *pairs) == "<b>A</b>, B."
    assert restored("a <b>b.</b>", "A, B.", (0, 0), (1, 0), (2, 1), (3, 2)) == "A, <b>B.</b>"


def test_fragments_reach_to_their_end_or_from_their_start():
    text = extract("a b</b> c <i>d", ALL, lenient=True)
    answer = text.restored("A B C D", aligned(text.plain, "A B C D", (0, 0), (1, 1), (2, 2), (3, 3)))
    assert answer == "A B</b> C <i>D"


def test_a_fragment_closes_before_it_opens_whatever_the_order():
    text = extract("a</b> {x} <u>b</u> <i>c", ALL, lenient=True)
    answer = text.restored("C B A", aligned(text.plain, "C B A", (0, 2), (1, 1), (2, 0)))
    assert [answer.index(tag) for tag in ("</b>", "<i>")] == sorted(answer.index(tag) for tag in ("</b>", "<i>"))
    ElementTree.fromstring(f"<all><b>{answer}</i></all>")
    assert answer.index("</b>") < answer.index("{x}") < answer.index("<i>")


@pytest.mark.parametrize(
    ("raw", "comma", "expected"),
    [
        ("a {x}, b.", 0, "A {x}, B."),
        ("a, {x} b.", 2, "A, {x} B."),
        ("<b>a</b> {x}, b.", 0, "<b>A</b> {x}, B."),
        ("a, {x} <b>b.</b>", 2, "A, {x} <b>B.</b>"),
    ],
)
def test_points_stay_on_their_side_of_punctuation(raw, comma, expected):
    """comma: the word of the source that the comma of the answer is linked to, on the other side of the point."""
    assert restored(raw, "A, B.", (0, 0), (1, comma), (2, 2), (3, 3)) == expected


def test_no_point_is_moved_into_an_element():
    answer = restored("a <b>b c</b> {x} d", "A B D C", (0, 0), (1, 1), (2, 3), (3, 2))
    assert answer in ("A <b>B D C</b> {x}", "A {x} <b>B D C</b>")


def test_blanks_are_only_inserted_where_they_go_with_the_mark():
    assert restored("a {x} b", "(b", (0, 0), (1, 1)) == "({x} b"
    glued = restored("a {x}d", "A !", (0, 0), (1, 1))
    assert (glued, extract(glued, ALL).plain) == ("A {x} !", "A !")


def test_tokens_share_their_weight_among_the_words_that_they_are_in():
    links = Links([(0, 2), (2, 5), (5, 5)], [(0, 1), (1, 3), (3, 3)], np.eye(3, dtype=np.float32))
    assert word_links("abcd e", "xyz", links).shape == (1, 2)
    assert word_links("abcd e", "xyz", links)[0].argmax() == 0


def test_words_that_prefer_each_other_count_most():
    """Both words of the answer attend to the first source word, the second one a little less."""
    weights = np.array([[0.9, 0.1], [0.55, 0.45]], np.float32)
    links = Links([(0, 1), (2, 3)], [(0, 1), (2, 3)], weights)
    assert extract("a <b>b</b>", ALL).restored("A B", links) == "A <b>B</b>"
    assert word_links("a b", "A B", links).argmax(axis=1).tolist() == [0, 1]


def test_without_links_marks_are_placed_in_proportion():
    assert extract("one <b>two</b> three four", ALL).restored("eins zwei drei vier") == "eins <b>zwei</b> drei vier"


def test_a_text_without_words_has_its_marks_in_order():
    assert extract("{x} <b>a</b> {y}", ALL).restored("") == "{x} <b></b> {y}"
    assert extract("a &amp; b", ALL).restored("x & y") == "x &amp; y"
    assert extract("a", Kinds()).restored("x & y") == "x & y"
