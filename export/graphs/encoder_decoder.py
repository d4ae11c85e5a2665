"""Transformer graphs as traceable modules: the graphs that a model needs, their signatures and caches.

The modules wrap the layers of `model` and have no weights of their own; they are defined in `export.graphs.decoder`,
`encoder`, `logprobs` and `attention`. This module writes no files and does not depend on the layout of a bundle.
"""

from __future__ import annotations

import itertools

import torch

from export.bundle.manifest import Role, StateSpec
from export.graphs.attention import AlignGraph, attend_signature, seen_attention
from export.graphs.decoder import (
    DecodeCompressedGraph,
    DecodeGraph,
    DecodeRecurrentGraph,
    DecodeTokenGraph,
    cache_window,
)
from export.graphs.encoder import EncodeGraph, embed_signature, encoder_opset, encoder_signature
from export.graphs.group_query_attention import BIASES
from export.graphs.logprobs import logprobs_signature
from export.graphs.tracing import SOURCE, SOURCE_LENGTHS, Input, Signature, state_inputs
from model.architectures import Model
from model.config import ModelConfig
from model.encoder import Encoder
from model.recurrent import Recurrent
from model.transformer import EncoderDecoder


def signatures(model: Model, *, attention: bool = False) -> dict[Role, Signature]:
    """Return the signature of every graph that `model` needs.

    attention: adds `attend`, if the model has it, and `align` for encoder-decoder models.
    """
    assert not isinstance(model, Recurrent), "its graphs are those of export.graphs.recurrent"
    extra: dict[Role, Signature] = {}
    if attention and seen_attention(model.config):
        extra["attend"] = attend_signature(model)
    if isinstance(model, Encoder):
        if model.config.dense:
            extra["embed"] = embed_signature(model)
        return {"encode": encoder_signature(model), **extra}
    config, dtype = model.config, model.decoder.unembedding.weight.dtype
    own = [state for state in states(config, "") if state.kind != "cross_kv"]
    past = _by_layer(state_inputs(own, dtype, "past."))
    begins = (
        Input("tokens", ("batch", "block" if config.supports_chunked_prefill else 1)),
        Input("starts", ("batch",)),
    )
    steps = (*begins, Input("lengths", ("batch",), torch.int32), Input("total_length", (), torch.int32), past)
    others = [Input("key_positions", ("total",))] if config.positions in BIASES else []
    if cache_window(config):
        others = [Input("window_lengths", ("batch",), torch.int32), Input("window_total", (), torch.int32)]
    last = (others,) if others else ()
    outputs = ("logits", *(f"present.{state.name}" for state in own))
    made: dict[Role, Signature] = {}
    if isinstance(model, EncoderDecoder):
        crossing = state_inputs((state for state in states(config, "") if state.kind == "cross_kv"), dtype)
        source = SOURCE_LENGTHS, _by_layer(crossing)
        made["encode"] = Signature(
            module=EncodeGraph(model),
            arguments=(SOURCE, SOURCE_LENGTHS),
            outputs=("encoder_states", *(state.name for state in crossing)),
            opset=encoder_opset(model),
        )
        if config.carries_states:
            arguments = (*begins, past, *source)
            made["decode"] = Signature(module=DecodeRecurrentGraph(model), arguments=arguments, outputs=outputs)
        else:
            arguments = (*steps, *source, *last)
            made["decode"] = Signature(module=DecodeTokenGraph(model), arguments=arguments, outputs=outputs)
        if attention:
            targets = Input("tokens", ("batch", "block"))
            align = Signature(module=AlignGraph(model), arguments=(targets, *source), outputs=("cross_attention",))
            extra = {"align": align, **extra}
    elif config.supports_chunked_prefill:
        positions = Input("positions", ("asked", 2))
        made["decode"] = Signature(module=DecodeGraph(model), arguments=(*steps, positions, *last), outputs=outputs)
    else:
        arguments = (*steps, Input("total_slots", (), torch.int32), *last)
        made["decode"] = Signature(module=DecodeCompressedGraph(model), arguments=arguments, outputs=outputs)
    return {**made, "logprobs": logprobs_signature(config), **extra}


def _by_layer(inputs: list[Input]) -> list[list[Input]]:
    """Group the tensors of each layer, whose number ends their names."""
    return [list(layer) for _, layer in itertools.groupby(inputs, lambda one: one.name.rpartition(".")[2])]


def states(config: ModelConfig, dtype: str) -> tuple[StateSpec, ...]:
    """Return the tensors kept between calls, layer by layer; empty for encoder-only models."""
    if not config.has_decoder:
        return ()
    kv_heads, head_dim = config.attention_kv_heads, config.attention_head_dim
    own, theirs = ("batch", kv_heads, "capacity", head_dim), ("batch", kv_heads, "source", head_dim)
    result, longest = [], cache_window(config)
    for i in range(config.num_decoder_layers):
        if config.carries_states:
            shape = ("batch", config.d_model)
            result.append(StateSpec(name=f"self_state.{i}", kind="recurrent", dtype=dtype, shape=shape))
        stride = config.compression_stride if config.is_compressed(i) else 1
        window = longest if 0 < config.layer(i).sliding_window <= longest and stride == 1 else 0
        for part in ("key", "value"):
            if not config.carries_states:
                name = f"self_{part}.{i}"
                spec = StateSpec(name=name, kind="self_kv", dtype=dtype, shape=own, stride=stride, window=window)
                result.append(spec)
            if config.has_encoder:
                result.append(StateSpec(name=f"cross_{part}.{i}", kind="cross_kv", dtype=dtype, shape=theirs))
        if config.is_compressed(i):
            recent = ("batch", recent_size(config))
            result += [
                StateSpec(name=f"recent_{part}.{i}", kind="recurrent", dtype=dtype, shape=recent)
                for part in ("key", "value")
            ]
    return tuple(result)


def recent_size(config: ModelConfig) -> int:
    """Return the number of key elements, and of value elements, that a compressing layer keeps uncompressed."""
    return (config.compression_stride - 1) * config.attention_kv_heads * config.attention_head_dim
