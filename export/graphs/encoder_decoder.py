"""Transformer graphs as traceable modules: the graphs that a model needs, their signatures and caches.

The modules wrap the layers of `model` and have no weights of their own; they are defined in `export.graphs.decoder`,
`encoder`, `logprobs` and `alignment`. The `Signature` of each graph holds names, axes and example inputs. This module
writes no files and does not depend on the layout of a bundle.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from export.graphs.alignment import AlignGraph
from export.graphs.decoder import DecodeGraph, DecodeTokenGraph
from export.graphs.encoder import EncodeGraph, encoder_signature
from export.graphs.logprobs import logprobs_signature
from export.graphs.signature import Signature
from export.manifest import Role, StateSpec
from model.architectures import Model
from model.config import ModelConfig
from model.encoder import Encoder
from model.recurrent import Recurrent
from model.transformer import Decoder, EncoderDecoder


def signatures(model: Model, *, attention: bool = False) -> dict[Role, Signature]:
    """Return the signature of every graph that `model` needs; `attention` adds `align` for encoder-decoder models."""
    if isinstance(model, Encoder):
        return {"encode": encoder_signature(model)}
    assert not isinstance(model, Recurrent), "its graphs are those of export.graphs.recurrent"
    example = _Example(model)
    if not isinstance(model, EncoderDecoder):
        return {"decode": example.decode(), "logprobs": logprobs_signature(model.config)}
    made: dict[Role, Signature] = {
        "encode": example.encode(model),
        "decode": example.decode_with_source(model),
        "logprobs": logprobs_signature(model.config),
    }
    return made | {"align": example.align(model)} if attention else made


class _Example:
    """Example inputs of a model's graphs and their dynamic axes.

    Example sizes are distinct, so that the exporter merges no two axes.
    """

    BATCH, BLOCK, CAPACITY, SOURCE = 2, 3, 16, 5

    def __init__(self, model: EncoderDecoder | Decoder) -> None:
        self.model, self.config = model, model.config
        names = ("batch", "block", "asked", "capacity", "slots", "source")
        self.axes = {name: torch.export.Dim(name) for name in names}
        self.rows = {0: self.axes["batch"]}
        self.source_lengths = torch.full((self.BATCH,), self.SOURCE, dtype=torch.int32)
        layers = range(self.config.num_decoder_layers)
        self.cross_names = tuple(f"cross_{part}.{i}" for i in layers for part in ("key", "value"))

    def decode(self) -> Signature:
        """`decode` of a decoder-only model: with positions where it supports chunked prefill."""
        arguments, axes, inputs, outputs = self._decode_inputs()
        module: nn.Module = DecodeTokenGraph(self.model)
        if self.config.supports_chunked_prefill:
            module = DecodeGraph(self.model)
            arguments += (torch.tensor([[0, 0], [1, 1], [1, 2], [0, 2]]),)
            axes += ({0: self.axes["asked"]},)
            inputs += ("positions",)
        return Signature(module=module, arguments=arguments, dynamic_axes=axes, inputs=inputs, outputs=outputs)

    def decode_with_source(self, model: EncoderDecoder) -> Signature:
        """`decode` of an encoder-decoder model."""
        arguments, axes, inputs, outputs = self._decode_inputs()
        cross, cross_axes = self._caches(self.SOURCE, "source")
        return Signature(
            module=DecodeTokenGraph(model),
            arguments=(*arguments, self.source_lengths, cross),
            dynamic_axes=(*axes, self.rows, cross_axes),
            inputs=(*inputs, "source_lengths", *self.cross_names),
            outputs=outputs,
        )

    def encode(self, model: EncoderDecoder) -> Signature:
        """`encode` of an encoder-decoder model."""
        return Signature(
            module=EncodeGraph(model),
            arguments=(torch.ones(self.BATCH, self.SOURCE, dtype=torch.int64), self.source_lengths),
            dynamic_axes=({0: self.axes["batch"], 1: self.axes["source"]}, self.rows),
            inputs=("source", "source_lengths"),
            outputs=("encoder_states", *self.cross_names),
        )

    def align(self, model: EncoderDecoder) -> Signature:
        """`align` of an encoder-decoder model."""
        cross, cross_axes = self._caches(self.SOURCE, "source")
        return Signature(
            module=AlignGraph(model),
            arguments=(torch.ones(self.BATCH, self.BLOCK, dtype=torch.int64), self.source_lengths, cross),
            dynamic_axes=({0: self.axes["batch"], 1: self.axes["block"]}, self.rows, cross_axes),
            inputs=("tokens", "source_lengths", *self.cross_names),
            outputs=("cross_attention",),
        )

    def _caches(self, length: int, axis: str) -> tuple[list[Any], list[tuple[Any, ...]]]:
        """Return a pair of caches for each layer, and their axes."""
        weight, layers = self.model.decoder.unembedding.weight, range(self.config.num_decoder_layers)
        shape = (self.BATCH, self.config.attention_kv_heads, length, self.config.attention_head_dim)
        moving = {0: self.axes["batch"], 2: self.axes[axis]}
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in layers], [(moving, moving) for _ in layers]

    def _decode_inputs(self) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...], tuple[str, ...]]:
        """Return what every `decode` has: arguments, their axes, and the names of inputs and outputs."""
        config, rows, weight = self.config, self.rows, self.model.decoder.unembedding.weight
        has_blocks = config.supports_chunked_prefill
        past, past_axes = self._caches(self.CAPACITY, "capacity")
        for i in filter(config.is_compressed, range(config.num_decoder_layers)):
            slots, slots_axes = self._caches(-(-self.CAPACITY // config.compression_stride), "slots")
            recent = weight.new_zeros(self.BATCH, recent_size(config))
            past[i], past_axes[i] = (*slots[i], recent, recent.clone()), (*slots_axes[i], rows, rows)
        length = self.BLOCK if has_blocks else 1
        arguments = (
            torch.ones(self.BATCH, length, dtype=torch.int64),
            torch.zeros(self.BATCH, dtype=torch.int64),
            torch.full((self.BATCH,), length, dtype=torch.int32),
            torch.tensor(length, dtype=torch.int32),
            past,
        )
        tokens_axes = {0: self.axes["batch"], 1: self.axes["block"]} if has_blocks else rows
        own = tuple(state.name for state in states(config, "") if state.kind != "cross_kv")
        inputs = ("tokens", "starts", "lengths", "total_length", *(f"past.{name}" for name in own))
        outputs = ("logits", *(f"present.{name}" for name in own))
        return arguments, (tokens_axes, rows, rows, {}, past_axes), inputs, outputs


def states(config: ModelConfig, dtype: str) -> tuple[StateSpec, ...]:
    """Return the tensors kept between calls, layer by layer; empty for encoder-only models."""
    if not config.has_decoder:
        return ()
    kv_heads, head_dim = config.attention_kv_heads, config.attention_head_dim
    own, theirs = ("batch", kv_heads, "capacity", head_dim), ("batch", kv_heads, "source", head_dim)
    result = []
    for i in range(config.num_decoder_layers):
        stride = config.compression_stride if config.is_compressed(i) else 1
        for part in ("key", "value"):
            result.append(StateSpec(name=f"self_{part}.{i}", kind="self_kv", dtype=dtype, shape=own, stride=stride))
            if config.has_encoder:
                result.append(StateSpec(name=f"cross_{part}.{i}", kind="cross_kv", dtype=dtype, shape=theirs))
        if config.is_compressed(i):
            shape = ("batch", recent_size(config))
            result += [
                StateSpec(name=f"recent_{part}.{i}", kind="recurrent", dtype=dtype, shape=shape)
                for part in ("key", "value")
            ]
    return tuple(result)


def recent_size(config: ModelConfig) -> int:
    """Return the number of key elements, and of value elements, that a compressing layer keeps uncompressed."""
    return (config.compression_stride - 1) * config.attention_kv_heads * config.attention_head_dim
