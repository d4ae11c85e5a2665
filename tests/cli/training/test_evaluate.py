"""`glossa eval`: BLEU of a checkpoint and of its bundle, and what it rejects."""

import json
import re
import shutil

import pytest

from model.checkpoints.atomic_write import DIGESTS, digests_of
from model.checkpoints.training_rows import FILE
from model.presets import PRESETS
from model.training.data.embedded import embedded_examples
from model.training.data.examples import split
from tests.cli.command import PAIRS, run


def test_a_checkpoint_and_its_bundle_have_one_bleu(trained, trained_bundle, test_set, monkeypatch, tmp_path):
    """Whatever servers and connections elsewhere need: the bundle's own server is plain."""
    for name in ("TLS_CERTIFICATE", "TLS_KEY", "TLS_CLIENT_CA", "TOKENS", "TLS_CA", "CLIENT_CERT", "CLIENT_KEY"):
        monkeypatch.setenv(f"GLOSSA_{name}", str(tmp_path / "nowhere.pem"))
    monkeypatch.setenv("GLOSSA_TLS", "1")
    others = tmp_path / "others.yaml"
    others.write_text(f"tokens: {tmp_path / 'nowhere.pem'}\nmodels: {{other: /nowhere}}\nhost: 192.0.2.1\n")
    monkeypatch.setenv("GLOSSA_CONFIG", str(others))
    in_torch = json.loads(run("eval", trained, "--data", test_set, "--json").splitlines()[-1])
    served = json.loads(run("eval", trained_bundle, "--data", test_set, "--json"))
    assert served["BLEU"] == in_torch["BLEU"]
    assert served["sentences"] == len(PAIRS)
    assert served["signature"].startswith("nrefs:1|case:mixed")
    options = tmp_path / "options.json"
    options.write_text('{"length_penalty": 0.6}')
    searched = run("eval", trained_bundle, "--data", test_set, "--beam", 2, "--options", options)
    assert "unknown: only checkpoints record their training rows" in searched
    assert re.search(r"^pairs in training data    unknown$", searched, re.MULTILINE)
    for flags in (("--beam", 2), ("--options", options)):
        refused = run("eval", trained, "--data", test_set, *flags, fails=True)
        assert "export it to use --beam and --options" in refused


