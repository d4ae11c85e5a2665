"""Every attention weight of an encoder-decoder that reads a source and a given target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention import (
    FullAttention,
    PositionBias,
    SourceAttention,
    causal_mask,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from model.transformer import EncoderDecoder, LayerCache


class Weights(NamedTuple):
    """Float32 (layers, heads, queries, keys), each row adds up to 1."""

    encoder: Tensor
    decoder: Tensor
    cross: Tensor


@torch.inference_mode()
def watch(model: EncoderDecoder, source: Sequence[int], target: Sequence[int]) -> Weights:
    """source: ids to the end token. target: ids the decoder reads, from the start token on. Positions that add a bias
    are not supported: the demo has none."""
    config, encoder = model.config, model.encoder
    assert config.positions in ("sinusoidal", "learned", "none")
    source_1S, target_1T = torch.tensor([list(source)]), torch.tensor([list(target)])
    reading = [_Watched(config.num_heads, None) for _ in encoder.blocks]
    x_1SM, positions = encoder.embedding(source_1S), encoder.position_encoding(source_1S)
    for block, attend in zip(encoder.blocks, reading, strict=True):
        x_1SM = block(x_1SM, attend, positions)
    cross = model.decoder.project_source(encoder.norm(x_1SM))
    looking = [_WatchedSource(config.num_heads, layer, len(source)) for layer in cross]
    writing = [_Watched(config.num_heads, causal_mask(len(target))) for _ in model.decoder.blocks]
    model.decoder(target_1T, None, writing, looking)
    return Weights(*(torch.stack([seen.weights_HTS for seen in layers]) for layers in (reading, writing, looking)))


class _Watched(FullAttention):
    weights_HTS: Tensor

    def __init__(self, heads: int, mask: Tensor | None) -> None:
        super().__init__(heads, heads, mask)

    def __call__(
        self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        query, key, value = (split_heads(x, self.num_heads) for x in (query_BTE, key_BSE, value_BSE))
        mixed_BHTD, weights_BHTS = scaled_dot_product_attention(query, key, value, self.mask)
        self.weights_HTS = weights_BHTS[0]
        return merge_heads(mixed_BHTD)


class _WatchedSource(SourceAttention):
    weights_HTS: Tensor

    def __init__(self, heads: int, layer: LayerCache, length: int) -> None:
        super().__init__(heads, *layer, torch.tensor([length]))

    def __call__(self, query_BTE: Tensor) -> Tensor:
        query_BHTD = split_heads(query_BTE, self.num_heads)
        mixed_BHTD, weights_BHTS = scaled_dot_product_attention(query_BHTD, self.key_BKSD, self.value_BKSD, self.mask)
        self.weights_HTS = weights_BHTS[0]
        return merge_heads(mixed_BHTD)
