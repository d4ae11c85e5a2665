"""`EncoderDecoder` and `Decoder`, assembled from blocks.

Each has three views of the same weights: `forward` over whole sequences, `decode` with caches, and
`DecoderStack.forward`, which takes the attention implementations as arguments and is what exporters trace. Caches
belong to the caller; nothing is kept between calls.

Shapes: B batch, T target positions, S source positions, M d_model, V vocabulary, K key-value heads, C capacity,
D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.architecture_config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, TransformerConfig
from model.attention import (
    Attend,
    AttendSource,
    CachedAttention,
    CachedRecurrence,
    FullAttention,
    FullRecurrence,
    Recur,
    SourceAttention,
    causal_mask,
    padding_mask,
    window_mask,
)
from model.layers import Block, Embedding, Unembedding, initialise, norm_layer
from model.memory_compressed_attention import (
    CachedMemoryCompressedAttention,
    KeyValueCompression,
    MemoryCompressedAttention,
)
from model.positions import EncodedPositions, PositionEncoding


class LayerCache(NamedTuple):
    """Keys and values of one layer, (B, K, C, D) each."""

    key: Tensor
    value: Tensor


class LayerState(NamedTuple):
    """The state of a recurrent layer, (B, M)."""

    state: Tensor


class _Stack(nn.Module):
    """Blocks, and what their layers receive of positions."""

    config: TransformerConfig
    blocks: nn.ModuleList

    def add_encodings(self, max_len: int, *, is_causal: bool) -> None:
        """Makes the encoding of most layers, and those of groups with other rotary positions."""
        config, turning = self.config, [group for group in self.config.layer_groups if group.has_own_rotation]
        self.position_encoding = PositionEncoding(config, max_len, is_causal=is_causal)
        self.other_encodings = nn.ModuleList(
            PositionEncoding(config.layer(group.layers[0]), max_len, is_causal=is_causal) for group in turning
        )

    def encode_positions(self, tokens_BT: Tensor, starts_B: Tensor | None = None) -> list[EncodedPositions]:
        """Of each layer, for token ids (B, T), the first at position starts_B (None: 0)."""
        found: list[EncodedPositions] = [self.position_encoding(tokens_BT, starts_B)] * len(self.blocks)
        turning = [group for group in self.config.layer_groups if group.has_own_rotation]
        for group, encoding in zip(turning, self.other_encodings, strict=True):
            encoded = encoding(tokens_BT, starts_B)
            for layer in group.layers:
                found[layer] = encoded
        return found

    @property
    def layers(self) -> list[TransformerConfig]:
        """The configuration of each layer."""
        return [self.config.layer(layer) for layer in range(len(self.blocks))]


class EncoderStack(_Stack):
    """Embedding, bidirectional blocks, and the last norm of the pre-norm order."""

    def __init__(self, config: EncoderConfig | EncoderDecoderConfig) -> None:
        super().__init__()
        layer = self.config = config.encoder_stack
        self.embedding = Embedding(config, config.max_source_len, vocab_size=config.source_vocab_size)
        self.add_encodings(config.max_source_len, is_causal=False)
        self.blocks = nn.ModuleList(Block(layer, has_cross_attention=False) for _ in range(config.num_encoder_layers))
        if not config.first_attention_norm:
            first = self.blocks[0]
            assert isinstance(first, Block)
            first.self_residual.norm = nn.Identity()
        self.norm = norm_layer(config) if config.has_last_norm else nn.Identity()

    def forward(self, source_BS: Tensor, lengths_B: Tensor, attends: Sequence[Attend] | None = None) -> Tensor:
        """Token ids (B, S) right-padded, lengths (B,) → states (B, S, M); states of padding are meaningless.

        attends: of each layer, bidirectional attention over the valid positions; given by exporters as operators of
        another runtime.
        """
        if attends is None:
            attends = self.attends(source_BS, lengths_B)
        x_BSM, encoded = self.embedding(source_BS), self.encode_positions(source_BS)
        for block, attend, positions in zip(self.blocks, attends, encoded, strict=True):
            x_BSM = block(x_BSM, attend, positions)
        states: Tensor = self.norm(x_BSM)
        return states

    def attends(self, source_BS: Tensor, lengths_B: Tensor) -> list[FullAttention]:
        """The attention of each layer over the valid positions of a batch; layers of one window share a mask."""
        dropout = self.config.dropout if self.training else 0.0
        length, inside = source_BS.shape[1], padding_mask(lengths_B, source_BS.shape[1])
        masks = {0: inside}
        for window in {layer.sliding_window for layer in self.layers} - {0}:
            masks[window] = inside & window_mask(length, source_BS.device, sliding_window=window)
        return [FullAttention(layer, masks[layer.sliding_window], dropout) for layer in self.layers]


class DecoderStack(_Stack):
    """Embedding, causal blocks (with cross-attention where there is an encoder), last norm, output projection."""

    config: DecoderConfig | EncoderDecoderConfig

    def __init__(self, config: DecoderConfig | EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, config.max_target_len)
        self.add_encodings(config.max_target_len, is_causal=True)
        self.blocks = nn.ModuleList(
            Block(config, has_cross_attention=config.has_encoder, is_compressed=config.is_compressed(layer))
            for layer in range(config.num_decoder_layers)
        )
        self.norm = norm_layer(config) if config.has_last_norm else nn.Identity()
        self.unembedding = Unembedding(config)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight

    def forward(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor | None,
        attends: Sequence[Attend | Recur],
        attends_source: Sequence[AttendSource | None],
    ) -> Tensor:
        """Token ids (B, T), the first at position starts_B (None: 0); one attention or recurrence per layer → states
        (B, T, M)."""
        x_BTM = self.embedding(tokens_BT, starts_B)
        encoded = self.encode_positions(tokens_BT, starts_B)
        for block, positions, attend, attend_source in zip(self.blocks, encoded, attends, attends_source, strict=True):
            x_BTM = block(x_BTM, attend, positions, attend_source)
        states: Tensor = self.norm(x_BTM)
        return states

    @property
    def compressions(self) -> list[KeyValueCompression | None]:
        """The key-value compression of each layer, None for those without."""
        return [block.compression for block in self.blocks if isinstance(block, Block)]

    def train_states(
        self, target_BT: Tensor, sources: Sequence[AttendSource | None], *, longest: int | None = None
    ) -> Tensor:
        """States of a whole target with a causal mask, for training: (B, T) → (B, T, M). longest: see
        `FullRecurrence`."""
        if self.config.decoder_mixing == "ssru":
            recurred: Tensor = self(target_BT, None, [FullRecurrence(longest)] * len(self.blocks), sources)
            return recurred
        dropout = self.config.dropout if self.training else 0.0
        masks = self.causal_masks(target_BT.shape[1], target_BT.device)
        attends = [
            FullAttention(layer, mask, dropout)
            if compression is None
            else MemoryCompressedAttention(layer, compression, dropout)
            for layer, mask, compression in zip(self.layers, masks, self.compressions, strict=True)
        ]
        states: Tensor = self(target_BT, None, attends, sources)
        return states

    def causal_masks(self, length: int, device: torch.device | None = None) -> list[Tensor]:
        """The mask (T, T) of each layer; layers of one window share one."""
        windows = [layer.sliding_window for layer in self.layers]
        masks = {window: causal_mask(length, device, sliding_window=window) for window in windows}
        return [masks[window] for window in windows]

    def decode(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor,
        caches: Sequence[LayerCache | LayerState],
        sources: Sequence[AttendSource | None],
    ) -> Tensor:
        """Logits (B, T, V) of the next T tokens of each row; `caches` hold the earlier ones and are extended in
        place. A row of a model with recurrent layers has no padding."""
        attends = [
            CachedRecurrence(*cache)
            if isinstance(cache, LayerState)
            else CachedAttention(layer, *cache, starts_B)
            if compression is None
            else CachedMemoryCompressedAttention(layer, *cache, starts_B, compression)
            for layer, cache, compression in zip(self.layers, caches, self.compressions, strict=True)
        ]
        logits: Tensor = self.unembedding(self(tokens_BT, starts_B, attends, sources))
        return logits

    def project_source(self, states_BSM: Tensor) -> list[LayerCache]:
        """Encoder states (B, S, M) → each layer's cross-attention keys and values (B, K, S, D)."""
        cross = []
        for block in self.blocks:
            assert isinstance(block, Block)
            assert block.cross_attention is not None
            cross.append(LayerCache(*block.cross_attention.project_source(states_BSM)))
        return cross

    def empty_caches(self, batch: int, capacity: int) -> list[LayerCache | LayerState]:
        """Zeros (B, K, C, D), one pair a layer, on the model's device and in its dtype; (B, M) of recurrent layers."""
        config, weight = self.config, self.unembedding.weight
        if config.decoder_mixing == "ssru":
            return [LayerState(weight.new_zeros(batch, config.d_model)) for _ in range(config.num_decoder_layers)]
        shape = (batch, config.attention_kv_heads, capacity, config.attention_head_dim)
        return [LayerCache(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in range(config.num_decoder_layers)]


class Decoder(nn.Module):
    """Decoder-only language model."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = DecoderStack(config)
        initialise(self)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Token ids (B, T) → states (B, T, M); `decoder.unembedding` turns states into logits."""
        return self.decoder.train_states(tokens_BT, [None] * self.config.num_decoder_layers)

    def decode(self, tokens_BT: Tensor, starts_B: Tensor, caches: Sequence[LayerCache | LayerState]) -> Tensor:
        """Logits (B, T, V) of the next T tokens of each row; caches are written in place."""
        return self.decoder.decode(tokens_BT, starts_B, caches, [None] * self.config.num_decoder_layers)


class EncoderDecoder(nn.Module):
    """The Transformer of Vaswani et al. 2017."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = EncoderStack(config)
        self.decoder = DecoderStack(config)
        if config.share_embeddings:
            self.encoder.embedding.tokens.weight = self.decoder.embedding.tokens.weight
        initialise(self)

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, list[LayerCache]]:
        """Right-padded token ids (B, S), lengths (B,) → encoder states (B, S, M) and each decoder layer's cross keys
        and values (B, K, S, D)."""
        states_BSM = self.encoder(source_BS, lengths_B)
        return states_BSM, self.decoder.project_source(states_BSM)

    def source_attention(self, cross: Sequence[tuple[Tensor, Tensor]], lengths_B: Tensor) -> list[SourceAttention]:
        """The attention of each decoder layer to a source of these lengths."""
        dropout = self.config.dropout if self.training else 0.0
        return [SourceAttention(self.config, *layer, lengths_B, dropout) for layer in cross]

    def forward(self, source_BS: Tensor, lengths_B: Tensor, target_BT: Tensor) -> Tensor:
        """States (B, T, M) for a right-shifted target (B, T); `decoder.unembedding` turns states into logits."""
        _, cross = self.encode(source_BS, lengths_B)
        return self.decoder.train_states(target_BT, self.source_attention(cross, lengths_B))

    def decode(
        self,
        tokens_BT: Tensor,
        starts_B: Tensor,
        caches: Sequence[LayerCache | LayerState],
        cross: Sequence[LayerCache],
        lengths_B: Tensor,
    ) -> Tensor:
        """Logits (B, T, V) of the next T target tokens of each row; `caches` are written in place, `cross` is not."""
        return self.decoder.decode(tokens_BT, starts_B, caches, self.source_attention(cross, lengths_B))
