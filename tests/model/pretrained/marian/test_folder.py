"""Releases as directories and files: import, what they compute beside numpy by hand, and what is refused."""

import json

import numpy as np
import pytest
import torch
import yaml

from cli.training.import_model import opened
from model.checkpoints.checkpoint import SHORTLIST, load_checkpoint
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_checkpoint
from model.pretrained.marian.folder import is_marian
from tests.marian_files import (
    OPTIONS,
    PIECES,
    logits_of,
    release,
    rounded,
    shortlist_of,
    tensors_of,
    write_bin,
    write_npz,
    write_shortlist,
    write_vocabulary,
)

SIZE = len(PIECES)
PAD, EOS, UNKNOWN = SIZE, 0, 1
NEVER = -1e4
SOURCE, TARGET = [2, 3, 5, 6, 4, 0], [6, 4, 5, 2, 3, 8, 3]
ATTENTION = {**OPTIONS, "transformer-decoder-autoreg": "self-attention", "dec-cell": "gru"}


def imported(path, out):
    with opened(str(path), None, is_offline=True, allow_pickle=False, eos_id=None) as source:
        import_checkpoint(
            source.directory, out, convert_tokenizer(source.directory), origin=source.origin, stored=source.stored
        )
    return load_checkpoint(out)


@pytest.mark.parametrize("options", [OPTIONS, ATTENTION], ids=["ssru", "attention"])
@pytest.mark.parametrize("form", ["npz", "bin"])
@torch.no_grad()
def test_logits_are_those_of_numpy_by_hand(tmp_path, options, form):
    checkpoint = imported(release(tmp_path / "release", options, form=form), tmp_path / "out")
    tensors = tensors_of(options)
    if form == "bin":
        tensors = {name: rounded(name, values) for name, values in tensors.items()}
    states = checkpoint.model(torch.tensor([SOURCE]), torch.tensor([len(SOURCE)]), torch.tensor([[PAD, *TARGET]]))
    logits = checkpoint.model.decoder.unembedding(states)[0].numpy()
    expected = logits_of(options, tensors, SOURCE, TARGET)
    others = [token for token in range(SIZE) if token != UNKNOWN]
    np.testing.assert_allclose(logits[:, others], expected[:, others], rtol=1e-4, atol=1e-4)
    assert (logits[:, [UNKNOWN, PAD]] < NEVER).all()


def test_a_checkpoint_has_vocabulary_shortlist_and_lineage(tmp_path):
    folder = release(tmp_path / "release")
    checkpoint = imported(folder, tmp_path / "out")
    assert checkpoint.tokenizer.encode("the dog sees") == [2, 3, 5]
    assert checkpoint.tokenizer.decode([2, 3, 5, EOS]) == "the dog sees"
    config = checkpoint.config
    assert (config.eos_id, config.unk_id, config.pad_id, config.vocab_size) == (EOS, UNKNOWN, PAD, SIZE + 1)
    assert config.template.wrap_source([2, 3]) == [2, 3, EOS]
    assert config.template.wrap_prompt([]) == [PAD]
    assert (config.decoder_mixing, config.norm_eps, config.source_unit) == ("ssru", 1e-6, "sentence")
    always, by_source, _ = shortlist_of((tmp_path / "out" / SHORTLIST).read_text())
    assert always == [0, 1, 2]
    assert by_source[5] == [5, 6]
    assert checkpoint.lineage["imported_from"] == "model.intgemm.alphas.bin"
    assert checkpoint.lineage["files_sha256"].keys() == {"model.intgemm.alphas.bin", "vocab.spm", "lex.s2t.bin"}
    assert checkpoint.lineage["generation_config"] == {"num_beams": 1, "length_penalty": 1.0}


def test_a_model_is_found_by_its_own_name_too_and_without_a_decoders_options(tmp_path):
    folder = release(tmp_path / "release")
    (folder / "config.yml").unlink()
    by_folder = imported(folder, tmp_path / "one")
    by_file = imported(folder / "model.intgemm.alphas.bin", tmp_path / "other")
    for name, parameter in by_folder.model.named_parameters():
        assert torch.equal(parameter, by_file.model.get_parameter(name)), name


def test_an_unknown_token_is_answered_where_the_options_allow_it(tmp_path):
    folder = release(tmp_path / "release")
    change_decoder(folder, **{"allow-unk": True})
    bias = imported(folder, tmp_path / "out").model.decoder.unembedding.bias
    assert bias[UNKNOWN] > NEVER > bias[PAD]