def test_test_rows_that_were_in_the_training_data_are_counted(trained, tmp_path):
    recipe, new = PRESETS["tiny-copy"].train, [("q q q q q q q q q", "a")]
    training, held_out = split(embedded_examples("copy"), size=recipe.validation_size, seed=recipe.seed)
    known = [*new, *held_out.pairs[:2], *training.pairs[:2], (training.pairs[2][0], "other")]
    (tmp_path / "known.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in known))
    (tmp_path / "new.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in new))
    printed = run("eval", trained, "--data", tmp_path / "known.tsv")
    assert (
        "warning: 3 of 6 test sources were in the training data, 2 with the same target; the first: row 4 " in printed
    )
    assert re.search(r"^sources in training data  3$", printed, re.MULTILINE)
    printed = run("eval", trained, "--data", tmp_path / "new.tsv")
    assert "0 of 1 test sources were in the training data\n" in printed
    found = json.loads(run("eval", trained, "--data", tmp_path / "new.tsv", "--json"))
    assert (found["sources in training data"], found["pairs in training data"]) == (0, 0)


def test_an_older_checkpoint_is_evaluated_without_them(trained, test_set, tmp_path):
    older = tmp_path / "older"
    shutil.copytree(trained, older)
    (older / FILE).unlink()
    lineage = json.loads((older / "lineage.json").read_bytes())
    del lineage["training_rows"], lineage["validation_in_training"]
    (older / "lineage.json").write_text(json.dumps(lineage))
    names = json.loads((older / DIGESTS).read_bytes()).keys() - {FILE}
    (older / DIGESTS).write_bytes(digests_of({name: (older / name).read_bytes() for name in names}))
    found = json.loads(run("eval", older, "--data", test_set, "--json"))
    assert (found["sentences"], found["pairs in training data"]) == (len(PAIRS), None)


def test_no_row_is_seen_only_where_all_rows_are_known(trained, test_set, tmp_path):
    tuned = tmp_path / "tuned"
    shutil.copytree(trained, tuned)
    lineage = json.loads((tuned / "lineage.json").read_bytes())
    lineage["training_rows"]["unknown"] = ["the base opus"]
    (tuned / "lineage.json").write_text(json.dumps(lineage))
    names = json.loads((tuned / DIGESTS).read_bytes()).keys()
    (tuned / DIGESTS).write_bytes(digests_of({name: (tuned / name).read_bytes() for name in names}))
    (tmp_path / "new.tsv").write_text("quite another text\tein ganz anderer Text\n")
    printed = run("eval", tuned, "--data", tmp_path / "new.tsv", "--json")
    note, _, figures = printed.partition("{")
    assert "0 of 1 test sources" in note
    assert "not recorded: the rows of the base opus" in note
    assert json.loads("{" + figures)["sources in training data"] is None


@pytest.mark.parametrize(
    ("flags", "unused"),
    [
        (("--confidence",), "--confidence"),
        (("--confidence", "--curve", "curve.svg"), "--confidence, --curve"),
        (("--curve", "curve.svg"), "--curve"),
        (("--beam", 4), "--beam"),
        (("--source", "a.en", "--reference", "a.de"), "--source, --reference"),
        (("--source-language", "en", "--model", "m"), "--source-language"),
        (("--options", "OPTIONS"), "--options"),
        (("--options", "OPTIONS", "--beam", 4), "--options, --beam"),
    ],
)
def test_what_spans_would_ignore_is_refused(tmp_path, test_set, flags, unused):
    options = tmp_path / "options.json"
    options.write_text('{"top_k": 5, "bad_words": ["x"]}')
    flags = [options if flag == "OPTIONS" else flag for flag in flags]
    printed = run("eval", tmp_path / "nowhere", "--spans", "--data", test_set, *flags, fails=True)
    (line,) = printed.splitlines()
    assert line.startswith("error: --spans: labels a text instead of translating it; leave out ")
    assert set(line.partition("leave out ")[2].split(", ")) == set(unused.split(", "))


def test_a_curve_that_cannot_be_drawn_is_refused_before_anything_is_translated(tmp_path, test_set):
    arguments = ("eval", tmp_path / "nowhere", "--data", test_set, "--confidence", "--curve")
    assert "curve.xyz: must end in one of" in run(*arguments, tmp_path / "curve.xyz", fails=True)
    assert "is not a directory" in run(*arguments, tmp_path / "no" / "curve.svg", fails=True)


@pytest.mark.slow
def test_figures_are_shown_though_the_curve_cannot_be_written(calibrated_bundle, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device", str(tmp_path / "curve.svg"))

    monkeypatch.setattr("cli.training.confidence_report.draw", full)
    bundle, data = calibrated_bundle
    arguments = ("eval", bundle, "--data", data, "--confidence", "--curve", tmp_path / "curve.svg")
    figures, error = run(*arguments, "--json", fails=True).splitlines()
    assert json.loads(figures)["sentences"] > 0
    assert "No space left on device" in error


def test_references_are_required(tmp_path, test_set):
    for arguments in ((), ("--source", test_set), ("--data", test_set, "--source", test_set)):
        printed = run("eval", tmp_path, *arguments, fails=True)
        assert printed == "error: give --data FILE, or both --source and --reference\n"
    assert "cat.tsv: cannot be read" in run("eval", tmp_path, "--data", tmp_path / "cat.tsv", fails=True)


def test_columns_are_chosen_by_name_and_bad_rows_left_out(trained, test_set, tmp_path):
    plain = json.loads(run("eval", trained, "--data", test_set, "--json").splitlines()[-1])
    data = tmp_path / "test.jsonl"
    rows = [json.dumps({"de": target, "id": 1, "en": source}) for source, target in PAIRS]
    data.write_text("\n".join([rows[0], '{"en": "a"}', *rows[1:]]))
    arguments = ("eval", trained, "--data", data, "--columns", "en,de")
    assert "test.jsonl:2: has no text 'de'" in run(*arguments, fails=True)
    printed = run(*arguments, "--skip-bad-rows", "--json")
    assert "warning: 1 bad row of test.jsonl left out, the first:" in printed
    found = json.loads(printed.splitlines()[-1])
    assert {**found, "seconds": 0} == {**plain, "seconds": 0}


def test_lines_of_two_files_have_no_columns(trained, tmp_path):
    left, right = tmp_path / "a.en", tmp_path / "a.de"
    left.write_text("a b\n\n")
    right.write_text("a b\nx\n")
    arguments = ("eval", trained, "--source", left, "--reference", right)
    assert "--columns: is for --data" in run(*arguments, "--columns", "en,de", fails=True)
    assert "1 bad row of a.en left out" in run(*arguments, "--skip-bad-rows")


def test_a_subject_that_is_no_checkpoint_is_named(tmp_path, test_set):
    assert str(tmp_path / "nowhere") in run("eval", tmp_path / "nowhere", "--data", test_set, fails=True)


def test_confidence_is_evaluated_where_a_bundle_has_it(calibrated_bundle, trained, trained_bundle, test_set, tmp_path):
    bundle, data = calibrated_bundle
    curve = tmp_path / "curve.svg"
    found = json.loads(run("eval", bundle, "--data", data, "--confidence", "--curve", curve, "--json"))
    assert found["words"] > found["sentences"]
    assert 0 < found["wrong words"] < 1
    assert 0 <= found["ECE of words"] < 0.2, "this text is the one that it was calibrated on"
    assert round(found["BLEU of the most certain 100%"], 2) == found["BLEU"]
    assert curve.read_text().startswith("<?xml")
    assert run("eval", bundle, "--data", data, "--curve", curve, fails=True) == "error: --curve needs --confidence\n"
    assert "a checkpoint has no confidence; export it with --calibrate" in run(
        "eval", trained, "--data", test_set, "--confidence", fails=True
    )
    assert "export it with --calibrate" in run("eval", trained_bundle, "--data", test_set, "--confidence", fails=True)
