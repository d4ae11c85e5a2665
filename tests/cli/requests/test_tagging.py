"""A tagger from the command line: its corpus, its training, its scores as checkpoint and as bundle, and its answers."""

import json

import pytest

from tests.cli.command import run

PRESET = """
preset: scene-entities
model: {d_model: 32, num_heads: 2, d_ff: 32, num_encoder_layers: 1}
train: {steps: 200, warmup_steps: 20, save_every_steps: 200, validate_every_steps: 200, average_checkpoints: 1}
"""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenes") / "scenes.tsv"
    assert run("corpus", path, "--spans", "--count", 600) == f"{path}: 600 pairs\n"
    return path


@pytest.fixture(scope="module")
def tagger(scenes):
    preset, out = scenes.with_name("preset.yaml"), scenes.with_name("checkpoint")
    preset.write_text(PRESET)
    run("train", preset, "--data", scenes, "--out", out)
    return out


@pytest.mark.slow
def test_a_checkpoint_and_its_bundle_find_the_same_spans(scenes, tagger):
    some = scenes.with_name("some.tsv")
    some.write_text("".join(scenes.read_text().splitlines(keepends=True)[:40]))
    bundle = scenes.with_name("bundle")
    run("export", tagger, bundle)
    in_torch = json.loads(run("eval", tagger, "--data", some, "--spans", "--json").splitlines()[-1])
    served = json.loads(run("eval", bundle, "--data", some, "--spans", "--json"))
    for scores in (in_torch, served):
        del scores["seconds"]
    assert in_torch.pop("pairs in training data") > 30  # of the text that the tagger was trained on
    assert served.pop("pairs in training data") is None
    del in_torch["sources in training data"], served["sources in training data"]
    assert in_torch == served
    assert in_torch["texts"] == 40
    assert 0.2 < in_torch["f1"] < 1
    metrics = json.loads((tagger / "metrics.json").read_text())
    assert 0.2 < metrics["span_f1"] <= 1


def test_what_cannot_be_scored_is_refused(scenes, trained, test_set):
    assert "--spans: needs --data" in run("eval", trained, "--spans", fails=True)
    assert "has no labels of tokens" in run("eval", trained, "--data", scenes, "--spans", fails=True)
    assert "spans must be START:END:LABEL" in run("eval", trained, "--data", test_set, "--spans", fails=True)
