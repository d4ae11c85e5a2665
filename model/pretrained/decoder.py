"""Decoder-only families: converts `config.json` to a `DecoderConfig` and maps weight names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from model.architecture_config import DecoderConfig
from model.pretrained.banned_tokens import with_bans
from model.pretrained.files import ACTIVATIONS, Family, Fields, Imported, Names, Weights, in_blocks, read_weights

ROPE = {  # parameters of rotary positions, which some kinds use
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "partial_rotary_factor"),
    *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate"),
}
OUTPUT_BIAS = "decoder.unembedding.bias"
BUFFERS = ("*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias")  # follow from the configuration


@dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """A `Family` of decoder-only models. describe: config.json → fields of `DecoderConfig` except special tokens.

    biases: fields that state whether linear layers have a bias, with the prefix of the layers' names. changes:
    functions of stored parameters. Banned tokens get an output bias, as those of encoder-decoders.
    """

    describe: Callable[[Fields], dict[str, Any]]
    names: Names
    biases: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def __call__(self, config: Fields, generation: Fields, weights: Weights) -> Imported:
        config.only("is_encoder_decoder", False, default=False)
        has_bias = {prefix: bool(config.get(name, False)) for name, prefix in self.biases.items()}
        tokens = _special_tokens(config, generation)
        fields = {"bias": any(has_bias.values()), **self.describe(config), **tokens}
        ban = functools.partial(
            with_bans, fields=generation or config, ends=(fields["eos_id"], *fields["extra_eos_ids"])
        )
        ban_V = ban(torch.zeros(config.count("vocab_size")))
        has_own, is_banned = fields.get("output_bias", False), bool(ban_V.any())
        model = DecoderConfig(**{**fields, "output_bias": has_own or is_banned})
        unbiased = tuple(prefix for prefix, has in has_bias.items() if not has)
        names = {**self.names, **{f"{layer}.bias": () for layer in self.names if layer.startswith(unbiased)}}
        table = f"{names['decoder.embedding.tokens']}.weight"
        if model.tie_embeddings and weights.tie("lm_head.weight", table):
            names["decoder.unembedding.weight"] = table
        else:
            model = model.replace(tie_embeddings=False)
        known = {OUTPUT_BIAS: ban_V} if is_banned and not has_own else {}
        imported = read_weights(model, weights, names, known=known, changes={**self.changes, OUTPUT_BIAS: ban})
        weights.drop(*BUFFERS)
        return imported


def _special_tokens(config: Fields, generation: Fields) -> dict[str, Any]:
    """Special-token ids; missing ones equal eos. The eos ids are those that `generate` of transformers uses."""
    for name in ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
        for fields in (config, generation):
            if fields.get(name, None):
                raise fields.refuse(name)
    origin = generation if generation.get("eos_token_id", None) is not None else config
    ends = origin.get("eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    if not ends or any(type(token) is not int for token in ends):
        raise origin.refuse("eos_token_id", "at least one eos token is required; set it with --eos-id ID")
    eos, *more = dict.fromkeys(ends)
    others = {f"{name}_id": config.get(f"{name}_token_id", eos) for name in ("pad", "bos")}
    found = {name: eos if value == -1 else value for name, value in others.items()}
    return {**found, "eos_id": eos, "extra_eos_ids": tuple(more), "unk_id": eos}


def _gpt2(config: Fields) -> dict[str, Any]:
    """Radford et al. 2019: learned positions, one projection for query, key and value."""
    config.only("scale_attn_weights", True, default=True)
    config.only("scale_attn_by_inverse_layer_idx", False, default=False)
    config.only("add_cross_attention", False, default=False)
    width = config.count("n_embd")
    return {
        "bias": True,
        "vocab_size": config.count("vocab_size"),
        "d_model": width,
        "num_heads": config.count("n_head"),
        "d_ff": config.get("n_inner", 4 * width),
        "num_decoder_layers": config.count("n_layer"),
        "activation": config.choice("activation_function", ACTIVATIONS, default="gelu_new"),
        "norm_eps": config.number("layer_norm_epsilon", 1e-5),
        "positions": "learned",
        "embedding_scale": 1.0,
        "tie_embeddings": config.get("tie_word_embeddings", True),
        "max_target_len": config.count("n_positions"),
    }


def _llama(
    config: Fields, *, head_dim: int = 0, tied: bool = False, rotary_share: float | None = None
) -> dict[str, Any]:
    """Touvron et al. 2023: rotary positions, RMSNorm, gated feed-forward, no biases; the base of most other families.

    head_dim, tied, rotary_share: defaults of fields that config.json may lack. rotary_share None: all of a head.
    """
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_dim = config.get("head_dim", head_dim or width // heads)
    return {
        "vocab_size": config.count("vocab_size"),
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads", heads),
        "head_dim": head_dim,
        "d_ff": config.count("intermediate_size"),
        "num_decoder_layers": config.count("num_hidden_layers"),
        "activation": config.choice("hidden_act", ACTIVATIONS, default="silu"),
        "gated": True,
        "norm": "rms",
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "embedding_scale": 1.0,
        "tie_embeddings": config.get("tie_word_embeddings", tied),
        "max_target_len": config.count("max_position_embeddings"),
        **_rotary(config, head_dim, rotary_share),
    }


def _mistral(config: Fields) -> dict[str, Any]:
    """Jiang et al. 2023: a sliding window in every layer."""
    sliding_window = config.get("sliding_window", 0) if "sliding_window" in config else 4096
    return {**_llama(config), "sliding_window": sliding_window}


def _qwen2(config: Fields) -> dict[str, Any]:
    """Yang et al. 2024: biases only in the query, key and value projections."""
    return {**_llama(config), "qkv_bias": True, "sliding_window": _layered_window(config)}


def _qwen3(config: Fields) -> dict[str, Any]:
    """Yang et al. 2025: each head's query and key are normalised."""
    return {**_llama(config, head_dim=128), "qk_norm": True, "sliding_window": _layered_window(config)}


