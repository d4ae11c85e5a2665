"""Attention: the arithmetic, the masks, the key-value cache, and the two attention layers built from them.

The layers own the projections and nothing else. *How* queries meet keys is handed in as an `Attend`: over the whole
sequence while training (`FullAttention`), over a cache of earlier positions while decoding (`CachedAttention`,
`SourceAttention`), or as one operator of another runtime when a graph is exported. One set of weights therefore serves
all of them, and this module knows nothing of graphs or servers.

Shapes: B batch, T query positions, S key positions, H query heads, K key-value heads (K divides H), D head_dim,
C cache capacity, M d_model. A suffix such as `_BTE` has the heads side by side in the last axis (E = heads * D).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from model.architecture_config import TransformerConfig
from model.config import ModelConfig
from model.dropout import drop

Rotation = tuple[Tensor, Tensor]
"""cos and sin of every position's angles, (B, T, R) each, R <= D the rotated dimensions; B may be 1."""


class PositionBias(Protocol):
    """A term that is added to the attention scores, computed from the positions of query and key."""

    def __call__(self, query_BHTD: Tensor, query_positions_BT: Tensor, key_positions_S: Tensor) -> Tensor:
        """Scaled queries and int64 positions (B may be 1) → (B or 1, H, T, S)."""


class Attend(Protocol):
    """Weights values by the match of queries and keys, and by their positions if there is a `bias`."""

    def __call__(
        self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        """query (B, T, H*D), key and value (B, S, K*D) → (B, T, H*D), all of one floating dtype."""


class AttendSource(Protocol):
    """Attention to the source, whose keys and values the implementation already holds."""

    def __call__(self, query_BTE: Tensor) -> Tensor:
        """query (B, T, H*D) → (B, T, H*D)."""


def split_heads(x_BTE: Tensor, heads: int) -> Tensor:
    """(B, T, heads*D) → (B, heads, T, D), a view."""
    return torch.unflatten(x_BTE, -1, (heads, -1)).transpose(1, 2)


def merge_heads(x_BHTD: Tensor) -> Tensor:
    """(B, heads, T, D) → (B, T, heads*D)."""
    return x_BHTD.transpose(1, 2).flatten(2)


def scaled_dot_product_attention(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T * scale + bias) V over the key positions the mask allows; softmax in at least float32. Without a
    bias, equation 1 of Vaswani et al. 2017. softcap: of the scaled products, see `softcapped`; 0: none.

    mask: bool, broadcastable to (B, H, T, S), True where a query may attend; None: everywhere. A query that
    may attend nowhere gets the mean of all values rather than NaN. scale: 1/sqrt(D) unless given (1.0 is the unscaled
    form). bias: broadcastable to (B, H, T, S).
    K < H is grouped-query attention: query head h reads key head h * K // H.
    Returns the mixed values (B, H, T, D) and the weights (B, H, T, S) before dropout, both in the values' dtype.
    """
    heads, kv_heads = query_BHTD.shape[1], key_BKSD.shape[1]
    if kv_heads != heads:
        key_BKSD = key_BKSD.repeat_interleave(heads // kv_heads, dim=1)
        value_BKSD = value_BKSD.repeat_interleave(heads // kv_heads, dim=1)
    scale = 1.0 / math.sqrt(query_BHTD.shape[-1]) if scale is None else scale
    # The query is scaled, not the product: in float16 the unscaled product overflows where the scaled one does not.
    scores_BHTS = (query_BHTD * scale) @ key_BKSD.transpose(-2, -1)
    scores_BHTS = scores_BHTS.to(torch.promote_types(scores_BHTS.dtype, torch.float32))
    if softcap:
        scores_BHTS = softcapped(scores_BHTS, softcap)
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    if mask is not None:  # the lowest finite number, because a row of nothing but -inf would become NaN
        scores_BHTS = scores_BHTS.masked_fill(~mask, torch.finfo(scores_BHTS.dtype).min)
    weights_BHTS = scores_BHTS.softmax(-1).to(value_BKSD.dtype)
    return drop(weights_BHTS, dropout) @ value_BKSD, weights_BHTS


def softcapped(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), which stays between -cap and cap (Gemma 2; Bello et al. 2017, 4.2)."""
    return torch.tanh(x / cap) * cap


def causal_mask(length: int, device: torch.device | None = None, *, sliding_window: int = 0) -> Tensor:
    """bool (T, T), True where key <= query position, and with a window, key > query position - window."""
    mask_TT = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return mask_TT & ~mask_TT.tril(-sliding_window) if sliding_window else mask_TT


def window_mask(length: int, device: torch.device | None = None, *, sliding_window: int) -> Tensor:
    """bool (T, T), True where query and key position are less than the window apart."""
    positions_T = torch.arange(length, device=device)
    return (positions_T[:, None] - positions_T).abs() < sliding_window


def padding_mask(lengths_B: Tensor, length: int) -> Tensor:
    """bool (B, 1, 1, S), True for the first lengths_B[i] positions of row i."""
    return (torch.arange(length, device=lengths_B.device) < lengths_B[:, None])[:, None, None, :]


@dataclass(eq=False)
class FullAttention:
    """Attention over the keys of the same call that the mask allows: training, and the encoder.

    mask, dropout: see `scaled_dot_product_attention`. weights_BHTS: of the last call.
    """

    config: ModelConfig
    mask: Tensor | None
    dropout: float = 0.0
    weights_BHTS: Tensor = field(init=False)

    def __call__(
        self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        scale, kv_heads = self.config.softmax_scale, self.config.attention_kv_heads
        query_BHTD = split_heads(query_BTE, self.config.num_heads)
        positions_T = torch.arange(query_BTE.shape[1], device=query_BTE.device)
        mixed_BHTD, self.weights_BHTS = scaled_dot_product_attention(
            query_BHTD,
            split_heads(key_BSE, kv_heads),
            split_heads(value_BSE, kv_heads),
            self.mask,
            scale=scale,
            softcap=self.config.attention_softcap,
            bias=None if bias is None else bias(query_BHTD * scale, positions_T[None], positions_T),
            dropout=self.dropout,
        )
        return merge_heads(mixed_BHTD)


@dataclass(eq=False)
class CachedAttention:
    """Appends the new keys and values to each row of the KV cache, then attends causally over the whole cache.

    cache_key_BKCD, cache_value_BKCD: (B, K, C, D), written in place. starts_B: int64, positions already cached.
    The block has to fit, padding included: a position past the capacity is an IndexError. Right padding of a ragged
    block is harmless: it follows the end of its row, where the causal mask hides it until the next block overwrites it.
    """

    config: ModelConfig
    cache_key_BKCD: Tensor
    cache_value_BKCD: Tensor
    starts_B: Tensor

    def __call__(
        self, query_BTE: Tensor, key_BTE: Tensor, value_BTE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        positions_BT = self.starts_B[:, None] + torch.arange(query_BTE.shape[1], device=query_BTE.device)
        write_cache(self.cache_key_BKCD, key_BTE, positions_BT)
        write_cache(self.cache_value_BKCD, value_BTE, positions_BT)
        keys_C = torch.arange(self.cache_key_BKCD.shape[2], device=query_BTE.device)
        mask_B1TC = (keys_C <= positions_BT[..., None])[:, None]
        if window := self.config.sliding_window:
            mask_B1TC = mask_B1TC & (keys_C > positions_BT[..., None] - window)[:, None]
        scale, query_BHTD = self.config.softmax_scale, split_heads(query_BTE, self.config.num_heads)
        mixed_BHTD, _ = scaled_dot_product_attention(
            query_BHTD,
            self.cache_key_BKCD,
            self.cache_value_BKCD,
            mask_B1TC,
            scale=scale,
            softcap=self.config.attention_softcap,
            bias=None if bias is None else bias(query_BHTD * scale, positions_BT, keys_C),
        )
        return merge_heads(mixed_BHTD)


def write_cache(cache_BKCD: Tensor, new_BTE: Tensor, positions_BT: Tensor) -> None:
    """Writes keys or values (B, T, K*D) to these int64 positions of a cache."""
    batch, kv_heads, _, _ = cache_BKCD.shape
    rows_B1 = torch.arange(batch, device=new_BTE.device)[:, None]
    new_BTKD = torch.unflatten(new_BTE, -1, (kv_heads, -1))
    # Under autocast the products come out narrower than the cache that the caller made.
    cache_BKCD.transpose(1, 2)[rows_B1, positions_BT] = new_BTKD.to(cache_BKCD.dtype)


@dataclass(eq=False)
class SourceAttention:
    """Attends to the encoder's keys and values, (B, K, S, D) each, which were projected once for the whole source.

    weights_BHTS: of the last call.
    """

    config: ModelConfig
    key_BKSD: Tensor
    value_BKSD: Tensor
    lengths_B: Tensor
    dropout: float = 0.0
    weights_BHTS: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.mask = padding_mask(self.lengths_B, self.key_BKSD.shape[2])

    def __call__(self, query_BTE: Tensor) -> Tensor:
        query_BHTD, scale = split_heads(query_BTE, self.config.num_heads), self.config.softmax_scale
        mixed_BHTD, self.weights_BHTS = scaled_dot_product_attention(
            query_BHTD, self.key_BKSD, self.value_BKSD, self.mask, scale=scale, dropout=self.dropout
        )
        return merge_heads(mixed_BHTD)


def rotate(x_BTE: Tensor, cos_BTR: Tensor, sin_BTR: Tensor, head_dim: int = 0) -> Tensor:
    """Rotary positions (Su et al. 2021), halves form: dimensions i and i + R/2 of a head are rotated together.

    x (B, T, heads*D); cos and sin (B, T, R) hold each angle twice; the dimensions of a head from R on are unchanged.
    head_dim: D, 0 for R.
    Returns (B, T, heads*D) in x's dtype.
    """
    turning = cos_BTR.shape[-1]
    x_BTHD = torch.unflatten(x_BTE, -1, (-1, head_dim or turning))
    x_BTHR = x_BTHD[..., :turning]
    first, second = x_BTHR.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    x_BTHR = x_BTHR * cos_BTR[:, :, None] + turned * sin_BTR[:, :, None]
    if turning < x_BTHD.shape[-1]:
        x_BTHR = torch.cat((x_BTHR, x_BTHD[..., turning:]), dim=-1)
    return x_BTHR.flatten(2).to(x_BTE.dtype)


class SelfAttention(nn.Module):
    """Multi-head or grouped-query self-attention; query, key and value are one projection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        heads, kv_heads, self.head_dim = config.num_heads, config.attention_kv_heads, config.attention_head_dim
        self.sizes = [heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.head_dim]
        self.query_key_value = nn.Linear(config.d_model, sum(self.sizes), bias=config.bias or config.qkv_bias)
        self.output = nn.Linear(heads * self.head_dim, config.d_model, bias=config.bias)
        self.query_norm: nn.Module | None = None
        self.key_norm: nn.Module | None = None
        self.normalizes_heads, self.turns_first = config.qk_norm_span == "head", config.qk_norm_after_rotary
        if config.qk_norm:
            widths = [self.head_dim] * 2 if self.normalizes_heads else self.sizes[:2]
            self.query_norm, self.key_norm = (nn.RMSNorm(width, eps=config.norm_eps) for width in widths)

    def forward(
        self, x_BTM: Tensor, attend: Attend, rotation: Rotation | None = None, bias: PositionBias | None = None
    ) -> Tensor:
        """x (B, T, M) → (B, T, M). rotation: of each of the T positions, for rotary models."""
        query_BTE, key_BTE, value_BTE = self.query_key_value(x_BTM).split(self.sizes, dim=-1)
        query_BTE = self._placed(query_BTE, self.query_norm, rotation)
        key_BTE = self._placed(key_BTE, self.key_norm, rotation)
        mixed: Tensor = self.output(attend(query_BTE, key_BTE, value_BTE, bias))
        return mixed

    def _placed(self, x_BTE: Tensor, norm: nn.Module | None, rotation: Rotation | None) -> Tensor:
        """Queries or keys, normalised and turned."""
        if norm is not None and not self.turns_first:
            x_BTE = self._normalised(norm, x_BTE)
        if rotation is not None:
            x_BTE = rotate(x_BTE, *rotation, self.head_dim)
        return self._normalised(norm, x_BTE) if norm is not None and self.turns_first else x_BTE

    def _normalised(self, norm: nn.Module, x_BTE: Tensor) -> Tensor:
        """Normalises each head of x separately, or all together."""
        x: Tensor = norm(torch.unflatten(x_BTE, -1, (-1, self.head_dim)) if self.normalizes_heads else x_BTE)
        return x.flatten(2)


class CrossAttention(nn.Module):
    """Queries from the target, keys and values from the source."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_kv_heads, head_dim = config.attention_kv_heads, config.attention_head_dim
        qkv_bias = config.bias or config.qkv_bias
        self.query = nn.Linear(config.d_model, config.num_heads * head_dim, bias=qkv_bias)
        self.key_value = nn.Linear(config.d_model, 2 * self.num_kv_heads * head_dim, bias=qkv_bias)
        self.output = nn.Linear(config.num_heads * head_dim, config.d_model, bias=config.bias)

    def project_source(self, states_BSM: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder states (B, S, M) → key and value (B, K, S, D), computed once a source."""
        key_BSE, value_BSE = self.key_value(states_BSM).chunk(2, dim=-1)
        return split_heads(key_BSE, self.num_kv_heads), split_heads(value_BSE, self.num_kv_heads)

    def forward(self, x_BTM: Tensor, attend: AttendSource) -> Tensor:
        """x (B, T, M) → (B, T, M)."""
        mixed: Tensor = self.output(attend(self.query(x_BTM)))
        return mixed
