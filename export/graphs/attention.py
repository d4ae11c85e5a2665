"""The graph `attend`: one pass of a whole model that returns all its attention weights, as a traceable module.

The layers are those of `model`, but attention runs in plain operators, which keep their weights: the single attention
nodes of `encode` and `decode` do not output them. The graph reads no caches of other graphs. A caller therefore needs
only token ids, and requests without attention weights pay nothing.

Shapes: B batch, L layers, H heads, S source, T target positions, Q and K the positions of queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from export.graphs.signature import Signature
from export.manifest import AttentionMaps
from model.architecture_config import TransformerConfig
from model.architectures import Model
from model.attention import FullAttention, PositionBias, causal_mask, padding_mask
from model.config import ModelConfig
from model.encoder import Encoder
from model.transformer import EncoderDecoder


def seen_attention(config: ModelConfig) -> tuple[AttentionMaps, ...]:
    """Return the attention kinds that `attend` returns for a model, in output order.

    The result is empty for recurrent models, which `align` covers completely, and for models whose keys stand for
    several positions.
    """
    if not isinstance(config, TransformerConfig) or config.compression_stride:
        return ()
    kinds: dict[Any, tuple[int, int]] = {}
    if config.has_encoder:
        kinds["encoder"] = config.num_encoder_layers, config.encoder_stack.num_heads
    if config.has_decoder:
        kinds["decoder"] = config.num_decoder_layers, config.num_heads
    if config.has_encoder and config.has_decoder:
        kinds["cross"] = config.num_decoder_layers, config.num_heads
    return tuple(AttentionMaps(kind=kind, layers=layers, heads=heads) for kind, (layers, heads) in kinds.items())


class SeenSelfAttention(FullAttention):
    """`Attend` over whole sequences that keeps the attention weights of every layer that uses it, in call order."""

    def __init__(self, config: ModelConfig, mask: Tensor) -> None:
        super().__init__(config.num_heads, config.attention_kv_heads, mask, scale=config.softmax_scale)
        self.seen: list[Tensor] = []

    def __call__(
        self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        mixed_BTE = super().__call__(query_BTE, key_BSE, value_BSE, bias)
        self.seen.append(self.weights_BHTS)
        return mixed_BTE


class AttendGraph(nn.Module):
    """Token ids → float32 weights, each output (L, B, H, Q, K), 0 after the end of a row's queries and keys.

    The outputs are those that apply to the model: encoder_attention (L, B, H, S, S), decoder_attention (L, B, H, T, T)
    and cross_attention (L, B, H, T, S).
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, *ids: Tensor) -> list[Tensor]:
        """Return the attention weights.

        ids: for the encoder, if there is one, and then for the decoder: tokens int64 (B, S or T), right-padded, and the
        length of each row, int32 (B,).
        """
        model = self.model
        if isinstance(model, Encoder):
            source_BS, source_lengths_B = ids
            theirs = SeenSelfAttention(model.encoder.config, padding_mask(source_lengths_B, source_BS.shape[1]))
            model.encoder(source_BS, source_lengths_B, theirs)
            return [_told(theirs.seen, source_lengths_B, source_lengths_B)]
        if not isinstance(model, EncoderDecoder):
            tokens_BT, lengths_B = ids
            own, layers = self._causal(tokens_BT), model.config.num_decoder_layers
            model.decoder(tokens_BT, None, [own] * layers, [None] * layers)
            return [_told(own.seen, lengths_B, lengths_B)]
        source_BS, source_lengths_B, tokens_BT, lengths_B = ids
        theirs = SeenSelfAttention(model.encoder.config, padding_mask(source_lengths_B, source_BS.shape[1]))
        states_BSM = model.encoder(source_BS, source_lengths_B, theirs)
        own = self._causal(tokens_BT)
        cross = model.source_attention(model.decoder.project_source(states_BSM), source_lengths_B)
        model.decoder(tokens_BT, None, [own] * len(cross), cross)
        between = [attend.weights_BHTS for attend in cross]
        return [
            _told(theirs.seen, source_lengths_B, source_lengths_B),
            _told(own.seen, lengths_B, lengths_B),
            _told(between, lengths_B, source_lengths_B),
        ]

    def _causal(self, tokens_BT: Tensor) -> SeenSelfAttention:
        config = self.model.config
        return SeenSelfAttention(config, causal_mask(tokens_BT.shape[1], sliding_window=config.sliding_window))


def _told(layers: Sequence[Tensor], queries_B: Tensor, keys_B: Tensor) -> Tensor:
    """Stack the layers' weights (B, H, Q, K) into one tensor and set positions after a row's end to 0."""
    weights_LBHQK = torch.stack(list(layers)).float()
    is_query_BQ = torch.arange(weights_LBHQK.shape[3]) < queries_B[:, None]
    is_key_BK = torch.arange(weights_LBHQK.shape[4]) < keys_B[:, None]
    return weights_LBHQK * (is_query_BQ[:, None, :, None] & is_key_BK[:, None, None, :]).float()


def attend_signature(model: Model) -> Signature:
    """Return the signature of `attend`. Example sizes are distinct, so that the exporter merges no two axes."""
    batch, sizes = 2, {"source": 5, "block": 3}
    axes = {name: torch.export.Dim(name) for name in ("batch", *sizes)}
    names = {"source": ("source", "source_lengths"), "block": ("tokens", "lengths")}
    if not model.config.has_encoder:
        del names["source"]
    if not model.config.has_decoder:
        del names["block"]
    arguments: list[Any] = []
    dynamic_axes: list[Any] = []
    for axis in names:
        arguments += [
            torch.ones(batch, sizes[axis], dtype=torch.int64),
            torch.full((batch,), sizes[axis], dtype=torch.int32),
        ]
        dynamic_axes += [{0: axes["batch"], 1: axes[axis]}, {0: axes["batch"]}]
    return Signature(
        module=AttendGraph(model),
        arguments=tuple(arguments),
        dynamic_axes=(tuple(dynamic_axes),),  # of *ids, which is one argument of `forward`
        inputs=tuple(name for pair in names.values() for name in pair),
        outputs=tuple(f"{seen.kind}_attention" for seen in seen_attention(model.config)),
    )