def _gemma(config: Fields) -> dict[str, Any]:
    """Mesnard et al. 2024: embeddings scaled by sqrt(d_model), norm weights stored minus 1, gated GELU."""
    config.only("use_bidirectional_attention", False, default=False)
    words = {**ACTIVATIONS, "gelu": "gelu_tanh"}  # the first release wrote gelu for gelu_tanh
    return {
        **_llama(config, head_dim=256, tied=True),
        "activation": config.choice("hidden_act", words, default="gelu_pytorch_tanh"),
        "embedding_scale": 0.0,
    }


def _phi(config: Fields) -> dict[str, Any]:
    """Li et al. 2023: attention and feed-forward in parallel after one norm, rotary on half of each head, biases."""
    config.only("qk_layernorm", False, default=False)
    return {
        **_llama(config, rotary_share=0.5),
        "activation": config.choice("hidden_act", ACTIVATIONS, default="gelu_new"),
        "gated": False,
        "norm": "layer",
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "parallel_residual": True,
        "bias": True,
        "output_bias": True,
    }


def _phi3(config: Fields) -> dict[str, Any]:
    """Abdin et al. 2024: Llama with fused query-key-value and gate-up projections."""
    return {**_llama(config, rotary_share=1.0), "sliding_window": config.get("sliding_window", 0)}


def _layered_window(config: Fields) -> int:
    """The sliding window in tokens, 0: none. All layers must be equal."""
    if not config.get("use_sliding_window", False):
        return 0
    layers, first = config.count("num_hidden_layers"), config.get("max_window_layers", 28)
    kinds = config.get("layer_types", ["sliding_attention" if i >= first else "full_attention" for i in range(layers)])
    if set(kinds) == {"full_attention"}:
        return 0
    if set(kinds) != {"sliding_attention"}:
        raise config.refuse(
            "layer_types" if "layer_types" in config else "max_window_layers", "all layers must be equal"
        )
    return config.count("sliding_window")


def _rotary(config: Fields, head_dim: int, share: float | None) -> dict[str, Any]:
    """Fields of rotary positions, from rope_parameters or, in earlier files, from rope_scaling and the top level."""
    name = "rope_scaling" if config.get("rope_scaling", None) else "rope_parameters"
    rope = config.inner(name)
    if any(isinstance(value, Mapping) for value in config.get(name, {}).values()):
        raise config.refuse(name, "all layers must have the same rotary parameters")
    unknown = set(rope.unread).difference(ROPE)
    if unknown:
        raise rope.refuse(min(unknown))
    kind = rope.only("rope_type" if "rope_type" in rope else "type", "default", "linear", "llama3", default="default")
    if share is None:
        for fields in (config, rope):
            fields.only("partial_rotary_factor", 1, default=1)
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", share or 1.0))
    found: dict[str, Any] = {
        "positions": "rotary",
        "rotary_base": rope.number("rope_theta", config.number("rope_theta", 10000.0)),
        "rotary_dims": int(head_dim * share) if share < 1 else 0,
    }
    if kind != "default":
        found |= {"rotary_scaling": kind, "rotary_factor": rope.number("factor")}
    if kind == "llama3":
        original = rope.get("original_max_position_embeddings", config.count("max_position_embeddings"))
        found |= {
            "rotary_low_freq": rope.number("low_freq_factor"),
            "rotary_high_freq": rope.number("high_freq_factor"),
            "rotary_original_len": config.get("original_max_position_embeddings", original),
        }
    return found


