"""The graph `decode`: a block of tokens, or one token per row, → logits and the extended caches.

Shapes: B batch, T block, P positions with logits, C capacity, N total length, S source, M d_model, V vocabulary, H
heads, K key-value heads, D head_dim, E = H * D or K * D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from export.bundle.manifest import largest_capacity
from export.bundle.windows import places_of
from export.graphs.group_query_attention import (
    BIASES,
    GraphAttention,
    GraphCompressedAttention,
    GraphSourceAttention,
    Pair,
)
from export.graphs.simple_recurrent_unit import GraphRecurrence
from export.graphs.tracing import ModelGraph
from model.config import ModelConfig
from model.transformer import Decoder, EncoderDecoder


def cache_window(config: ModelConfig) -> int:
    """Return the longest sliding window of a decoder's layers for which a cache of less than the context suffices; 0 if
    there is none.

    Then the caches of all layers hold all positions. So do those of layers with position biases, whose width is that of
    the whole context, and of compressing layers, which have no window.
    """
    if not config.has_decoder or config.positions in BIASES:
        return 0
    layers = [i for i in range(config.num_decoder_layers) if not config.is_compressed(i)]
    windows = {config.layer(i).sliding_window for i in layers}
    context = largest_capacity(config.max_target_len)
    return max([window for window in windows if window and places_of(window) < context], default=0)


class _Decode(ModelGraph[EncoderDecoder | Decoder]):
    """A block of tokens → next-token logits at some positions, and the extended caches.

    logits are float32 (P, V) in every weight precision. Finding the most likely tokens needs no other graph.
    """

    def attends(
        self, past: Sequence[Pair], starts_B: Tensor, lengths: Pair, others: Sequence[Tensor]
    ) -> list[GraphAttention]:
        """Return the attention of each layer. lengths: lengths_B and total_length.

        others: key_positions_N of a model with position biases; window_lengths_B and window_total, which count from the
        first position that the caches of layers with a window hold, where they hold less than the context; or nothing.
        """
        keys_N = others[0] if len(others) == 1 else None
        within = (others[0], others[1]) if len(others) > 1 else lengths
        longest, attends = cache_window(self.model.config), []
        for layer, pair in zip(self.model.decoder.layers, past, strict=True):
            own_B, total = within if 0 < layer.sliding_window <= longest else lengths
            attends.append(GraphAttention(layer, pair, starts_B, own_B, total, keys_N))
        return attends

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
        others: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        attends = self.attends(past, starts_B, (lengths_B, total_length), others)
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
        others: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        attends = self.attends(past, starts_B, (lengths_B, total_length), others)
        sources = [GraphSourceAttention(self.model.config, layer, source_lengths_B - 1) for layer in cross]
        states_BTM = self.model.decoder(tokens_BT, starts_B, attends, sources)
        return self.outputs(_of_one_token(states_BTM), attends)


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
        return self.outputs(_of_one_token(states_BTM), recurrences)


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
        others: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        """past: a pair of caches for each layer; compressing layers add the tensors of `GraphCompressedAttention`."""
        plain = self.attends([layer[:2] for layer in past], starts_B, (lengths_B, total_length), others)
        attends = [
            attend
            if compression is None
            else GraphCompressedAttention(self.model.config, compression, layer, starts_B, lengths_B, total_slots)
            for attend, layer, compression in zip(plain, past, self.model.decoder.compressions, strict=True)
        ]
        states_BTM = self.model.decoder(tokens_BT, starts_B, attends, [None] * len(attends))
        return self.outputs(_of_one_token(states_BTM), attends)


def _of_one_token(states_B1M: Tensor) -> Tensor:
    """Return the states (B, M) of blocks of one token: in half precision by a node that CUDA starts no kernel for."""
    return states_B1M.squeeze(1) if states_B1M.dtype == torch.float16 else states_B1M[:, 0]


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
