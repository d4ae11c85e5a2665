"""What `glossa train` refuses, in one line."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import cli.main
from cli.training.train import resuming_command, with_languages_of
from model.presets import find_preset
from tests.cli.command import interrupted, run


def test_a_finished_run_is_not_overwritten(trained):
    assert "choose another directory" in run("train", "tiny-copy", "--steps", 3, "--out", trained, fails=True)


def test_an_unknown_preset_is_answered_with_the_closest_one(tmp_path):
    assert "did you mean 'tatoeba-small'" in run("train", "tatoeba-smal", "--out", tmp_path / "x", fails=True)


def test_an_invalid_tsv_line_is_reported_with_its_number(tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("one\tein\nbroken\n")
    printed = run("train", "tatoeba-small", "--data", data, "--out", tmp_path / "x", fails=True)
    assert f"{data}:2: expected 2 tab-separated fields, got 1" in printed
    assert not (tmp_path / "x").exists()


def test_conflicting_arguments_are_rejected(tmp_path, test_set):
    assert "--source and --target" in run("train", "tatoeba-small", "--out", tmp_path / "x", fails=True)
    alone = run("train", "tatoeba-small", "--source", test_set, "--out", tmp_path / "x", fails=True)
    assert "--source and --target" in alone


def test_an_unknown_preset_is_answered_with_all_of_them(tmp_path):
    refused = run("train", "nothing", "--out", tmp_path / "x", fails=True)
    assert "unknown preset 'nothing'; Presets: demo, scenes, tatoeba-small" in refused


def test_a_missing_file_is_named(tmp_path):
    refused = run("train", "demo", "--data", tmp_path / "nowhere.tsv", "--out", tmp_path / "x", fails=True)
    assert refused == f"error: --data {tmp_path / 'nowhere.tsv'}: no such file; check the path\n"


def test_an_interrupted_training_prints_the_resuming_command(tmp_path, monkeypatch):
    monkeypatch.setattr("model.training.train.train", interrupted)
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    words = ("train", "tiny-copy", "--steps", 9, "--data", tmp_path / "pairs.tsv", "--out", tmp_path / "my run")
    command = f"glossa train tiny-copy --out '{tmp_path}/my run' --data {tmp_path}/pairs.tsv --steps 9"
    command += f" --tensorboard {tmp_path}/events --resume"
    printed = run(*words, "--tensorboard", tmp_path / "events", fails=True)
    assert f"stopped after step 5, state saved in x; continue with: {command}\n" in printed


def test_the_resuming_command_lacks_no_parameter():
    group: Any = typer.main.get_command(cli.main.app)
    command = group.get_command(None, "train")
    given = {param.name: param.default for param in command.params}
    for param in command.params:
        value = True if getattr(param, "is_flag", False) else "7.5"
        words = shlex.split(resuming_command({**given, param.name: [value] if param.multiple else value}))
        flag = [] if param.param_type_name == "argument" else [max(param.opts, key=len)]
        expected = flag if value is True else [*flag, str(value)]
        assert any(words[at : at + len(expected)] == expected for at in range(len(words))), param.name


TMX = '<tmx version="1.4"><header srclang="{0}"/><body><tu>{1}</tu></body></tmx>'


@pytest.mark.parametrize(
    ("preset", "given", "languages"),
    [
        ("demo", {}, ("en", "de")),
        ("pronouns", {}, ("en", "de")),
        ("tiny-copy", {}, ("", "")),
        ("demo", {"source": "a.tsv", "target": "a.tsv"}, ("", "")),
        ("demo", {"data": ["a.tsv"]}, ("", "")),
        ("demo", {"data": ["en-GB.it.tmx"]}, ("en-GB", "it")),
        ("demo", {"data": ["en-GB.it.tmx"], "columns": "it,en"}, ("it", "en")),
        ("demo", {"data": ["en-GB.it.tmx"], "target_language": ["ita"]}, ("", "ita")),
        ("demo", {"data": ["en-GB.it.tmx", "en-GB.it.tmx"]}, ("en-GB", "it")),
        ("demo", {"data": ["en-GB.it.tmx", "en-GB.fr.tmx"]}, ("", "")),
        ("scenes", {}, None),
    ],
)
def test_a_model_has_the_languages_that_its_data_names(preset, given, languages, tmp_path):
    names = ("data", "source", "target", "columns", "validation", "source_language", "target_language")
    given = dict.fromkeys(names) | given
    given["data"] = [tmp_path / name for name in given["data"] or ()]
    for file in map(Path, given["data"]):
        codes = file.stem.split(".")
        texts = "".join(f'<tuv xml:lang="{code}"><seg>a</seg></tuv>' for code in codes)
        file.write_text(TMX.format(codes[0], texts))
    model, of_files = with_languages_of(given, find_preset(preset))
    assert of_files == []
    if languages is None:
        assert model == find_preset(preset).model
    else:
        assert (model.source_language, model.target_language) == languages


def test_presets_settings_and_options_are_completed():
    def completions(line):
        variables = {
            "_GLOSSA_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        return CliRunner().invoke(cli.main.app, [], prog_name="glossa", env=variables).output.split()

    assert {"tatoeba-small", "demo"} <= set(completions("glossa train "))
    assert {"--kv-cache-bytes", "--log-text"} <= set(completions("glossa serve --"))
    assert {"--beam-size", "--tls-ca"} <= set(completions("glossa translate --"))
    assert "beam_size=" in completions("glossa translate --option bea")
