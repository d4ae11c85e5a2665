"""Memory-compressed attention: keys and values of every few positions become one (Liu et al. 2018, "Generating
Wikipedia by summarizing long sequences", 4.2.3).

A convolution over the last s positions, with zeros before the first, makes c_t of the keys up to t, and another one
does so of the values; each head has weights of its own. The query at t sees the complete windows of s positions before
it, by c_(s-1), c_(2s-1), …, and its own c_t: floor(t / s) + 1 keys, in slots that a decoder fills one after another.
So attention stays causal, every query attends to something, and T positions take T / s entries of the cache.

Shapes: B batch, T query positions, N slots, s stride, H query heads, K key-value heads, D head_dim, C cache capacity.
A suffix such as `_BTE` has the heads side by side in the last axis (E = K * D).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.architecture_config import TransformerConfig
from model.attention import PositionBias, merge_heads, split_heads, write_cache
from model.config import ModelConfig
from model.dropout import drop


class KeyValueCompression(nn.Module):
    """The two convolutions of a layer, initialised to the mean of a window."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        heads, width = config.attention_kv_heads, config.attention_kv_heads * config.attention_head_dim
        self.stride = config.compression_stride
        self.key = nn.Conv1d(width, width, self.stride, groups=heads, bias=config.bias)
        self.value = nn.Conv1d(width, width, self.stride, groups=heads, bias=config.bias)
        with torch.no_grad():
            for convolution in (self.key, self.value):
                identity = torch.eye(config.attention_head_dim).repeat(heads, 1)
                convolution.weight.copy_(identity[..., None].expand(-1, -1, self.stride) / self.stride)
                if convolution.bias is not None:
                    convolution.bias.zero_()

    def compress(self, key_BTE: Tensor, value_BTE: Tensor) -> tuple[Tensor, Tensor]:
        """c_t of the keys and values at every position, (B, T, E) each."""
        return self._slide(self.key, key_BTE), self._slide(self.value, value_BTE)

    def _slide(self, convolution: nn.Conv1d, x_BTE: Tensor) -> Tensor:
        compressed_BET: Tensor = convolution(functional.pad(x_BTE.transpose(1, 2), (self.stride - 1, 0)))
        return compressed_BET.transpose(1, 2)

    def complete_windows(self, compressed_BKTD: Tensor) -> Tensor:
        """The c_t of complete windows, (B, K, N, D), N = floor(T / s)."""
        return compressed_BKTD[:, :, self.stride - 1 :: self.stride]


@dataclass(eq=False)
class MemoryCompressedAttention:
    """`Attend` over whole sequences. There must be no position bias."""

    config: ModelConfig
    compression: KeyValueCompression
    dropout: float = 0.0

    def __call__(
        self, query_BTE: Tensor, key_BTE: Tensor, value_BTE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        assert bias is None
        kv_heads = self.config.attention_kv_heads
        key_BKTD, value_BKTD = (
            split_heads(compressed, kv_heads) for compressed in self.compression.compress(key_BTE, value_BTE)
        )
        positions_1T = torch.arange(query_BTE.shape[1], device=query_BTE.device)[None]
        mixed_BHTD = _attend(
            split_heads(query_BTE, self.config.num_heads) * self.config.softmax_scale,
            (key_BKTD, value_BKTD),
            (self.compression.complete_windows(key_BKTD), self.compression.complete_windows(value_BKTD)),
            positions_1T // self.compression.stride,
            self.dropout,
        )
        return merge_heads(mixed_BHTD)


@dataclass(eq=False)
class CachedMemoryCompressedAttention:
    """The same over a cache of all keys and values as they were before the convolution, (B, K, C, D) each, to which it
    writes: the slow form, which may read any block at any position. Arguments of `CachedAttention`."""

    config: ModelConfig
    cache_key_BKCD: Tensor
    cache_value_BKCD: Tensor
    starts_B: Tensor
    compression: KeyValueCompression

    def __call__(
        self, query_BTE: Tensor, key_BTE: Tensor, value_BTE: Tensor, bias: PositionBias | None = None
    ) -> Tensor:
        assert bias is None
        positions_BT = self.starts_B[:, None] + torch.arange(query_BTE.shape[1], device=query_BTE.device)
        caches = self.cache_key_BKCD, self.cache_value_BKCD
        for cache_BKCD, new_BTE in zip(caches, (key_BTE, value_BTE), strict=True):
            write_cache(cache_BKCD, new_BTE, positions_BT)
        compressed = [
            split_heads(compressed, self.config.attention_kv_heads)
            for compressed in self.compression.compress(*(merge_heads(cache) for cache in caches))
        ]
        rows_B1 = torch.arange(len(positions_BT), device=query_BTE.device)[:, None]
        key_BKTD, value_BKTD = (x_BKCD.transpose(1, 2)[rows_B1, positions_BT].transpose(1, 2) for x_BKCD in compressed)
        key_BKND, value_BKND = (self.compression.complete_windows(x_BKCD) for x_BKCD in compressed)
        mixed_BHTD = _attend(
            split_heads(query_BTE, self.config.num_heads) * self.config.softmax_scale,
            (key_BKTD, value_BKTD),
            (key_BKND, value_BKND),
            positions_BT // self.compression.stride,
        )
        return merge_heads(mixed_BHTD)


def _attend(
    query_BHTD: Tensor,
    own: tuple[Tensor, Tensor],
    slots: tuple[Tensor, Tensor],
    seen_BT: Tensor,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled queries over the first `seen_BT` (B may be 1) of the slots and each one's own key and value.

    own: keys and values (B, K, T, D). slots: the same (B, K, N, D). Softmax in at least float32.
    """
    group = query_BHTD.shape[1] // own[0].shape[1]
    key_BHTD, value_BHTD = (x_BKTD.repeat_interleave(group, dim=1) for x_BKTD in own)
    key_BHND, value_BHND = (x_BKND.repeat_interleave(group, dim=1) for x_BKND in slots)
    scores_BHTN = query_BHTD @ key_BHND.transpose(-2, -1)
    is_seen_B1TN = (torch.arange(scores_BHTN.shape[-1], device=seen_BT.device) < seen_BT[..., None])[:, None]
    scores_BHTN = scores_BHTN.masked_fill(~is_seen_B1TN, torch.finfo(scores_BHTN.dtype).min)
    scores_BHT1 = (query_BHTD * key_BHTD).sum(-1, keepdim=True)
    scores = torch.cat((scores_BHTN, scores_BHT1), dim=-1)
    weights = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1).to(value_BHTD.dtype)
    weights = drop(weights, dropout)
    return weights[..., :-1] @ value_BHND + weights[..., -1:] * value_BHTD
