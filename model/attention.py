"""Attention: the arithmetic, the masks, the key-value cache, and the two attention layers built from them.

The layers own the projections and nothing else. *How* queries meet keys is handed in as an `Attend`: over the whole
sequence while training (`FullAttention`), over a cache of earlier positions while decoding (`CachedAttention`,
`SourceAttention`), or as one operator of another runtime when a graph is exported. One set of weights therefore serves
all of them, and this module knows nothing of graphs or servers.

Equation 1 of Vaswani et al. 2017, softmax(Q K^T / sqrt(d_k)) V, is `scaled_dot_product_attention`.

Shapes: B batch, T query positions, S key positions, H query heads, K key-value heads (K divides H), D head_dim,
C cache capacity, M d_model. A suffix such as `_BTE` has the heads side by side in the last axis (E = heads * D).
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

Rotation = tuple[Tensor, Tensor]
"""cos and sin of every position's angles, (B, T, D) each; B may be 1."""


class Attend(Protocol):
    """Mixes values by how well queries match keys."""

    def __call__(self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor) -> Tensor:
        """query (B, T, H*D), key and value (B, S, K*D) → (B, T, H*D), all of one floating dtype."""
        ...


class AttendSource(Protocol):
    """The same over keys and values of the source, which it already holds."""

    def __call__(self, query_BTE: Tensor) -> Tensor:
        """query (B, T, H*D) → (B, T, H*D)."""
        ...


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
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T * scale) V over the key positions the mask allows; the softmax is computed in at least float32.

    mask: bool, broadcastable to (B, H, T, S), True where a query may look; None: everywhere. A query that may look
    nowhere gets the mean of all values rather than NaN. scale: 1/sqrt(D) unless given (1.0 is the unscaled form).
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
    if mask is not None:  # the lowest finite number, because a row of nothing but -inf would become NaN
        scores_BHTS = scores_BHTS.masked_fill(~mask, torch.finfo(scores_BHTS.dtype).min)
    weights_BHTS = scores_BHTS.softmax(-1).to(value_BKSD.dtype)
    dropped_BHTS = functional.dropout(weights_BHTS, dropout) if dropout else weights_BHTS
    return dropped_BHTS @ value_BKSD, weights_BHTS


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """bool (T, T), True where key position <= query position."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def padding_mask(lengths_B: Tensor, length: int) -> Tensor:
    """bool (B, 1, 1, S), True for the first lengths_B[i] positions of row i."""
    return (torch.arange(length, device=lengths_B.device) < lengths_B[:, None])[:, None, None, :]


class FullAttention:
    """Every query sees the keys of its own call that the mask allows: training, and the encoder."""

    def __init__(self, num_heads: int, num_kv_heads: int, mask: Tensor | None, dropout: float = 0.0) -> None:
        self.num_heads, self.num_kv_heads, self.mask, self.dropout = num_heads, num_kv_heads, mask, dropout

    def __call__(self, query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor) -> Tensor:
        mixed_BHTD, _ = scaled_dot_product_attention(
            split_heads(query_BTE, self.num_heads),
            split_heads(key_BSE, self.num_kv_heads),
            split_heads(value_BSE, self.num_kv_heads),
            self.mask,
            dropout=self.dropout,
        )
        return merge_heads(mixed_BHTD)


class CachedAttention:
    """Writes the new keys and values into the cache behind each row's earlier ones, then attends causally over both.

    cache_key_BKCD, cache_value_BKCD: (B, K, C, D), written in place. starts_B: int64, positions already cached.
    The block has to fit, padding included: a position past the capacity is an IndexError. Right padding of a ragged
    block is harmless: it stands behind its row's end, where causality hides it until the next block writes over it.
    """

    def __init__(self, num_heads: int, cache_key_BKCD: Tensor, cache_value_BKCD: Tensor, starts_B: Tensor) -> None:
        self.num_heads, self.starts_B = num_heads, starts_B
        self.cache_key_BKCD, self.cache_value_BKCD = cache_key_BKCD, cache_value_BKCD

    def __call__(self, query_BTE: Tensor, key_BTE: Tensor, value_BTE: Tensor) -> Tensor:
        batch, kv_heads, capacity, _ = self.cache_key_BKCD.shape
        positions_BT = self.starts_B[:, None] + torch.arange(query_BTE.shape[1], device=query_BTE.device)
        rows_B1 = torch.arange(batch, device=query_BTE.device)[:, None]
        for cache_BKCD, new_BTE in ((self.cache_key_BKCD, key_BTE), (self.cache_value_BKCD, value_BTE)):
            new_BTKD = torch.unflatten(new_BTE, -1, (kv_heads, -1))
            # Under autocast the products come out narrower than the cache that the caller made.
            cache_BKCD.transpose(1, 2)[rows_B1, positions_BT] = new_BTKD.to(cache_BKCD.dtype)
        mask_B1TC = (torch.arange(capacity, device=query_BTE.device) <= positions_BT[..., None])[:, None]
        mixed_BHTD, _ = scaled_dot_product_attention(
            split_heads(query_BTE, self.num_heads), self.cache_key_BKCD, self.cache_value_BKCD, mask_B1TC
        )
        return merge_heads(mixed_BHTD)


class SourceAttention:
    """Attends to the encoder's keys and values, (B, K, S, D) each, which were projected once for the whole source."""

    def __init__(
        self, num_heads: int, key_BKSD: Tensor, value_BKSD: Tensor, lengths_B: Tensor, dropout: float = 0.0
    ) -> None:
        self.num_heads, self.dropout = num_heads, dropout
        self.key_BKSD, self.value_BKSD = key_BKSD, value_BKSD
        self.mask = padding_mask(lengths_B, key_BKSD.shape[2])

    def __call__(self, query_BTE: Tensor) -> Tensor:
        mixed_BHTD, _ = scaled_dot_product_attention(
            split_heads(query_BTE, self.num_heads), self.key_BKSD, self.value_BKSD, self.mask, dropout=self.dropout
        )
        return merge_heads(mixed_BHTD)


