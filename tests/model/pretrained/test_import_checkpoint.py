import json

import onnx
import pytest
import safetensors.torch
import torch

from export.to_onnx import export_bundle
from model.checkpoint import CheckpointError, load_checkpoint
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_checkpoint
from tests.decoders import make_decoder
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
SIZE = TOKENIZER.vocab_size


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    path = tmp_path_factory.mktemp("theirs")
    make_decoder("llama", tie_word_embeddings=True, vocab_size=SIZE).save_pretrained(path)
    return path


def test_a_checkpoint_records_its_lineage(theirs, tmp_path):
    taken = import_checkpoint(theirs, tmp_path / "ours", TOKENIZER, max_length=64)
    assert (taken.config.max_target_len, taken.max_target_len) == (64, 160)
    checkpoint = load_checkpoint(tmp_path / "ours")
    assert checkpoint.config == taken.config
    assert checkpoint.metrics == {}
    lineage = checkpoint.lineage
    assert (lineage["model_type"], lineage["imported_from"]) == ("llama", theirs.name)
    assert lineage["files_sha256"].keys() == {file.name for file in theirs.iterdir()}
    assert lineage["transformers_version"]
    assert "train" not in json.loads((tmp_path / "ours" / "config.json").read_text())
    card = (tmp_path / "ours" / "model_card.md").read_text()
    assert f"{taken.parameters:,} parameters that Glossa imported" in card
    assert lineage["files_sha256"]["config.json"] in card


def test_a_tied_matrix_is_stored_once(theirs, tmp_path):
    import_checkpoint(theirs, tmp_path / "ours", TOKENIZER)
    ours = safetensors.torch.load_file(tmp_path / "ours" / "model.safetensors")
    whole = safetensors.torch.load_file(theirs / "model.safetensors")
    matrices = [name for name, tensor in ours.items() if tensor.shape == (SIZE, 48)]
    assert matrices == ["decoder.embedding.tokens.weight"]
    assert torch.equal(ours[matrices[0]], whole["model.embed_tokens.weight"])
    model = load_checkpoint(tmp_path / "ours").model
    assert model.decoder.unembedding.weight is model.decoder.embedding.tokens.weight


def test_an_imported_checkpoint_becomes_a_bundle(theirs, tmp_path):
    import_checkpoint(theirs, tmp_path / "ours", TOKENIZER)
    manifest = export_bundle(tmp_path / "ours", tmp_path / "bundle")
    assert manifest.parity["passed"]
    assert manifest.lineage["model_type"] == "llama"
    graph = onnx.load(tmp_path / "bundle" / "fp32" / "decode.onnx").graph
    tables = [tensor.name for tensor in graph.initializer if set(tensor.dims) == {48, SIZE}]
    assert tables == ["decoder.embedding.tokens.weight"], "a tied matrix is in the graph once"


def test_a_failed_import_leaves_no_files(theirs, tmp_path):
    with pytest.raises(PretrainedError, match="no such directory"):
        import_checkpoint(tmp_path / "nowhere", tmp_path / "ours", TOKENIZER)
    make_decoder("llama", vocab_size=SIZE - 1).save_pretrained(tmp_path / "small")
    with pytest.raises(PretrainedError, match=f"vocab_size {SIZE - 1} is less than the {SIZE} entries"):
        import_checkpoint(tmp_path / "small", tmp_path / "ours", TOKENIZER)
    assert not (tmp_path / "ours").exists()
    import_checkpoint(theirs, tmp_path / "ours", TOKENIZER)
    with pytest.raises(CheckpointError, match="already holds a finished checkpoint"):
        import_checkpoint(theirs, tmp_path / "ours", TOKENIZER)
