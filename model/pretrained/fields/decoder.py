"""The fields of `config.json` of each decoder-only family → fields of `DecoderConfig`, but for special tokens; and what
else of them becomes part of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from model.pretrained.fields.layers import by_layer, kinds_of_layers, window_of
from model.pretrained.fields.rotary import FULL, SLIDING, THETA, rotary, rotary_by_kind
from model.pretrained.files import ACTIVATIONS, Fields

Changes = Mapping[str, Callable[[Tensor], Tensor]]
"""Functions of stored parameters, by our names."""


def gpt2(config: Fields) -> dict[str, Any]:
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


def llama(
    config: Fields,
    *,
    head_dim: int = 0,
    tied: bool = False,
    rotary_share: float | None = None,
    norm_eps: float = 1e-6,
    theta: float = THETA,
) -> dict[str, Any]:
    """Touvron et al. 2023: rotary positions, RMSNorm, gated feed-forward, no biases; the base of most other families.

    head_dim, tied, rotary_share, norm_eps, theta: defaults of fields that config.json may lack. rotary_share None: all
    of a head.
    """
    block = _block(config, head_dim=head_dim, tied=tied, norm_eps=norm_eps)
    activation = activation_of(config, ACTIVATIONS, "hidden_act", default="silu")
    return {**block, "activation": activation, **rotary(config, block["head_dim"], rotary_share, theta=theta)}


def _block(config: Fields, *, head_dim: int, tied: bool, norm_eps: float = 1e-6) -> dict[str, Any]:
    """The fields of `llama` without positions and activation."""
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    return {
        "vocab_size": config.count("vocab_size"),
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads", heads),
        "head_dim": config.get("head_dim", head_dim or width // heads),
        "d_ff": config.count("intermediate_size"),
        "num_decoder_layers": config.count("num_hidden_layers"),
        "gated": True,
        "norm": "rms",
        "norm_eps": config.number("rms_norm_eps", norm_eps),
        "embedding_scale": 1.0,
        "tie_embeddings": config.get("tie_word_embeddings", tied),
        "max_target_len": config.count("max_position_embeddings"),
    }


def activation_of(config: Fields, words: Mapping[str, str], name: str, *, default: str) -> str:
    """The activation in the field that the family reads. Raises PretrainedError if the other one says otherwise."""
    found = config.choice(name, words, default=default)
    (other,) = {"hidden_act", "hidden_activation"} - {name}
    if (beside := config.get(other, None)) is not None and words.get(beside) != found:
        raise config.refuse(other, f"{name} says {config.get(name, default)!r}; remove one")
    return found


def mistral(config: Fields) -> dict[str, Any]:
    """Jiang et al. 2023: a sliding window in every layer."""
    sliding_window = config.get("sliding_window", 0) if "sliding_window" in config else 4096
    return {**llama(config), "sliding_window": sliding_window}


def qwen2(config: Fields) -> dict[str, Any]:
    """Yang et al. 2024: biases only in the query, key and value projections."""
    return {**llama(config), "qkv_bias": True, **_late_windows(config)}


def qwen3(config: Fields) -> dict[str, Any]:
    """Yang et al. 2025: each head's query and key are normalised."""
    return {**llama(config, head_dim=128), "qk_norm": True, **_late_windows(config)}


def gemma(config: Fields) -> dict[str, Any]:
    """Mesnard et al. 2024: embeddings scaled by sqrt(d_model), norm weights stored minus 1, gated GELU."""
    words = {**ACTIVATIONS, "gelu": "gelu_tanh"}  # the first release wrote gelu for gelu_tanh
    return {
        **llama(config, head_dim=256, tied=True),
        "activation": activation_of(config, words, "hidden_act", default="gelu_pytorch_tanh"),
        "embedding_scale": 0.0,
    }


def phi(config: Fields) -> dict[str, Any]:
    """Li et al. 2023: attention and feed-forward in parallel after one norm, rotary on half of each head, biases."""
    config.only("qk_layernorm", False, default=False)
    return {
        **llama(config, rotary_share=0.5),
        "activation": activation_of(config, ACTIVATIONS, "hidden_act", default="gelu_new"),
        "gated": False,
        "norm": "layer",
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "parallel_residual": True,
        "bias": True,
        "output_bias": True,
    }


