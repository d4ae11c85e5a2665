"""The table of docs/decoding.md has the cases of the bench, and one of them is asked for real."""

import pytest

from bench.answers.same_request import BEGIN, CASES, END, ENGINES, PAGE, Case, glossa, reading, transformers

pytest.importorskip("transformers")


def table():
    """The cells of each line."""
    whole = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in whole.split("\n") if line]


def test_the_page_has_every_case_with_readings_that_it_may_have():
    header, _, *rows = table()
    assert [row[0] for row in rows] == [one.ask for one in CASES]
    assert [name.split()[0] for name in header[1:]] == [*ENGINES, "vLLM"]
    for one, (_, *cells) in zip(CASES, rows, strict=True):
        assert {*cells} <= {*one.readings.values(), one.vllm, "–"}


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.ask)
def test_the_cell_of_transformers_is_what_it_answers(one, tmp_path):
    rows = {cells[0]: cells for cells in table()}
    assert rows[one.ask][2] == reading(one, transformers(one, tmp_path))


def test_an_answer_has_the_reading_of_its_words():
    one = Case(ask="?", rows={}, readings={"bc.": "two", ".": "none"})
    assert [reading(one, answer) for answer in ("bc.", "bc", "bc._", ".", "", "d.", None)] == [
        *["two"] * 3,
        *["none"] * 2,
        "`d.`",
        "–",
    ]


@pytest.mark.slow  # a server
def test_a_table_is_served_as_a_model(tmp_path):
    one = CASES[0]
    rows = {cells[0]: cells for cells in table()}
    assert rows[one.ask][1] == reading(one, glossa(one, tmp_path / "bundle"))