def rotate(x_BTE: Tensor, cos_BTD: Tensor, sin_BTD: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021), halves form: dimension i of a head turns together with i + D/2.

    x (B, T, heads*D); cos and sin (B, T, D) hold each angle twice. Returns (B, T, heads*D) in x's dtype.
    """
    head_dim = cos_BTD.shape[-1]
    x_BTHD = torch.unflatten(x_BTE, -1, (-1, head_dim))
    first, second = x_BTHD.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x_BTHD * cos_BTD[:, :, None] + turned * sin_BTD[:, :, None]).flatten(2).to(x_BTE.dtype)


class SelfAttention(nn.Module):
    """Multi-head or grouped-query self-attention; query, key and value are one projection."""

    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int, head_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.sizes = [num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim]
        self.query_key_value = nn.Linear(d_model, sum(self.sizes), bias=bias)
        self.output = nn.Linear(num_heads * head_dim, d_model, bias=bias)

    def forward(self, x_BTM: Tensor, attend: Attend, rotation: Rotation | None = None) -> Tensor:
        """x (B, T, M) → (B, T, M). rotation: of each of the T positions, for rotary models."""
        query_BTE, key_BTE, value_BTE = self.query_key_value(x_BTM).split(self.sizes, dim=-1)
        if rotation is not None:
            query_BTE, key_BTE = rotate(query_BTE, *rotation), rotate(key_BTE, *rotation)
        mixed: Tensor = self.output(attend(query_BTE, key_BTE, value_BTE))
        return mixed


class CrossAttention(nn.Module):
    """Queries from the target, keys and values from the source."""

    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int, head_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads
        self.query = nn.Linear(d_model, num_heads * head_dim, bias=bias)
        self.key_value = nn.Linear(d_model, 2 * num_kv_heads * head_dim, bias=bias)
        self.output = nn.Linear(num_heads * head_dim, d_model, bias=bias)

    def project_source(self, states_BSM: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder states (B, S, M) → key and value (B, K, S, D), computed once a source."""
        key_BSE, value_BSE = self.key_value(states_BSM).chunk(2, dim=-1)
        return split_heads(key_BSE, self.num_kv_heads), split_heads(value_BSE, self.num_kv_heads)

    def forward(self, x_BTM: Tensor, attend: AttendSource) -> Tensor:
        """x (B, T, M) → (B, T, M)."""
        mixed: Tensor = self.output(attend(self.query(x_BTM)))
        return mixed
