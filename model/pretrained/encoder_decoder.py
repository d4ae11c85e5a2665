"""Encoder-decoder families: MarianMT, BART, mBART, M2M100 with NLLB, and T5 with its successors.

The first four share one layout of weights and differ in positions, the placement of norms and the special-token
template. Search settings (beams, penalties, minimum length, forced last token) belong to requests; banned tokens get a
bias below any other logit.

    | family | positions | norms | encoder input | decoder prefix |
    |---|---|---|---|---|
    | Marian | sines, then cosines | post | target language if there are any, text, eos | pad |
    | BART | learned | post, and after embeddings | bos, text, eos | eos, and bos where it is forced |
    | mBART of 25 | learned | pre, and after embeddings | text, eos, source language | target language |
    | mBART of 50 | the same | the same | source language, text, eos | eos, target language |
    | M2M100, NLLB | fairseq's sinusoids | pre | source language, text, eos | eos, target language |
    | T5 | bias by buckets | pre, RMS | text, eos | pad |

Of T5, also the encoder alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from model.architecture_config import EncoderConfig, EncoderDecoderConfig
from model.config import SpecialTokenTemplate
from model.pretrained.banned_tokens import with_bans
from model.pretrained.files import (
    ACTIVATIONS,
    Family,
    Fields,
    Imported,
    Names,
    PretrainedError,
    Weights,
    in_blocks,
    read_weights,
)

SIDES = ("decoder", "encoder")
POSITION_OFFSET = 2  # unused rows before the first learned position
MAX_LENGTH = 512  # default of models without a position table

BART_BLOCK: Names = {
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": "self_attn.out_proj",
    "self_residual.norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}


@dataclass(frozen=True, kw_only=True)
class BartFamily:
    """A `Family` with BART's weight names and shapes. settings: fields of `EncoderDecoderConfig`.

    fixed: fields of config.json that must have this value, which is also their default. start: the token that begins
    targets if the files name none. has_bos: whether bos begins sources. activation, is_scaled: defaults of the
    activation and of `scale_embedding`.
    """

    settings: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    start: str = "bos_token_id"
    has_bos: bool = False
    activation: str = "gelu"
    is_scaled: bool = False

    def __call__(self, config: Fields, generation: Fields, weights: Weights) -> Imported:
        for name, value in self.fixed.items():
            config.only(name, value, default=value)
        words = config.count("vocab_size")
        target_words = config.get("decoder_vocab_size", words)
        if target_words != words and config.get("share_encoder_decoder_embeddings", True):
            reason = f"covered: {words}, the vocab_size, where share_encoder_decoder_embeddings is not false"
            raise config.refuse("decoder_vocab_size", reason)
        tokens = _Tokens(config, generation)
        template = tokens.template(self.start)
        if self.has_bos:
            template = replace(template, source_prefix=(tokens.need("bos_token_id"),))
        heads, encoder_heads = (config.count(f"{side}_attention_heads") for side in SIDES)
        width, encoder_width = (config.count(f"{side}_ffn_dim") for side in SIDES)
        names: dict[str, Any] = {}
        for side in SIDES:
            names |= in_blocks(side, f"model.{side}.layers.{{}}", BART_BLOCK)
            names[f"{side}.embedding.positions"] = f"model.{side}.embed_positions.weight"
            names[f"{side}.embedding.norm"] = f"model.{side}.layernorm_embedding"
            names[f"{side}.norm"] = f"model.{side}.layer_norm"
        imported = _import(
            config,
            tokens,
            weights,
            template,
            names,
            base="model.",
            vocab_size=config.count("decoder_vocab_size") if target_words != words else words,
            source_vocab_size=words if target_words != words else 0,
            changes={f"{side}.embedding.positions": lambda table: table[POSITION_OFFSET:] for side in SIDES},
            length=config.count("max_position_embeddings"),
            num_heads=heads,
            d_ff=width,
            encoder_num_heads=0 if encoder_heads == heads else encoder_heads,
            encoder_d_ff=0 if encoder_width == width else encoder_width,
            num_encoder_layers=config.count("encoder_layers"),
            num_decoder_layers=config.count("decoder_layers"),
            activation=config.choice("activation_function", ACTIVATIONS, default=self.activation),
            embedding_scale=0.0 if config.get("scale_embedding", self.is_scaled) else 1.0,
            **self.settings,
        )
        weights.drop("*coder.version", "*coder.embed_positions.*")  # computed, although old checkpoints store positions
        return imported


def _t5_block(feed_forward: str, *, is_gated: bool) -> Names:
    """The names in a block. feed_forward: the number of that layer."""
    return {
        "self_attention.query_key_value": ("0.SelfAttention.q", "0.SelfAttention.k", "0.SelfAttention.v"),
        "self_attention.output": "0.SelfAttention.o",
        "self_residual.norm": "0.layer_norm",
        "cross_attention.query": "1.EncDecAttention.q",
        "cross_attention.key_value": ("1.EncDecAttention.k", "1.EncDecAttention.v"),
        "cross_attention.output": "1.EncDecAttention.o",
        "cross_residual.norm": "1.layer_norm",
        "feed_forward.inner": f"{feed_forward}.DenseReluDense.{'wi_0' if is_gated else 'wi'}",
        "feed_forward.gate": f"{feed_forward}.DenseReluDense.wi_1",
        "feed_forward.outer": f"{feed_forward}.DenseReluDense.wo",
        "feed_forward_residual.norm": f"{feed_forward}.layer_norm",
    }


def _t5_feed_forward(config: Fields, default: str) -> tuple[str, bool]:
    """The activation, and whether the feed-forward is gated: of `feed_forward_proj`, which newer files split in two."""
    *gate, name = str(config.get("feed_forward_proj", default)).split("-")
    if gate not in ([], ["gated"]):
        raise config.refuse("feed_forward_proj")
    own = {"gelu": "gelu_new"}.get(name, name) if gate else name  # the tanh form, despite the name
    if config.get("dense_act_fn", None) is None and own not in ACTIVATIONS:
        raise config.refuse("feed_forward_proj", f"covered: {', '.join(ACTIVATIONS)}, and gated- before them")
    return config.choice("dense_act_fn", ACTIVATIONS, default=own), bool(config.get("is_gated_act", bool(gate)))


def _t5(config: Fields, generation: Fields, weights: Weights, *, is_mt5: bool = False) -> Imported:
    """Raffel et al. 2020; 1.1, Flan and mT5 (Xue et al. 2021) are gated and have an untied output projection."""
    layout = _t5_layout(config, is_mt5=is_mt5)
    is_gated = layout["gated"]
    if config.get("architectures", None) in (["T5EncoderModel"], ["MT5EncoderModel"]):
        return _t5_encoder(config, weights, layout)
    # 1.0 scales the input of its tied output projection; newer files have a field for it and are tied.
    is_scaled = not is_mt5 and config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    tokens, layers = _Tokens(config, generation), config.count("num_layers")
    scale = config.count("d_model") ** -0.5 if is_scaled else 1.0
    names: dict[str, Any] = {}
    for side, last in zip(SIDES, "21", strict=True):
        block = _t5_block(last, is_gated=is_gated)
        names |= in_blocks(side, f"{side}.block.{{}}.layer", block)
        names[f"{side}.position_encoding.bias"] = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
        names[f"{side}.norm"] = f"{side}.final_layer_norm"
    imported = _import(
        config,
        tokens,
        weights,
        tokens.template("pad_token_id"),
        names,
        changes={"decoder.norm.weight": lambda gain: gain * scale},
        length=config.get("n_positions", MAX_LENGTH),
        num_decoder_layers=config.get("num_decoder_layers", layers),
        **layout,
    )
    weights.drop("*.EncDecAttention.relative_attention_bias.weight")  # unused, in old checkpoints
    return imported


def _t5_layout(config: Fields, *, is_mt5: bool) -> dict[str, Any]:
    """The fields that an encoder has, too."""
    activation, is_gated = _t5_feed_forward(config, "gated-gelu" if is_mt5 else "relu")
    return {
        "num_heads": config.count("num_heads"),
        "head_dim": config.count("d_kv"),
        "d_ff": config.count("d_ff"),
        "num_encoder_layers": config.count("num_layers"),
        "activation": activation,
        "gated": is_gated,
        "norm": "rms",
        "norm_eps": config.number("layer_norm_epsilon", 1e-6),
        "attention_scale": 1.0,
        "positions": "bucketed",
        "position_buckets": config.get("relative_attention_num_buckets", 32),
        "position_range": config.get("relative_attention_max_distance", 128),
        "embedding_scale": 1.0,
        "bias": False,
    }


def _t5_encoder(config: Fields, weights: Weights, layout: dict[str, Any]) -> Imported:
    """The encoder alone, as in sentence-T5 and GTR (Ni et al. 2022); `with_special_tokens` sets its tokens."""
    table = "encoder.embed_tokens" if "encoder.embed_tokens.weight" in weights else "shared"
    block = _t5_block("1", is_gated=layout["gated"])
    names = {
        **in_blocks("encoder", "encoder.block.{}.layer", block),
        "encoder.embedding.tokens": table,
        "encoder.position_encoding.bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "encoder.norm": "encoder.final_layer_norm",
    }
    for name in ("is_decoder", "num_decoder_layers", "scale_decoder_outputs", "tie_word_embeddings"):
        config.get(name, None)  # of the decoder, which is not there
    eos, pad = config.need("eos_token_id"), config.need("pad_token_id")
    model = EncoderConfig(
        vocab_size=config.count("vocab_size"),
        d_model=config.count("d_model"),
        max_source_len=config.get("n_positions", MAX_LENGTH),
        pad_id=pad,
        bos_id=pad,
        eos_id=eos,
        unk_id=eos,
        **layout,
    )
    imported = read_weights(model, weights, names)
    weights.drop("shared.weight", "encoder.embed_tokens.weight")  # a second name of the table
    return imported


def _import(
    config: Fields,
    tokens: _Tokens,
    weights: Weights,
    template: SpecialTokenTemplate,
    names: Names,
    *,
    base: str = "",
    changes: Mapping[str, Callable[[Tensor], Tensor]],
    length: int,
    vocab_size: int = 0,
    **settings: Any,
) -> Imported:
    """The steps common to all families. names, changes: as in `read_weights`. base: of the shared table. length: in
    tokens. vocab_size: of targets; 0: that in the file."""
    config.only("is_encoder_decoder", True, default=True)
    for name in ("is_decoder", "add_cross_attention", "tie_encoder_decoder"):
        config.only(name, False, default=False)
    config.only("pruned_heads", {}, default={})
    vocab_size, width = vocab_size or config.count("vocab_size"), config.count("d_model")
    eos, pad = tokens.need("eos_token_id"), tokens.need("pad_token_id")
    bias_V = _output_bias(tokens, weights, vocab_size)
    known = _tables(config, weights, base)
    source, target, output = known.values()
    model = EncoderDecoderConfig(
        vocab_size=vocab_size,
        d_model=width,
        output_bias=bias_V is not None,
        tie_embeddings=output is target,
        share_embeddings=source is target,
        max_source_len=length,
        max_target_len=length,
        pad_id=pad,
        bos_id=template.target_prefix[0],
        eos_id=eos,
        unk_id=eos,
        special_token_template=template,
        **settings,
    )
    if bias_V is not None:
        known["decoder.unembedding.bias"] = bias_V
    return read_weights(model, weights, names, known=known, changes=changes)


def _tables(config: Fields, weights: Weights, base: str) -> dict[str, Tensor]:
    """Source, target and output tables under our names, as one tensor if equal; a checkpoint may store those only once.

    Tensors take precedence over fields: a stored table is used even if the configuration ties it. Raises
    PretrainedError if none is stored for the output and the embeddings are not tied.
    """
    shared = f"{base}shared.weight"
    names = (f"{base}encoder.embed_tokens.weight", f"{base}decoder.embed_tokens.weight", "lm_head.weight")
    if not config.get("share_encoder_decoder_embeddings", True):  # of Marian: each table is one of its own
        found = {name: weights.take(name) for name in names if name != names[2] or name in weights}
    else:
        found = {name: weights.take(name) for name in (shared, *names) if name in weights}
    common = next(iter(found.values())) if found else weights.take(shared)
    source, target = (found.get(name, common) for name in names[:2])
    if names[2] not in found and not config.get("tie_word_embeddings", True):
        raise PretrainedError(f"weights: lm_head.weight is missing, and {config.file} has tie_word_embeddings false")
    output = found.get(names[2], found.get(shared, target))
    return {
        "encoder.embedding.tokens.weight": target if torch.equal(source, target) else source,
        "decoder.embedding.tokens.weight": target,
        "decoder.unembedding.weight": target if torch.equal(target, output) else output,
    }


class _Tokens:
    """Special tokens of a checkpoint, with or without a generation_config.json."""

    def __init__(self, config: Fields, generation: Fields) -> None:
        self._config, self.steering = config, generation or config

    def get(self, name: str, fields: Fields | None = None) -> tuple[int, ...]:
        """The id as a tuple, empty if absent. A list must have one element."""
        fields = fields or self._config
        value = fields.get(name, [])
        if isinstance(value, list) and len(value) > 1:
            fix = "; choose one with --eos-id ID" if name == "eos_token_id" else ""
            raise fields.refuse(name, f"covered: one token{fix}")
        return tuple(value) if isinstance(value, list) else (value,)

    def need(self, name: str) -> int:
        """The id of a required token. generation_config.json takes precedence over config.json."""
        known = (*self.get(name, self.steering), *self.get(name))
        token: int = known[0] if known else self._config.need(name)
        return token

    def template(self, default: str) -> SpecialTokenTemplate:
        """The template that ends sources with eos and begins targets with the start token and the forced first token.

        `generate` starts with bos where generation_config.json names no start. default: what starts without either."""
        start = self.get("decoder_start_token_id", self.steering) or self.get("bos_token_id", self.steering)
        start = start or self.get("decoder_start_token_id") or (self.need(default),)
        prefix = (*start, *self.get("forced_bos_token_id", self.steering))
        return SpecialTokenTemplate(source_suffix=(self.need("eos_token_id"),), target_prefix=prefix)


def _output_bias(tokens: _Tokens, weights: Weights, vocab_size: int) -> Tensor | None:
    """The bias of the logits (V), the lowest for banned tokens; None if all zeros."""
    name, fields = "final_logits_bias", tokens.steering
    fields.only("begin_suppress_tokens", [], default=[])
    ban = functools.partial(with_bans, fields=fields, ends=(tokens.need("eos_token_id"),))
    bias_V = ban(torch.zeros(vocab_size))  # checks the ids without weights
    if name in weights:
        bias_V = ban(weights.take(name).reshape(-1))
    return bias_V if bias_V.any() else None


FAMILIES: dict[str, Family] = {
    "marian": BartFamily(  # Junczys-Dowmunt et al. 2018, as OPUS-MT trains it
        settings={"norm_position": "post", "positions": "sinusoidal", "sinusoids": "halves"},
        fixed={
            "normalize_before": False,
            "normalize_embedding": False,
            "add_final_layer_norm": False,
            "add_bias_logits": False,
            "static_position_embeddings": True,
        },
        start="pad_token_id",
    ),
    "bart": BartFamily(  # Lewis et al. 2020
        settings={"norm_position": "post", "positions": "learned", "embedding_norm": True},
        fixed={
            "normalize_before": False,
            "normalize_embedding": True,
            "add_final_layer_norm": False,
            "static_position_embeddings": False,
            "extra_pos_embeddings": POSITION_OFFSET,
        },
        has_bos=True,
    ),
    "mbart": BartFamily(  # Liu et al. 2020 and, with 50 languages, Tang et al. 2020
        settings={"norm_position": "pre", "positions": "learned", "embedding_norm": True},
        fixed={
            "normalize_before": True,
            "normalize_embedding": True,
            "add_final_layer_norm": True,
            "static_position_embeddings": False,
        },
    ),
    "m2m_100": BartFamily(  # Fan et al. 2021, and NLLB (Costa-jussà et al. 2022) with dense layers
        settings={"norm_position": "pre", "positions": "sinusoidal", "sinusoids": "fairseq"},
        fixed={"pad_token_id": 1},  # from which positions are counted
        activation="relu",
        is_scaled=True,
    ),
    "t5": _t5,
    "mt5": functools.partial(_t5, is_mt5=True),
}
