"""A model in the format of Hugging Face becomes a checkpoint."""

import json
from pathlib import Path

import pytest

from cli.import_model import replacing
from model.atomic_write import DIGESTS
from tests.cli.command import run


def test_a_directory_of_transformers_becomes_a_checkpoint(tmp_path):
    from tests.decoders import make_decoder
    from tests.tiny import tiny_tokenizer

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


def test_a_failed_import_leaves_the_old_checkpoint(tmp_path):
    checkpoint = tmp_path / "ours"
    checkpoint.mkdir()
    (checkpoint / DIGESTS).write_text("{}")
    with pytest.raises(OSError, match="No space left"), replacing(checkpoint):
        raise OSError(28, "No space left on device")
    assert (checkpoint / DIGESTS).read_text() == "{}"
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_a_new_checkpoint_that_cannot_take_its_name_leaves_the_old_one(tmp_path, monkeypatch):
    checkpoint = tmp_path / "ours"
    checkpoint.mkdir()
    (checkpoint / DIGESTS).write_text("{}")
    rename = Path.rename

    def fails(source, target):
        if (source / "new").exists():
            raise OSError(5, "Input/output error")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", fails)

    def write():
        with replacing(checkpoint) as directory:
            directory.mkdir(exist_ok=True)
            (directory / "new").write_text("")

    with pytest.raises(OSError, match="Input/output error"):
        write()
    assert (checkpoint / DIGESTS).read_text() == "{}"
    assert list(tmp_path.iterdir()) == [checkpoint]
