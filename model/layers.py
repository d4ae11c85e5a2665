"""The pieces a Transformer is stacked from: feed-forward, norms, positions, embeddings and the blocks.

Shapes: B batch, T positions, M d_model, F d_ff, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention import Attend, AttendSource, CrossAttention, Rotation, SelfAttention
from model.config import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


def norm_layer(config: ModelConfig) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last axis."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps)


class FeedForward(nn.Module):
    """Position-wise: W2 act(W1 x), or W2 (act(W1 x) * W3 x) when gated (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
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
    """x + sublayer(norm(x)), or norm(x + sublayer(x)) for the post-norm order of Vaswani et al. 2017."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = norm_layer(config)
        self.is_pre = config.norm_position == "pre"
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTM: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x (B, T, M) → (B, T, M)."""
        out: Tensor
        if self.is_pre:
            out = x_BTM + self.dropout(sublayer(self.norm(x_BTM)))
        else:
            out = self.norm(x_BTM + self.dropout(sublayer(x_BTM)))
        return out


class Block(nn.Module):
    """Self-attention, cross-attention where there is a source, feed-forward; each inside a residual."""

    def __init__(self, config: ModelConfig, *, has_cross_attention: bool) -> None:
        super().__init__()
        shape = (config.d_model, config.num_heads, config.attention_kv_heads, config.attention_head_dim)
        self.self_attention = SelfAttention(*shape, bias=config.bias)
        self.self_residual = Residual(config)
        self.cross_attention: CrossAttention | None = None
        if has_cross_attention:
            self.cross_attention = CrossAttention(*shape, bias=config.bias)
            self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, x_BTM: Tensor, attend: Attend, rotation: Rotation | None, attend_source: AttendSource | None = None
    ) -> Tensor:
        x_BTM = self.self_residual(x_BTM, lambda x: self.self_attention(x, attend, rotation))
        cross_attention = self.cross_attention
        if cross_attention is not None:
            assert attend_source is not None
            x_BTM = self.cross_residual(x_BTM, lambda x: cross_attention(x, attend_source))
        out: Tensor = self.feed_forward_residual(x_BTM, self.feed_forward)
        return out


def sinusoidal_table(length: int, d_model: int) -> Tensor:
    """float32 (length, d_model): sin(pos / 10000^(2i/d)) in dimension 2i, cos in 2i+1 (Vaswani et al. 2017, 3.5)."""
    angles = _angles(length, d_model, base=10000.0)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


def rotary_tables(length: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 (length, head_dim), each angle twice: position * base^(-2i/head_dim) (Su et al. 2021)."""
    angles = _angles(length, head_dim, base)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().float(), angles.sin().float()


def _angles(length: int, dims: int, base: float) -> Tensor:
    """(length, dims / 2): position * base^(-2i/dims), in float64 because float32 loses the phase of late positions."""
    return torch.arange(length)[:, None] * base ** (-torch.arange(0, dims, 2).double() / dims)


class Embedding(nn.Module):
    """Token vectors times sqrt(d_model), plus the position's vector where positions are added."""

    positions: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, max_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        self.scale = math.sqrt(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.is_rotary = config.positions == "rotary"
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.randn(max_len, config.d_model) * 0.02)  # 0.02: GPT-2 init
        elif config.positions == "sinusoidal":
            self.register_buffer("positions", sinusoidal_table(max_len, config.d_model), persistent=False)
        else:
            cos, sin = rotary_tables(max_len, config.attention_head_dim, config.rotary_base)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens_BT: Tensor, starts_B: Tensor | None = None) -> tuple[Tensor, Rotation | None]:
        """Token ids int64 (B, T) whose first stands at position starts_B (0 unless given) → vectors (B, T, M), and the
        rotation of each position for rotary models. A position past the table is an IndexError: callers check lengths
        first."""
        x_BTM = self.tokens(tokens_BT) * self.scale
        positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        if starts_B is not None:
            positions_BT = starts_B[:, None] + positions_BT
        if self.is_rotary:
            return self.dropout(x_BTM), (self.cos[positions_BT], self.sin[positions_BT])
        return self.dropout(x_BTM + self.positions[positions_BT]), None
