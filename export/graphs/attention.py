"""The graphs that return attention weights, as traceable modules: `align` and `attend`.

The layers are those of `model`, but attention runs in plain operators, which keep their weights: the single attention
nodes of `encode` and `decode` do not output them. Requests without attention weights pay nothing.

Shapes: B batch, L layers, H heads, S source, T target positions, X and Y the positions of queries and keys, M d_model,
E width of all heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from export.bundle.manifest import AttentionKind, AttentionMaps
from export.graphs.group_query_attention import Pair
from export.graphs.tracing import SOURCE, SOURCE_LENGTHS, Input, ModelGraph, Signature
from model.architecture_config import TransformerConfig
from model.architectures import Model
from model.attention import FullAttention, SourceAttention
from model.config import ModelConfig
from model.encoder import Encoder
from model.transformer import Decoder, EncoderDecoder


def seen_attention(config: ModelConfig) -> tuple[AttentionMaps, ...]:
    """Return the attention kinds that `attend` returns for a model, in output order.

    The result is empty for recurrent models, which `align` covers completely, and for models whose keys stand for
    several positions.
    """
    if not isinstance(config, TransformerConfig) or config.compression_stride:
        return ()
    kinds: dict[AttentionKind, tuple[int, int]] = {}
    if config.has_encoder:
        kinds["encoder"] = config.num_encoder_layers, config.encoder_stack.num_heads
    if config.has_decoder:
        kinds["decoder"] = config.num_decoder_layers, config.num_heads
    if config.has_encoder and config.has_decoder:
        kinds["cross"] = kinds["decoder"]
    return tuple(AttentionMaps(kind=kind, layers=layers, heads=heads) for kind, (layers, heads) in kinds.items())


class AlignGraph(ModelGraph[EncoderDecoder]):
    """Whole targets → cross-attention weights of all layers and heads, float32 (L, B, H, T, S), 0 after a source's end.

    The graph recomputes self-attention from scratch, so the runner keeps only the source's keys and values.
    """

    def forward(self, tokens_BT: Tensor, source_lengths_B: Tensor, cross: Sequence[Pair]) -> Tensor:
        sources = self.model.source_attention(cross, source_lengths_B)
        self.model.decoder.train_states(tokens_BT, sources)
        return torch.stack([attend.weights_BHTS for attend in sources]).float()


class AttendGraph(ModelGraph[Model]):
    """One pass of a whole model: token ids → float32 weights, each output (L, B, H, X, Y), 0 after the end of a row's
    queries and keys.

    The outputs are those that apply to the model: encoder_attention (L, B, H, S, S), decoder_attention (L, B, H, T, T)
    and cross_attention (L, B, H, T, S). The graph reads no caches of other graphs, so a caller needs only token ids.
    """

    def forward(self, ids: list[Tensor]) -> list[Tensor]:
        """Return the attention weights.

        ids: for the encoder, if there is one, and then for the decoder: tokens int64 (B, S or T), right-padded, and the
        length of each row, int32 (B,).
        """
        model = self.model
        # Attention of each layer, lengths of queries and of keys.
        seen: list[tuple[Sequence[FullAttention | SourceAttention], Tensor, Tensor]] = []
        if isinstance(model, Encoder | EncoderDecoder):
            source_BS, source_lengths_B, *ids = ids
            theirs = model.encoder.attends(source_BS, source_lengths_B)
            states_BSM = model.encoder(source_BS, source_lengths_B, theirs)
            seen.append((theirs, source_lengths_B, source_lengths_B))
        if not isinstance(model, Encoder):
            tokens_BT, lengths_B = ids
            assert isinstance(model, Decoder | EncoderDecoder)
            masks = model.decoder.causal_masks(tokens_BT.shape[1])
            own = [FullAttention(layer, mask) for layer, mask in zip(model.decoder.layers, masks, strict=True)]
            cross = []
            if isinstance(model, EncoderDecoder):
                cross = model.source_attention(model.decoder.project_source(states_BSM), source_lengths_B)
            model.decoder(tokens_BT, None, own, cross or [None] * len(own))
            seen.append((own, lengths_B, lengths_B))
            if cross:
                seen.append((cross, lengths_B, source_lengths_B))
        return [_within_rows(*one) for one in seen]


def _within_rows(layers: Sequence[FullAttention | SourceAttention], queries_B: Tensor, keys_B: Tensor) -> Tensor:
    """Stack the layers' weights (B, H, X, Y) into one tensor and set positions after a row's end to 0."""
    weights_LBHXY = torch.stack([attend.weights_BHTS for attend in layers]).float()
    is_query_BX = torch.arange(weights_LBHXY.shape[3]) < queries_B[:, None]
    is_key_BY = torch.arange(weights_LBHXY.shape[4]) < keys_B[:, None]
    return weights_LBHXY * (is_query_BX[:, None, :, None] & is_key_BY[:, None, None, :]).float()


def attend_signature(model: Model) -> Signature:
    """Return the signature of `attend`."""
    ids = [SOURCE, SOURCE_LENGTHS] if model.config.has_encoder else []
    if model.config.has_decoder:
        ids += [Input("tokens", ("batch", "block")), Input("lengths", ("batch",), torch.int32)]
    outputs = tuple(f"{seen.kind}_attention" for seen in seen_attention(model.config))
    return Signature(module=AttendGraph(model), arguments=(ids,), outputs=outputs)