def test_embeddings_that_are_not_tied(tmp_path):
    options = {**OPTIONS, "tied-embeddings-all": False}
    tensors = tensors_of(options)
    random = np.random.default_rng(2)
    tensors["decoder_ff_logit_out_W"] = random.normal(size=(16, SIZE)).astype("f4")
    folder = release(tmp_path / "release")
    write_bin(folder / "model.intgemm.alphas.bin", options, tensors, integers="")
    model = imported(folder, tmp_path / "out").model
    np.testing.assert_array_equal(model.encoder.embedding.tokens.weight[:SIZE].detach(), tensors["encoder_Wemb"])
    np.testing.assert_array_equal(model.decoder.embedding.tokens.weight[:SIZE].detach(), tensors["decoder_Wemb"])
    output = model.decoder.unembedding.weight[:SIZE].detach()
    np.testing.assert_array_equal(output, tensors["decoder_ff_logit_out_W"].T)


def change_decoder(folder, **changes):
    values = yaml.safe_load((folder / "config.yml").read_text())
    (folder / "config.yml").write_text(yaml.safe_dump({**values, **changes}))


def check_refused(folder, tmp_path, problem):
    with pytest.raises(PretrainedError, match=problem):
        imported(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


WORDS = ("</s>", "▁hund", "<unk>", "▁katze", *(f"▁w{number}" for number in range(20)))  # of targets
TWO = {**OPTIONS, "dim-vocabs": [SIZE, len(WORDS)], "tied-embeddings-all": False, "tied-embeddings": True}


def with_two_vocabularies(folder, options=TWO):
    release(folder, options, form="npz")
    (folder / "vocab.spm").rename(folder / "source.spm")
    write_vocabulary(folder / "target.spm", WORDS)
    (folder / "lex.s2t.bin").unlink()
    write_shortlist(folder / "lex.s2t.bin", [[token, len(WORDS) - 1] for token in range(SIZE)])
    change_decoder(folder, vocabs=["source.spm", "target.spm"])
    return folder


@torch.no_grad()
def test_two_vocabularies_give_the_logits_of_numpy_by_hand(tmp_path):
    checkpoint = imported(with_two_vocabularies(tmp_path / "release"), tmp_path / "out")
    size, tokenizer, target = len(WORDS), checkpoint.tokenizer, [1, 3, 20, 23, 5]
    states = checkpoint.model(torch.tensor([SOURCE]), torch.tensor([len(SOURCE)]), torch.tensor([[size, *target]]))
    logits = checkpoint.model.decoder.unembedding(states)[0].numpy()
    expected = logits_of(TWO, tensors_of(TWO), SOURCE, target)
    others = [token for token in range(size) if token != 2]
    np.testing.assert_allclose(logits[:, others], expected[:, others], rtol=1e-4, atol=1e-4)
    assert (logits[:, [2, size]] < NEVER).all()
    assert (tokenizer.encode("the dog"), tokenizer.target.encode("hund w0")) == ([2, 3], [1, 4])
    assert tokenizer.target.decode([3, 1, 0]) == "katze hund"
    _, by_source, _ = shortlist_of((tmp_path / "out" / SHORTLIST).read_bytes())
    assert by_source[3] == [3, size - 1]


def test_two_vocabularies_of_one_table_or_in_no_order_are_refused(tmp_path):
    folder = with_two_vocabularies(
        tmp_path / "release", {**TWO, "dim-vocabs": [SIZE, SIZE], "tied-embeddings-all": True}
    )
    check_refused(folder, tmp_path, "target.spm: has 24 pieces, the model 16")
    write_vocabulary(folder / "target.spm", WORDS[:SIZE])
    (folder / "lex.s2t.bin").unlink()
    change_decoder(folder, shortlist=[])
    check_refused(
        folder, tmp_path, "tied-embeddings-all True is not covered; one table has no rows of two vocabularies"
    )
    change_decoder(folder, vocabs=[])
    check_refused(folder, tmp_path, "two whose order .* got source.spm, target.spm; write models and vocabs into")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"type": "s2s"}, "special:model.yml: type 's2s' is not covered; covered: 'transformer'"),
        ({"dec-cell": "gru"}, "dec-cell 'gru' is not covered; covered: 'ssru'"),
        ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg 'average-attention'"),
        ({"transformer-postprocess": "da", "transformer-preprocess": "n"}, "transformer-postprocess 'da' is not"),
        ({"transformer-postprocess-emb": "nd"}, "transformer-postprocess-emb 'nd' is not covered"),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation 'gelu' is not covered"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth 3 is not covered; covered: 2"),
        ({"transformer-tied-layers": [1, 1]}, r"transformer-tied-layers \[1, 1\] is not covered"),
        ({"transformer-train-position-embeddings": True}, "transformer-train-position-embeddings True"),
        ({"transformer-no-projection": True}, "transformer-no-projection True is not covered"),
        ({"layer-normalization": True}, "layer-normalization True is not covered"),
        ({"lemma-dim-emb": 8}, "lemma-dim-emb 8 is not covered"),
        ({"right-left": True}, "right-left True is not covered"),
        ({"ulr": True}, "ulr True is not covered"),
        ({"transformer-flavor": "new"}, "transformer-flavor 'new' is not covered; .* does not know"),
        (
            {"dim-vocabs": [SIZE, 40]},
            r"dim-vocabs must be two equal numbers with one vocabulary, vocab.spm, got \[16, 4",
        ),
        ({"dim-vocabs": [SIZE]}, r"dim-vocabs must be two numbers above 0, got \[16\]"),
        ({"dim-emb": None}, "special:model.yml: dim-emb is missing"),
        ({"enc-depth": 3}, "encoder_l3_self_Wq is missing"),
        ({"enc-depth": 1}, "encoder_l2"),
        ({"transformer-heads": 3}, "num_heads: must divide d_model 16"),
    ],
)
def test_an_option_that_is_not_covered_is_named(tmp_path, changes, problem):
    folder = release(tmp_path / "release")
    write_npz(folder / "model.npz", {**OPTIONS, **changes}, tensors_of())
    (folder / "model.intgemm.alphas.bin").unlink()
    check_refused(folder, tmp_path, problem)


