"""`glossa distill`: the file it writes, and what it refuses."""

import json

import pytest

from cli.local_server import serving
from model.training.data.text_files import read_tsv
from tests.cli.command import PAIRS, run


@pytest.fixture(scope="module")
def written(trained_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distilled")
    data, out = folder / "test.tsv", folder / "distilled.tsv"
    data.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    printed = run("distill", trained_bundle, "--data", data, "--beam", 3, "--keep", 2, "--out", out, "--json")
    rows = [tuple(line.split("\t")) for line in out.read_text().splitlines()]
    return json.loads(printed.splitlines()[-1]), rows


def test_the_pairs_come_first_and_then_translations_that_are_not_references(written):
    figures, rows = written
    pairs, others = rows[: len(PAIRS)], rows[len(PAIRS) :]
    assert pairs == [tuple(pair) for pair in PAIRS]
    assert figures == {"pairs": len(PAIRS), "translations": len(others), "without an answer": 0}
    assert {source for source, _ in others} == {source for source, _ in PAIRS}
    assert not set(others) & set(pairs)
    assert len(set(others)) == len(others) > len(PAIRS)
    sources = [source for source, _ in others]
    assert sources[: len(PAIRS)] == [source for source, _ in PAIRS], "the best of each source, then the second best"


@pytest.fixture(scope="module")
def teacher(trained_bundle):
    """The address of a server of the bundle; `written` starts one of its own."""
    with serving(trained_bundle) as (address, _):
        yield address


def test_two_teachers_that_are_one_add_nothing(teacher, test_set, written, tmp_path):
    out = tmp_path / "twice.tsv"
    flags = ("--data", test_set, "--beam", 3, "--keep", 2, "--out", out, "--json")
    run("distill", teacher, teacher, *flags)
    assert [tuple(line.split("\t")) for line in out.read_text().splitlines()] == written[1]


def test_a_teacher_may_answer_greedily(teacher, tmp_path):
    data, out = tmp_path / "other.tsv", tmp_path / "greedy.tsv.gz"
    data.write_text("".join(f"{source}\tno answer\n" for source, _ in PAIRS))
    run("distill", teacher, "--data", data, "--beam", 1, "--out", out)
    assert len(PAIRS) < len(read_tsv([out]).pairs) <= 2 * len(PAIRS)


def test_teachers_take_other_options_from_a_file(teacher, tmp_path):
    data, out, options = tmp_path / "other.tsv", tmp_path / "short.tsv", tmp_path / "options.yaml"
    data.write_text("".join(f"{source}\tno answer\n" for source, _ in PAIRS))
    options.write_text("max_tokens: 1\nbeam_size: 1\nnum_hypotheses: 1\n")
    run("distill", teacher, "--data", data, "--options", options, "--out", out)
    rows = read_tsv([out]).pairs[len(PAIRS) :]
    assert len(rows) <= len(PAIRS)
    assert all(len(target.split()) <= 1 for _, target in rows)


def test_a_source_that_a_teacher_refuses_stays_without_translations(teacher, tmp_path):
    data, out = tmp_path / "long.tsv", tmp_path / "out.tsv"
    data.write_text(f"{'a ' * 500}\tx\n{PAIRS[0][0]}\t{PAIRS[0][1]}\n")
    printed = run("distill", teacher, "--data", data, "--out", out)
    assert "source 1: " in printed
    assert "without an answer  1" in printed
    assert len(out.read_text().splitlines()) > 2


def test_teachers_that_answer_nothing_leave_no_file(teacher, test_set, tmp_path):
    out = tmp_path / "out.tsv"
    flags = ("--data", test_set, "--beam", 1000, "--out", out)
    assert f"none of the {len(PAIRS)} sources has an answer" in run("distill", teacher, *flags, fails=True)
    assert not out.exists()


def test_bad_arguments_are_refused(trained, trained_bundle, test_set, tmp_path):
    out = tmp_path / "out.tsv"
    assert "neither a bundle nor HOST:PORT" in run("distill", trained, "--data", test_set, "--out", out, fails=True)
    missing = tmp_path / "no" / "out.tsv"
    assert "the directory" in run("distill", "h:1", "--data", test_set, "--out", missing, fails=True)
    assert "cannot be read" in run("distill", trained_bundle, "--data", tmp_path / "no", "--out", out, fails=True)
    assert not out.exists()
    out.touch()
    assert "exists; choose another name" in run("distill", "h:1", "--data", test_set, "--out", out, fails=True)


def test_columns_are_chosen_by_name_and_bad_rows_left_out(teacher, tmp_path):
    data, out = tmp_path / "test.csv", tmp_path / "out.tsv"
    data.write_text('id,de,en\n1,a b c,a b c\n2,,x\n3,x y,"x\ny"\n')
    arguments = ("distill", teacher, "--data", data, "--columns", "en,de", "--out", out)
    assert "test.csv:3: the target is empty" in run(*arguments, fails=True)
    printed = run(*arguments, "--beam", 2, "--skip-bad-rows")
    assert "warning: 1 bad row of test.csv left out, the first:" in printed
    assert read_tsv([out]).pairs[:2] == PAIRS, "a text of several lines is one line of TSV"
