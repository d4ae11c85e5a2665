"""Floating-point operations of a training step, counted from the configuration, and the machine's peak, measured.

Only matrix products count, 2 m n k operations for (m, k) by (k, n): element-wise work is a few per cent of them, and
published figures leave it out (Kaplan et al. 2020, 2.1; Chowdhery et al. 2022, appendix B). The backward pass computes
two products of the same size for each one, so a step takes three times the forward pass. What is computed counts: the
padding of a batch, the masked half of causal scores. Looking up an embedding is no product; the projection to the
vocabulary counts for the predicted positions alone.

Nothing here trains or imports a model.

Shapes: B rows, S source and T target positions with padding, M d_model, E heads * D, D head_dim, V vocabulary, N the
width of a recurrent encoder's states.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from model.architecture_config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    RecurrentConfig,
    TransformerConfig,
)
from model.config import ModelConfig
from model.training.data import Batch

BACKWARD = 2  # products of a backward pass for each of the forward pass
SIZES = 128, 8192  # of the square matrices whose products measure the peak: the smallest and the largest
ENOUGH = 1024  # a smaller size does not end the measurement: on a busy machine each product may wait for its threads
PRODUCT_S = 0.001  # at least; short, so that some are done without an interruption by other work
MEASURED_S = 0.025  # the product of each size is repeated for this long,
REPEATS = 3  # and at least so often,
PATIENCE_S = 2.0  # and so much longer while no product of the smallest size takes less than PRODUCT_S: all have waited


class BatchShape(NamedTuple):
    """What of a batch determines the operations."""

    rows: int
    source: int  # positions of each row, padding included
    target: int
    source_tokens: int  # of all rows, without padding: what recurrent encoders read
    predicted: int  # positions whose logits the loss needs

    @classmethod
    def of(cls, batch: Batch) -> BatchShape:
        rows, source = batch.source_BS.shape
        return cls(rows, source, batch.input_BT.shape[1], int(batch.lengths_B.sum()), batch.tokens)


def training_flops(config: ModelConfig, batch: Batch, *, passes: int = 1) -> int:
    """Floating-point operations of the forward and backward passes of a batch; R-Drop has two passes.

    They count as if all parameters were trained. With frozen ones autograd leaves out products: of their gradients, and
    of those of activations below the lowest trained one.
    """
    return passes * (1 + BACKWARD) * forward_flops(config, BatchShape.of(batch))


def forward_flops(config: ModelConfig, shape: BatchShape) -> int:
    """Floating-point operations of a forward pass up to the logits that the loss needs."""
    if isinstance(config, RecurrentConfig):
        return _recurrent(config, shape) + _projection(config, shape.predicted)
    if isinstance(config, EncoderConfig):
        return _encoder(config, shape) + _head(config, shape)
    if isinstance(config, DecoderConfig):
        return _decoder(config, shape) + _projection(config, shape.predicted)
    assert isinstance(config, EncoderDecoderConfig), config.architecture
    return _encoder(config, shape) + _decoder(config, shape) + _projection(config, shape.predicted)


def product(rows: int, inner: int, columns: int) -> int:
    """Operations of (rows, inner) by (inner, columns): a multiplication and an addition for each term."""
    return 2 * rows * inner * columns


def _projection(config: ModelConfig, predicted: int) -> int:
    """To the vocabulary. A bias is one more dimension of the states: `projected_cross_entropy`."""
    return product(predicted, config.d_model + config.output_bias, config.vocab_size)


def _encoder(config: EncoderConfig | EncoderDecoderConfig, shape: BatchShape) -> int:
    stack, tokens = config.encoder_stack, shape.rows * shape.source
    block = _self_attention(stack, tokens) + _feed_forward(stack, tokens)
    return config.num_encoder_layers * (block + _scores(stack, shape.rows, shape.source, shape.source))


def _decoder(config: DecoderConfig | EncoderDecoderConfig, shape: BatchShape) -> int:
    tokens = shape.rows * shape.target
    block = _self_attention(config, tokens) + _feed_forward(config, tokens)
    if config.has_encoder:
        block += _cross_attention(config, shape)
    flops = config.num_decoder_layers * block
    for layer in range(config.num_decoder_layers):
        keys = shape.target
        if config.is_compressed(layer):
            keys = shape.target // config.compression_stride  # each query's own key is an element-wise product
            width = config.attention_kv_heads * config.attention_head_dim
            flops += 2 * product(tokens, config.compression_stride * config.attention_head_dim, width)
        flops += _scores(config, shape.rows, shape.target, keys)
    return flops


def _self_attention(config: TransformerConfig, tokens: int) -> int:
    """The projections of queries, keys, values and outputs."""
    head_dim = config.attention_head_dim
    width = (config.num_heads + 2 * config.attention_kv_heads) * head_dim
    return product(tokens, config.d_model, width) + product(tokens, config.num_heads * head_dim, config.d_model)


def _cross_attention(config: TransformerConfig, shape: BatchShape) -> int:
    queries, heads_width = shape.rows * shape.target, config.num_heads * config.attention_head_dim
    source_width = 2 * config.attention_kv_heads * config.attention_head_dim
    projections = 2 * product(queries, config.d_model, heads_width)
    projections += product(shape.rows * shape.source, config.d_model, source_width)
    return projections + _mixed(config, shape.rows, shape.target, shape.source)


def _mixed(config: TransformerConfig, rows: int, queries: int, keys: int) -> int:
    """Scores of queries and keys, and the mean of the values by their weights."""
    return 2 * rows * config.num_heads * product(queries, config.attention_head_dim, keys)


def _scores(config: TransformerConfig, rows: int, queries: int, keys: int) -> int:
    """As `_mixed` for self-attention, with the scores of learned distances (Shaw et al. 2018)."""
    flops = _mixed(config, rows, queries, keys)
    if config.positions == "shaw":
        distances = 2 * config.position_range + 1
        flops += product(rows * config.num_heads * queries, config.attention_head_dim, distances)
    return flops


def _feed_forward(config: TransformerConfig, tokens: int) -> int:
    """Of the experts that read a token, and of the router."""
    one = (2 + config.gated) * product(tokens, config.d_model, config.d_ff)
    if not config.num_experts:
        return one
    return config.experts_per_token * one + product(tokens, config.d_model, config.num_experts)


def _head(config: EncoderConfig, shape: BatchShape) -> int:
    width, labels = config.d_model, len(config.labels)
    if config.head == "masked":
        return product(shape.predicted, width, width) + product(shape.predicted, width, config.vocab_size)
    if config.head == "tokens":
        return product(shape.predicted, width, labels)
    if config.head == "attention":  # a score for each token, the mean of the states, the labels
        return 2 * product(shape.rows, shape.source, width) + product(shape.rows, width, labels)
    pooler = product(shape.rows, width, width) if config.pooler != "none" else 0
    return pooler + product(shape.rows, width, labels)


def _recurrent(config: RecurrentConfig, shape: BatchShape) -> int:
    gates, layers = 4 if config.cell == "lstm" else 3, config.num_encoder_layers
    width, source_dim, targets = config.d_model, config.source_dim, shape.rows * shape.target
    directions = 2 if config.bidirectional else 1
    cell = gates * source_dim // directions
    inputs = width + (layers - 1) * source_dim  # of all layers, each beside its own last state
    flops = directions * product(shape.source_tokens, inputs + layers * source_dim // directions, cell)
    initial = config.num_decoder_layers * (2 if config.cell == "lstm" else 1)
    flops += initial * product(shape.rows, source_dim, width)
    flops += (2 * config.num_decoder_layers + config.input_feeding) * product(targets, width, gates * width)
    combined = width if config.score == "none" else width + source_dim
    return flops + _recurrent_attention(config, shape) + product(targets, combined, width)


def _recurrent_attention(config: RecurrentConfig, shape: BatchShape) -> int:
    if config.score == "none":
        return 0
    width, source_dim, targets = config.d_model, config.source_dim, shape.rows * shape.target
    mixed = product(targets, shape.source, source_dim)  # the mean of the encoder's states
    if config.score == "dot":
        return mixed + product(targets, width, shape.source)
    if config.score == "multiplicative":
        return mixed + product(targets, width, source_dim) + product(targets, source_dim, shape.source)
    attention_dim = config.attention_dim or width
    projections = product(targets, width, attention_dim)
    projections += product(shape.rows * shape.source, source_dim, attention_dim)
    return mixed + projections + product(targets * shape.source, attention_dim, 1)


@functools.cache
def peak_flops_per_s(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """The speed of the fastest product of two square matrices, in operations per second.

    Measured once per process. threads: `torch.get_num_threads()`, on which the figure depends.
    """
    assert threads == torch.get_num_threads(), threads
    return fastest_product(
        lambda size: shortest_s(
            _multiplication(size, device, dtype), expected_s=PRODUCT_S if size == SIZES[0] else float("inf")
        )
    )


def fastest_product(seconds_of: Callable[[int], float]) -> float:
    """The best speed over the sizes, which double until a product takes PRODUCT_S and has ENOUGH rows, so that
    processors and accelerators are both busy, in operations per second.

    seconds_of: measures the product of two square matrices of a size, in seconds.
    """
    size, most = SIZES
    fastest = 0.0
    while True:
        product_s = seconds_of(size)
        fastest = max(fastest, product(size, size, size) / product_s)
        if (product_s >= PRODUCT_S and size >= ENOUGH) or size >= most:
            return fastest
        size *= 2


def _multiplication(size: int, device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
    """Multiplies two matrices and waits for the result. Draws no random numbers: a run's generators stay as they are.
    The first call, which prepares the device, is done."""
    factor = torch.full((size, size), 0.5, device=device, dtype=dtype)
    result = torch.empty_like(factor)

    def multiply() -> None:
        torch.mm(factor, factor, out=result)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    multiply()
    return multiply


def shortest_s(run: Callable[[], None], *, expected_s: float) -> float:
    """The shortest time that `run` takes, of REPEATS and of as many as begin in MEASURED_S, or in PATIENCE_S more
    while none is as short as expected."""
    ends_s, times_s = time.perf_counter() + MEASURED_S, list[float]()
    while len(times_s) < REPEATS or time.perf_counter() < ends_s + (min(times_s) >= expected_s) * PATIENCE_S:
        began_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)
