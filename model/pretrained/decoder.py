"""Decoder-only families: converts `config.json` to a `DecoderConfig` and maps weight names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from model.architecture_config import DecoderConfig
from model.config import SpecialTokenTemplate
from model.pretrained.files import (
    ACTIVATIONS,
    Family,
    Fields,
    Imported,
    Weights,
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Weight names of decoder-only models: `{base}{tokens}.weight`, and `{base}{layers}.{i}.NAME` in layer i.

    norms: original name → our names, all with the same values. linears: original names, concatenated → our names, equal
    parts of that. derived: buffers that follow from the configuration. is_transposed: linear layers are (in, out).
    norm_offset: added to the weights of norms. Files of a model without its output projection lack the base.
    """

    norms: Mapping[str, tuple[str, ...]]
    linears: Mapping[tuple[str, ...], tuple[str, ...]]
    base: str = "model."
    layers: str = "layers"
    tokens: str = "embed_tokens"
    positions: str = ""
    norm: str = "norm"
    derived: tuple[str, ...] = ()
    is_transposed: bool = False
    norm_offset: float = 0.0

    def read(self, model: DecoderConfig, weights: Weights, unbiased: tuple[str, ...]) -> dict[str, Tensor]:
        """All weights under our names. unbiased: name prefixes of layers without a bias in a model with biases."""
        base = self.base if f"{self.base}{self.tokens}.weight" in weights else ""
        ours = {"decoder.embedding.tokens.weight": weights.take(f"{base}{self.tokens}.weight")}
        if self.positions:
            ours["decoder.embedding.positions"] = weights.take(f"{base}{self.positions}.weight")
        ours |= self._read_norm(model, weights, f"{base}{self.norm}", ["decoder.norm"])
        for i in range(model.num_decoder_layers):
            theirs, mine = f"{base}{self.layers}.{i}.", f"decoder.blocks.{i}."
            for norm, places in self.norms.items():
                ours |= self._read_norm(model, weights, theirs + norm, [mine + place for place in places])
            for names, places in self.linears.items():
                paths = [mine + place for place in places]
                matrix = weights.stack(*(f"{theirs}{name}.weight" for name in names))
                matrix = matrix.T if self.is_transposed else matrix
                ours |= _parts(matrix, paths, "weight")
                if model.bias or (model.qkv_bias and "self_attention.query_key_value" in places):
                    biases = [f"{theirs}{name}.bias" for name in names if not name.startswith(unbiased)]
                    ours |= _parts(weights.stack(*biases) if biases else torch.zeros(len(matrix)), paths, "bias")
            weights.leave(*(f"{theirs}{name}" for name in self.derived))
        if model.tie_embeddings:
            weights.leave("lm_head.weight")
            ours["decoder.unembedding.weight"] = ours["decoder.embedding.tokens.weight"]
        else:
            ours["decoder.unembedding.weight"] = weights.take("lm_head.weight")
        if model.output_bias:
            ours["decoder.unembedding.bias"] = weights.take("lm_head.bias")
        return ours

    def _read_norm(self, model: DecoderConfig, weights: Weights, name: str, paths: list[str]) -> dict[str, Tensor]:
        parts = {"weight": weights.take(f"{name}.weight") + self.norm_offset}
        if model.norm == "layer":
            parts["bias"] = weights.take(f"{name}.bias")
        return {f"{path}.{part}": tensor for path in paths for part, tensor in parts.items()}


def _parts(stacked: Tensor, paths: list[str], part: str) -> dict[str, Tensor]:
    """Splits a tensor into equal parts, one per path."""
    return {f"{path}.{part}": tensor for path, tensor in zip(paths, stacked.chunk(len(paths)), strict=True)}


@dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """A `Family` of decoder-only models. describe: config.json → fields of `DecoderConfig` except special tokens.

    begins: whether prompts begin with bos if the directory does not name the tokens that its tokenizer adds. biases:
    fields that state whether linear layers have a bias, with the prefix of the layers' names.
    """

    describe: Callable[[Fields], dict[str, Any]]
    layout: Layout
    begins: bool = True
    biases: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, config: Fields, generation: Fields, weights: Weights) -> Imported:
        has_bias = {prefix: bool(config.get(name, False)) for name, prefix in self.biases.items()}
        tokens = _special_tokens(config, generation)
        template = SpecialTokenTemplate(target_prefix=(tokens["bos_id"],) if self.begins else ())
        fields = {"bias": any(has_bias.values()), **self.describe(config), **tokens, "special_token_template": template}
        model = DecoderConfig(**fields)
        unbiased = tuple(prefix for prefix, has in has_bias.items() if not has)
        return Imported(config=model, weights=self.layout.read(model, weights, unbiased))


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


