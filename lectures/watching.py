"""Every attention weight of an encoder-decoder that reads a source and a given target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention import FullAttention, causal_mask
from model.transformer import EncoderDecoder


class Weights(NamedTuple):
    """Float32 (layers, heads, queries, keys), each row adds up to 1."""

    encoder: Tensor
    decoder: Tensor
    cross: Tensor


@torch.inference_mode()
def watch(model: EncoderDecoder, source: Sequence[int], target: Sequence[int]) -> Weights:
    """source: ids to the end token. target: ids the decoder reads, from the start token on. Positions that add a bias
    are not supported: the demo has none."""
    config, encoder, heads = model.config, model.encoder, model.config.num_heads
    assert config.positions in ("sinusoidal", "learned", "none")
    source_1S, target_1T = torch.tensor([list(source)]), torch.tensor([list(target)])
    reading = [FullAttention(heads, heads, None) for _ in encoder.blocks]
    x_1SM, positions = encoder.embedding(source_1S), encoder.position_encoding(source_1S)
    for block, attend in zip(encoder.blocks, reading, strict=True):
        x_1SM = block(x_1SM, attend, positions)
    cross = model.decoder.project_source(encoder.norm(x_1SM))
    looking = model.source_attention(cross, torch.tensor([len(source)]))
    writing = [FullAttention(heads, heads, causal_mask(len(target))) for _ in model.decoder.blocks]
    model.decoder(target_1T, None, writing, looking)
    return Weights(
        *(torch.stack([attend.weights_BHTS[0] for attend in layers]) for layers in (reading, writing, looking))
    )
