"""The graph `align`: cross-attention weights of a finished target.

Shapes: L layers, B batch, T target, S source, H heads, K key-value heads, D head_dim, E = H * D.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from export.graphs.group_query_attention import Pair
from model.attention import (
    FullAttention,
    causal_mask,
    merge_heads,
    padding_mask,
    scaled_dot_product_attention,
    split_heads,
)
from model.config import ModelConfig
from model.transformer import EncoderDecoder


class SeenSourceAttention:
    """`AttendSource` in plain operators that keeps its attention weights; the single attention node of `decode` does
    not output them."""

    def __init__(self, config: ModelConfig, cross: Pair, lengths_B: Tensor) -> None:
        """cross: keys and values, (B, K, S, D) each. lengths_B: int32 source lengths."""
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
    """Whole targets → cross-attention weights of all layers and heads, float32 (L, B, H, T, S), 0 after a source's end.

    The graph recomputes self-attention from scratch, so the runner keeps only the source's keys and values.
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
