"""`Encoder`: an encoder alone, as in BERT, with its heads: masked tokens, labels of a text or of
each token, one vector for a text.

The stack is that of translation models; this module adds the heads. Devlin et al. 2019 classify a text by the state of
its first token, a special token that Glossa puts before every text; `AttentionPooling` weights the states of all
tokens. There are no segment pairs: the embedding of a checkpoint's first segment is part of its position embeddings.

Shapes: B batch, S positions, M d_model, N masked positions, V vocabulary, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.architecture_config import EncoderConfig
from model.attention import padding_mask
from model.config_parts import DenseActivation, DenseLayer
from model.dropout import Dropout
from model.layers import ACTIVATIONS, initialise, norm_layer
from model.transformer import EncoderStack

DENSE_ACTIVATIONS: Mapping[DenseActivation, Callable[[Tensor], Tensor]] = {
    "identity": lambda vectors_BM: vectors_BM,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}


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
    """A layer with an activation and a norm, then the projection to the vocabulary."""

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
    """Classifies the weighted mean of all states; the weights are the softmax of tanh(x W_s) over the text."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.score = nn.Linear(config.d_model, 1, bias=False)
        self.label = nn.Linear(config.d_model, len(config.labels))

    def forward(self, states_BSM: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """States (B, S, M), lengths (B,) → logits (B, L) and weights (B, S): they sum to 1 within each text, and are 0
        for padding."""
        scores_BS = torch.tanh(self.score(states_BSM).squeeze(-1)).float()
        inside_BS = padding_mask(lengths_B, states_BSM.shape[1])[:, 0, 0]
        scores_BS = scores_BS.masked_fill(~inside_BS, torch.finfo(scores_BS.dtype).min)
        weights_BS = scores_BS.softmax(-1)
        # The state of padding is arbitrary and may not be finite, which a weight of 0 would not remove.
        kept_BSM = states_BSM.masked_fill(~inside_BS[..., None], 0.0)
        mixed_BM = (weights_BS[:, None].to(states_BSM.dtype) @ kept_BSM)[:, 0]
        logits_BL: Tensor = self.label(mixed_BM)
        return logits_BL, weights_BS


class Dense(nn.Module):
    """A layer over the vector of a text, as in sentence-transformers: linear, then an activation."""

    def __init__(self, inputs: int, layer: DenseLayer) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, layer.size, bias=layer.bias)
        self.activation = DENSE_ACTIVATIONS[layer.activation]

    def forward(self, vectors_BM: Tensor) -> Tensor:
        """Vectors (B, inputs) → (B, size)."""
        return self.activation(self.linear(vectors_BM))


class Classification(NamedTuple):
    """The logits of each text's labels. token_weights: of `AttentionPooling`, else None."""

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
        self.tag = nn.Linear(config.d_model, len(config.labels)) if config.head == "tokens" else None
        self.attention = AttentionPooling(config) if config.head == "attention" else None
        sizes = [config.d_model, *(layer.size for layer in config.dense)]
        self.dense = nn.Sequential(*(Dense(*pair) for pair in zip(sizes, config.dense, strict=False)))
        self.dropout = Dropout(config.dropout)
        initialise(self)

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> Tensor:
        """Right-padded token ids (B, S), lengths (B,) → states (B, S, M); states of padding are meaningless."""
        states: Tensor = self.encoder(source_BS, lengths_B)
        return states

    def pool(self, states_BSM: Tensor) -> Tensor:
        """States (B, S, M) → one vector for each text, (B, M): the first token's state, after the pooler if there is
        one."""
        if self.pooler is None:
            return states_BSM[:, 0]
        vectors_BM: Tensor = self.pooler(states_BSM)
        return vectors_BM

    @property
    def reads_pooler(self) -> bool:
        """Whether the head does; no loss of the other heads depends on a pooler."""
        return self.label is not None

    def project(self, vectors_BM: Tensor) -> Tensor:
        """Pooled vectors (B, M) → (B, `vector_size`), through the layers after the pooling. No loss depends on them."""
        projected_BD: Tensor = self.dense(vectors_BM)
        return projected_BD

    def token_logits(self, states_NM: Tensor) -> Tensor:
        """States of masked positions (N, M) → logits over the vocabulary (N, V). Only with head masked."""
        assert self.masked is not None, self.config.head
        logits_NV: Tensor = self.masked(states_NM)
        return logits_NV

    def tag_logits(self, states_BSM: Tensor) -> Tensor:
        """States (..., M) → logits of each token's labels (..., L). Only with head tokens."""
        assert self.tag is not None, self.config.head
        logits_BSL: Tensor = self.tag(self.dropout(states_BSM))
        return logits_BSL

    def classify(self, states_BSM: Tensor, lengths_B: Tensor) -> Classification:
        """States (B, S, M), lengths (B,) → logits of the labels. Only with head classify or attention."""
        if self.attention is not None:
            return Classification(*self.attention(self.dropout(states_BSM), lengths_B))
        assert self.label is not None, self.config.head
        return Classification(self.label(self.dropout(self.pool(states_BSM))), None)
