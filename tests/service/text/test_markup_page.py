"""The tables and the file of docs/markup.md are what the code does."""

import re
from pathlib import Path

from service.text.glossary import read_terms
from service.text.inline_markup import MAX_DEPTH, MAX_MARKS, extract
from service.text.mark_scanner import Kinds, scan

PAGE = (Path(__file__).parents[3] / "docs" / "markup.md").read_text(encoding="utf-8")


def rows(header):
    """The cells of a table, each a list of its code spans."""
    table = PAGE.partition(f"{header}\n")[2].partition("\n\n")[0]
    cells = [line.strip("|").split(" | ") for line in table.splitlines()[1:]]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in cells]


def test_each_kind_matches_its_marks_and_not_its_text():
    table = rows("| kind | marks | text |")
    assert [kind for (kind,), _, _ in table] == list(Kinds._fields)
    for (kind,), marks, texts in table:
        kinds = Kinds(**{kind: True})
        for mark in marks:
            assert [mark[one.start : one.end] for one in scan(mark, kinds)] == [mark]
        for text in texts:
            assert list(scan(text, kinds)) == [], text


def test_white_space_goes_with_marks_as_the_page_shows():
    table = rows("| text | without marks |")
    assert len(table) == 5
    for (raw,), (plain,) in table:
        assert extract(raw, Kinds(tags=True, placeholders=True)).plain == plain


def test_the_file_of_terms_can_be_read():
    terms = read_terms(PAGE.partition("```tsv\n")[2].partition("```")[0].splitlines())
    assert [(term.source, len(term.targets), term.ignore_case) for term in terms] == [
        ("house", 3, False),
        ("old tree", 2, False),
        ("us", 1, True),
    ]


def test_limits_are_those_of_the_code():
    assert (f"{MAX_MARKS}" in PAGE, str(MAX_DEPTH) in PAGE) == (True, True)
