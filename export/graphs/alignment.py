"""The graph `align`: cross-attention weights of a finished target.

Shapes: L layers, B batch, T target, S source, H heads, K key-value heads, D head_dim, E = H * D.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from export.graphs.group_query_attention import Pair
from model.transformer import EncoderDecoder


class AlignGraph(nn.Module):
    """Whole targets → cross-attention weights of all layers and heads, float32 (L, B, H, T, S), 0 after a source's end.

    The graph recomputes self-attention from scratch, so the runner keeps only the source's keys and values.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, source_lengths_B: Tensor, cross: Sequence[Pair]) -> Tensor:
        sources = self.model.source_attention(cross, source_lengths_B)
        self.model.decoder.train_states(tokens_BT, sources)
        return torch.stack([attend.weights_BHTS for attend in sources]).float()
