"""Position encodings: vectors added to embeddings, rotations of queries and keys, biases on attention scores.

| kind | what | source |
|---|---|---|
| sinusoidal, learned | a vector for each position, added to the token's or beside it | Vaswani et al. 2017, 3.5 |
| rotary | queries and keys turn by an angle that grows with the position | Su et al. 2021 |
| shaw | a learned vector for each distance, matched with the query, in every layer | Shaw et al. 2018 |
| bucketed | a learned number for each head and range of distances, the same in all layers | Raffel et al. 2020, 2.1 |
| alibi | each head's own slope times the distance; nothing is learned | Press et al. 2022 |

Vectors live in `model.layers.Embedding`; the other kinds are here. Shaw et al. also add vectors to the values and find
that it gains nothing beside those of the keys (their table 2); here there are those of the keys.

Shapes: B batch, T query positions, S key positions, H heads, D head_dim, R dimensions that turn.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.architecture_config import TransformerConfig
from model.attention import PositionBias, Rotation


class EncodedPositions(NamedTuple):
    """The position inputs of all layers in one call: rotation angles, or a bias for the attention scores."""

    rotation: Rotation | None = None
    bias: PositionBias | None = None


def positions_of(tokens_BT: Tensor, starts_B: Tensor | None) -> Tensor:
    """int64 (B or 1, T): the positions of the tokens, the first of a row at starts_B or 0."""
    positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
    return positions_BT if starts_B is None else starts_B[:, None] + positions_BT


class PositionEncoding(nn.Module):
    """Makes the `EncodedPositions` of a call: tables for rotary positions, learned weights for bucketed ones."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TransformerConfig, max_len: int, *, is_causal: bool) -> None:
        super().__init__()
        self.kind = config.positions
        self.bias: nn.Module | None = None
        if config.positions == "rotary":
            cos, sin = rotary_tables(max_len, rotary_frequencies(config), config.rotary_amplitude)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        elif config.positions == "bucketed":
            self.bias = BucketedBias(config, is_causal=is_causal)
        elif config.positions == "alibi":
            self.bias = AlibiBias(config)

    def forward(self, tokens_BT: Tensor, starts_B: Tensor | None = None) -> EncodedPositions:
        """For token ids (B, T), the first of a row at position starts_B (0 unless given). A position past the table of
        angles is an IndexError."""
        if self.kind == "rotary":
            positions_BT = positions_of(tokens_BT, starts_B)
            return EncodedPositions(rotation=(self.cos[positions_BT], self.sin[positions_BT]))
        return EncodedPositions(bias=None if self.bias is None else _Once(self.bias))


class _Once:
    """A bias that does not depend on queries, computed for the first layer of a call and shared by all."""

    def __init__(self, bias: nn.Module) -> None:
        self._bias = bias
        self._result: Tensor | None = None

    def __call__(self, query_BHTD: Tensor, query_positions_BT: Tensor, key_positions_S: Tensor) -> Tensor:
        if self._result is None:
            self._result = self._bias(query_positions_BT, key_positions_S)
        assert self._result is not None
        return self._result


class BucketedBias(nn.Module):
    """Raffel et al. 2020: distances below half the buckets have one each, longer ones share logarithmic buckets.

    A decoder has backward distances only; in an encoder each direction has half of the buckets. Buckets are looked up
    in a table rather than computed: where a logarithm is a whole number, another runtime may round it differently.
    """

    buckets_R: Tensor

    def __init__(self, config: TransformerConfig, *, is_causal: bool) -> None:
        super().__init__()
        self.range = config.position_range
        distances_R = torch.arange(-self.range, self.range + 1)
        buckets_R = _buckets(distances_R, config.position_buckets, self.range, is_causal=is_causal)
        self.register_buffer("buckets_R", buckets_R, persistent=False)
        self.weight = nn.Parameter(torch.zeros(config.position_buckets, config.num_heads))

    def forward(self, query_positions_BT: Tensor, key_positions_S: Tensor) -> Tensor:
        """int64 positions → (B, H, T, S)."""
        distances_BTS = key_positions_S - query_positions_BT[..., None]
        return self.weight[self.bucket(distances_BTS)].permute(0, 3, 1, 2)

    def bucket(self, distances: Tensor) -> Tensor:
        """Key position minus query position, int64 → 0..buckets-1, of the same shape."""
        return self.buckets_R[distances.clamp(-self.range, self.range) + self.range]


def _buckets(distances: Tensor, buckets: int, most: int, *, is_causal: bool) -> Tensor:
    """Key position minus query position, int64 → 0..buckets-1, of the same shape. Those from `most` on share one."""
    offset = torch.zeros_like(distances)
    if is_causal:
        distances = (-distances).clamp(min=0)
    else:
        buckets //= 2
        offset = (distances > 0).long() * buckets
        distances = distances.abs()
    exact = buckets // 2
    share = torch.log(distances.clamp(min=1).float() / exact) / math.log(most / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distances < exact, distances, far)


class AlibiBias(nn.Module):
    """Press et al. 2022: minus the distance, times the slope of each head."""

    slopes_H: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.register_buffer("slopes_H", alibi_slopes(config.num_heads), persistent=False)

    def forward(self, query_positions_BT: Tensor, key_positions_S: Tensor) -> Tensor:
        """int64 positions → (B, H, T, S)."""
        distances_BTS = (key_positions_S - query_positions_BT[..., None]).abs()
        return -distances_BTS[:, None] * self.slopes_H[:, None, None]


