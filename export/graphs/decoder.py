"""The graph `decode`: a block of tokens, or one token a row, → logits and the extended caches.

Shapes: B batch, T block, P positions that are asked for, C capacity, S source, M d_model, V vocabulary, H heads,
K key-value heads, D head_dim, E = H * D or K * D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from export.graphs.group_query_attention import GraphAttention, GraphCompressedAttention, GraphSourceAttention, Pair
from model.transformer import Decoder, EncoderDecoder


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
