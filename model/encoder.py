"""`Encoder`: an encoder alone, as in BERT, and what reads its states: masked tokens, labels, one vector of a text.

The stack is that of translation models; this module owns what stands behind it. Devlin et al. 2019 take a text's label
from the state of its first token, which Glossa puts before every text; `AttentionPooling` takes it from all tokens, as
much from each as a learnt weight says. Texts are single: whatever a checkpoint adds to mark the first of two segments
is part of its embeddings here.

Shapes: B batch, S positions, M d_model, N masked places, V vocabulary, L labels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.architecture_config import EncoderConfig
from model.attention import padding_mask
from model.layers import ACTIVATIONS, norm_layer
from model.transformer import EncoderStack, initialise


class Pooler(nn.Module):
    """A layer over the state of the first token: BERT's pooler, and the first layer of its relatives' classifiers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activation = torch.tanh if config.pooler == "tanh" else torch.relu

    def forward(self, states_BSM: Tensor) -> Tensor:
        """States (B, S, M) → (B, M)."""
        return self.activation(self.dense(states_BSM[:, 0]))


class MaskedHead(nn.Module):
    """A layer with an activation and a norm, then the product with the embeddings: which token stands here."""

    def __init__(self, config: EncoderConfig, embeddings: nn.Embedding) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = norm_layer(config)
        self.unembedding = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        if config.tie_embeddings:
            self.unembedding.weight = embeddings.weight

    def forward(self, states_NM: Tensor) -> Tensor:
        """States (N, M) → logits (N, V)."""
        logits: Tensor = self.unembedding(self.norm(self.activation(self.dense(states_NM))))
        return logits


class AttentionPooling(nn.Module):
    """Scores tanh(x W_s) of all tokens, softmaxed over the text, weight its states: their sum decides on the labels."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.score = nn.Linear(config.d_model, 1, bias=False)
        self.label = nn.Linear(config.d_model, len(config.labels))

    def forward(self, states_BSM: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """States (B, S, M), lengths (B,) → logits (B, L) and weights (B, S): of each text they sum to 1, and are 0
        behind its end."""
        scores_BS = torch.tanh(self.score(states_BSM).squeeze(-1)).float()
        inside_BS = padding_mask(lengths_B, states_BSM.shape[1])[:, 0, 0]
        scores_BS = scores_BS.masked_fill(~inside_BS, torch.finfo(scores_BS.dtype).min)
        weights_BS = scores_BS.softmax(-1)
        # A state behind the end is arbitrary, and might not be finite: its weight of 0 would not silence that.
        kept_BSM = states_BSM.masked_fill(~inside_BS[..., None], 0.0)
        mixed_BM = (weights_BS[:, None].to(states_BSM.dtype) @ kept_BSM)[:, 0]
        logits_BL: Tensor = self.label(mixed_BM)
        return logits_BL, weights_BS


class Classification(NamedTuple):
    """What is said of each text's labels. token_weights: of `AttentionPooling`, else None."""

    logits_BL: Tensor
    token_weights_BS: Tensor | None


class Encoder(nn.Module):
    """An encoder alone, with the pooler and the head that its configuration names."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = EncoderStack(config)
        self.pooler = Pooler(config) if config.pooler != "none" else None
        self.masked = MaskedHead(config, self.encoder.embedding.tokens) if config.head == "masked" else None
        self.label = nn.Linear(config.d_model, len(config.labels)) if config.head == "classify" else None
        self.attention = AttentionPooling(config) if config.head == "attention" else None
        self.dropout = nn.Dropout(config.dropout)
        initialise(self)

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> Tensor:
        """Right-padded token ids (B, S), lengths (B,) → states (B, S, M); states of padding are meaningless."""
        states: Tensor = self.encoder(source_BS, lengths_B)
        return states

    def pool(self, states_BSM: Tensor) -> Tensor:
        """States (B, S, M) → one vector of each text, (B, M): what the pooler makes of the first token's state, or
        without one that state."""
        if self.pooler is None:
            return states_BSM[:, 0]
        vectors_BM: Tensor = self.pooler(states_BSM)
        return vectors_BM

    def token_logits(self, states_NM: Tensor) -> Tensor:
        """States of masked places (N, M) → logits (N, V). Only with head masked."""
        assert self.masked is not None, self.config.head
        logits_NV: Tensor = self.masked(states_NM)
        return logits_NV

    def classify(self, states_BSM: Tensor, lengths_B: Tensor) -> Classification:
        """States (B, S, M), lengths (B,) → what is said of the labels. Only with head classify or attention."""
        if self.attention is not None:
            return Classification(*self.attention(self.dropout(states_BSM), lengths_B))
        assert self.label is not None, self.config.head
        return Classification(self.label(self.dropout(self.pool(states_BSM))), None)
