"""`glossa eval`: BLEU of a checkpoint and of its bundle, and what it rejects."""

import json

from tests.cli.command import PAIRS, run


def test_a_checkpoint_and_its_bundle_have_one_bleu(trained, trained_bundle, test_set):
    in_torch = json.loads(run("eval", trained, "--data", test_set, "--json"))
    served = json.loads(run("eval", trained_bundle, "--data", test_set, "--json"))
    assert served["BLEU"] == in_torch["BLEU"]
    assert served["sentences"] == len(PAIRS)
    assert served["signature"].startswith("nrefs:1|case:mixed")
    searched = json.loads(
        run("eval", trained_bundle, "--data", test_set, "--beam", 2, "--length-penalty", 0.6, "--json")
    )
    assert searched["sentences"] == len(PAIRS)
    assert "export it to use --beam" in run("eval", trained, "--data", test_set, "--beam", 2, fails=True)


def test_references_are_required(tmp_path, test_set):
    for arguments in ((), ("--source", test_set), ("--data", test_set, "--source", test_set)):
        printed = run("eval", tmp_path, *arguments, fails=True)
        assert printed == "error: give --data FILE.tsv, or both --source and --reference\n"
    assert "cat.tsv: cannot be read" in run("eval", tmp_path, "--data", tmp_path / "cat.tsv", fails=True)


def test_a_subject_that_is_no_checkpoint_is_named(tmp_path, test_set):
    assert str(tmp_path / "nowhere") in run("eval", tmp_path / "nowhere", "--data", test_set, fails=True)
