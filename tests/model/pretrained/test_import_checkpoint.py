import json
import shutil

import onnx
import pytest
import safetensors.torch
import torch

from export.to_onnx import export_bundle
from model.checkpoints.checkpoint import CheckpointError, load_checkpoint
from model.config import LanguagePair
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import check_configuration, import_checkpoint
from tests.decoders import make_decoder
from tests.pretrained_encoder import theirs_of
from tests.pretrained_seq2seq import make
from tests.tiny import tiny_tokenizer
from tests.two_vocabularies import SOURCE_END, START, rewrite, save

TOKENIZER = tiny_tokenizer()
SIZE = TOKENIZER.vocab_size


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    path = tmp_path_factory.mktemp("theirs")
    make_decoder("llama", tie_word_embeddings=True, vocab_size=SIZE).save_pretrained(path)
    return path


def test_a_checkpoint_of_ours_is_not_imported_again(theirs, tmp_path):
    import_checkpoint(theirs, tmp_path / "ours", TOKENIZER, max_length=64)
    with pytest.raises(PretrainedError, match=r"ours: is a checkpoint of Glossa already; export it"):
        import_checkpoint(tmp_path / "ours", tmp_path / "again", TOKENIZER)
    assert not (tmp_path / "again").exists()


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


@pytest.mark.slow
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


def test_vocabularies_that_contradict_their_model_are_named(tmp_path):
    path = tmp_path / "two"
    save(path)

    def refused(problem, files=None, **changes):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(path, tmp_path / "copy")
        for name, values in {"config.json": changes, **(files or {})}.items():
            rewrite(tmp_path / "copy" / name, **values)
        with pytest.raises(PretrainedError, match=problem):
            import_checkpoint(tmp_path / "copy", tmp_path / "ours", convert_tokenizer(tmp_path / "copy"))
        assert not (tmp_path / "ours").exists()

    one = {"tokenizer_config.json": {"separate_vocabs": None}}
    refused("decoder_vocab_size 131 needs a vocabulary of targets, vocab_size is 97: put target_vocab.json", one)
    shared = {"share_encoder_decoder_embeddings": True}
    refused(r"must have shape \(97, 48\) of config.json, got \(131, 48\)", decoder_vocab_size=97, **shared)
    refused("decoder_vocab_size 131 is not covered; covered: 97, the vocab_size, where share", one, **shared)
    refused("vocab_size 97 is less than the 98 entries of the tokenizer", {"vocab.json": {"more": 97}})
    refused("decoder_vocab_size 131 is less than the 132 entries of the tok", {"target_vocab.json": {"more": 131}})
    refused(r"must have shape \(98, 48\) of config.json, got \(97, 48\)", vocab_size=98)
    refused(r"must have shape \(133, 48\) of config.json, got \(131, 48\)", decoder_vocab_size=133)
    save(path, decoder_vocab_size=97, **shared)
    refused("share_encoder_decoder_embeddings true contradicts separate_vocabs true of tokenizer_config.json")
    save(path)
    pad = {"generation_config.json": {"pad_token_id": 110}}
    refused("the model is not covered: pad_id: must be below source_vocab_size 97, got 110", pad)


def test_languages_of_a_model_with_two_vocabularies_are_tokens_of_sources(tmp_path):
    save(tmp_path / "theirs")
    ids = json.loads((tmp_path / "theirs" / "vocab.json").read_text())
    rewrite(tmp_path / "theirs" / "vocab.json", **{"▁w93": None, ">>deu<<": ids["▁w93"]})
    tokenizer = convert_tokenizer(tmp_path / "theirs")
    config = import_checkpoint(tmp_path / "theirs", tmp_path / "ours", tokenizer).config
    assert config.template.wrap_source([7], LanguagePair("", "deu")) == [ids["▁w93"], 7, SOURCE_END]
    assert config.template.wrap_prompt() == [START]


@pytest.mark.parametrize(
    ("family", "changes", "problem"),
    [
        ("llama", {"hidden_act": "xielu"}, "hidden_act 'xielu' is not covered"),
        ("llama", {"num_key_value_heads": 2}, "the model is not covered: num_kv_heads: must divide"),
        ("llama", {"num_experts": 8}, "num_experts 8 is not covered"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding True is not covered"),
        ("marian", {"is_encoder_decoder": False}, "is_encoder_decoder False is not covered"),
        ("t5", {"dense_act_fn": "mish"}, "dense_act_fn 'mish' is not covered"),
        ("t5", {"eos_token_id": [1, 5]}, r"eos_token_id \[1, 5\] is not covered"),
        ("bert", {"hidden_act": "mish"}, "hidden_act 'mish' is not covered"),
        ("bert", {"architectures": ["BertForQuestionAnswering"]}, "architectures"),
        ("bert", {"problem_type": "regression"}, "problem_type 'regression' is not covered"),
    ],
)
def test_a_configuration_is_checked_without_weights(family, changes, problem, tmp_path):
    if family == "llama":
        make_decoder(family).save_pretrained(tmp_path)
    elif family == "bert":
        theirs_of(family, "ForSequenceClassification").save_pretrained(tmp_path)
    else:
        make(family).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    check_configuration(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(PretrainedError, match=problem):
        check_configuration(tmp_path)
    if "eos_token_id" in changes:
        check_configuration(tmp_path, eos_id=1)
