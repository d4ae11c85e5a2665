import random

import pytest

from bench.answers.pivots import has_its_marks, marked


def test_a_word_gets_tags_and_the_end_a_placeholder():
    text = marked("a black cat", random.Random(1))
    assert text.replace("<b>", "").replace("</b>", "") == "a black cat {x}"
    assert has_its_marks(text)


@pytest.mark.parametrize("text", ["a </b>b<b> {x}", "<b>a</b> {x} {x}", "<b>a</b>", "a {x}"])
def test_marks_that_are_lost_doubled_or_out_of_order_are_seen(text):
    assert not has_its_marks(text)
