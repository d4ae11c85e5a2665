"""What a round trip loses is found, in HTML and XLIFF; what the product writes is not."""

import pytest

from bench.round_trip_checks import html_problems, xliff_problems
from bench.round_trips import identity

PAGE = (
    """<!DOCTYPE html><!-- c --><p class="a" title="A word">It <b>is</b> &amp; was.<script>x()</script></p><p>Two</p>"""
)
UNITS = """<xliff version="1.2"><file source-language="en" target-language="de"><body>
<trans-unit id="1"><source>Click <g id="1">here</g>.</source></trans-unit>
<trans-unit id="2" approved="yes"><source>Yes.</source><target>Ja.</target></trans-unit>
<trans-unit id="3"><source>A b</source><seg-source><mrk mtype="seg" mid="0">A b</mrk></seg-source></trans-unit>
</body></file></xliff>"""


def test_a_page_translated_into_itself_loses_nothing():
    assert list(html_problems(PAGE, identity(PAGE, is_html=True), is_identity=True)) == []


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("<!-- c -->", "", "others"),
        ("x()", "y()", "others"),
        ('class="a"', 'class="b"', "blocks"),
        ("<b>is</b>", "is", "tags"),
        ("Two", "Too", "text"),
        ("A word", "words", "text"),
    ],
)
def test_what_a_page_loses_is_found(old, new, what):
    found = list(html_problems(PAGE, PAGE.replace(old, new), is_identity=True))
    assert found
    assert found[0].startswith(what)


def test_inline_tags_of_a_translation_may_move():
    moved = PAGE.replace("It <b>is</b>", "<b>is</b> It")
    assert list(html_problems(PAGE, moved, is_identity=False)) == []
    assert list(html_problems(PAGE, moved.replace("<b>", "<i>"), is_identity=False))


def test_units_translated_into_themselves_lose_nothing():
    assert xliff_problems(UNITS, identity(UNITS, is_html=False), is_identity=True) == ((2, 1), [])


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("<source>Yes.", "<source>No.", "bytes beside targets"),
        ("Ja.", "Nein.", "unit 2: its target was changed"),
        ('>Click <g id="1">here</g>.</target>', ">Click here.</target>", "unit 1: inline elements"),
        (">here</g>.</target>", ">there</g>.</target>", "unit 1: 'Click here.' became"),
        ('<mrk mtype="seg" mid="0">A b</mrk></target>', "A b</target>", "unit 3: inline elements"),
        ('<mrk mtype="seg" mid="0">A b</mrk></target>', "</g></target>", "the translation cannot be parsed"),
    ],
)
def test_what_a_unit_loses_is_found(old, new, what):
    changed = identity(UNITS, is_html=False)
    assert old in changed
    _, problems = xliff_problems(UNITS, changed.replace(old, new), is_identity=True)
    assert problems
    assert problems[0].startswith(what)
