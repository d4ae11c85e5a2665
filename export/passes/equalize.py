"""A model that computes the same, and whose activations lose less when they are rounded to integers.

In real models a few channels have large values. A row's step follows its largest value, so these channels take the
precision of all others. Three changes of the weights spread them; none adds an operation to a graph:

    rotation of states    by an orthogonal matrix, for pre-norm decoders with RMSNorm, which commutes with it once its
                          gain is part of the next weights (Ashkboos et al. 2024, QuaRot, 4.1)
    rotation of values    of each head, undone by the output projection: attention mixes positions, not channels
    scales of channels    between the linear branch of a gated feed-forward, or a rectified one, and its second product
                          (Nagel et al. 2019, 4.1; Xiao et al. 2023, SmoothQuant, 4)

Scales are powers of 2^(1/4), kept as exponents, and the matrices are always the same. `equalized` is therefore a
function of a model and its exponents.

Shapes: N outputs, M d_model, F d_ff, D head_dim.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.passes.calibrate import Ids, watch
from model.architecture_config import TransformerConfig
from model.architectures import Model
from model.attention import CrossAttention, SelfAttention
from model.layers import FeedForward
from model.transformer import Decoder, DecoderStack

Exponents = Mapping[str, np.ndarray]
"""Of the scales of a feed-forward's channels, int8 (F,) in quarters, by the feed-forward's name."""
QUARTERS = 4
MAX_TOKENS = 2048  # of the text by which channels are scaled
MAX_EXPONENT = 64
SMALLEST = 1e-8
SEED = 0


def can_equalize(model: Model) -> bool:
    """Report whether `equalized` takes a model: a Transformer whose layers keep one value per position."""
    return isinstance(model.config, TransformerConfig) and not model.config.compression_stride


def find_exponents(model: Model, samples: Sequence[tuple[Ids, Ids]]) -> Exponents:
    """Return the exponents for a float32 model that reads such text; samples as of `calibrate`.

    A channel's scale is the root of its size in the text over its largest weight, as the rounding of both then costs
    alike. A channel that the text never opens keeps the middle one: other text may open it, and it would dwarf all.
    """
    squares, counts = dict[str, Tensor](), dict[str, int]()
    names = {f"input.{name}.outer.weight": name for name, _ in _scalable(model)}

    def see(name: str, values: Tensor) -> None:
        if name in names:
            squares[name] = squares.get(name, 0) + values.flatten(0, -2).square().sum(0)
            counts[name] = counts.get(name, 0) + values[..., 0].numel()

    watch(model, samples, see, max_tokens=MAX_TOKENS)
    found = dict[str, np.ndarray]()
    scalable = dict(_scalable(equalized(model, {})))
    for seen, name in names.items():
        if seen in squares:  # an expert may have received no token
            size_F = (squares[seen] / counts[seen]).sqrt()
            is_open_F, size_F = size_F > SMALLEST, size_F.clamp(min=SMALLEST)
            weight_F = scalable[name].outer.weight.detach().abs().amax(0).clamp(min=SMALLEST)
            exponents_F = (torch.log2(size_F / weight_F) / 2 * QUARTERS).round()
            if is_open_F.any():
                exponents_F -= exponents_F[is_open_F].median()
            exponents_F = exponents_F.clamp(-MAX_EXPONENT, MAX_EXPONENT).where(is_open_F, 0.0)
            found[name] = exponents_F.numpy().astype(np.int8)
    return found


def equalized(model: Model, exponents: Exponents) -> Model:
    """Return an equalized copy of a float32 model; without exponents, one that is rotated."""
    made: Model = copy.deepcopy(model)
    with torch.no_grad():
        if isinstance(made, Decoder) and _can_rotate(made.config):
            _rotate_states(made.decoder)
            made.config = made.decoder.config = made.config.replace(tie_embeddings=False)
        for module in made.modules():
            if isinstance(module, SelfAttention):
                _rotate_values(module.query_key_value, module.output, module.head_dim, module.sizes[-1])
            elif isinstance(module, CrossAttention):
                width = module.key_value.out_features // 2
                _rotate_values(module.key_value, module.output, width // module.num_kv_heads, width)
        for name, feed_forward in _scalable(made):
            if name in exponents:
                _scale_channels(feed_forward, torch.from_numpy(np.exp2(exponents[name].astype(np.float32) / QUARTERS)))
    return made


def _scalable(model: Model) -> Iterator[tuple[str, FeedForward]]:
    """Yield the feed-forwards whose second product reads channels that a scale passes through to."""
    for name, module in model.named_modules():
        if isinstance(module, FeedForward) and (module.gate is not None or module.activation is functional.relu):
            yield name, module


def _scale_channels(feed_forward: FeedForward, scale_F: Tensor) -> None:
    linear = feed_forward.inner if feed_forward.gate is None else feed_forward.gate
    linear.weight.div_(scale_F[:, None])
    if linear.bias is not None:
        linear.bias.div_(scale_F)
    feed_forward.outer.weight.mul_(scale_F)


def _can_rotate(config: TransformerConfig) -> bool:
    is_commuting = config.norm == "rms" and config.norm_position == "pre" and not config.embedding_norm
    return is_commuting and config.positions not in ("learned", "sinusoidal")  # whose vectors are added to the states


def _rotate_states(stack: DecoderStack) -> None:
    """x → x Q for the states x between layers."""
    turn_MM = _orthogonal(stack.config.d_model)
    stack.unembedding.weight = nn.Parameter(stack.unembedding.weight.clone())  # no longer that of the embedding
    _read_rotated(stack.norm, [stack.unembedding], turn_MM)
    stack.embedding.tokens.weight.copy_(_times(stack.embedding.tokens.weight, turn_MM))
    block: Any
    for block in stack.blocks:
        experts = [part for part in block.feed_forward.modules() if isinstance(part, FeedForward)]
        inner = [part for expert in experts for part in (expert.inner, expert.gate) if part is not None]
        router = [block.feed_forward.router] if stack.config.num_experts else []
        _read_rotated(block.self_residual.norm, [block.self_attention.query_key_value], turn_MM)
        _read_rotated(block.feed_forward_residual.norm, [*inner, *router], turn_MM)
        for writer in (block.self_attention.output, *(expert.outer for expert in experts)):
            writer.weight.copy_(_times(writer.weight.T, turn_MM).T)
            if writer.bias is not None:
                writer.bias.copy_(_times(writer.bias, turn_MM))


def _read_rotated(norm: Any, readers: Sequence[nn.Linear], turn_MM: Tensor) -> None:
    """Moves the gain of a norm into the products that read it, and turns them."""
    for reader in readers:
        reader.weight.copy_(_times(reader.weight * norm.weight, turn_MM))
    norm.weight.fill_(1.0)


def _rotate_values(projection: nn.Linear, output: nn.Linear, head_dim: int, width: int) -> None:
    """v → v R for the values of each head, the last `width` outputs of a projection."""
    turn_DD = _orthogonal(head_dim)
    for part in (projection.weight, projection.bias):
        if part is not None:
            values_HDM = part[-width:].reshape(-1, head_dim, part[0].numel())
            values_HDM.copy_(_times(values_HDM.mT, turn_DD).mT)
    weight_NHD = output.weight.view(output.out_features, -1, head_dim)
    weight_NHD.copy_(_times(weight_NHD, turn_DD))


def _times(x: Tensor, turn: Tensor) -> Tensor:
    return (x.double() @ turn).to(x.dtype)


def _orthogonal(size: int) -> Tensor:
    """A random orthogonal matrix, float64 (size, size), the same in every call."""
    gaussian = torch.from_numpy(np.random.default_rng(SEED).standard_normal((size, size)))
    q, r = torch.linalg.qr(gaussian)
    turn: Tensor = q * r.diagonal().sign()
    return turn
