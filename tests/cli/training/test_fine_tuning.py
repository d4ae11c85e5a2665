"""`glossa train --from`: what it writes, and what it refuses in one line without writing anything."""

import json
import random

import pytest

from tests.cli.command import interrupted, run


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Words in reverse."""
    file, draw = tmp_path_factory.mktemp("data") / "pairs.tsv", random.Random(1)
    texts = [" ".join(draw.sample("abcdefgh", 4)) for _ in range(80)]
    file.write_text("".join(f"{text}\t{text[::-1]}\n" for text in texts))
    return file


QUICK = "model: {dropout: 0.0}\ntrain: {steps: 2, validate_every_steps: 1, save_every_steps: 2, log_every_steps: 1}"


@pytest.fixture
def quick(tmp_path):
    (tmp_path / "quick.yaml").write_text(QUICK)
    return tmp_path / "quick.yaml"


def test_a_checkpoint_is_continued(trained, pairs, quick, tmp_path):
    options = ("--lora-rank", 2, "--patience", 2, "--freeze", "*cross*", "--keep-adapter", "--learning-rate", 0.01)
    printed = run("train", quick, "--from", trained, "--data", pairs, "--out", tmp_path / "out", *options)
    assert " of them trained" in printed
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    settings = lineage["fine_tuning"]
    assert (settings["lora_rank"], settings["patience"], settings["freeze"]) == (2, 2, ["*cross*"])
    assert settings["lora_merge"] is False
    assert json.loads((tmp_path / "out" / "config.json").read_text())["train"]["learning_rate"] == 0.01
    assert (tmp_path / "out" / "adapter.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--head", "classify"], "--head: goes with an encoder alone; the base is of architecture encoder_decoder"),
        (["--freeze", "enc"], "--freeze: 'enc' matches no parameter"),
        (["--lora-targets", "x"], "--lora-targets: needs --lora-rank of at least 1"),
        (["--lora-rank", 2, "--lora-targets", "x"], "--lora-targets: 'x' matches no linear layer"),
        (["--patience", 1, "--stop-metric", "f1"], "--stop-metric: must be one of loss, bleu for this model, got f1"),
        (["--stop-metric", "bleu"], "--stop-metric: bleu needs --patience of at least 1"),
        (["--keep-adapter"], "--keep-adapter: needs updates to keep; give --lora-rank"),
        (["--layer-decay", 0], "--layer-decay: must be 0.01..1.0, got 0"),
        (["--learning-rate", 0], "--learning-rate: must be above 0, got 0"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(trained, pairs, quick, tmp_path, options, message):
    out = tmp_path / "out"
    printed = run("train", quick, "--from", trained, "--data", pairs, "--out", out, *options, fails=True)
    assert f"error: {message}" in printed
    assert not out.exists()


def test_a_base_must_be_a_checkpoint_and_the_only_model(trained, pairs, tmp_path):
    out = ("--data", pairs, "--out", tmp_path / "out")
    assert "no such directory; train a model there" in run("train", "--from", tmp_path / "x", *out, fails=True)
    assert "with --from, give a YAML file or nothing" in run("train", "demo", "--from", trained, *out, fails=True)
    assert "or a checkpoint to continue with --from" in run("train", *out, fails=True)
    assert "--head goes with --from" in run("train", "tiny-copy", "--head", "classify", *out, fails=True)
    assert "--lora-rank: needs a base" in run("train", "tiny-copy", "--lora-rank", 2, *out, fails=True)
    assert "this preset has no embedded corpus" in run("train", "--from", trained, "--out", tmp_path / "o", fails=True)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_file_is_used_or_refused(trained, pairs, tmp_path):
    tokenizer, out = trained / "tokenizer.json", tmp_path / "out"
    words = ("--steps", 2, "--data", pairs, "--tokenizer")
    run("train", "tiny-copy", *words, tokenizer, "--out", out)
    assert (out / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    values = json.loads(tokenizer.read_text())
    for item in values["added_tokens"]:
        item["content"] = {"<pad>": "<fill>"}.get(item["content"], item["content"])
    values["model"]["vocab"]["<fill>"] = values["model"]["vocab"].pop("<pad>")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(values))
    refused = run("train", "tiny-copy", *words, other, "--out", tmp_path / "no", fails=True)
    assert "error: --tokenizer: has no pad token; its special tokens are <fill>, <bos>, <eos>, <unk>" in refused
    values["model"]["vocab"] = {
        f"{name}x" * (token > 3) or name: token for name, token in values["model"]["vocab"].items()
    }
    other.write_text(json.dumps(values))
    refused = run("train", "--from", trained, *words, other, "--out", tmp_path / "no", fails=True)
    assert "leave --tokenizer out: the base brings its own" in refused
    other.write_text("{}")
    assert "not a tokenizer.json" in run("train", "tiny-copy", *words, other, "--out", tmp_path / "no", fails=True)
    assert "no such file" in run("train", "tiny-copy", *words, tmp_path / "none", "--out", tmp_path / "no", fails=True)
    assert not (tmp_path / "no").exists()


def test_the_resuming_command_repeats_every_option(trained, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("model.training.train.train", interrupted)
    options = ("--from", trained, "--learning-rate", 0.01, "--freeze", "a*", "--freeze", "b", "--lora-rank", 2)
    words = ("train", "--out", tmp_path / "x", "--data", pairs, *options, "--keep-adapter", "--layer-decay", 0.9)
    printed = run(*words, fails=True)
    command = f"glossa train --out {tmp_path}/x --data {pairs} --from {trained} --learning-rate 0.01 "
    command += "--freeze 'a*' --freeze b --layer-decay 0.9 --lora-rank 2 --keep-adapter --resume"
    assert f"continue with: {command}\n" in printed


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    """An imported model with languages."""
    pytest.importorskip("transformers")
    from tests.pretrained_languages import imported

    return imported("m2m100", tmp_path_factory.mktemp("multilingual"))[0]


def test_each_file_of_data_has_its_languages(multilingual, pairs, quick, tmp_path):
    second = tmp_path / "second.tsv"
    second.write_text("".join(f"{letter} b\tb {letter}\n" for letter in "abcdefghijkl"))
    files = ("--data", pairs, "--data", second, "--validation", pairs, "--validation", second)
    languages = ("--source-language", "de", "--source-language", "fr", "--target-language", "en")
    run("train", quick, "--from", multilingual, *files, *languages, "--out", tmp_path / "out")
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    assert lineage["languages"] == [
        {"source_language": "de", "target_language": "en", "examples": 80},
        {"source_language": "fr", "target_language": "en", "examples": 12},
    ]
    assert (lineage["data"], lineage["validation_examples"]) == ("pairs.tsv, second.tsv", 92)
    (tmp_path / "left").write_text("a\nb\n")
    sides = ("--source", tmp_path / "left", "--target", tmp_path / "left", "--validation", tmp_path / "second.tsv")
    run("train", quick, "--from", multilingual, *sides, *languages[2:], "--out", tmp_path / "sides")
    lineage = json.loads((tmp_path / "sides" / "lineage.json").read_text())
    assert lineage["languages"] == [{"source_language": "fr", "target_language": "en", "examples": 2}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--source-language: must be given, because the model chooses by it; name that of the data"),
        (["--source-language", "de"], "--target-language: must be given"),
        (["--source-language", "de", "--target-language", "xx"], "--target-language: unknown code 'xx'; "),
        (
            ["--source-language", "de"] * 3,
            "--source-language: must be given once for all data, or once for each file: 1 t",
        ),
    ],
)
def test_languages_that_do_not_fit_are_refused_before_the_data_is_read(multilingual, tmp_path, options, message):
    (tmp_path / "data.tsv").write_text("no tab")
    files = ("--data", tmp_path / "data.tsv", "--out", tmp_path / "out")
    assert f"error: {message}" in run("train", "--from", multilingual, *files, *options, fails=True)
    assert not (tmp_path / "out").exists()


def test_validation_of_several_languages_needs_a_file_for_each(multilingual, trained, pairs, tmp_path):
    files = ("--data", pairs, "--data", pairs, "--out", tmp_path / "out", "--validation", pairs)
    languages = ("--source-language", "de", "--source-language", "en", "--target-language", "fr")
    printed = run("train", "--from", multilingual, *files, *languages, fails=True)
    assert "error: --validation: must be given once for each of the 2 --data" in printed
    printed = run("train", "--from", trained, *files, *languages, fails=True)
    assert "error: --source-language: must be one for all data: the model has no token for it, got de, en" in printed


def test_a_model_of_two_languages_is_told_which_they_are(trained, quick, pairs, tmp_path):
    languages = ("--source-language", "en", "--target-language", "de")
    run("train", quick, "--from", trained, "--data", pairs, *languages, "--out", tmp_path / "out")
    model = json.loads((tmp_path / "out" / "config.json").read_text())["model"]
    assert (model["source_language"], model["target_language"]) == ("en", "de")
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    assert "languages" not in lineage, "its examples have none"


def test_the_resuming_command_names_the_languages(multilingual, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("model.training.train.train", interrupted)
    languages = "--source-language de --target-language en"
    words = ("--out", tmp_path / "x", "--data", pairs, "--validation", pairs, "--from", multilingual)
    printed = run("train", *words, *languages.split(), fails=True)
    assert f"--validation {pairs} --from {multilingual} {languages} --resume\n" in printed
