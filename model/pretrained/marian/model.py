"""A Transformer of Marian, as Bergamot and Firefox Translations train them: its options and tensors → the model.

Students decode with an SSRU (Kim et al. 2019) instead of self-attention. Marian begins targets with a vector of zeros,
for which the vocabulary gets one more token, and never answers with the unknown token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from model.architecture_config import EncoderDecoderConfig
from model.config import SpecialTokenTemplate
from model.pretrained.banned_tokens import NEVER
from model.pretrained.files import Fields, Imported, PretrainedError, Weights, read_weights
from model.pretrained.marian.items import Array

MODEL_TYPE = "marian_nmt"
MAX_LENGTH = 512  # positions are computed: students are trained on sentences
NORM_EPS = 1e-6  # src/layers/generic.h; transformers' MarianMT has 1e-5
ACTIVATIONS = {"relu": "relu", "swish": "silu"}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # options with these values alone; the first is the default
    "type": ("transformer",),
    "input-types": ([],),
    "layer-normalization": (False,),
    "lemma-dim-emb": (0,),
    "output-omit-bias": (False,),
    "right-left": (False,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-ffn-depth": (2,),
    "transformer-no-projection": (False,),
    "transformer-pool": (False,),
    "transformer-postprocess": ("dan", "an"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("", "d"),
    "transformer-preprocess": ("", "d"),
    "transformer-rnn-projection": (False,),
    "transformer-tied-layers": ([],),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "ulr": (False,),
}
NO_EFFECT = (  # of other kinds of models or layers, of training, and the version that wrote the file
    *("bert-train-type-embeddings", "bert-type-vocab-size", "dec-cell-base-depth", "dec-cell-high-depth", "dim-rnn"),
    *("enc-cell", "enc-cell-depth", "enc-type", "factors-combine", "factors-dim-emb", "lemma-dependency", "skip"),
    *("transformer-aan-activation", "transformer-aan-depth", "transformer-aan-nogate", "transformer-depth-scaling"),
    *("transformer-dim-aan", "transformer-guided-alignment-layer", "ulr-dim-emb", "ulr-trainable-transformation"),
    "version",
)
RANGES = "*_QuantMultA"  # of the inputs of products, by which Marian rounds them


def marian_nmt(config: Fields, generation: Fields, weights: Weights) -> Imported:
    """A `Family`. config: the options, with what the vocabulary says: vocab_size, eos_id, unk_id, pad_id, never."""
    for name, values in NEUTRAL.items():
        config.only(name, *values, default=values[0])
    for name in NO_EFFECT:
        config.get(name, None)
    is_recurrent = (
        config.only("transformer-decoder-autoreg", "self-attention", "rnn", default="self-attention") == "rnn"
    )
    cell = config.get("dec-cell", "gru")
    if is_recurrent and cell != "ssru":
        raise config.refuse("dec-cell", "covered: 'ssru', with transformer-decoder-autoreg rnn")
    eos, pad, vocab_size = config.need("eos_id"), config.need("pad_id"), config.count("decoder_vocab_size")
    source_size, is_separate = config.count("vocab_size"), not config.need("share_encoder_decoder_embeddings")
    width, decoder_width = config.count("transformer-dim-ffn"), config.get("transformer-decoder-dim-ffn", 0)
    is_one, has_shared, has_tied = (bool(config.get(f"tied-embeddings{part}", False)) for part in ("-all", "-src", ""))
    is_shared, is_tied = is_one or has_shared, is_one or has_tied
    if is_shared and is_separate:
        problem = "one table has no rows of two vocabularies; give the one vocabulary with which the model was trained"
        raise config.refuse("tied-embeddings-all" if is_one else "tied-embeddings-src", problem)
    activation: Any = config.choice("transformer-ffn-activation", ACTIVATIONS, default="swish")
    model = EncoderDecoderConfig(
        vocab_size=vocab_size,
        source_vocab_size=source_size if is_separate else 0,
        d_model=config.count("dim-emb"),
        num_heads=config.count("transformer-heads"),
        d_ff=decoder_width or width,
        encoder_d_ff=width if decoder_width not in (0, width) else 0,
        num_encoder_layers=config.count("enc-depth"),
        num_decoder_layers=config.count("dec-depth"),
        activation=activation,
        decoder_mixing="ssru" if is_recurrent else "attention",
        norm_position="post",
        norm_eps=NORM_EPS,
        positions="sinusoidal",
        sinusoids="tensor2tensor",
        share_embeddings=is_shared,
        tie_embeddings=is_tied,
        output_bias=True,
        max_source_len=MAX_LENGTH,
        max_target_len=MAX_LENGTH,
        pad_id=eos if is_separate else pad,  # an id of both; padding is masked
        bos_id=pad,
        eos_id=eos,
        unk_id=config.need("unk_id"),
        special_token_template=SpecialTokenTemplate(source_suffix=(eos,), target_prefix=(pad,)),
    )
    never = config.need("never")
    if config.unread:
        raise config.refuse(config.unread[0], "it is an option of Marian that the import does not know")
    known = _tables(weights, source_size, vocab_size, is_shared=is_shared, is_tied=is_tied)
    bias_V = torch.nn.functional.pad(weights.take("decoder_ff_logit_out_b"), (0, vocab_size - pad))
    bias_V[never] = NEVER
    imported = read_weights(
        model, weights, _names(is_recurrent=is_recurrent), known={**known, "decoder.unembedding.bias": bias_V}
    )
    weights.drop(RANGES)
    return imported


def _tables(
    weights: Weights, source_size: int, vocab_size: int, *, is_shared: bool, is_tied: bool
) -> dict[str, Tensor]:
    """Source, target and output tables, with zeros for the token that Marian does not have, the last one."""

    def table(name: str, size: int = vocab_size) -> Tensor:
        stored_VM = weights.take(name)
        if stored_VM.ndim != 2 or len(stored_VM) != size - 1:
            raise PretrainedError(
                f"weights: {name} must have a row for each of the vocabulary's {size - 1} tokens, got shape "
                f"{tuple(stored_VM.shape)}; give the vocabulary with which the model was trained"
            )
        return torch.nn.functional.pad(stored_VM, (0, 0, 0, 1))

    target = table("Wemb" if is_shared else "decoder_Wemb")
    return {
        "encoder.embedding.tokens.weight": target if is_shared else table("encoder_Wemb", source_size),
        "decoder.embedding.tokens.weight": target,
        "decoder.unembedding.weight": target if is_tied else table("decoder_ff_logit_out_W"),
    }


def _names(*, is_recurrent: bool) -> dict[str, str | tuple[str, ...]]:
    """Our parameters → Marian's, whose layers `marian_tensors` has counted from 0."""
    names: dict[str, str | tuple[str, ...]] = {}
    for side in ("encoder", "decoder"):
        ours, theirs = f"{side}.blocks.{{}}", f"{side}_l{{}}"
        if side == "encoder" or not is_recurrent:
            for kind, letter in (("weight", "W"), ("bias", "b")):
                joined = tuple(f"{theirs}_self_{letter}{part}" for part in "qkv")
                names[f"{ours}.self_attention.query_key_value.{kind}"] = joined
                names[f"{ours}.self_attention.output.{kind}"] = f"{theirs}_self_{letter}o"
            names |= _norm(f"{ours}.self_residual", f"{theirs}_self_Wo")
        else:
            names[f"{ours}.recurrence.input_forget.weight"] = (f"{theirs}_rnn_W", f"{theirs}_rnn_Wf")
            names[f"{ours}.recurrence.forget_bias"] = f"{theirs}_rnn_bf"
            names |= _norm(f"{ours}.self_residual", f"{theirs}_rnn_ffn")
        if side == "decoder":
            for kind, letter in (("weight", "W"), ("bias", "b")):
                names[f"{ours}.cross_attention.query.{kind}"] = f"{theirs}_context_{letter}q"
                both = f"{theirs}_context_{letter}k", f"{theirs}_context_{letter}v"
                names[f"{ours}.cross_attention.key_value.{kind}"] = both
                names[f"{ours}.cross_attention.output.{kind}"] = f"{theirs}_context_{letter}o"
            names |= _norm(f"{ours}.cross_residual", f"{theirs}_context_Wo")
        for layer, number in (("inner", 1), ("outer", 2)):
            for kind, letter in (("weight", "W"), ("bias", "b")):
                names[f"{ours}.feed_forward.{layer}.{kind}"] = f"{theirs}_ffn_{letter}{number}"
        names |= _norm(f"{ours}.feed_forward_residual", f"{theirs}_ffn_ffn")
    return names


def _norm(ours: str, theirs: str) -> dict[str, str | tuple[str, ...]]:
    return {f"{ours}.norm.weight": f"{theirs}_ln_scale", f"{ours}.norm.bias": f"{theirs}_ln_bias"}


def marian_tensors(arrays: Mapping[str, Array]) -> Weights:
    """Tensors as PyTorch has them: outputs first, vectors of one axis, layers counted from 0."""
    tensors = dict[str, Tensor]()
    for name, array in arrays.items():
        tensor = torch.from_numpy(array)
        if tensor.ndim == 2 and tensor.shape[0] == 1:
            tensor = tensor[0]
        elif tensor.ndim == 2 and "Wemb" not in name:
            tensor = tensor.T
        tensors[_renumbered(name, -1)] = tensor
    return Weights(tensors, named=lambda name: _renumbered(name, 1))


def _renumbered(name: str, step: int) -> str:
    return re.sub(r"(?<=coder_l)\d+", lambda number: str(int(number[0]) + step), name)
