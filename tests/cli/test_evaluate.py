"""`glossa eval`: BLEU of a checkpoint and of its bundle, and what it rejects."""

import json

from tests.cli.command import PAIRS, run


def test_a_checkpoint_and_its_bundle_have_one_bleu(trained, trained_bundle, test_set, monkeypatch, tmp_path):
    """Whatever servers and connections elsewhere need: the bundle's own server is plain."""
    for name in ("TLS_CERTIFICATE", "TLS_KEY", "TLS_CLIENT_CA", "TOKENS", "TLS_CA", "CLIENT_CERT", "CLIENT_KEY"):
        monkeypatch.setenv(f"GLOSSA_{name}", str(tmp_path / "nowhere.pem"))
    monkeypatch.setenv("GLOSSA_TLS", "1")
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
