"""A model in the format of Hugging Face becomes a checkpoint."""

import json

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
