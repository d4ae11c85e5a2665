"""A model in the format of Hugging Face becomes a checkpoint."""

import json

from model.checkpoints.atomic_write import DIGESTS
from tests.cli.command import run
from tests.decoders import make_decoder
from tests.tiny import tiny_tokenizer


def test_a_directory_of_transformers_becomes_a_checkpoint(tmp_path):
    tokenizer = tiny_tokenizer()
    make_decoder("llama", vocab_size=tokenizer.vocab_size).save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs" / "tokenizer.json")
    figures = json.loads(run("import", tmp_path / "theirs", tmp_path / "ours", "--max-length", 100, "--json"))
    expected = {"model_type": "llama", "context": "100 of 160", "begins": [], "ends": [2]}
    assert figures == {**figures, **expected, "vocabulary": tokenizer.vocab_size}
    assert (tmp_path / "ours" / "digests.json").exists()
    assert "already holds" in run("import", tmp_path / "theirs", tmp_path / "ours", fails=True)
    assert "no such directory" in run("import", tmp_path / "nowhere", tmp_path / "others", fails=True)
    first = (tmp_path / "ours" / "config.json").read_bytes()
    refused = run("import", tmp_path / "theirs", tmp_path / "theirs", "--replace", fails=True)
    assert "is not a checkpoint, so --replace leaves it alone" in refused
    run("import", tmp_path / "theirs", tmp_path / "ours", "--replace", "--max-length", 50)
    assert (tmp_path / "ours" / "config.json").read_bytes() != first
    assert (tmp_path / "ours" / "digests.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]


def test_a_directory_that_holds_other_files_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for source in (tmp_path, "owner/model"):
        assert "holds other files; choose another directory" in run("import", source, tmp_path, fails=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("config.json", "{}")]


def test_a_failed_import_leaves_what_was_there(tmp_path, monkeypatch):
    def fails(directory, *_, **__):
        (directory / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    tokenizer = tiny_tokenizer()
    make_decoder("llama", vocab_size=tokenizer.vocab_size).save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs" / "tokenizer.json")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / DIGESTS).write_text("{}")
    monkeypatch.setattr("model.pretrained.import_checkpoint.save_checkpoint", fails)
    for name, flags in (("ours", ["--replace"]), ("new", [])):
        assert "No space left on device" in run("import", tmp_path / "theirs", tmp_path / name, *flags, fails=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
    assert [path.name for path in (tmp_path / "ours").iterdir()] == [DIGESTS]
