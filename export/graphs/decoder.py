"""The graph `decode`: a block of tokens, or one token per row, → logits and the extended caches.

Shapes: B batch, T block, P positions with logits, C capacity, N total length, S source, M d_model, V vocabulary, H
heads, K key-value heads, D head_dim, E = H * D or K * D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from export.graphs.group_query_attention import GraphAttention, GraphCompressedAttention, GraphSourceAttention, Pair
from export.graphs.simple_recurrent_unit import GraphRecurrence
from export.graphs.tracing import ModelGraph
from model.transformer import Decoder, EncoderDecoder


class _Decode(ModelGraph[EncoderDecoder | Decoder]):
    """A block of tokens → next-token logits at some positions, and the extended caches.

    logits are float32 (P, V) in every weight precision. Finding the most likely tokens needs no other graph.
    """

    def outputs(
        self, states_PM: Tensor, attends: Sequence[GraphAttention | GraphCompressedAttention | GraphRecurrence]
    ) -> list[Tensor]:
        """Return all outputs: the logits of the tokens with these states, and the present caches or states."""
        presents = [attend.present for attend in attends if attend.present is not None]
        logits_PV = next_token_logits(self.model.decoder.unembedding, states_PM)
        return [logits_PV, *(tensor for layer in presents for tensor in layer)]


class DecodeGraph(_Decode):
    """`decode` of a decoder-only model: blocks of any length.

    positions int64 (P, 2): the tokens with next-token logits, each as (row, index within the block); empty while a
    prompt is prefilled.
    """

    def forward(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor,
        lengths_B: Tensor,
        total_length: Tensor,
        past: Sequence[Pair],
        positions_P2: Tensor,
        key_positions_N: Tensor | None = None,
    ) -> list[Tensor]:
        lengths = starts_B, lengths_B, total_length, key_positions_N
        layers = zip(self.model.decoder.layers, past, strict=True)
        attends = [GraphAttention(layer, pair, *lengths) for layer, pair in layers]
        states_BTM = self.model.decoder(tokens_BT, starts_B, attends, [None] * len(attends))
        return self.outputs(_gather(states_BTM, positions_P2), attends)


class DecodeTokenGraph(_Decode):
    """`decode` of a model with an encoder: one token per row, with logits for all rows (P = B) unless
    `export.passes.shortlist.select_rows` restricts them."""

    def forward(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor,
        lengths_B: Tensor,
        total_length: Tensor,
        past: Sequence[Pair],
        source_lengths_B: Tensor,
        cross: Sequence[Pair],
        key_positions_N: Tensor | None = None,
    ) -> list[Tensor]:
        config, lengths = self.model.config, (starts_B, lengths_B, total_length, key_positions_N)
        attends = [GraphAttention(config, layer, *lengths) for layer in past]
        sources = [GraphSourceAttention(config, layer, source_lengths_B - 1) for layer in cross]
        states_BTM = self.model.decoder(tokens_BT, starts_B, attends, sources)
        return self.outputs(states_BTM[:, 0], attends)


class DecodeRecurrentGraph(_Decode):
    """The same of a model whose decoder has recurrent layers: their states, (B, M) each, are all that it extends."""

    def forward(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor,
        past: Sequence[Sequence[Tensor]],
        source_lengths_B: Tensor,
        cross: Sequence[Pair],
    ) -> list[Tensor]:
        recurrences = [GraphRecurrence(state_BM, starts_B) for (state_BM,) in past]
        sources = [GraphSourceAttention(self.model.config, layer, source_lengths_B - 1) for layer in cross]
        states_BTM = self.model.decoder(tokens_BT, starts_B, recurrences, sources)
        return self.outputs(states_BTM[:, 0], recurrences)


class DecodeCompressedGraph(_Decode):
    """`decode` of a model with key-value compression: one token per row, with logits for all rows (P = B)."""

    def forward(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor,
        lengths_B: Tensor,
        total_length: Tensor,
        past: Sequence[Any],
        total_slots: Tensor,
    ) -> list[Tensor]:
        """past: a pair of caches for each layer; compressing layers add the tensors of `GraphCompressedAttention`."""
        config, lengths = self.model.config, (starts_B, lengths_B)
        attends = [
            GraphAttention(config, layer, *lengths, total_length)
            if compression is None
            else GraphCompressedAttention(config, compression, layer, *lengths, total_slots)
            for layer, compression in zip(past, self.model.decoder.compressions, strict=True)
        ]
        states_BTM = self.model.decoder(tokens_BT, starts_B, attends, [None] * len(attends))
        return self.outputs(states_BTM[:, 0], attends)


def _gather(states_BTM: Tensor, positions_P2: Tensor) -> Tensor:
    """Return the states (P, M) at (row, index) pairs: one node, where indexing is traced as about six."""
    shape, dtype = (positions_P2.shape[0], states_BTM.shape[2]), states_BTM.dtype
    result: Tensor = torch.onnx.ops.symbolic("::GatherND", (states_BTM, positions_P2), dtype=dtype, shape=shape)
    return result


def next_token_logits(unembedding: nn.Module, states_PM: Tensor) -> Tensor:
    """Return the next-token logits of these states: float32 (P, V)."""
    # In half precision the accumulated log-probabilities of a row would be off by several percent.
    logits_PV: Tensor = unembedding(states_PM).float()
    return logits_PV