def phi3(config: Fields) -> dict[str, Any]:
    """Abdin et al. 2024: Llama with fused query-key-value and gate-up projections."""
    return {**llama(config, rotary_share=1.0), "sliding_window": config.get("sliding_window", 0)}


def gemma2(config: Fields) -> dict[str, Any]:
    """Riviere et al. 2024: norms around every sublayer, soft caps, a window in every second layer."""
    rope = rotary(config, config.get("head_dim", 256))
    caps = {
        "attention_softcap": _cap(config, "attn_logit_softcapping", 50.0),
        "logits_softcap": _cap(config, "final_logit_softcapping", 30.0),
    }
    return {**_later_gemma(config, dict.fromkeys((FULL, SLIDING), rope), pattern=2), **caps}


def gemma3(config: Fields, *, is_causal: bool = True) -> dict[str, Any]:
    """Kamath et al. 2025: as Gemma 2, with norms of queries and keys for the cap of scores, five windows for each full
    layer, and other angles in those. is_causal: false for EmbeddingGemma."""
    config.only("use_bidirectional_attention", not is_causal, default=False)
    thetas = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
    ropes = rotary_by_kind(config, config.get("head_dim", 256), thetas=thetas)
    cap = _cap(config, "final_logit_softcapping", 0.0)
    config.only("attn_logit_softcapping", None, default=None)  # no model has it, and transformers 5.23 ignores it
    pattern = config.count("sliding_window_pattern") if "sliding_window_pattern" in config else 6
    fields = _later_gemma(config, ropes, pattern=pattern, is_causal=is_causal)
    return {**fields, "qk_norm": True, "logits_softcap": cap}


