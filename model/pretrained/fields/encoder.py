"""The fields of `config.json` of each encoder family → fields of `EncoderConfig`, but for special tokens and heads."""

from __future__ import annotations

from typing import Any

from model.pretrained.fields.decoder import activation_of, gemma3
from model.pretrained.fields.layers import by_layer, kinds_of_layers
from model.pretrained.fields.rotary import FULL, SLIDING, rotary_by_kind
from model.pretrained.files import ACTIVATIONS, Fields

NORM_EPS = 1e-12  # of BERT, and fixed in DistilBERT


def bert(config: Fields) -> dict[str, Any]:
    """Devlin et al. 2019: learned positions, a norm after the embeddings, post-norm blocks."""
    shape = {
        "d_model": "hidden_size",
        "num_heads": "num_attention_heads",
        "d_ff": "intermediate_size",
        "num_encoder_layers": "num_hidden_layers",
    }
    activation = config.choice("hidden_act", ACTIVATIONS, default="gelu")
    return {**_post_norm(config, activation), **{ours: config.count(theirs) for ours, theirs in shape.items()}}


def distilbert(config: Fields) -> dict[str, Any]:
    """Sanh et al. 2019: BERT under other names."""
    shape = {"d_model": "dim", "num_heads": "n_heads", "d_ff": "hidden_dim", "num_encoder_layers": "n_layers"}
    activation = config.choice("activation", ACTIVATIONS, default="gelu")
    return {**_post_norm(config, activation), **{ours: config.count(theirs) for ours, theirs in shape.items()}}


def _post_norm(config: Fields, activation: str) -> dict[str, Any]:
    config.only("position_embedding_type", "absolute", default="absolute")
    return {
        "activation": activation,
        "norm_position": "post",
        "norm_eps": config.number("layer_norm_eps", NORM_EPS),
        "positions": "learned",
        "embedding_norm": True,
        "embedding_scale": 1.0,
    }


def modernbert(config: Fields) -> dict[str, Any]:
    """Warner et al. 2024: windows in two of three layers, whose angles differ; gated GELU, pre-norm without the first
    norm, no biases."""
    count, width, heads = (config.count(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    config.only("head_dim", None, width // heads, default=None)
    config.only("rope_scaling", None, default=None)  # transformers 5.23 gives it to both kinds of layers
    interval = config.count("global_attn_every_n_layers") if "global_attn_every_n_layers" in config else 3
    kinds = kinds_of_layers(config, [SLIDING if layer % interval else FULL for layer in range(count)])
    thetas = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
    ropes = rotary_by_kind(config, width // heads, thetas=thetas)
    # Both ends of a window are within it.
    window = config.count("local_attention") // 2 + 1 if "local_attention" in config else 65
    layers = [{"sliding_window": window if kind == SLIDING else 0, **ropes[kind]} for kind in kinds]
    activation = activation_of(config, ACTIVATIONS, "hidden_activation", default="gelu")
    norm_eps = config.number("norm_eps", 1e-5)
    config.only("layer_norm_eps", norm_eps, default=norm_eps)  # which files have beside it
    config.only("position_embedding_type", "absolute", default="absolute")
    return {
        **by_layer(config, layers),
        "d_model": width,
        "num_heads": heads,
        "d_ff": config.count("intermediate_size"),
        "num_encoder_layers": count,
        "activation": activation,
        "output_bias": config.get("decoder_bias", True),
        "gated": True,
        "norm_eps": norm_eps,
        "first_attention_norm": False,
        "embedding_norm": True,
        "embedding_scale": 1.0,
        "max_source_len": config.count("max_position_embeddings"),
    }


def embedding_gemma(config: Fields) -> dict[str, Any]:
    """Vera et al. 2025: Gemma 3, whose layers attend in both directions."""
    fields = gemma3(config, is_causal=False)
    renamed = {"num_decoder_layers": "num_encoder_layers", "max_target_len": "max_source_len"}
    of_logits = ("vocab_size", "tie_embeddings", "logits_softcap")
    return {renamed.get(name, name): value for name, value in fields.items() if name not in of_logits}
