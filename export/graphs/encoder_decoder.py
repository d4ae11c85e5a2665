"""The graphs as modules that can be traced, around the layers of `model` and with no weights of their own: `encode`,
`decode` and `logprobs`, and `align` for how a finished target attends to its source. An encoder
alone is `encode` with what its heads say.

What differs from PyTorch decoding is how queries meet keys: one `GroupQueryAttention` node of ONNX Runtime appends a
block to the cache in place and attends with one length per row. Attending to the source is the same node with no new
keys: the source's keys and values are its cache, and as one query sees all of it, causal and full are the same thing.
The encoder attends by the same node without a cache and without causality.
Names, axes and example inputs of each graph are its `Signature`; nothing here writes a file or knows a bundle's layout.

Shapes: B batch, T block, P positions that are asked for, C capacity, S source, N places, M d_model, V vocabulary, L
labels, H heads, K key-value heads, D head_dim, E = H * D or K * D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from onnx import ModelProto
from torch import Tensor, nn

from export.bundle import Role, StateSpec
from model.architectures import Model
from model.attention import (
    FullAttention,
    PositionBias,
    causal_mask,
    merge_heads,
    padding_mask,
    scaled_dot_product_attention,
    split_heads,
)
from model.config import ModelConfig
from model.encoder import Encoder
from model.memory_compressed_attention import KeyValueCompression
from model.recurrent import Recurrent
from model.transformer import Decoder, EncoderDecoder

GROUP_QUERY_ATTENTION = "com.microsoft::GroupQueryAttention"
HEAD_DIM_MULTIPLE = 8  # of that operator
Pair = tuple[Tensor, Tensor]


def _group_query_attention(
    config: ModelConfig, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], **attributes: int
) -> Sequence[Tensor]:
    """One node. `outputs` lend their dtypes and shapes. The operator's own scale is 1/sqrt(D)."""
    attrs: dict[str, Any] = {"num_heads": config.num_heads, "kv_num_heads": config.attention_kv_heads, **attributes}
    if config.attention_scale:
        attrs["scale"] = config.attention_scale
    results: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
        GROUP_QUERY_ATTENTION,
        inputs,
        attrs=attrs,
        dtypes=[output.dtype for output in outputs],
        shapes=[output.shape for output in outputs],
        version=1,
    )
    return results


def _scaled_heads(config: ModelConfig, query_BTE: Tensor) -> Tensor:
    """(B, H, T, D), as a `PositionBias` reads queries."""
    return split_heads(query_BTE, config.num_heads) * config.softmax_scale