def _llama(config: Fields, *, head_dim: int = 0, tied: bool = False, rotary_share: float = 1.0) -> dict[str, Any]:
    """Touvron et al. 2023: rotary positions, RMSNorm, gated feed-forward, no biases; the base of most other families.

    head_dim, tied, rotary_share: defaults of fields that config.json may lack.
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
    return {**_llama(config), "sliding_window": config.get("sliding_window", 0)}


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


def _rotary(config: Fields, head_dim: int, share: float) -> dict[str, Any]:
    """Fields of rotary positions, from rope_parameters or, in earlier files, from rope_scaling and the top level."""
    name = "rope_scaling" if config.get("rope_scaling", None) else "rope_parameters"
    rope = config.inner(name)
    if any(isinstance(value, Mapping) for value in config.get(name, {}).values()):
        raise config.refuse(name, "all layers must have the same rotary parameters")
    kind = rope.only("rope_type" if "rope_type" in rope else "type", "default", "linear", "llama3", default="default")
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", share))
    fields: dict[str, Any] = {
        "positions": "rotary",
        "rotary_base": rope.number("rope_theta", config.number("rope_theta", 10000.0)),
        "rotary_dims": int(head_dim * share) if share < 1 else 0,
    }
    if kind != "default":
        fields |= {"rotary_scaling": kind, "rotary_factor": rope.number("factor")}
    if kind == "llama3":
        original = rope.get("original_max_position_embeddings", config.count("max_position_embeddings"))
        fields |= {
            "rotary_low_freq": rope.number("low_freq_factor"),
            "rotary_high_freq": rope.number("high_freq_factor"),
            "rotary_original_len": config.get("original_max_position_embeddings", original),
        }
    return fields


LLAMA = Layout(
    norms={
        "input_layernorm": ("self_residual.norm",),
        "post_attention_layernorm": ("feed_forward_residual.norm",),
    },
    linears={
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): ("self_attention.query_key_value",),
        ("self_attn.o_proj",): ("self_attention.output",),
        ("mlp.gate_proj",): ("feed_forward.inner",),  # the projection with the activation
        ("mlp.up_proj",): ("feed_forward.gate",),
        ("mlp.down_proj",): ("feed_forward.outer",),
    },
    derived=("self_attn.rotary_emb.inv_freq",),
)
LLAMA_BIASES = {"attention_bias": "self_attn.", "mlp_bias": "mlp."}

QWEN3 = replace(
    LLAMA,
    norms={
        **LLAMA.norms,
        "self_attn.q_norm": ("self_attention.query_norm",),
        "self_attn.k_norm": ("self_attention.key_norm",),
    },
)

PHI3 = replace(
    LLAMA,
    linears={
        ("self_attn.qkv_proj",): ("self_attention.query_key_value",),
        ("self_attn.o_proj",): ("self_attention.output",),
        ("mlp.gate_up_proj",): ("feed_forward.inner", "feed_forward.gate"),
        ("mlp.down_proj",): ("feed_forward.outer",),
    },
)

PHI = Layout(
    norm="final_layernorm",
    norms={"input_layernorm": ("self_residual.norm", "feed_forward_residual.norm")},
    linears={
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): ("self_attention.query_key_value",),
        ("self_attn.dense",): ("self_attention.output",),
        ("mlp.fc1",): ("feed_forward.inner",),
        ("mlp.fc2",): ("feed_forward.outer",),
    },
    derived=("self_attn.rotary_emb.inv_freq",),
)

GPT2 = Layout(
    base="transformer.",
    layers="h",
    tokens="wte",
    positions="wpe",
    norm="ln_f",
    norms={"ln_1": ("self_residual.norm",), "ln_2": ("feed_forward_residual.norm",)},
    linears={
        ("attn.c_attn",): ("self_attention.query_key_value",),
        ("attn.c_proj",): ("self_attention.output",),
        ("mlp.c_fc",): ("feed_forward.inner",),
        ("mlp.c_proj",): ("feed_forward.outer",),
    },
    derived=("attn.bias", "attn.masked_bias"),
    is_transposed=True,
)

FAMILIES: dict[str, Family] = {
    "gpt2": DecoderFamily(describe=_gpt2, layout=GPT2, begins=False),
    "llama": DecoderFamily(describe=_llama, layout=LLAMA, biases=LLAMA_BIASES),
    "mistral": DecoderFamily(describe=_mistral, layout=LLAMA),
    "qwen2": DecoderFamily(describe=_qwen2, layout=LLAMA, begins=False),
    "qwen3": DecoderFamily(describe=_qwen3, layout=QWEN3, biases=LLAMA_BIASES, begins=False),
    "gemma": DecoderFamily(describe=_gemma, layout=replace(LLAMA, norm_offset=1.0), biases=LLAMA_BIASES),
    "phi": DecoderFamily(describe=_phi, layout=PHI, begins=False),
    "phi3": DecoderFamily(describe=_phi3, layout=PHI3),
}
