"""`attend`: one pass of a whole model that tells every attention in it, as a module that can be traced.

The layers are those of `model`; what differs is that queries meet keys in plain operators, which keep their weights:
the one node of `encode` and `decode` does not give them away. Nothing is read from another graph's caches, so that
whoever asks needs no more than token ids, and whoever does not ask pays nothing.

Shapes: B batch, L layers, H heads, S source, T target positions, Q and K the positions of queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from export.bundle import AttentionMaps
from export.graphs.alignment import SeenSourceAttention
from export.graphs.signature import Signature
from model.architecture_config import TransformerConfig
from model.architectures import Model
from model.attention import FullAttention, PositionBias, causal_mask, merge_heads, padding_mask
from model.config import ModelConfig
from model.encoder import Encoder
from model.transformer import EncoderDecoder


def seen_attention(config: ModelConfig) -> tuple[AttentionMaps, ...]:
    """What `attend` tells of a model, in the order of its outputs.

    Nothing of a recurrent one, of which `align` tells all, and of one whose keys stand for several positions.
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
    """`Attend` over whole sequences that keeps the weights of every layer that uses it, in their order."""

    def __init__(self, config: ModelConfig, mask: Tensor) -> None:
        super().__init__(config.num_heads, config.attention_kv_heads, mask, scale=config.softmax_scale)
        self.seen: list[Tensor] = []

    def __call__(
        self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        mixed_BHTD, weights_BHTS = self.weigh(query_BTE, key_BSE, value_BSE, bias)
        self.seen.append(weights_BHTS)
        return merge_heads(mixed_BHTD)


class AttendGraph(nn.Module):
    """Token ids → float32 weights, each output (L, B, H, Q, K), 0 behind the end of a row's queries and keys.

    encoder_attention (L, B, H, S, S), decoder_attention (L, B, H, T, T), cross_attention (L, B, H, T, S): those that
    the model has.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, *ids: Tensor) -> list[Tensor]:
        """ids: for the encoder, if there is one, and then for the decoder: tokens int64 (B, S or T), right-padded, and
        how many of each row are its own, int32 (B,)."""
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
        cross = [
            SeenSourceAttention(model.config, layer, source_lengths_B)
            for layer in model.decoder.project_source(states_BSM)
        ]
        model.decoder(tokens_BT, None, [own] * len(cross), cross)
        between = [seen.weights_BHTS for seen in cross if seen.weights_BHTS is not None]
        return [
            _told(theirs.seen, source_lengths_B, source_lengths_B),
            _told(own.seen, lengths_B, lengths_B),
            _told(between, lengths_B, source_lengths_B),
        ]

    def _causal(self, tokens_BT: Tensor) -> SeenSelfAttention:
        config = self.model.config
        return SeenSelfAttention(config, causal_mask(tokens_BT.shape[1], sliding_window=config.sliding_window))


def _told(layers: Sequence[Tensor], queries_B: Tensor, keys_B: Tensor) -> Tensor:
    """Weights (B, H, Q, K) of each layer as one tensor, nothing behind the ends of a row."""
    weights_LBHQK = torch.stack(list(layers)).float()
    is_query_BQ = torch.arange(weights_LBHQK.shape[3]) < queries_B[:, None]
    is_key_BK = torch.arange(weights_LBHQK.shape[4]) < keys_B[:, None]
    return weights_LBHQK * (is_query_BQ[:, None, :, None] & is_key_BK[:, None, None, :]).float()


def attend_signature(model: Model) -> Signature:
    """How `attend` is called. Example sizes differ from each other, so that no two axes are taken for one."""
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
