import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.documents.cue_lines import Layout, arranged

BREAKS = ['<br id="glossa-0"/>', '<br id="glossa-10"/>', '<br id="glossa-11"/>']


def lines(translation, *cues, has_tags=False, newline="\n"):
    return arranged(Layout(cues, newline, has_tags), str, translation)


def test_lines_end_at_the_border_that_is_nearest_to_their_share():
    assert lines("aa bb cc dd ee", (4, 6)) == "aa bb\ncc dd ee"
    assert lines("aa bb cc dd ee", (9, 1), newline="\r\n") == "aa bb cc dd\r\nee"
    assert lines("aa bb cc dd ee", (1, 1, 1)) == "aa bb\ncc\ndd ee"
    assert lines("aa", (5, 5)) == "aa"
    assert lines("aa bb", (5, 5, 5)) == "aa\nbb"
    assert lines("aa bb cc", ()) == lines("aa bb cc", (7,)) == "aa bb cc"


def test_line_breaks_and_arrows_of_an_answer_do_not_end_a_cue():
    assert lines("one\n\n2\r\n00:01 --> 00:02 two ---> x", (9,)) == "one 2 00:01 -> 00:02 two -> x"
    assert lines("a --&gt; b", (9,), has_tags=True) == "a -&gt; b"


def test_scripts_without_blanks_break_between_characters_but_not_before_punctuation():
    assert lines("我喜欢红色的房子。", (4, 4)) == "我喜欢红\n色的房子。"
    assert lines("红红红。红", (3, 2)) == "红红\n红。红"


def test_marks_that_are_balanced_stay_and_keep_their_order():
    one, other = BREAKS[:2]
    assert lines(f"I go {one} home", (4,), (4,), has_tags=True) == f"I go{one}home"
    assert lines(f"I go {other} home {one} now", (4,), (4,), (3,), has_tags=True) == f"I go{one}home{other}now"


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("{0} aaa bbb ccc", "aaa{0}bbb ccc"),  # a cue without a word
        ("aaa bbb ccc {0}", "aaa{0}bbb ccc"),
        ("aaaaaaaaa bbbbbbbbb ccccccccc ddddddddd eeeeeeeee {0} ff",
         "aaaaaaaaa bbbbbbbbb{0}ccccccccc ddddddddd eeeeeeeee ff"),  # twice its share
        ('{0} <g id="glossa-1">aaa bbb</g> ccc', '<g id="glossa-1">aaa bbb</g>{0}ccc'),  # not inside of an element
        ("{0} aaa", "aaa{0}"),  # too few words
    ],
)  # fmt: skip
def test_cues_get_their_shares_where_the_alignment_leaves_one_without_them(translation, expected):
    found = lines(translation.format(BREAKS[0]), (4,), (6,), has_tags=True)
    assert found == expected.format(BREAKS[0])


def test_shares_of_scripts_without_blanks_add_no_blank():
    assert lines(f"{BREAKS[0]}红色的房子", (2,), (2,), has_tags=True) == f"红色{BREAKS[0]}的房子"
    assert lines(f"红色的房子{BREAKS[0]}", (2,), (2,), has_tags=True) == f"红色{BREAKS[0]}的房子"


@settings(max_examples=200)
@given(
    st.lists(st.text(st.sampled_from("ab .红,"), max_size=30), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=4, max_size=4),
)
def test_no_word_is_lost_and_no_cue_has_more_lines_than_its_source(pieces, cues):
    marks = BREAKS[: len(pieces) - 1]
    translation = " ".join(part for pair in zip(pieces, [*marks, ""], strict=True) for part in pair)
    found = lines(translation, *cues[: len(pieces)], has_tags=True)
    for mark in marks:
        assert found.count(mark) == 1
    assert [found.index(mark) for mark in marks] == sorted(found.index(mark) for mark in marks)
    bare, parts = "".join(pieces), [found]
    for mark in marks:
        parts[-1:] = parts[-1].split(mark)
    assert "".join("".join(parts).split()) == "".join(bare.split())
    for part, lengths in zip(parts, cues, strict=False):
        assert part.count("\n") <= max(0, len(lengths) - 1)
        assert "\n\n" not in part
