"""Output projections, embeddings and biases that are stored once, twice, or with different values, as transformers
5 reads them."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from model.architectures import build
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_model
from tests.decoders import make_decoder, rewritten
from tests.pretrained_encoder import saved, theirs_of
from tests.pretrained_seq2seq import TINY, make

DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "phi3")
ENCODERS = {  # the names of the embedding, the projection and its two biases
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder", "cls.predictions.bias"),
    "roberta": ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder", "lm_head.bias"),
    "xlm-roberta": ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder", "lm_head.bias"),
    "distilbert": ("distilbert.embeddings.word_embeddings.weight", "vocab_projector", "vocab_projector.bias"),
}
SEQ2SEQ = ("marian", "bart", "mbart", "m2m_100", "t5", "mt5")
TOKENS = torch.tensor([[7, 20, 31, 9, 44, 8]])


def changed(path, drop=(), **like):
    """Stores further tensors, by names with __ for dots: random ones like another, or (copy) equal to it."""
    weights = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(len("".join(like)))
    for name, (other, is_copy) in like.items():
        found = weights[other]
        weights[name.replace("__", ".")] = (
            found.clone() if is_copy else torch.randn(found.shape, generator=generator) * found.std()
        )
    save_file({name: tensor for name, tensor in weights.items() if name not in drop}, path / "model.safetensors")


def ours_of(path):
    imported = import_model(path)
    model = build(imported.config).eval()
    model.load_state_dict(imported.weights)
    return model


def check(kind, path):
    """Logits of both libraries; the stored tensors decide alike."""
    auto = {"decoder": "CausalLM", "encoder": "MaskedLM", "seq2seq": "Seq2SeqLM"}[kind]
    theirs = getattr(transformers, f"AutoModelFor{auto}").from_pretrained(path, dtype=torch.float32).eval()
    ours, lengths = ours_of(path), torch.tensor([TOKENS.shape[1]])
    with torch.no_grad():
        if kind == "seq2seq":
            expected = theirs(input_ids=TOKENS, decoder_input_ids=TOKENS[:, :4]).logits
            found = ours.decoder.unembedding(ours(TOKENS, lengths, TOKENS[:, :4]))
        elif kind == "decoder":
            expected, found = theirs(TOKENS).logits, ours.decoder.unembedding(ours(TOKENS))
        else:
            expected, found = theirs(TOKENS).logits, ours.token_logits(ours(TOKENS, lengths)[0])[None]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    return ours.config


@pytest.mark.parametrize("family", DECODERS)
def test_a_decoder_uses_the_projection_that_is_stored(family, tmp_path):
    make_decoder(family, tie_word_embeddings=True).save_pretrained(tmp_path)
    table = "transformer.wte.weight" if family == "gpt2" else "model.embed_tokens.weight"
    assert check("decoder", tmp_path).tie_embeddings
    changed(tmp_path, lm_head__weight=(table, True))
    assert check("decoder", tmp_path).tie_embeddings
    changed(tmp_path, drop=[table])
    assert check("decoder", tmp_path).tie_embeddings, "either of the two may be stored"
    changed(tmp_path, **{table.replace(".", "__"): ("lm_head.weight", False)})
    assert not check("decoder", tmp_path).tie_embeddings


@pytest.mark.parametrize("family", ENCODERS)
def test_a_masked_head_uses_the_projection_that_is_stored(family, tmp_path):
    table, product, bias = ENCODERS[family]
    saved(theirs_of(family, "ForMaskedLM"), tmp_path)
    name = f"{product}.weight".replace(".", "__")
    changed(tmp_path, **{name: (table, True)})
    assert check("encoder", tmp_path).tie_embeddings
    changed(tmp_path, **{name: (table, False)})
    assert not check("encoder", tmp_path).tie_embeddings
    if bias != f"{product}.bias":
        changed(tmp_path, **{f"{product}.bias".replace(".", "__"): (bias, False)})
        check("encoder", tmp_path)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_untied_masked_head_needs_a_bias_of_its_own(family, tmp_path):
    table, product, bias = ENCODERS[family]
    path, other = tmp_path / "tied", tmp_path / "untied"
    saved(theirs_of(family, "ForMaskedLM"), path)
    other.mkdir()
    rewritten(path, other, tie_word_embeddings=False)
    with pytest.raises(PretrainedError, match=r"\.decoder\.(bias|weight) is missing"):
        import_model(other)
    changed(
        other,
        **{f"{product}.{part}".replace(".", "__"): (like, False) for part, like in (("weight", table), ("bias", bias))},
    )
    assert not check("encoder", other).tie_embeddings


@pytest.mark.parametrize("family", SEQ2SEQ)
def test_an_encoder_decoder_uses_the_tables_that_are_stored(family, tmp_path):
    make(family, TINY._replace(layers=(1, 1))).save_pretrained(tmp_path)
    base = "" if family in ("t5", "mt5") else "model."
    shared, decoder = f"{base}shared.weight", f"{base}decoder.embed_tokens.weight"
    changed(tmp_path, drop=[decoder, f"{base}encoder.embed_tokens.weight", "lm_head.weight"])
    assert check("seq2seq", tmp_path).tie_embeddings
    changed(tmp_path, **{decoder.replace(".", "__"): (shared, False)})
    assert not check("seq2seq", tmp_path).tie_embeddings, "the output is that of the shared table"
    changed(tmp_path, lm_head__weight=(shared, False))
    assert not check("seq2seq", tmp_path).tie_embeddings


def test_separate_tables_of_marian_must_be_stored(tmp_path):
    path, other = tmp_path / "shared", tmp_path / "separate"
    make("marian", TINY._replace(layers=(1, 1))).save_pretrained(path)
    other.mkdir()
    rewritten(path, other, share_encoder_decoder_embeddings=False)
    changed(other, drop=["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"])
    with pytest.raises(PretrainedError, match=r"embed_tokens\.weight is missing"):
        import_model(other)
