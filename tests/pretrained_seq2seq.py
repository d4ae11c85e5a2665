"""Encoder-decoder models of `transformers` with random weights, lively enough that answers vary and come to an end."""

from typing import Any, NamedTuple

import pytest
import torch

transformers = pytest.importorskip("transformers")

END = {"marian": 0, "t5": 1, "mt5": 1}  # eos by model_type; of others it is 2


class Shape(NamedTuple):
    """Sizes of all families. An odd vocabulary size would reveal rounding."""

    vocab_size: int = 101
    d_model: int = 48
    heads: int = 3
    head_dim: int = 24  # of T5, which may have one of its own
    d_ff: int = 56
    layers: tuple[int, int] = (3, 2)  # not the other way round: the library counts T5's caches by the encoder
    positions: int = 40


TINY = Shape()
REALISTIC = {
    "marian": Shape(6_001, 512, 8, 64, 2048, (6, 6), 512),
    "bart": Shape(5_003, 768, 12, 64, 3072, (6, 6), 1024),
    "mbart": Shape(7_919, 512, 16, 32, 2048, (6, 3), 1024),
    "m2m_100": Shape(8_191, 512, 4, 128, 2048, (4, 4), 1024),
    "t5": Shape(4_099, 512, 6, 64, 2048, (6, 6), 512),  # 6 * 64 is not 512
    "t5-1.1": Shape(6_007, 512, 5, 80, 1024, (6, 4), 512),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "marian": {"activation_function": "swish", "scale_embedding": True},
    "marian-two-tables": {
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": False,
        "add_final_layer_norm": False,
    },
    "marian-two-vocabularies": {
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 131,
    },
    "bart": {"activation_function": "gelu"},
    "bart-untied": {"activation_function": "relu", "tie_word_embeddings": False},
    "mbart": {"scale_embedding": True, "decoder_start_token_id": 7},
    "m2m_100": {"activation_function": "relu"},
    "t5": {"feed_forward_proj": "relu"},
    "t5-1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mt5": {"feed_forward_proj": "gated-gelu"},
}
MODELS = {
    "marian": "MarianMTModel",
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
}
# What a feed-forward adds is much the same everywhere, because its activations are positive; what differs is attention.
GAINS = {"fc2": 0.5, ".wo.": 0.5, "encoder_attn.out_proj": 1.0}


def make(variant, shape=TINY, *, seed=0, **changes):
    """A model in evaluation mode; the same seed gives the same weights. changes: of its configuration."""
    family = variant.split("-")[0]
    cls = getattr(transformers, MODELS[family])
    sizes = _t5_sizes(shape) if family in ("t5", "mt5") else _bart_sizes(shape, family)
    model = cls(cls.config_class(**{**sizes, **VARIANTS[variant], **changes})).eval()
    if variant == "t5-1.1":  # the library ties what it makes anew, and keeps apart what it reads
        model.lm_head.weight = torch.nn.Parameter(torch.empty(shape.vocab_size, shape.d_model))
    _enliven(model, END.get(family, 2), torch.Generator().manual_seed(seed))
    return model


def eos_of(model):
    """The id that ends its texts."""
    return END.get(model.config.model_type, 2)


def _bart_sizes(shape, family):
    both = {"attention_heads": shape.heads, "ffn_dim": shape.d_ff}
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in both.items()}
    if family == "marian":
        pad = shape.vocab_size - 1
        sizes |= {"pad_token_id": pad, "decoder_start_token_id": pad}
    return sizes | {
        "vocab_size": shape.vocab_size,
        "d_model": shape.d_model,
        "encoder_layers": shape.layers[0],
        "decoder_layers": shape.layers[1],
        "max_position_embeddings": shape.positions,
    }


def _t5_sizes(shape):
    return {
        "vocab_size": shape.vocab_size,
        "d_model": shape.d_model,
        "d_kv": shape.head_dim,
        "d_ff": shape.d_ff,
        "num_layers": shape.layers[0],
        "num_decoder_layers": shape.layers[1],
        "num_heads": shape.heads,
        "n_positions": shape.positions,
        "decoder_start_token_id": 0,
    }


def _embedding_gain(config):
    """Undoes what T5 1.0 divides its outputs by."""
    if getattr(config, "scale_decoder_outputs", False):
        return config.d_model**0.5
    return 2 if config.model_type == "marian" else 1


def _enliven(model, end, generator):
    """Weights so large that inputs decide; `end` wins often enough that answers end."""
    config = model.config
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            width = parameter.shape[-1] ** -0.5
            if config.model_type == "marian" and "embed_positions" in name:
                continue  # worked out
            if parameter.ndim == 1:
                parameter.copy_(noise * 0.1 + name.endswith("weight"))
            elif "relative_attention_bias" in name:
                parameter.copy_(noise)
            elif "shared" in name or "embed_" in name or "lm_head" in name:
                parameter.copy_(noise * _embedding_gain(config) * width)
            elif name.endswith(".q.weight"):
                # T5 divides no scores by the root of head_dim. Queries twice as large cost float32 three digits (logits
                # of both libraries are then 4e-3 from those of float64).
                parameter.copy_(noise * width * config.d_kv**-0.5)
            else:
                gain = next((gain for part, gain in GAINS.items() if part in name), 2.0)
                parameter.copy_(noise * gain * width)
        *_, last = (name for name, _ in model.named_parameters() if "decoder" in name and name.endswith("norm.weight"))
        gain = model.get_parameter(last)  # of mixed signs, or answers would repeat what the decoder has just read
        gain.copy_(torch.randn(gain.shape, generator=generator) * 2)
        model.get_output_embeddings().weight[end] *= 1.5
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator) * 0.1)
            model.final_logits_bias[0, end] += 1
    model.generation_config.forced_eos_token_id = None  # which would put an end where an answer is cut off