def _later_gemma(
    config: Fields, ropes: Mapping[str, dict[str, Any]], *, pattern: int, is_causal: bool = True
) -> dict[str, Any]:
    """What Gemma 2 and 3 share. ropes: fields of rotary positions by kind of layer. pattern: without layer_types, each
    layer of a multiple of this number is full. A window in both directions is half as long in each."""
    kinds = kinds_of_layers(config, [SLIDING if (layer + 1) % pattern else FULL for layer in range(_layers(config))])
    windows = {kind: window_of(config, kind, usual=4096) for kind in {*kinds}}
    if not is_causal:
        windows = {kind: window and window // 2 + 1 for kind, window in windows.items()}
    layers = [{"sliding_window": windows[kind], **ropes[kind]} for kind in kinds]
    return {
        **_block(config, head_dim=256, tied=True),
        **by_layer(config, layers),
        "activation": activation_of(config, ACTIVATIONS, "hidden_activation", default="gelu_pytorch_tanh"),
        "norm_position": "sandwich",
        "embedding_scale": 0.0,
        "attention_scale": _factor(config, "query_pre_attn_scalar", 256) ** -0.5,
    }


def smollm3(config: Fields) -> dict[str, Any]:
    """Bakouch et al. 2025: every fourth layer has no positions (Yang et al. 2025, RNoPE)."""
    count = _layers(config)
    interval = config.count("no_rope_layer_interval") if "no_rope_layer_interval" in config else 4
    turns = config.get("no_rope_layers", [int((layer + 1) % interval != 0) for layer in range(count)])
    if not isinstance(turns, list) or len(turns) < count:
        raise config.refuse("no_rope_layers", f"covered: a list with 0 or 1 for each of {count} layers")
    has_windows = config.get("use_sliding_window", False) and config.get("sliding_window", None) is not None
    kinds = kinds_of_layers(config, [SLIDING if has_windows and not turns[layer] else FULL for layer in range(count)])
    layers = [
        {"sliding_window": window_of(config, kind), "positions": "rotary" if turn else "none"}
        for kind, turn in zip(kinds, turns, strict=False)
    ]
    return {**llama(config, tied=True, theta=2e6), **by_layer(config, layers)}


def olmo2(config: Fields) -> dict[str, Any]:
    """OLMo et al. 2025: norms only after the sublayers, and of all heads' queries and keys together."""
    return {**llama(config, norm_eps=1e-5), "qk_norm": True, "qk_norm_span": "all", "norm_position": "res_post"}


def granite(config: Fields) -> dict[str, Any]:
    """IBM 2024: Llama with multipliers; those of residuals and logits become part of weights, see `granite_factors`."""
    scales = {"attention_scale": "attention_multiplier", "embedding_scale": "embedding_multiplier"}
    return {**llama(config), **{ours: _factor(config, theirs, 1.0) for ours, theirs in scales.items()}}


def granite_changes(config: Fields) -> Changes:
    """Multipliers as part of weights: the last products of sublayers, and the last norm, whose states the logits
    multiply."""
    names = [f"self_attention.output.{part}" for part in ("weight", "bias")]
    names += [f"feed_forward.outer.{part}" for part in ("weight", "bias")]
    residual = _times(_factor(config, "residual_multiplier", 1.0))
    in_every_block = dict.fromkeys((f"decoder.blocks.{{}}.{name}" for name in names), residual)
    return {**in_every_block, "decoder.norm.weight": _times(1.0 / _factor(config, "logits_scaling", 1.0))}


def cohere(config: Fields, *, theta: float = 500_000.0) -> dict[str, Any]:
    """Command R (Cohere 2024): attention and feed-forward in parallel after one norm, a LayerNorm without bias. theta:
    as of `llama`."""
    config.only("use_qk_norm", False, default=False)  # a gain of its own for each head
    return {
        **llama(config, tied=True, theta=theta),
        "norm": "layer",
        "norm_eps": config.number("layer_norm_eps", 1e-5),
        "parallel_residual": True,
    }


def cohere2(config: Fields) -> dict[str, Any]:
    """Command R7B (Cohere 2024): also windows in three of four layers, the others without positions."""
    pattern = config.count("sliding_window_pattern") if "sliding_window_pattern" in config else 4
    kinds = kinds_of_layers(config, [SLIDING if (layer + 1) % pattern else FULL for layer in range(_layers(config))])
    windows = {kind: window_of(config, kind, usual=4096) for kind in {*kinds}}
    layers = [{"sliding_window": windows[kind], "positions": "rotary" if kind == SLIDING else "none"} for kind in kinds]
    return {**cohere(config, theta=THETA), **by_layer(config, layers)}


def cohere_changes(config: Fields) -> Changes:
    """The scale of the logits as part of the last norm; queries and keys whose neighbouring dimensions turn together,
    in the order of the two halves."""
    heads = config.count("num_attention_heads")
    sizes = (heads, config.get("num_key_value_heads", heads))
    head_dim = config.get("head_dim", config.count("hidden_size") // heads)

    def in_halves(stored: Tensor) -> Tensor:
        turning, values = stored[: sum(sizes) * head_dim], stored[sum(sizes) * head_dim :]
        pairs = turning.reshape(sum(sizes), head_dim // 2, 2, *stored.shape[1:])
        return torch.cat((pairs.transpose(1, 2).flatten(0, 2), values))

    name = "decoder.blocks.{}.self_attention.query_key_value"
    scale = _times(_factor(config, "logit_scale", 0.0625))
    return {f"{name}.weight": in_halves, f"{name}.bias": in_halves, "decoder.norm.weight": scale}


def hunyuan(config: Fields) -> dict[str, Any]:
    """Hunyuan-MT (Zheng et al. 2025): queries and keys turn before their norms."""
    return {**llama(config, norm_eps=1e-5), "qk_norm": True, "qk_norm_after_rotary": True}


def _late_windows(config: Fields) -> dict[str, Any]:
    """The windows of Qwen2 and Qwen3, from a layer on."""
    if not config.get("use_sliding_window", False):
        return {"sliding_window": 0}
    first = config.get("max_window_layers", 28)
    kinds = kinds_of_layers(config, [SLIDING if layer >= first else FULL for layer in range(_layers(config))])
    return by_layer(config, [{"sliding_window": window_of(config, kind)} for kind in kinds])


def _layers(config: Fields) -> int:
    return config.count("num_hidden_layers")


def _cap(config: Fields, name: str, usual: float) -> float:
    """A soft cap; 0: none. usual: where the field is missing."""
    if config.get(name, None) is None:
        return 0.0 if name in config else usual
    return _factor(config, name, usual)


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda stored: stored * factor


def _factor(config: Fields, name: str, usual: float) -> float:
    """A number above 0. usual: where the field is missing."""
    if not 0 < (found := config.number(name, usual)) < math.inf:
        raise config.refuse(name, "covered: numbers above 0")
    return found
