"""Decoder-only families: converts `config.json` to a `DecoderConfig` and maps weight names.

`fields.decoder` has what each family means by its fields.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from model.architecture_config import DecoderConfig
from model.pretrained.banned_tokens import with_bans
from model.pretrained.fields import decoder as of
from model.pretrained.fields.layers import unbiased
from model.pretrained.files import Family, Fields, Imported, Names, Weights, in_blocks, read_weights
from model.pretrained.text_part import OTHER_TENSORS, PREFIXES

OUTPUT_BIAS = "decoder.unembedding.bias"
BUFFERS = ("*.rotary_emb.inv_freq", "*.attn.bias", "*.attn.masked_bias")  # follow from the configuration


@dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """A `Family` of decoder-only models. describe: config.json → fields of `DecoderConfig` except special tokens.

    biases: see `unbiased`. changes: functions of stored parameters; adapt: those that depend on config.json.
    prefixes: before names of tensors. unused: tensors of parts that generate no text. Banned tokens get an output
    bias, as those of encoder-decoders.
    """

    describe: Callable[[Fields], dict[str, Any]]
    names: Names
    biases: Mapping[str, str] = field(default_factory=dict)
    changes: of.Changes = field(default_factory=dict)
    adapt: Callable[[Fields], of.Changes] = lambda _: {}
    prefixes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def __call__(self, config: Fields, generation: Fields, weights: Weights) -> Imported:
        config.only("is_encoder_decoder", False, default=False)
        tokens = _special_tokens(config, generation)
        has_bias = any(config.get(name, False) for name in self.biases)
        fields = {"bias": has_bias, **self.describe(config), **tokens}
        ban = functools.partial(
            with_bans, fields=generation or config, ends=(fields["eos_id"], *fields["extra_eos_ids"])
        )
        ban_V = ban(torch.zeros(config.count("vocab_size")))
        has_own, is_banned = fields.get("output_bias", False), bool(ban_V.any())
        model = DecoderConfig(**{**fields, "output_bias": has_own or is_banned})
        names = {**self.names, **unbiased(self.names, config, self.biases)}
        changes: of.Changes = {**self.changes, OUTPUT_BIAS: ban, **self.adapt(config)}
        weights.strip(*self.prefixes)
        weights.drop(*self.unused)
        table = f"{names['decoder.embedding.tokens']}.weight"
        if model.tie_embeddings and weights.tie("lm_head.weight", table):
            names["decoder.unembedding.weight"] = table
        else:
            model = model.replace(tie_embeddings=False)
        known = {OUTPUT_BIAS: ban_V} if is_banned and not has_own else {}
        imported = read_weights(model, weights, names, known=known, changes=changes)
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
LLAMA_BIASES = {"attention_bias": f"{BLOCK}self_attention.*", "mlp_bias": f"{BLOCK}feed_forward.*"}

SANDWICH_BLOCK: Names = {
    **LLAMA_BLOCK,
    "self_residual.norm_after": "post_attention_layernorm",
    "feed_forward_residual.norm": "pre_feedforward_layernorm",
    "feed_forward_residual.norm_after": "post_feedforward_layernorm",
}
SANDWICH: Names = {**LLAMA, **in_blocks("decoder", "model.layers.{}", SANDWICH_BLOCK)}

OLMO2_BLOCK: Names = {
    **LLAMA_BLOCK,
    "self_residual.norm": "post_attention_layernorm",
    "feed_forward_residual.norm": "post_feedforward_layernorm",
}

HUNYUAN_BLOCK: Names = {
    **LLAMA_BLOCK,
    "self_attention.query_norm": "self_attn.query_layernorm",
    "self_attention.key_norm": "self_attn.key_layernorm",
}

COHERE_BLOCK: Names = {
    **LLAMA_BLOCK,
    "self_residual.norm.bias": (),
    "feed_forward_residual.norm": "input_layernorm",
    "feed_forward_residual.norm.bias": (),
}
COHERE: Names = {**LLAMA, **in_blocks("decoder", "model.layers.{}", COHERE_BLOCK), "decoder.norm.bias": ()}

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


def _half(number: int, stored: Tensor) -> Tensor:
    return stored.tensor_split(2)[number]


def halves(block: str) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Changes of a feed-forward whose first products are stored as one, that with the activation first."""
    return {
        f"{block}feed_forward.{layer}.{part}": functools.partial(_half, half)
        for half, layer in enumerate(("inner", "gate"))
        for part in ("weight", "bias")
    }


GAINS = {  # which Gemma stores less 1
    f"{layer}.weight": lambda stored: stored + 1.0 for layer in SANDWICH if layer.endswith(("norm", "norm_after"))
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
        describe=of.gpt2,
        names=GPT2,
        changes={f"{BLOCK}{layer}.weight": Tensor.t for layer in GPT2_BLOCK if "norm" not in layer},  # stored (in, out)
    ),
    "llama": DecoderFamily(describe=of.llama, names=LLAMA, biases=LLAMA_BIASES),
    "mistral": DecoderFamily(describe=of.mistral, names=LLAMA),
    "qwen2": DecoderFamily(describe=of.qwen2, names=LLAMA),
    "qwen3": DecoderFamily(describe=of.qwen3, names=LLAMA, biases=LLAMA_BIASES),
    "gemma": DecoderFamily(describe=of.gemma, names=LLAMA, biases=LLAMA_BIASES, changes=GAINS),
    "gemma2": DecoderFamily(describe=of.gemma2, names=SANDWICH, biases=LLAMA_BIASES, changes=GAINS),
    "gemma3_text": DecoderFamily(describe=of.gemma3, names=SANDWICH, biases=LLAMA_BIASES, changes=GAINS),
    "gemma3": DecoderFamily(
        describe=of.gemma3, names=SANDWICH, biases=LLAMA_BIASES, changes=GAINS, prefixes=PREFIXES, unused=OTHER_TENSORS
    ),
    "smollm3": DecoderFamily(describe=of.smollm3, names=LLAMA, biases=LLAMA_BIASES),
    "olmo2": DecoderFamily(
        describe=of.olmo2,
        names={**LLAMA, **in_blocks("decoder", "model.layers.{}", OLMO2_BLOCK)},
        biases=LLAMA_BIASES,
    ),
    "granite": DecoderFamily(describe=of.granite, names=LLAMA, biases=LLAMA_BIASES, adapt=of.granite_changes),
    "cohere": DecoderFamily(describe=of.cohere, names=COHERE, biases=LLAMA_BIASES, adapt=of.cohere_changes),
    "cohere2": DecoderFamily(describe=of.cohere2, names=COHERE, biases=LLAMA_BIASES, adapt=of.cohere_changes),
    "hunyuan_v1_dense": DecoderFamily(
        describe=of.hunyuan,
        names={**LLAMA, **in_blocks("decoder", "model.layers.{}", HUNYUAN_BLOCK)},
        biases=LLAMA_BIASES,
    ),
    "phi": DecoderFamily(
        describe=of.phi,
        names={**LLAMA, **in_blocks("decoder", "model.layers.{}", PHI_BLOCK), "decoder.norm": "model.final_layernorm"},
    ),
    "phi3": DecoderFamily(
        describe=of.phi3,
        names={**LLAMA, **in_blocks("decoder", "model.layers.{}", PHI3_BLOCK)},
        changes=halves(BLOCK),
    ),
}
