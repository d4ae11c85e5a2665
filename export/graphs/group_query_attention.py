"""Every kind of attention as one node, `GroupQueryAttention` of ONNX Runtime, or `Attention` of ONNX in fp16 encoders.

Self-attention appends a block to the cache in place, with one length per row. Cross-attention is the same node without
new keys: the source's keys and values are its cache. A single query sees the whole cache, so causal and full attention
coincide. The encoder uses the node without a cache and without causality. Recurrent models attend once per step and
build their node in `export.graphs.recurrent`.

On CUDA the operator reads the total length in main memory, and a captured graph has no nodes that copy between device
and main memory. So `decode` takes everything that follows from the total length as an input and computes none of it.

Shapes: B batch, T block, P positions with logits, C capacity, N total length, S source, M d_model, V vocabulary, H
heads, K key-value heads, D head_dim, E = H * D or K * D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from model.architectures import Model
from model.attention import Attend, PositionBias, split_heads
from model.config import ModelConfig
from model.encoder import Encoder
from model.memory_compressed_attention import KeyValueCompression
from model.transformer import EncoderDecoder

HEAD_DIM_MULTIPLE = 8  # required by GroupQueryAttention
ATTENTION_OPSET = 24  # the first in which `Attention` reads lengths of rows
BIASES = ("shaw", "bucketed", "alibi")  # positions that add to the scores of attention
Pair = tuple[Tensor, Tensor]


def group_query_attention(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], **attributes: Any
) -> Sequence[Tensor]:
    """Build one node. `outputs` provide dtypes and shapes. Without an attribute `scale` the operator scales by
    1/sqrt(D)."""
    results: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        inputs,
        attrs=attributes,
        dtypes=[output.dtype for output in outputs],
        shapes=[output.shape for output in outputs],
        version=1,
    )
    return results


def _attributes(config: ModelConfig) -> dict[str, Any]:
    scale = {"scale": config.attention_scale} if config.attention_scale else {}
    # The operator caps scaled products and then adds the bias, as `scaled_dot_product_attention` does.
    softcap = {"softcap": config.attention_softcap} if config.attention_softcap else {}
    return {"num_heads": config.num_heads, "kv_num_heads": config.attention_kv_heads, **scale, **softcap}


def _scaled_heads(config: ModelConfig, query_BTE: Tensor) -> Tensor:
    """Return the scaled queries (B, H, T, D), as a `PositionBias` expects them."""
    return split_heads(query_BTE, config.num_heads) * config.softmax_scale


class GraphAttention:
    """`Attend` over a cache: `present` holds the extended cache after the call."""

    def __init__(
        self,
        config: ModelConfig,
        past: Pair,
        starts_B: Tensor,
        lengths_B: Tensor,
        total_length: Tensor,
        key_positions_N: Tensor | None = None,
    ) -> None:
        """past: (B, K, C, D) each. starts_B, lengths_B: numbers of positions before this block and including it, int64
        and int32. total_length: int32 scalar, at least the length of the longest row. key_positions_N: int64, 0 to
        total_length - 1, for a model with position biases."""
        self.config, self.past, self.total_length = config, past, total_length
        self.key_positions_N = key_positions_N
        self.starts_B, self.lengths_B = starts_B, lengths_B
        self.present: Pair | None = None

    def __call__(
        self, query_BTE: Tensor, key_BTE: Tensor, value_BTE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        config = self.config
        added = () if bias is None else (None, None, None, self._bias(bias, query_BTE))
        inputs = (query_BTE, key_BTE, value_BTE, *self.past, self.lengths_B - 1, self.total_length, *added)
        window = {"local_window_size": config.sliding_window} if config.sliding_window else {}
        mixed_BTE, key, value = group_query_attention(inputs, (query_BTE, *self.past), **_attributes(config), **window)
        self.present = (key, value)
        return mixed_BTE

    def _bias(self, bias: PositionBias, query_BTE: Tensor) -> Tensor:
        """Return the bias (B, H, T, N): the operator requires exactly this width."""
        assert self.key_positions_N is not None, "a model with position biases takes key_positions"
        positions_BT = self.starts_B[:, None] + torch.arange(query_BTE.shape[1])
        return bias(_scaled_heads(self.config, query_BTE), positions_BT, self.key_positions_N)


class GraphCompressedAttention:
    """`Attend` over the cache of a layer with key-value compression, one token per row.

    The cache has one slot for each window of positions. Every token rewrites the last slot until its window is
    complete. After the call, `present` holds the extended cache and the last s - 1 keys and values before the
    convolution, (B, (s - 1) * E) each.
    """

    def __init__(
        self,
        config: ModelConfig,
        compression: KeyValueCompression,
        past: Sequence[Tensor],
        starts_B: Tensor,
        lengths_B: Tensor,
        total_slots: Tensor,
    ) -> None:
        """past: two caches (B, K, C / s, D), C / s rounded up, and the recent keys and values described above.
        total_slots: int32 scalar, total_length / s rounded up. For the other arguments see `GraphAttention`."""
        self.config, self.compression, self.starts_B = config, compression, starts_B
        self.cache, self.recent = past[:2], past[2:]
        stride = compression.stride
        self.last_slot_B = (lengths_B - 1) // stride
        self.total_slots = total_slots
        self.present: tuple[Tensor, ...] | None = None

    def __call__(
        self, query_B1E: Tensor, key_B1E: Tensor, value_B1E: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        assert bias is None
        key_B1E, recent_keys = self._compress(self.compression.key, self.recent[0], key_B1E)
        value_B1E, recent_values = self._compress(self.compression.value, self.recent[1], value_B1E)
        inputs = (query_B1E, key_B1E, value_B1E, *self.cache, self.last_slot_B, self.total_slots)
        mixed_B1E, key, value = group_query_attention(inputs, (query_B1E, *self.cache), **_attributes(self.config))
        self.present = (key, value, recent_keys, recent_values)
        return mixed_B1E

    def _compress(self, convolution: nn.Conv1d, recent_BW: Tensor, new_B1E: Tensor) -> tuple[Tensor, Tensor]:
        """Return the compressed vector of the current window and the recent inputs for the next token. Positions before
        the start count as zeros."""
        width, stride = new_B1E.shape[-1], self.compression.stride
        # One node reads the recent inputs, and their replacement depends on it: both may share memory.
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
        (mixed_BTE,) = group_query_attention(inputs, (query_BTE,), **_attributes(self.config))
        return mixed_BTE


class GraphEncoderAttention:
    """`Attend` of every source position to all positions of its source, or to those in a window around it.

    The operator has windows before a position only: others are a bias of the scores.
    """

    def __init__(self, config: ModelConfig, last_B: Tensor, length: Tensor, window_11SS: Tensor | None = None) -> None:
        """last_B: int32, the source's last valid position. length: int32 scalar, the padded length. window_11SS: see
        `window_bias`."""
        self.config, self.last_B, self.length, self.window_11SS = config, last_B, length, window_11SS

    def __call__(
        self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        config, total = self.config, self.window_11SS
        if bias is not None:
            positions_S = torch.arange(query_BTE.shape[1])
            bias_BHSS = bias(_scaled_heads(config, query_BTE), positions_S[None], positions_S)
            total = bias_BHSS if total is None else bias_BHSS + total
        added = () if total is None else (None, None, None, total)
        inputs = (query_BTE, key_BSE, value_BSE, None, None, self.last_B, self.length, *added)
        (mixed_BTE,) = group_query_attention(inputs, (query_BTE,), causal=0, **_attributes(config))
        return mixed_BTE


def window_bias(source_BS: Tensor, sliding_window: int) -> Tensor:
    """Return a bias of scores (1, 1, S, S): 0 within a window around each position, elsewhere the lowest float32,
    which leaves every row a finite sum."""
    positions_S = torch.arange(source_BS.shape[1]).int()
    is_near_SS = (positions_S[:, None] - positions_S).abs() < sliding_window
    return torch.where(is_near_SS, 0.0, torch.finfo(torch.float32).min)[None, None]


class GraphHalfEncoderAttention:
    """The same for half-precision models, as ONNX's `Attention`.

    On CUDA `GroupQueryAttention` without a cache attends to padding in a ragged batch; this operator reads the lengths
    of all rows there. On the CPU it takes longer for batches.
    """

    def __init__(self, config: ModelConfig, lengths_B: Tensor) -> None:
        """lengths_B: int64."""
        self.config, self.lengths_B = config, lengths_B

    def __call__(
        self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        assert bias is None
        config = self.config
        heads = {"q_num_heads": config.num_heads, "kv_num_heads": config.attention_kv_heads}
        mixed_BTE: Tensor = torch.onnx.ops.symbolic(
            "::Attention",
            (query_BTE, key_BSE, value_BSE, None, None, None, self.lengths_B),
            {**heads, "scale": config.softmax_scale},
            dtype=query_BTE.dtype,
            shape=query_BTE.shape,
            version=ATTENTION_OPSET,
        )
        return mixed_BTE


EncoderOperator = Literal["GroupQueryAttention", "Attention", ""]


def encoder_attention(model: EncoderDecoder | Encoder, source_BS: Tensor, lengths_B: Tensor) -> list[Attend]:
    """Build the attention of each layer of `encode` for a batch of sources."""
    stack, length = model.encoder, torch.tensor(0, dtype=torch.int32) + source_BS.shape[1]
    windows = {0: None} | {
        window: window_bias(source_BS, window) for window in {layer.sliding_window for layer in stack.layers} - {0}
    }
    attends = list[Attend](stack.attends(source_BS, lengths_B))
    for number, (layer, operator) in enumerate(zip(stack.layers, encoder_operators(model), strict=True)):
        if operator == "GroupQueryAttention":
            attends[number] = GraphEncoderAttention(layer, lengths_B - 1, length, windows[layer.sliding_window])
        elif operator == "Attention":
            attends[number] = GraphHalfEncoderAttention(layer, lengths_B.long())
    return attends


def encoder_operators(model: Model) -> list[EncoderOperator]:
    """Return the operator of the one node with which each layer of `encode` attends; "" for plain operators. Recurrent
    encoders have no attention.

    Plain operators run with every head_dim, and in half precision they add biases of positions and mask windows: there
    `Attention` would need kernels that are slower than they are.
    """
    if not isinstance(model, EncoderDecoder | Encoder):
        return []
    is_half = next(model.parameters()).dtype != torch.float32
    return [_operator(layer, is_half=is_half) for layer in model.encoder.layers]


def _operator(layer: ModelConfig, *, is_half: bool) -> EncoderOperator:
    if layer.attention_head_dim % HEAD_DIM_MULTIPLE:
        return ""
    if not is_half:
        return "GroupQueryAttention"
    return "" if layer.positions in BIASES or layer.sliding_window else "Attention"
