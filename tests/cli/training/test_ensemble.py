"""`glossa ensemble`."""

import json

from model.checkpoints.checkpoint import load_checkpoint
from tests.cli.command import run
from tests.model.checkpoints.test_ensemble_checkpoint import saved
from tests.tiny import tiny_config


def test_checkpoints_become_one(tmp_path):
    members = [saved(tmp_path / str(seed), tiny_config(), seed) for seed in (1, 2, 3)]
    figures = json.loads(run("ensemble", *members, "--out", tmp_path / "all", "--json"))
    assert figures == {"members": 3, "layers": "6+6", "checkpoint": str(tmp_path / "all")}
    assert load_checkpoint(tmp_path / "all").config.to_json()["ensemble_size"] == 3
    assert "at least two members" in run("ensemble", members[0], "--out", tmp_path / "one", fails=True)


def test_its_bundle_has_no_shortlist(tmp_path, test_set):
    members = [saved(tmp_path / str(seed), tiny_config(), seed) for seed in (1, 2)]
    run("ensemble", *members, "--out", tmp_path / "both")
    refused = run(
        "export", tmp_path / "both", tmp_path / "bundle", "--precision", "fp32", "--shortlist", test_set, fails=True
    )
    assert refused == (
        "error: --shortlist: not of an ensemble, whose members each have a product with the vocabulary; "
        "export it without shortlist\n"
    )
    assert not (tmp_path / "bundle").exists()