def test_a_tensor_that_is_unknown_missing_or_misshapen_is_named(tmp_path):
    folder, tensors = release(tmp_path / "release"), tensors_of()
    model = folder / "model.intgemm.alphas.bin"
    write_bin(model, OPTIONS, {**tensors, "decoder_l1_rnn_R": tensors["decoder_l1_rnn_W"]})
    check_refused(folder, tmp_path, "1 tensors are not covered: decoder_l1_rnn_R")
    write_bin(model, OPTIONS, {name: values for name, values in tensors.items() if name != "decoder_l2_rnn_bf"})
    check_refused(folder, tmp_path, "decoder_l2_rnn_bf is missing")
    write_bin(model, OPTIONS, {**tensors, "decoder_l2_ffn_W1": tensors["decoder_l2_ffn_W1"][:, :8]})
    check_refused(folder, tmp_path, "must have shape .* of decoder_l2_ffn_W1")
    write_bin(model, OPTIONS, {**tensors, "Wemb": tensors["Wemb"][:9]})
    check_refused(folder, tmp_path, "Wemb must have a row for each of the vocabulary's 16 tokens")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"word-penalty": 0.5}, "config.yml: word-penalty 0.5 is not covered; covered: 0"),
        ({"scorers": ["a", "b"]}, "config.yml: scorers .* is an option that the import does not know"),
        ({"vocabs": ["a.spm", "b.spm", "c.spm"]}, "one vocabulary, or two .* got a.spm, b.spm, c.spm; write"),
        ({"vocabs": ["other.spm"]}, "other.spm: must be there"),
        ({"shortlist": ["none.bin", False]}, "none.bin: cannot be read"),
    ],
)
def test_a_decoders_option_that_is_not_covered_is_named(tmp_path, changes, problem):
    folder = release(tmp_path / "release")
    change_decoder(folder, **changes)
    check_refused(folder, tmp_path, problem)


def test_a_vocabulary_or_a_shortlist_of_another_model_is_refused(tmp_path):
    folder = release(tmp_path / "release")
    write_vocabulary(folder / "vocab.spm", (*PIECES, "x", "y"))
    check_refused(folder, tmp_path, "vocab.spm: has 18 pieces, the model 16: it is of another model")
    write_vocabulary(folder / "vocab.spm", ("<unk>", *PIECES[2:]))
    check_refused(folder, tmp_path, "must have a piece </s>")
    write_vocabulary(folder / "vocab.spm")
    write_shortlist(folder / "lex.s2t.bin", [[1]] * 9)
    check_refused(folder, tmp_path, "lex.s2t.bin: has 9 source tokens where the vocabulary has 16: .* another")


def test_a_smaller_vocabulary_leaves_tokens_without_text(tmp_path):
    folder = release(tmp_path / "release")
    write_vocabulary(folder / "vocab.spm", PIECES[:-2])
    tokenizer = imported(folder, tmp_path / "out").tokenizer
    assert tokenizer.vocab_size == SIZE + 1
    assert tokenizer.decode([2, SIZE - 1, SIZE, 3]) == "the dog"


def test_a_directory_of_several_models_asks_for_one(tmp_path):
    folder = release(tmp_path / "release")
    (folder / "config.yml").unlink()
    write_npz(folder / "model.npz", OPTIONS, tensors_of())
    check_refused(folder, tmp_path, "must hold one model, .npz or .bin, got model.intgemm.alphas.bin, model.npz; give")
    imported(folder / "model.npz", tmp_path / "out")


def test_what_is_no_release_is_not_taken_for_one(tmp_path):
    assert not is_marian(tmp_path)
    (tmp_path / "vocab.spm").write_bytes(b"")
    assert is_marian(tmp_path)
    check_refused(tmp_path, tmp_path, "must hold one model, .npz or .bin, got none")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    assert not is_marian(tmp_path)
    check_refused(tmp_path / "none.npz", tmp_path, "none.npz: no such file; give a model of Marian")
