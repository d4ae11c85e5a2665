"""`glossa import model.gguf`: the checkpoint of the original directory, with the file's digest."""

import hashlib
import json

import gguf
import numpy as np
import pytest

from model.checkpoints.checkpoint import load_checkpoint
from tests.chats import CHATML, chat_tokenizer
from tests.cli.command import run
from tests.decoders import make_decoder
from tests.gguf_files import gguf_of


@pytest.fixture(scope="module")
def theirs():
    """A model of transformers, its tokenizer, and the keys of the latter."""
    tokenizer = chat_tokenizer("chatml")
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    flags = {item["id"]: 3 for item in values["added_tokens"]}
    texts = [tokenizer.convert_ids_to_tokens(token) for token in range(len(tokenizer))]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [flags.get(token, 1) for token in range(len(texts))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in values["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.chat_template": CHATML,
    }
    model = make_decoder("llama", vocab_size=len(texts), eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=True)
    return model, tokenizer, metadata


def test_a_file_becomes_the_checkpoint_of_its_original(theirs, tmp_path):
    model, tokenizer, metadata = theirs
    path = gguf_of(tmp_path / "tiny-F32.gguf", model, tokenizer=metadata)
    figures = json.loads(run("import", path, tmp_path / "ours", "--max-length", 100, "--json"))
    expected = {"model_type": "llama", "context": "100 of 160", "begins": [], "stored as": "F32 20"}
    assert figures == {**figures, **expected, "ends": [tokenizer.eos_token_id]}
    assert "unknown fields" not in figures
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    run("import", tmp_path / "theirs", tmp_path / "original", "--max-length", 100)
    ours, original = (load_checkpoint(tmp_path / name) for name in ("ours", "original"))
    weights = zip(ours.model.state_dict().items(), original.model.state_dict().values(), strict=True)
    assert all((mine == other).all() for (_, mine), other in weights)
    assert ours.config.replace(bos_id=0, pad_id=0) == original.config.replace(bos_id=0, pad_id=0)
    assert ours.tokenizer.encode("How are you today?") == original.tokenizer.encode("How are you today?")
    assert ours.templates.chat is not None
    assert ours.templates.chat.source == CHATML
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert ours.lineage["files_sha256"] == {"tiny-F32.gguf": digest}
    assert (ours.lineage["imported_from"], ours.lineage["tensor_types"]) == ("tiny-F32.gguf", "F32 20")
    assert "tiny-F32.gguf" in (tmp_path / "ours" / "model_card.md").read_text()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"general__architecture": "mamba"}, "general.architecture 'mamba' is not covered; covered: 'gemma'"),
        ({"drop": ["output_norm.weight"]}, "weights: output_norm.weight is missing"),
        ({"more": {"output_norm.weight": np.ones(5, np.float32)}}, "must have shape (48,)"),
        ({"types": {"blk.0.ffn_up.weight": gguf.GGMLQuantizationType.I32}}, "ffn_up.weight: type I32 cannot be deq"),
        ({"tokenizer__ggml__eos_token_id": ...}, "set it with --eos-id ID"),
        ({"tokenizer__ggml__add_eos_token": True}, "after a prompt are not covered"),
        ({"tokenizer__chat_template": "{{"}, "chat_template: line 1"),
    ],
)
def test_what_cannot_be_imported_writes_nothing(change, problem, theirs, tmp_path):
    model, _, metadata = theirs
    path = gguf_of(tmp_path / "model.gguf", model, tokenizer=metadata, **change)
    message = run("import", path, tmp_path / "ours", fails=True)
    assert message.startswith(f"error: {path}: ")
    assert problem in message
    assert "glossa-gguf-" not in message
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]


def test_a_given_end_is_the_only_one(theirs, tmp_path):
    model, _, metadata = theirs
    path = gguf_of(tmp_path / "model.gguf", model, tokenizer=metadata, tokenizer__ggml__eos_token_id=...)
    assert json.loads(run("import", path, tmp_path / "ours", "--eos-id", 5, "--json"))["ends"] == [5]


def test_folders_and_flags_that_make_no_sense_are_refused(theirs, tmp_path):
    model, _, metadata = theirs
    folder = tmp_path / "theirs"
    folder.mkdir()
    path = gguf_of(folder / "model.gguf", model, tokenizer=metadata)
    message = run("import", folder, tmp_path / "ours", fails=True)
    assert f"{folder}: holds no config.json; a GGUF file is imported by its own name: {path} (of 1)" in message
    model.config.save_pretrained(folder)
    chat_tokenizer("chatml").save_pretrained(folder)
    message = run("import", folder, tmp_path / "ours", fails=True)
    assert "holds no weights; there must be model.safetensors or pytorch_model.bin; a GGUF file is imp" in message
    assert "is a file, which has no revisions" in run("import", path, tmp_path / "o", "--revision", "v1", fails=True)
    assert "none.gguf: cannot be read: " in run("import", "none.gguf", tmp_path / "ours", fails=True)
    assert [file.name for file in tmp_path.iterdir()] == ["theirs"]
    run("import", path, tmp_path / "ours")  # with the tokenizer.json of the folder
