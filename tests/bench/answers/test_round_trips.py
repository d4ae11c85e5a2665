"""What a round trip loses is found, in HTML and XLIFF; what the product writes is not."""

import json
from argparse import Namespace

import pytest

from bench.answers.round_trip_checks import html_problems, xliff_problems
from bench.answers.round_trips import identity, round_trips

PAGE = (
    """<!DOCTYPE html><!-- c --><p class="a" title="A word">It <b>is</b> &amp; was.<script>x()</script></p><p>Two</p>"""
)
UNITS = """<xliff version="1.2"><file source-language="en" target-language="de"><body>
<trans-unit id="1"><source>Click <g id="1">here</g>.</source></trans-unit>
<trans-unit id="2" approved="yes"><source>Yes.</source><target>Ja.</target></trans-unit>
<trans-unit id="3"><source>A b</source><seg-source><mrk mtype="seg" mid="0">A b</mrk></seg-source></trans-unit>
</body></file></xliff>"""


def test_a_page_translated_into_itself_loses_nothing():
    assert list(html_problems(PAGE, identity(PAGE, "html"), is_identity=True)) == []


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
    assert xliff_problems(UNITS, identity(UNITS, "xliff"), is_identity=True) == ((2, 1), [])


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
    changed = identity(UNITS, "xliff")
    assert old in changed
    _, problems = xliff_problems(UNITS, changed.replace(old, new), is_identity=True)
    assert problems
    assert problems[0].startswith(what)


@pytest.mark.parametrize("encoding", ["UTF-16", "Shift_JIS", "no-such-encoding"])
def test_a_file_that_declares_another_encoding_than_its_own_is_a_problem_of_the_file(encoding):
    text = f'<?xml version="1.0" encoding="{encoding}"?>{UNITS}'
    units, problems = xliff_problems(text, text, is_identity=True)
    assert units == (0, 0)
    assert problems[0].startswith("the source cannot be parsed: ")


def test_more_units_than_in_the_source_are_a_problem_of_the_file():
    more = UNITS.replace("<body>", '<body><target><trans-unit id="4"/></target>')
    assert xliff_problems(UNITS, more, is_identity=True) == ((0, 0), ["3 units became 4"])


def measured(folder, capsys):
    """The report of a run on a folder."""
    round_trips(Namespace(folder=folder, bundle=None, json=True))
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_kind_without_documents_has_no_verdict(tmp_path, capsys):
    (tmp_path / "page.html").write_text(PAGE)
    found = measured(tmp_path, capsys)
    assert [verdict["measure"] for verdict in found["verdicts"]] == ["html, identity: lost something"]
    assert "skipped" not in found or not found["skipped"]
    (tmp_path / "words.po").write_text("no catalog")
    assert measured(tmp_path, capsys)["skipped"] == {"po, identity": "no document was translated"}


def test_a_folder_without_documents_is_refused(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "page.html").write_bytes(b"\xff\xfe<\x00p\x00")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            SystemExit, match=r"no such folder, or one without a document in UTF-8; give one with \.htm"
        ):
            measured(folder, capsys)
    (tmp_path / "page.xliff").write_text("no XML")
    with pytest.raises(SystemExit, match="none of its documents was translated"):
        measured(tmp_path, capsys)