class GraphAttention:
    """`Attend` over a cache: `present` holds the extended cache after the call."""

    def __init__(
        self, config: ModelConfig, past: Pair, starts_B: Tensor, lengths_B: Tensor, total_length: Tensor
    ) -> None:
        """past: (B, K, C, D) each. starts_B, lengths_B: positions before and with this block, int64 and int32.
        total_length: int32 scalar, of the longest row or more."""
        self.config, self.past, self.total_length = config, past, total_length
        self.starts_B, self.lengths_B = starts_B, lengths_B
        self.present: Pair | None = None

    def __call__(
        self, query_BTE: Tensor, key_BTE: Tensor, value_BTE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        config = self.config
        added = () if bias is None else (None, None, None, self._bias(bias, query_BTE))
        inputs = (query_BTE, key_BTE, value_BTE, *self.past, self.lengths_B - 1, self.total_length, *added)
        window = {"local_window_size": config.sliding_window} if config.sliding_window else {}
        mixed_BTE, key, value = _group_query_attention(config, inputs, (query_BTE, *self.past), **window)
        self.present = (key, value)
        return mixed_BTE

    def _bias(self, bias: PositionBias, query_BTE: Tensor) -> Tensor:
        """(B, H, T, total_length): the operator wants it exactly that wide."""
        total: Any = self.total_length.item()
        positions_BT = self.starts_B[:, None] + torch.arange(query_BTE.shape[1])
        return bias(_scaled_heads(self.config, query_BTE), positions_BT, torch.arange(total))


class GraphCompressedAttention:
    """The same of a layer that compresses: the cache has a slot for each window of positions, the last of which is
    written anew with every token until its window is complete. One token a row.

    `present` holds the extended cache and, (B, (s - 1) * E) each, the last s - 1 keys and values as they were before
    the convolution.
    """

    def __init__(
        self,
        config: ModelConfig,
        compression: KeyValueCompression,
        past: Sequence[Tensor],
        starts_B: Tensor,
        lengths_B: Tensor,
        total_length: Tensor,
    ) -> None:
        """past: two caches (B, K, C / s, D), C / s rounded up, and what else `present` holds; others: see
        `GraphAttention`."""
        self.config, self.compression, self.starts_B = config, compression, starts_B
        self.cache, self.recent = past[:2], past[2:]
        stride = compression.stride
        self.last_slot_B = (lengths_B - 1) // stride
        self.total_slots = (total_length + (stride - 1)) // stride
        self.present: tuple[Tensor, ...] | None = None

    def __call__(
        self, query_B1E: Tensor, key_B1E: Tensor, value_B1E: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        assert bias is None
        key_B1E, recent_keys = self._compress(self.compression.key, self.recent[0], key_B1E)
        value_B1E, recent_values = self._compress(self.compression.value, self.recent[1], value_B1E)
        inputs = (query_B1E, key_B1E, value_B1E, *self.cache, self.last_slot_B, self.total_slots)
        mixed_B1E, key, value = _group_query_attention(self.config, inputs, (query_B1E, *self.cache))
        self.present = (key, value, recent_keys, recent_values)
        return mixed_B1E

    def _compress(self, convolution: nn.Conv1d, recent_BW: Tensor, new_B1E: Tensor) -> tuple[Tensor, Tensor]:
        """c_t, and what the next token wants to know of this and earlier ones. Before the start there are zeros."""
        width, stride = new_B1E.shape[-1], self.compression.stride
        # One node reads what is kept, and what is kept instead depends on it: both may be the same memory.
        window_BW = torch.cat((recent_BW, new_B1E[:, 0]), dim=1)
        ages_W = torch.arange(stride - 1, -1, -1).repeat_interleave(width)
        window_BW = torch.where(self.starts_B[:, None] >= ages_W, window_BW, 0.0)
        compressed_BE1: Tensor = convolution(torch.unflatten(window_BW, 1, (stride, width)).transpose(1, 2))
        return compressed_BE1.transpose(1, 2), window_BW[:, width:]


class GraphSourceAttention:
    """`AttendSource` for a single query position per row."""

    def __init__(self, config: ModelConfig, cross: Pair, last_B: Tensor) -> None:
        """cross: (B, K, S, D) each. last_B: int32, the source's last valid position."""
        self.config, self.cross, self.last_B = config, cross, last_B

    def __call__(self, query_BTE: Tensor) -> Tensor:
        width = self.config.attention_kv_heads * self.config.attention_head_dim
        nothing_B0E = query_BTE.new_zeros((query_BTE.shape[0], 0, width))
        source_length = torch.tensor(0, dtype=torch.int32) + self.cross[0].shape[2]
        inputs = (query_BTE, nothing_B0E, nothing_B0E, *self.cross, self.last_B, source_length)
        (mixed_BTE,) = _group_query_attention(self.config, inputs, (query_BTE,))
        return mixed_BTE


class GraphEncoderAttention:
    """`Attend` of every position of a source to all of its positions."""

    def __init__(self, config: ModelConfig, last_B: Tensor, length: Tensor) -> None:
        """last_B: int32, the source's last valid position. length: int32 scalar, padding included."""
        self.config, self.last_B, self.length = config, last_B, length

    def __call__(
        self, query_BSE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        config = self.config
        added: tuple[Tensor | None, ...] = ()
        if bias is not None:
            positions_S = torch.arange(query_BSE.shape[1])
            added = (None, None, None, bias(_scaled_heads(config, query_BSE), positions_S[None], positions_S))
        inputs = (query_BSE, key_BSE, value_BSE, None, None, self.last_B, self.length, *added)
        (mixed_BSE,) = _group_query_attention(config, inputs, (query_BSE,), causal=0)
        return mixed_BSE

    @classmethod
    def of(cls, model: EncoderDecoder | Encoder, source_BS: Tensor, lengths_B: Tensor) -> GraphEncoderAttention | None:
        """For a batch of sources; None where the model attends in plain operators."""
        if not attends_in_one_node(model):
            return None
        return cls(model.encoder.config, lengths_B - 1, torch.tensor(0, dtype=torch.int32) + source_BS.shape[1])


def attends_in_one_node(model: Model) -> bool:
    """Whether `encode` does. Not in half precision, which is for GPUs: nothing is known there of a node that is not
    causal, and plain operators run everywhere, also with a head_dim that the operator refuses."""
    if isinstance(model, Recurrent):  # its encoder has no attention
        return False
    is_float32 = next(model.parameters()).dtype == torch.float32
    config = model.encoder.config if isinstance(model, EncoderDecoder | Encoder) else model.config
    return is_float32 and config.attention_head_dim % HEAD_DIM_MULTIPLE == 0


class EncoderGraph(nn.Module):
    """An encoder alone: source → its states, and of each text what pooler and head say.

    places (N,), of models that fill masks: int64, places in the batch as it is, padding included: row * S + position. N
    is at least 1, also where nobody asks. place_logprobs float32 (N, V): log-softmax of the logits there. label_logits
    float32 (B, L).
    """

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_BS: Tensor, lengths_B: Tensor, places_N: Tensor | None = None) -> list[Tensor]:
        model = self.model
        states_BSM = model.encoder(source_BS, lengths_B, GraphEncoderAttention.of(model, source_BS, lengths_B))
        told = [states_BSM]
        if model.pooler is not None:
            told.append(model.pool(states_BSM))
        if places_N is not None:
            logits_NV = model.token_logits(states_BSM.flatten(0, 1)[places_N])
            told.append(logits_NV.float().log_softmax(-1))
        elif model.config.is_classifier:
            logits_BL, weights_BS = model.classify(states_BSM, lengths_B)
            told += [logits_BL.float(), *([] if weights_BS is None else [weights_BS])]
        return told


class EncodeGraph(nn.Module):
    """source → encoder states and each decoder layer's keys and values of it.

    Attention in one node takes 5 % off 3 layers of d256 for 8 sources of 12 tokens, 10 % for one source.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> list[Tensor]:
        attend = GraphEncoderAttention.of(self.model, source_BS, lengths_B)
        states_BSM = self.model.encoder(source_BS, lengths_B, attend)
        layers = self.model.decoder.project_source(states_BSM)
        return [states_BSM, *(tensor for layer in layers for tensor in layer)]


class _Decode(nn.Module):
    """A block of tokens → what the model says of the token behind some of them, and the extended caches.

    logits float32 (P, V), whatever the precision of the weights. Whoever only wants the likeliest tokens needs no more.
    """

    def __init__(self, model: EncoderDecoder | Decoder) -> None:
        super().__init__()
        self.model = model

    def attends(
        self, past: Sequence[Any], starts_B: Tensor, lengths_B: Tensor, total_length: Tensor
    ) -> list[GraphAttention | GraphCompressedAttention]:
        """past: of each layer a pair of caches, of those that compress also what `GraphCompressedAttention` keeps."""
        config, lengths = self.model.config, (starts_B, lengths_B, total_length)
        return [
            GraphAttention(config, layer, *lengths)
            if compression is None
            else GraphCompressedAttention(config, compression, layer, *lengths)
            for layer, compression in zip(past, self.model.decoder.compressions, strict=True)
        ]

    def say(self, states_PM: Tensor, attends: Sequence[GraphAttention | GraphCompressedAttention]) -> list[Tensor]:
        """All outputs, behind the tokens with these states."""
        presents = [attend.present for attend in attends if attend.present is not None]
        logits_PV = next_token_logits(self.model.decoder.unembedding, states_PM)
        return [logits_PV, *(tensor for layer in presents for tensor in layer)]


class DecodeGraph(_Decode):
    """`decode` of a model that continues its prompt: blocks of any length.

    positions int64 (P, 2): the tokens behind which it is asked, each by its row and its place in the block; none while
    a prompt is read.
    """

    def forward(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor,
        lengths_B: Tensor,
        total_length: Tensor,
        past: Sequence[Pair],
        positions_P2: Tensor,
    ) -> list[Tensor]:
        attends = self.attends(past, starts_B, lengths_B, total_length)
        states_BTM = self.model.decoder(tokens_BT, starts_B, attends, [None] * len(attends))
        return self.say(_gather(states_BTM, positions_P2), attends)


class DecodeTokenGraph(_Decode):
    """`decode` of a model with an encoder, or one that compresses: one token of each row, and what follows all of them
    (P = B), unless `words.select_rows` has it asked."""

    def forward(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor,
        lengths_B: Tensor,
        total_length: Tensor,
        past: Sequence[Any],
        source_lengths_B: Tensor | None = None,
        cross: Sequence[Pair] = (),
    ) -> list[Tensor]:
        attends = self.attends(past, starts_B, lengths_B, total_length)
        sources: list[GraphSourceAttention | None] = [None] * len(attends)
        if source_lengths_B is not None:
            sources = [GraphSourceAttention(self.model.config, layer, source_lengths_B - 1) for layer in cross]
        states_BTM = self.model.decoder(tokens_BT, starts_B, attends, sources)
        return self.say(states_BTM[:, 0], attends)


def _gather(states_BTM: Tensor, positions_P2: Tensor) -> Tensor:
    """The states (P, M) at (row, place) pairs: one node, where indexing is traced as half a dozen."""
    shape, dtype = (positions_P2.shape[0], states_BTM.shape[2]), states_BTM.dtype
    result: Tensor = torch.onnx.ops.symbolic("::GatherND", (states_BTM, positions_P2), dtype=dtype, shape=shape)
    return result


def next_token_logits(unembedding: nn.Module, states_PM: Tensor) -> Tensor:
    """What `decode` says of the token behind those with these states: float32 (P, V)."""
    # In half precision the log-probabilities of a row would add up to several percent off.
    logits_PV: Tensor = unembedding(states_PM).float()
    return logits_PV


class LogprobsGraph(nn.Module):
    """`logprobs`: logits → log-probabilities, and the best tokens.

    logprobs float32 (P, V): log-softmax of the logits. normaliser float32 (P,): the log-sum-exp taken off them, so that
    logits = logprobs + normaliser. top_ids int64 (P, N): the N = `top_k` best tokens by their logits, best first, of
    equal ones the lower id; top_logprobs float32 (P, N): theirs. N may be 0, and then costs nothing; 1 costs more than
    2 (32 rows of 32,000 words on one thread: softmax and all 330 microseconds with 0, 950 with 1, 840 with 2, 730 with
    8). By logits, so that rows of which only the likeliest token is wanted find the same one without this graph:
    log-probabilities of two logits that differ may be equal.
    """

    def forward(self, logits_PV: Tensor, top_k_1: Tensor) -> list[Tensor]:
        logprobs_PV = logits_PV.log_softmax(-1)
        # One subtraction instead of ReduceLogSumExp, which costs as much as nine LogSoftmax (4430 against 493
        # microseconds at 32 x 32000).
        normaliser_P = logits_PV[:, 0] - logprobs_PV[:, 0]
        ids_PN = _top_k(logits_PV, top_k_1)
        return [logprobs_PV, normaliser_P, logprobs_PV.gather(1, ids_PN), ids_PN]


def _top_k(scores_PV: Tensor, top_k_1: Tensor) -> Tensor:
    """The best of each row, sorted, of equal ones the lower index first: int64 indices (P, N)."""
    # Named outright, because `torch.topk` takes a number, and the graph would take it out of its tensor and back in.
    count: Any = top_k_1.item()
    results: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
        "::TopK",
        (scores_PV, top_k_1),
        dtypes=[scores_PV.dtype, torch.int64],
        shapes=[(scores_PV.shape[0], count)] * 2,
        version=11,
    )
    return results[1]


class SeenSourceAttention:
    """`AttendSource` in plain operators that keeps its weights, which the one node of `decode` does not give away."""

    def __init__(self, config: ModelConfig, cross: Pair, lengths_B: Tensor) -> None:
        """cross: (B, K, S, D) each. lengths_B: int32, of the sources."""
        self.config, self.cross = config, cross
        self.mask = padding_mask(lengths_B, cross[0].shape[2])
        self.weights_BHTS: Tensor | None = None

    def __call__(self, query_BTE: Tensor) -> Tensor:
        query_BHTD = split_heads(query_BTE, self.config.num_heads)
        mixed_BHTD, self.weights_BHTS = scaled_dot_product_attention(
            query_BHTD, *self.cross, self.mask, scale=self.config.softmax_scale
        )
        return merge_heads(mixed_BHTD)


class AlignGraph(nn.Module):
    """Whole targets → how every layer and head attends to the source, float32 (L, B, H, T, S), 0 behind its end.

    The self-attention is computed from scratch, so that nothing but the source's keys and values need be kept.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, source_lengths_B: Tensor, cross: Sequence[Pair]) -> Tensor:
        config = self.model.config
        mask = causal_mask(tokens_BT.shape[1], sliding_window=config.sliding_window)
        attend = FullAttention(config.num_heads, config.attention_kv_heads, mask, scale=config.softmax_scale)
        sources = [SeenSourceAttention(config, layer, source_lengths_B) for layer in cross]
        self.model.decoder(tokens_BT, None, [attend] * len(sources), sources)
        return torch.stack([seen.weights_BHTS for seen in sources if seen.weights_BHTS is not None]).float()


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How a graph is called: example arguments, the axes of each that may change, and the names of all tensors.

    finish: what is still to be done with the traced graph when all passes are; then the names are those before it.
    """

    module: nn.Module
    arguments: tuple[Any, ...]
    dynamic_axes: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    finish: Callable[[ModelProto], ModelProto] | None = None


def signatures(model: Model, *, attention: bool = False) -> dict[Role, Signature]:
    """Every graph that `model` needs, and with `attention` the one that tells of it, for models with an encoder.

    Example sizes differ from each other, so that no two axes are taken for one.
    """
    if isinstance(model, Encoder):
        return {"encode": _encoder_signature(model)}
    assert not isinstance(model, Recurrent), "its graphs are those of export.graphs.recurrent"
    batch, block, capacity, source = 2, 3, 16, 5
    config, weight = model.config, model.decoder.unembedding.weight
    layers = range(config.num_decoder_layers)
    axes = {name: torch.export.Dim(name) for name in ("batch", "block", "asked", "capacity", "slots", "source")}
    rows = {0: axes["batch"]}

    def pairs(length: int, axis: str) -> tuple[list[Any], list[tuple[Any, ...]]]:
        shape = (batch, config.attention_kv_heads, length, config.attention_head_dim)
        moving = {0: axes["batch"], 2: axes[axis]}
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in layers], [(moving, moving) for _ in layers]

    own = tuple(state.name for state in states(config, "") if state.kind != "cross_kv")
    theirs = tuple(f"cross_{part}.{i}" for i in layers for part in ("key", "value"))
    length = block if config.supports_chunked_prefill else 1
    tokens_axes = {0: axes["batch"], 1: axes["block"]} if config.supports_chunked_prefill else rows
    past, past_axes = pairs(capacity, "capacity")
    for i in layers:
        if config.is_compressed(i):
            slots, slots_axes = pairs(-(-capacity // config.compression_stride), "slots")
            recent = weight.new_zeros(batch, recent_size(config))
            past[i], past_axes[i] = (*slots[i], recent, recent.clone()), (*slots_axes[i], rows, rows)
    arguments: tuple[Any, ...] = (
        torch.ones(batch, length, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.int64),
        torch.full((batch,), length, dtype=torch.int32),
        torch.tensor(length, dtype=torch.int32),
        past,
    )
    dynamic_axes: tuple[Any, ...] = (tokens_axes, rows, rows, {}, past_axes)
    inputs = ("tokens", "starts", "lengths", "total_length", *(f"past.{name}" for name in own))
    outputs = ("logits", *(f"present.{name}" for name in own))
    if config.compression_stride:
        decode = Signature(
            module=DecodeTokenGraph(model),
            arguments=arguments,
            dynamic_axes=dynamic_axes,
            inputs=inputs,
            outputs=outputs,
        )
        return {"decode": decode, "logprobs": logprobs_signature(config)}
    if not isinstance(model, EncoderDecoder):
        decode = Signature(
            module=DecodeGraph(model),
            arguments=(*arguments, torch.tensor([[0, 0], [1, 1], [1, 2], [0, 2]])),
            dynamic_axes=(*dynamic_axes, {0: axes["asked"]}),
            inputs=(*inputs, "positions"),
            outputs=outputs,
        )
        return {"decode": decode, "logprobs": logprobs_signature(config)}
    cross, cross_axes = pairs(source, "source")
    source_lengths = torch.full((batch,), source, dtype=torch.int32)
    encode = Signature(
        module=EncodeGraph(model),
        arguments=(torch.ones(batch, source, dtype=torch.int64), source_lengths),
        dynamic_axes=({0: axes["batch"], 1: axes["source"]}, rows),
        inputs=("source", "source_lengths"),
        outputs=("encoder_states", *theirs),
    )
    decode = Signature(
        module=DecodeTokenGraph(model),
        arguments=(*arguments, source_lengths, cross),
        dynamic_axes=(*dynamic_axes, rows, cross_axes),
        inputs=(*inputs, "source_lengths", *theirs),
        outputs=outputs,
    )
    made: dict[Role, Signature] = {"encode": encode, "decode": decode, "logprobs": logprobs_signature(config)}
    if not attention:
        return made
    align = Signature(
        module=AlignGraph(model),
        arguments=(torch.ones(batch, block, dtype=torch.int64), source_lengths, cross),
        dynamic_axes=({0: axes["batch"], 1: axes["block"]}, rows, cross_axes),
        inputs=("tokens", "source_lengths", *theirs),
        outputs=("cross_attention",),
    )
    return made | {"align": align}


def logprobs_signature(config: ModelConfig) -> Signature:
    """That of `logprobs`, which is the same for all models with so many words."""
    return Signature(
        module=LogprobsGraph(),
        arguments=(torch.zeros(3, config.vocab_size), torch.tensor([2])),
        dynamic_axes=({0: torch.export.Dim("asked")}, {}),
        inputs=("logits", "top_k"),
        outputs=("logprobs", "normaliser", "top_logprobs", "top_ids"),
    )


def _encoder_signature(model: Encoder) -> Signature:
    batch, source, places = 2, 5, 3
    config = model.config
    axes = {name: torch.export.Dim(name) for name in ("batch", "source", "places")}
    arguments: list[Tensor] = [torch.ones(batch, source, dtype=torch.int64), torch.full((batch,), source).int()]
    dynamic_axes: list[Any] = [{0: axes["batch"], 1: axes["source"]}, {0: axes["batch"]}]
    inputs, outputs = ["source", "source_lengths"], ["encoder_states"]
    if model.pooler is not None:
        outputs.append("pooled")
    if model.masked is not None:
        arguments.append(torch.arange(places))
        dynamic_axes.append({0: axes["places"]})
        inputs.append("places")
        outputs.append("place_logprobs")
    elif config.is_classifier:
        outputs += ["label_logits", *(["token_weights"] if model.attention is not None else [])]
    return Signature(
        module=EncoderGraph(model),
        arguments=tuple(arguments),
        dynamic_axes=tuple(dynamic_axes),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )


def states(config: ModelConfig, dtype: str) -> tuple[StateSpec, ...]:
    """What is kept between calls, layer by layer; nothing by an encoder alone."""
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
    """How many numbers of the keys, and how many of the values, a layer that compresses keeps as they were."""
    return (config.compression_stride - 1) * config.attention_kv_heads * config.attention_head_dim
