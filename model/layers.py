"""The layers of a Transformer: feed-forward, norms, embeddings and blocks.

Shapes: B batch, T positions, M d_model, F d_ff, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.architecture_config import TransformerConfig
from model.attention import (
    Attend,
    AttendSource,
    CrossAttention,
    Recur,
    SelfAttention,
    SimpleRecurrentUnit,
    softcapped,
)
from model.config import ModelConfig
from model.dropout import Dropout
from model.memory_compressed_attention import KeyValueCompression
from model.mixture_of_experts import ExpertFeedForward
from model.positions import EncodedPositions, ShawBias, positions_of, sinusoidal_table

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def norm_layer(config: ModelConfig) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last axis."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps)


class FeedForward(nn.Module):
    """Position-wise: W2 act(W1 x), or W2 (act(W1 x) * W3 x) when gated (Shazeer 2020)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=config.bias) if config.gated else None
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x_BTM: Tensor) -> Tensor:
        inner_BTF = self.activation(self.inner(x_BTM))
        if self.gate is not None:
            inner_BTF = inner_BTF * self.gate(x_BTM)
        out: Tensor = self.outer(inner_BTF)
        return out


class Residual(nn.Module):
    """A sublayer with its norms and the sum, by `norm_position`:

    pre         x + sublayer(norm(x))
    post        norm(x + sublayer(x)), the order of Vaswani et al. 2017
    res_post    x + norm(sublayer(x)), as Liu et al. 2022 (Swin V2) and OLMo 2
    sandwich    x + norm_after(sublayer(norm(x))), Ding et al. 2021 (CogView), 2.3, and Gemma 2
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = norm_layer(config)
        self.norm_after = norm_layer(config) if config.norm_position == "sandwich" else None
        self.order = config.norm_position
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTM: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x (B, T, M) → (B, T, M)."""
        if self.order == "post":
            out: Tensor = self.norm(x_BTM + self.dropout(sublayer(x_BTM)))
            return out
        return x_BTM + self.branch(x_BTM, sublayer)

    def branch(self, x_BTM: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The residual branch of all orders but post."""
        y_BTM: Tensor = self.norm(sublayer(x_BTM)) if self.order == "res_post" else sublayer(self.norm(x_BTM))
        out: Tensor = self.dropout(y_BTM if self.norm_after is None else self.norm_after(y_BTM))
        return out


class Block(nn.Module):
    """Self-attention or a recurrent layer, cross-attention to a source if there is one, and feed-forward, each in a
    residual connection."""

    def __init__(self, config: TransformerConfig, *, has_cross_attention: bool, is_compressed: bool = False) -> None:
        super().__init__()
        self.is_parallel = config.parallel_residual
        self.recurrence: SimpleRecurrentUnit | None = None
        if has_cross_attention and config.decoder_mixing == "ssru":
            self.recurrence = SimpleRecurrentUnit(config)
        else:
            self.self_attention = SelfAttention(config)
        self.self_residual = Residual(config)
        self.shaw = ShawBias(config) if config.positions == "shaw" else None
        self.compression = KeyValueCompression(config) if is_compressed else None
        self.cross_attention: CrossAttention | None = None
        if has_cross_attention:
            self.cross_attention = CrossAttention(config)
            self.cross_residual = Residual(config)
        self.feed_forward: Any  # one, or one of experts
        if config.num_experts:
            self.feed_forward = ExpertFeedForward(config, [FeedForward(config) for _ in range(config.num_experts)])
        else:
            self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x_BTM: Tensor,
        attend: Attend | Recur,
        positions: EncodedPositions,
        attend_source: AttendSource | None = None,
    ) -> Tensor:
        """x (B, T, M) → (B, T, M). positions: what all layers receive of the token positions. attend: a `Recur` for a
        recurrent layer."""

        def mix(x: Tensor) -> Tensor:
            mixed: Tensor
            if self.recurrence is not None:
                mixed = self.recurrence(x, attend)
            else:
                mixed = self.self_attention(x, attend, positions.rotation, self.shaw or positions.bias)
            return mixed

        out: Tensor
        if self.is_parallel:
            attended_BTM = self.self_residual.branch(x_BTM, mix)
            out = x_BTM + attended_BTM + self.feed_forward_residual.branch(x_BTM, self.feed_forward)
            return out
        x_BTM = self.self_residual(x_BTM, mix)
        cross_attention = self.cross_attention
        if cross_attention is not None:
            assert attend_source is not None
            x_BTM = self.cross_residual(x_BTM, lambda x: cross_attention(x, attend_source))
        out = self.feed_forward_residual(x_BTM, self.feed_forward)
        return out


class Unembedding(nn.Linear):
    """States (..., M) → logits (..., V). With a soft cap c (Gemma 2): c tanh(x W / c) + bias, in at least float32."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.d_model, config.vocab_size, bias=config.output_bias)
        self.softcap = config.logits_softcap

    def forward(self, states: Tensor) -> Tensor:
        if not self.softcap:
            return super().forward(states)
        logits = functional.linear(states, self.weight)
        logits = softcapped(logits.to(torch.promote_types(logits.dtype, torch.float32)), self.softcap)
        return logits if self.bias is None else logits + self.bias


class Embedding(nn.Module):
    """Scaled token vectors; sinusoidal and learned position vectors are added or concatenated."""

    positions: Tensor

    def __init__(self, config: ModelConfig, max_len: int, *, vocab_size: int = 0) -> None:
        """vocab_size: 0: that of targets."""
        super().__init__()
        width = config.d_model - config.position_dim
        self.tokens = nn.Embedding(vocab_size or config.vocab_size, width, padding_idx=config.pad_id)
        self.scale = config.embedding_scale or math.sqrt(config.d_model)
        self.is_beside = config.position_dim > 0
        self.has_table = config.positions in ("learned", "sinusoidal")
        if config.positions == "learned":
            self.positions = nn.Parameter(
                torch.randn(max_len, config.position_dim or config.d_model) * 0.02
            )  # as GPT-2
        elif config.positions == "sinusoidal":
            assert isinstance(config, TransformerConfig)
            self.register_buffer("positions", sinusoidal_table(config, max_len), persistent=False)
        self.norm = norm_layer(config) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens_BT: Tensor, starts_B: Tensor | None = None) -> Tensor:
        """Token ids int64 (B, T) whose first stands at position starts_B (0 unless given) → vectors (B, T, M). A
        position past the table raises IndexError: callers check lengths first."""
        x_BTM: Tensor = self.tokens(tokens_BT) * self.scale
        if self.has_table:
            places_BTP = self.positions[positions_of(tokens_BT, starts_B)]
            if self.is_beside:
                x_BTM = torch.cat((x_BTM, places_BTP.expand(x_BTM.shape[0], -1, -1)), dim=-1)
            else:
                x_BTM = x_BTM + places_BTP
        if self.norm is not None:
            x_BTM = self.norm(x_BTM)
        out: Tensor = self.dropout(x_BTM)
        return out


def initialise(model: nn.Module) -> None:
    """Embeddings N(0, 1/d_model), Xavier-uniform projections (Glorot and Bengio 2010), zero biases.

    Scaled by sqrt(d_model) the embeddings have unit size, and so have tied logits, except that of the input token
    itself, which the residual carries to the output: it starts at up to two thirds of sqrt(d_model), and the first
    loss above ln(V) accordingly when V is small (by half for d256, V 1,000). Starts without it learnt more slowly:
    after 350 steps of 2+2 layers of d128 with V 4,000 (one seed) the validation loss was 2.28 like this, 2.39 with
    embeddings of 0.02 and 2.72 with a last norm of gain 0.25.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            if id(module.weight) not in embeddings:  # else it is a tied output, drawn above
                nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
