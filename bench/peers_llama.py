"""A decoder-only model of random weights in the shape of Llama: as a bundle of ours and for peers, the same weights.

LlamaForCausalLM has the architecture of a `DecoderConfig` with RMS norm before each sublayer, rotary positions, a gated
feed-forward with SiLU, grouped-query heads, no biases and two tables of tokens; only its embeddings are not scaled, so
ours are scaled when they are copied. Its logits are compared with ours before anything is written.

The rows of the special tokens in the last product are zero, so that no answer ends early: some of 32,000 random
logits are positive.


writes DIRECTORY/llama for readers of Hugging Face models, and DIRECTORY/bundle-SCHEME for each scheme.
"""

from __future__ import annotations

import argparse
import importlib
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.case import Flag, case
from bench.peers import NotRepresentable, transformers_logits, verify
from bench.unverified_bundle import random_tokenizer, save_unverified
from export.bundle.directory import VersionError, load_manifest
from export.bundle.manifest import TOKENIZER
from export.variants import Traced, trace_model
from model.architecture_config import DecoderConfig
from model.layers import Block
from model.tokenizer import SPECIAL, Tokenizer
from model.transformer import Decoder

PEER, BUNDLE = "llama", "bundle-{scheme}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """125 million parameters as it stands."""

    layers: int = 12
    width: int = 768
    words: int = 32000
    kv_heads: int = 4
    positions: int = 512

    def config(self) -> DecoderConfig:
        return DecoderConfig(
            vocab_size=self.words,
            d_model=self.width,
            num_heads=self.width // 64,
            num_kv_heads=self.kv_heads,
            d_ff=self.width * 8 // 3 // 64 * 64,  # two thirds of four times the width, as in Llama
            num_decoder_layers=self.layers,
            activation="silu",
            gated=True,
            norm="rms",
            positions="rotary",
            bias=False,
            tie_embeddings=False,
            max_target_len=self.positions,
        )


def random_llama(shape: Shape, seed: int = 1) -> Decoder:
    """Ready to be exported; its answers never end by themselves."""
    torch.manual_seed(seed)
    model = Decoder(shape.config()).eval()
    with torch.no_grad():
        model.decoder.unembedding.weight[: len(SPECIAL)] = 0.0
    return model


def llama_model(model: Decoder) -> Any:
    """LlamaForCausalLM with our weights; its logits are verified. Raises NotRepresentable."""
    library, config = importlib.import_module("transformers"), model.config
    kind = (config.norm, config.norm_position, config.positions, config.gated, config.bias, config.tie_embeddings)
    if kind != ("rms", "pre", "rotary", True, False, False):
        raise NotRepresentable(f"Llama has no model of this shape: {config}")
    theirs = library.LlamaForCausalLM(
        library.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.num_decoder_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.attention_kv_heads,
            head_dim=config.attention_head_dim,
            hidden_act=config.activation,
            max_position_embeddings=config.max_target_len,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base},
            tie_word_embeddings=False,
            pad_token_id=config.pad_id,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            dtype="float32",
        )
    ).eval()
    theirs.load_state_dict(_weights(model))
    verify("transformers", model, lambda source, inputs: transformers_logits(theirs, source, inputs))
    return theirs


def _weights(model: Decoder) -> dict[str, Tensor]:
    """Ours by their names."""
    config, stack = model.config, model.decoder
    scaled = stack.embedding.tokens.weight * math.sqrt(config.d_model)
    weights = {"model.embed_tokens.weight": scaled, "lm_head.weight": stack.unembedding.weight}
    weights["model.norm.weight"] = _weight(stack.norm)
    for i, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        name, attention, feed_forward = f"model.layers.{i}", block.self_attention, block.feed_forward
        assert feed_forward.gate is not None
        parts = attention.query_key_value.weight.split(attention.sizes)
        for letter, part in zip("qkv", parts, strict=True):
            weights[f"{name}.self_attn.{letter}_proj.weight"] = part
        weights |= {
            f"{name}.self_attn.o_proj.weight": attention.output.weight,
            f"{name}.mlp.gate_proj.weight": feed_forward.inner.weight,  # theirs is what goes through the activation
            f"{name}.mlp.up_proj.weight": feed_forward.gate.weight,
            f"{name}.mlp.down_proj.weight": feed_forward.outer.weight,
            f"{name}.input_layernorm.weight": _weight(block.self_residual.norm),
            f"{name}.post_attention_layernorm.weight": _weight(block.feed_forward_residual.norm),
        }
    return weights


def _weight(norm: nn.Module) -> Tensor:
    return dict(norm.named_parameters())["weight"]


def save_peer(theirs: Any, tokenizer: Tokenizer, directory: Path) -> None:
    """A directory that `from_pretrained` reads, tokenizer included."""
    theirs.save_pretrained(directory)
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    tokenizer.save(directory / TOKENIZER)
    fast = importlib.import_module("transformers").PreTrainedTokenizerFast
    fast(tokenizer_file=str(directory / TOKENIZER), **names).save_pretrained(directory)


def save_bundle(model: Decoder, tokenizer: Tokenizer, path: Path, scheme: str, traced: Traced | None = None) -> None:
    """A bundle of one scheme, calibrated on random texts; its graphs are not compared with PyTorch."""
    save_unverified(path, model, tokenizer, scheme, samples=lambda: random_texts(model), traced=traced)


def random_texts(model: Decoder, count: int = 16, length: int = 32) -> list[tuple[Sequence[int], Sequence[int]]]:
    draw = np.random.default_rng(1)
    tokens = range(len(SPECIAL), model.config.vocab_size)
    return [((), [1, *draw.integers(tokens.start, tokens.stop, length - 1).tolist()]) for _ in range(count)]


def prepare(directory: Path, shape: Shape, schemes: Sequence[str]) -> None:
    """Writes what `directory` does not have yet, or has in a format that is no longer read."""
    paths = {scheme: directory / BUNDLE.format(scheme=scheme) for scheme in schemes}
    peer = directory / PEER
    for path in paths.values():
        if path.exists() and not _is_readable(path):
            shutil.rmtree(path)
    if peer.exists() and all(path.exists() for path in paths.values()):
        return
    model, tokenizer = random_llama(shape), random_tokenizer(shape.words)
    if not peer.exists():
        save_peer(llama_model(model), tokenizer, peer)
    traced = trace_model(model)
    for scheme, path in paths.items():
        if not path.exists():
            save_bundle(model, tokenizer, path, scheme, traced)


def _is_readable(bundle: Path) -> bool:
    try:
        load_manifest(bundle)
    except VersionError:
        return False
    return True


@case(
    "directory",
    schemes=Flag("fp32", help="names of export.passes.quantize.SCHEMES, separated by commas"),
    layers=Shape.layers,
    width=Shape.width,
    words=Shape.words,
)
def peers_llama(options: argparse.Namespace) -> None:
    shape = Shape(layers=options.layers, width=options.width, words=options.words)
    prepare(options.directory, shape, options.schemes.split(","))
