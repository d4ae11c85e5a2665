"""Decoder-only models as `transformers` makes them: random weights, odd sizes, varied outputs."""

import json
from typing import Any

import torch
import transformers

TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 160,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}


def rope(kind="default", theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


LLAMA3 = rope(
    "llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)

GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 1}
# A query scale that is not the head's, a window shorter than prompts, other angles where there is one.
GEMMA = {
    **GROUPED,
    "head_dim": 32,
    "num_hidden_layers": 3,
    "query_pre_attn_scalar": 50,
    "sliding_window": 20,
    "initializer_range": 0.15,
}
GEMMA3 = {
    **GEMMA,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    },
}
LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 64,
    **rope(
        "longrope",
        partial_rotary_factor=0.5,
        short_factor=[1.0, 1.1, 1.2, 1.3],
        long_factor=[1.5, 2.8, 4.1, 5.4],
    ),
}
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)

FAMILIES = (
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "phi",
    "phi3",
    "gemma2",
    "gemma3_text",
    "smollm3",
    "olmo2",
    "granite",
    "cohere",
    "cohere2",
    "hunyuan_v1_dense",
)
"""Those that are imported, by model_type."""

# Name → class of the configuration, and what differs from TINY.
DECODERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (transformers.GPT2Config, {"bos_token_id": 2, "initializer_range": 0.15}),
    "gpt2 untied": (
        transformers.GPT2Config,
        {
            "hidden_size": 64,
            "num_attention_heads": 2,
            "n_inner": 100,
            "bos_token_id": 2,
            "initializer_range": 0.15,
            "activation_function": "relu",
            "tie_word_embeddings": False,
        },
    ),
    "llama": (transformers.LlamaConfig, {}),
    "llama tied, biases": (
        transformers.LlamaConfig,
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "num_attention_heads": 4},
    ),
    "llama attention biases": (transformers.LlamaConfig, {"attention_bias": True, "num_key_value_heads": 3}),
    "llama linear": (transformers.LlamaConfig, {"head_dim": None, **rope("linear", factor=4.0)}),
    "llama3": (transformers.LlamaConfig, {"num_attention_heads": 6, "num_key_value_heads": 2, **LLAMA3}),
    "mistral": (transformers.MistralConfig, {"sliding_window": 20, "num_attention_heads": 4}),
    "mistral without window": (transformers.MistralConfig, {"sliding_window": None, "tie_word_embeddings": True}),
    "qwen2": (transformers.Qwen2Config, {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen2 window": (
        transformers.Qwen2Config,
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    ),
    "qwen3": (transformers.Qwen3Config, {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen3 biases": (transformers.Qwen3Config, {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma": (transformers.GemmaConfig, {"hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.15}),
    "qwen2 yarn": (transformers.Qwen2Config, {"head_dim": 16, "num_key_value_heads": 3, **YARN}),
    "qwen3 yarn, late windows": (
        transformers.Qwen3Config,
        {**YARN, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    ),
    "gemma2": (transformers.Gemma2Config, {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    "gemma3_text": (transformers.Gemma3TextConfig, GEMMA3),
    "gemma3_text capped": (
        transformers.Gemma3TextConfig,
        {**GEMMA, "final_logit_softcapping": 5.0, "num_hidden_layers": 2},
    ),
    "smollm3": (transformers.SmolLM3Config, {**GROUPED, "num_hidden_layers": 5, "initializer_range": 0.2}),
    "smollm3 windows": (
        transformers.SmolLM3Config,
        {**GROUPED, "no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 20},
    ),
    "olmo2": (transformers.Olmo2Config, GROUPED),
    "granite": (
        transformers.GraniteConfig,
        {
            **GROUPED,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.1,
            "logits_scaling": 1.7,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "cohere": (transformers.CohereConfig, {**GROUPED, "logit_scale": 0.7, "tie_word_embeddings": True}),
    "cohere biases": (
        transformers.CohereConfig,
        {"attention_bias": True, "logit_scale": 1.3, "tie_word_embeddings": False},
    ),
    "cohere2": (
        transformers.Cohere2Config,
        {**GROUPED, "num_hidden_layers": 4, "sliding_window": 20, "logit_scale": 0.7},
    ),
    "hunyuan_v1_dense": (transformers.HunYuanDenseV1Config, GROUPED),
    "hunyuan_v1_dense alpha": (
        transformers.HunYuanDenseV1Config,
        {**GROUPED, **rope("dynamic", alpha=50.0, factor=1.0, beta_fast=32, beta_slow=1), "tie_word_embeddings": True},
    ),
    "phi": (transformers.PhiConfig, {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}),
    "phi narrow": (transformers.PhiConfig, {"head_dim": 16, **rope(partial_rotary_factor=0.25)}),
    "phi3": (
        transformers.Phi3Config,
        {"num_key_value_heads": 3, "head_dim": 16, "sliding_window": 33, **rope(partial_rotary_factor=0.5)},
    ),
    "phi3 longrope": (transformers.Phi3Config, {"num_key_value_heads": 3, "head_dim": 16, **LONGROPE}),
}

_WIDE = {"vocab_size": 4999, "max_position_embeddings": 2048, "num_hidden_layers": 3, "initializer_range": 0.06}
_ODD_HEADS: dict[str, Any] = {  # of 48, where 320 / 8 is 40; four queries share a key
    **_WIDE,
    "hidden_size": 320,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "intermediate_size": 960,
}
# Name → shapes as they are found outside, but for the number of layers and of words.
REALISTIC: dict[str, dict[str, Any]] = {
    "gpt2": {**_WIDE, "hidden_size": 384, "num_attention_heads": 6, "initializer_range": 0.08},
    "llama3": {
        **_WIDE,
        "hidden_size": 384,
        "num_attention_heads": 12,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "intermediate_size": 1000,
    },
    "mistral": {
        **_WIDE,
        "hidden_size": 320,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "intermediate_size": 896,
        "sliding_window": 150,
    },
    "qwen2": {
        **_WIDE,
        "hidden_size": 448,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "intermediate_size": 1216,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "qwen3": {
        **_WIDE,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 768,
    },
    "gemma": {
        **_WIDE,
        "hidden_size": 256,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 96,
        "intermediate_size": 1024,
    },
    "gemma2": {
        **_WIDE,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 96,
        "intermediate_size": 1024,
        "query_pre_attn_scalar": 144,
        "sliding_window": 64,
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 10.0,
    },
    "gemma3_text": {
        **_WIDE,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 96,
        "intermediate_size": 1024,
        "query_pre_attn_scalar": 168,
        "sliding_window": 64,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
    "smollm3": {
        **_ODD_HEADS,
        "num_hidden_layers": 4,
    },
    "olmo2": {
        **_ODD_HEADS,
    },
    "granite": {
        **_ODD_HEADS,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625,
        "logits_scaling": 1.5,
    },
    "hunyuan_v1_dense": {
        **_ODD_HEADS,
    },
    "cohere": {
        **_ODD_HEADS,
        "logit_scale": 0.0625,
    },
    "cohere2": {
        **_ODD_HEADS,
        "num_hidden_layers": 4,
        "sliding_window": 64,
        "logit_scale": 0.25,
    },
    "phi3 longrope": {  # served with a context of 4,096, up to which the short factors count
        **_WIDE,
        "hidden_size": 384,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 48,
        "intermediate_size": 960,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        **rope(
            "longrope",
            partial_rotary_factor=0.75,
            short_factor=[1.0 + 0.05 * i for i in range(18)],
            long_factor=[1.0 + 1.5 * i for i in range(18)],
        ),
    },
    "phi": {
        **_WIDE,
        "hidden_size": 320,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 80,
        "intermediate_size": 1280,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.4},
    },
}


def make_decoder(name, seed=0, **changes):
    """A model of transformers, in evaluation mode; biases and norms that start at 0 and 1 vary as well."""
    kind, differences = DECODERS[name]
    torch.manual_seed(seed)
    config = kind(**{**TINY, **differences, **changes})
    how = "eager" if hasattr(config, "attn_logit_softcapping") else "sdpa"  # which caps no scores
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=how).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn(parameter.shape) * 0.1
    return model


def rewritten(path, tmp_path, **changes):
    """A copy of a directory with other fields in its config.json; those that are ... are left out."""
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = {**json.loads((path / "config.json").read_text()), **changes}
    kept = {name: value for name, value in config.items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    return tmp_path