def alibi_slopes(heads: int) -> Tensor:
    """float32 (heads,): 2^(-8/n), 2^(-16/n), … for n heads, a power of two; otherwise the
    remaining heads take every second slope of the next power of two, as in the authors' code."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return torch.tensor(slopes)


class ShawBias(nn.Module):
    """Shaw et al. 2018, eq. 4: the product of the query and a learned vector for the clipped distance."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.range = config.position_range
        self.vectors = nn.Parameter(torch.randn(2 * self.range + 1, config.attention_head_dim) * 0.02)

    def forward(self, query_BHTD: Tensor, query_positions_BT: Tensor, key_positions_S: Tensor) -> Tensor:
        """Scaled queries, int64 positions → (B, H, T, S)."""
        places_BTS = (key_positions_S - query_positions_BT[..., None]).clamp(-self.range, self.range) + self.range
        scores_BHTR = query_BHTD @ self.vectors.T
        heads = query_BHTD.shape[1]
        return scores_BHTR.gather(-1, places_BTS[:, None].expand(query_BHTD.shape[0], heads, -1, -1))


def sinusoidal_table(config: TransformerConfig, length: int) -> Tensor:
    """float32 (length, position_dim or d_model), in the layout that `config.sinusoids` names.

    interleaved: sin(pos / 10000^(2i/d)) in dimension 2i, cos in 2i+1 (Vaswani et al. 2017, 3.5).
    halves: all sines, then all cosines, as Marian has them.
    fairseq: halves of frequencies 10000^(-i/(d/2-1)), counted from position pad_id + 1, as in fairseq.
    """
    width = config.position_dim or config.d_model
    if config.sinusoids == "fairseq":
        half = width // 2
        # In float32 throughout, because that is what models were trained with: late angles differ in the fourth digit.
        turning = torch.exp(torch.arange(half).float() * -(math.log(10000.0) / (half - 1)))
        angles = (torch.arange(length) + config.pad_id + 1).float()[:, None] * turning
    else:
        angles = torch.arange(length)[:, None] * frequencies(width, base=10000.0)
    if config.sinusoids == "interleaved":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()
    return torch.cat((angles.sin(), angles.cos()), dim=-1).float()


def rotary_tables(length: int, turning: Tensor, amplitude: float = 1.0) -> Rotation:
    """cos and sin, float32 (length, R), of position times frequency, each angle twice (Su et al. 2021).

    turning: (R / 2), see `rotary_frequencies`; angles have its precision. amplitude: a factor of both.
    """
    angles = torch.arange(length)[:, None] * turning
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * amplitude).float(), (angles.sin() * amplitude).float()


def frequencies(dims: int, base: float) -> Tensor:
    """(dims / 2): base^(-2i/dims), in float64 because float32 loses the phase of late positions."""
    return base ** (-torch.arange(0, dims, 2).double() / dims)


def rotary_frequencies(config: TransformerConfig) -> Tensor:
    """(R / 2), scaled for a context longer than the original one.

    linear: all frequencies are divided by the factor (Chen et al. 2023). llama3, yarn: only the low ones, with a
    transition between (Peng et al. 2024). longrope: each by its own factor, of which there is a second set for contexts
    longer than the original one (Ding et al. 2024); that of the whole context holds for every text, as keys in a cache
    have turned already.

    float32, and so are the angles: published models were trained on angles that were rounded in this order, and exact
    ones move their logits by 3e-4 at position 3000.
    """
    dims = config.rotary_dims or config.attention_head_dim
    plain = 1.0 / config.rotary_base ** (torch.arange(0, dims, 2).float() / dims)
    if config.rotary_scaling == "none":
        return plain
    if config.rotary_scaling == "linear":
        return plain / config.rotary_factor
    if config.rotary_scaling == "longrope":
        factors = torch.tensor(config.rotary_factors).tensor_split(2)[config.is_stretched]
        return 1.0 / (factors * config.rotary_base ** (torch.arange(0, dims, 2).float() / dims))
    low, high = config.rotary_low_freq, config.rotary_high_freq
    if config.rotary_scaling == "yarn":
        slowed = _yarn_share(config, dims)
        return plain / config.rotary_factor * slowed + plain * (1 - slowed)
    turns = config.rotary_original_len * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1: as it was, 0: slowed in full
    return plain * (kept + (1 - kept) / config.rotary_factor)


def _yarn_share(config: TransformerConfig, dims: int) -> Tensor:
    """float32 (dims / 2): how far each frequency is slowed, 0 to 1, which grows with its index (Peng et al. 2024, 3.2,
    with the whole indices of the authors' code)."""

    def index(turns: float) -> float:
        return dims * math.log(config.rotary_original_len / (turns * 2 * math.pi)) / (2 * math.log(config.rotary_base))

    first = max(math.floor(index(config.rotary_high_freq)), 0)
    last = min(math.ceil(index(config.rotary_low_freq)), dims - 1)
    width = last - first or 0.001  # a step, as theirs
    return ((torch.arange(dims // 2).float() - first) / width).clamp(0, 1)
