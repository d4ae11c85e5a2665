"""What `glossa train` refuses, in one line."""

from tests.cli.command import run


def test_a_finished_run_is_not_written_over(trained):
    assert "choose another directory" in run("train", "tiny-copy", "--steps", 3, "--out", trained, fails=True)


def test_an_unknown_preset_is_answered_with_the_closest_one(tmp_path):
    assert "did you mean 'tatoeba-small'" in run("train", "tatoeba-smal", "--out", tmp_path / "x", fails=True)


def test_a_broken_line_of_a_tsv_is_named(tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("one\tein\nbroken\n")
    said = run("train", "tatoeba-small", "--data", data, "--out", tmp_path / "x", fails=True)
    assert f"{data}:2: expected 2 tab-separated fields, got 1" in said
    assert not (tmp_path / "x").exists()


def test_arguments_that_do_not_fit_together_are_refused(tmp_path, test_set):
    assert "--source and --target" in run("train", "tatoeba-small", "--out", tmp_path / "x", fails=True)
    alone = run("train", "tatoeba-small", "--source", test_set, "--out", tmp_path / "x", fails=True)
    assert "--source and --target" in alone
    assert "--source and --reference" in run("eval", tmp_path, fails=True)