LLAMA_BLOCK: Names = {
    "self_residual.norm": "input_layernorm",
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.query_norm": "self_attn.q_norm",
    "self_attention.key_norm": "self_attn.k_norm",
    "self_attention.output": "self_attn.o_proj",
    "feed_forward_residual.norm": "post_attention_layernorm",
    "feed_forward.inner": "mlp.gate_proj",  # the projection with the activation
    "feed_forward.gate": "mlp.up_proj",
    "feed_forward.outer": "mlp.down_proj",
}
LLAMA: Names = {
    "decoder.embedding.tokens": "model.embed_tokens",
    **in_blocks("decoder", "model.layers.{}", LLAMA_BLOCK),
    "decoder.norm": "model.norm",
    "decoder.unembedding": "lm_head",
}
BLOCK = "decoder.blocks.{}."
LLAMA_BIASES = {"attention_bias": f"{BLOCK}self_attention.", "mlp_bias": f"{BLOCK}feed_forward."}

PHI3_BLOCK: Names = {
    **LLAMA_BLOCK,
    "self_attention.query_key_value": "self_attn.qkv_proj",
    "feed_forward.inner": "mlp.gate_up_proj",
    "feed_forward.gate": "mlp.gate_up_proj",
}

PHI_BLOCK: Names = {
    **LLAMA_BLOCK,
    "self_attention.output": "self_attn.dense",
    "feed_forward_residual.norm": "input_layernorm",
    "feed_forward.inner": "mlp.fc1",
    "feed_forward.outer": "mlp.fc2",
}

GPT2_BLOCK: Names = {
    "self_residual.norm": "ln_1",
    "self_attention.query_key_value": "attn.c_attn",
    "self_attention.output": "attn.c_proj",
    "feed_forward_residual.norm": "ln_2",
    "feed_forward.inner": "mlp.c_fc",
    "feed_forward.outer": "mlp.c_proj",
}
GPT2: Names = {
    "decoder.embedding.tokens": "transformer.wte",
    "decoder.embedding.positions": "transformer.wpe.weight",
    **in_blocks("decoder", "transformer.h.{}", GPT2_BLOCK),
    "decoder.norm": "transformer.ln_f",
    "decoder.unembedding": "lm_head",
}

FAMILIES: dict[str, Family] = {
    "gpt2": DecoderFamily(
        describe=_gpt2,
        names=GPT2,
        changes={f"{BLOCK}{layer}.weight": Tensor.t for layer in GPT2_BLOCK if "norm" not in layer},  # stored (in, out)
    ),
    "llama": DecoderFamily(describe=_llama, names=LLAMA, biases=LLAMA_BIASES),
    "mistral": DecoderFamily(describe=_mistral, names=LLAMA),
    "qwen2": DecoderFamily(describe=_qwen2, names=LLAMA),
    "qwen3": DecoderFamily(describe=_qwen3, names=LLAMA, biases=LLAMA_BIASES),
    "gemma": DecoderFamily(
        describe=_gemma,
        names=LLAMA,
        biases=LLAMA_BIASES,
        changes={f"{layer}.weight": lambda stored: stored + 1.0 for layer in LLAMA if layer.endswith("norm")},
    ),
    "phi": DecoderFamily(
        describe=_phi,
        names={**LLAMA, **in_blocks("decoder", "model.layers.{}", PHI_BLOCK), "decoder.norm": "model.final_layernorm"},
    ),
    "phi3": DecoderFamily(
        describe=_phi3,
        names={**LLAMA, **in_blocks("decoder", "model.layers.{}", PHI3_BLOCK)},
        changes={
            f"{BLOCK}feed_forward.inner.weight": lambda stored: stored.tensor_split(2)[0],
            f"{BLOCK}feed_forward.gate.weight": lambda stored: stored.tensor_split(2)[1],
        },
    ),
}
